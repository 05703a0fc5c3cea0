# Precompiled headers: other people's headers are two thirds of what the compiler reads. They are of
# the standard library and of third parties, never our own, so that editing a header of ours
# compiles only the files that include it.
option(PENSTOCK_PCH "Precompile third-party headers" ON)

# CMake hands this file to clang behind -Xclang, where ccache does not know it for a path.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(CMAKE_CXX_COMPILE_OPTIONS_USE_PCH -include-pch <PCH_FILE>)
endif()

set(common_headers <absl/container/flat_hash_map.h> <absl/container/flat_hash_set.h>
    <absl/status/statusor.h> <absl/synchronization/mutex.h> <fmt/format.h> <algorithm> <array>
    <atomic> <chrono> <deque> <functional> <map> <memory> <optional> <set> <span> <string> <thread>
    <unordered_map> <variant> <vector>)
set(rpc_headers <google/protobuf/map.h> <google/protobuf/message.h>
    <google/protobuf/repeated_field.h> <grpcpp/grpcpp.h>)
set(cli_headers <CLI/CLI.hpp> <nlohmann/json.hpp>)
set(test_headers <gmock/gmock.h> <gtest/gtest.h>)

# penstock_precompile(TARGET): the target's sources are compiled with the set of headers that fits
# what it links.
function(penstock_precompile name)
  set_property(GLOBAL APPEND PROPERTY penstock_precompiled ${name})
endfunction()
# The same for a test, which is compiled more often than it is run.
function(penstock_precompile_test name)
  set_property(GLOBAL APPEND PROPERTY penstock_precompiled_tests ${name})
  target_compile_options(${name} PRIVATE "$<$<CONFIG:Release>:-O1>")
endfunction()

# A target for a set of headers. It has the definitions and the options of the targets that use it,
# without which the compiler refuses what was precompiled.
function(penstock_header_set name headers)
  if(NOT EXISTS ${CMAKE_BINARY_DIR}/headers.cc)
    file(WRITE ${CMAKE_BINARY_DIR}/headers.cc "")
  endif()
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/headers.cc)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    set_target_properties(${name} PROPERTIES CXX_COMPILER_LAUNCHER
      "${PROJECT_SOURCE_DIR}/cmake/precompile;${PROJECT_SOURCE_DIR};${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
  target_precompile_headers(${name} PRIVATE ${headers})
  target_link_libraries(${name} PRIVATE absl::status absl::statusor absl::flat_hash_map
    absl::flat_hash_set fmt::fmt spdlog::spdlog Threads::Threads ${ARGN})
endfunction()

# Whether a target links a library whose name matches `pattern`, through whatever other target.
function(penstock_links name pattern result)
  get_property(known GLOBAL PROPERTY "penstock_links_${pattern}_${name}")
  if(NOT known MATCHES "TRUE|FALSE")
    set(known FALSE)
    if(name MATCHES "${pattern}")
      set(known TRUE)
    elseif(TARGET ${name})
      get_target_property(imported ${name} IMPORTED)
      get_target_property(deps ${name} LINK_LIBRARIES)
      if(deps AND NOT imported)
        foreach(dep ${deps})
          if(NOT known)
            penstock_links(${dep} "${pattern}" known)
          endif()
        endforeach()
      endif()
    endif()
    set_property(GLOBAL PROPERTY "penstock_links_${pattern}_${name}" ${known})
  endif()
  set(${result} ${known} PARENT_SCOPE)
endfunction()

# Called when all targets are known.
function(penstock_precompile_all)
  if(NOT PENSTOCK_PCH)
    return()
  endif()
  set(rpc gRPC::grpc++ protobuf::libprotobuf)
  penstock_header_set(penstock_headers "${common_headers}")
  penstock_header_set(penstock_rpc_headers "${common_headers};${rpc_headers}" ${rpc})
  penstock_header_set(penstock_cli_headers "${common_headers};${rpc_headers};${cli_headers}" ${rpc} CLI11::CLI11)
  penstock_header_set(penstock_test_headers "${common_headers};${test_headers}" GTest::gmock)
  penstock_header_set(penstock_rpc_test_headers "${common_headers};${rpc_headers};${test_headers}" ${rpc} GTest::gmock)
  foreach(set penstock_cli_headers penstock_test_headers penstock_rpc_test_headers)
    target_compile_options(${set} PRIVATE "$<$<CONFIG:Release>:-O1>")
  endforeach()

  get_property(targets GLOBAL PROPERTY penstock_precompiled)
  foreach(target ${targets})
    penstock_links(${target} "^CLI11::" cli)
    penstock_links(${target} "^(gRPC|protobuf)::" rpc)
    if(cli)
      # What people type commands into waits for them, not they for it.
      target_compile_options(${target} PRIVATE "$<$<CONFIG:Release>:-O1>")
      target_precompile_headers(${target} REUSE_FROM penstock_cli_headers)
    elseif(rpc)
      target_precompile_headers(${target} REUSE_FROM penstock_rpc_headers)
    else()
      target_precompile_headers(${target} REUSE_FROM penstock_headers)
    endif()
  endforeach()
  get_property(tests GLOBAL PROPERTY penstock_precompiled_tests)
  foreach(test ${tests})
    penstock_links(${test} "^(gRPC|protobuf)::" rpc)
    if(rpc)
      target_precompile_headers(${test} REUSE_FROM penstock_rpc_test_headers)
    else()
      target_precompile_headers(${test} REUSE_FROM penstock_test_headers)
    endif()
  endforeach()
endfunction()
