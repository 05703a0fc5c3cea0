# XGrammar, the engine of structured output (model/grammar): a static library from its source distribution on PyPI, which
# `scripts/setup --grammar` fetches into build/xgrammar. It is only needed to build.
set(PENSTOCK_XGRAMMAR_DIR "" CACHE PATH "The unpacked source distribution of XGrammar 0.2.8, e.g. on a machine without a network")
if(PENSTOCK_XGRAMMAR_DIR)
  set(xgrammar ${PENSTOCK_XGRAMMAR_DIR})
else()
  set(xgrammar ${PROJECT_SOURCE_DIR}/build/xgrammar/xgrammar-0.2.8)
  if(NOT EXISTS ${xgrammar}/.complete)
    execute_process(COMMAND ${PROJECT_SOURCE_DIR}/scripts/setup --grammar COMMAND_ERROR_IS_FATAL ANY)
  endif()
endif()
if(NOT EXISTS ${xgrammar}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "${xgrammar} is not the source of XGrammar 0.2.8; unpack it there, or leave PENSTOCK_XGRAMMAR_DIR empty")
endif()

# Its own CMakeLists.txt asks for -Werror, link-time optimisation and Python.
file(GLOB_RECURSE sources ${xgrammar}/cpp/*.cc)
list(FILTER sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(xgrammar STATIC ${sources})
# SYSTEM: our warnings do not hold for its headers.
target_include_directories(xgrammar SYSTEM PUBLIC ${xgrammar}/include ${xgrammar}/3rdparty/dlpack/include)
target_include_directories(xgrammar SYSTEM PRIVATE ${xgrammar}/3rdparty/picojson)
# Messages go to functions of model/grammar, which drop them: it prints without limit.
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17)
target_compile_options(xgrammar PRIVATE -w "$<$<CONFIG:RelWithDebInfo>:-O1;-g0>")
