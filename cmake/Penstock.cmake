include(GoogleTest)

# Designated initialisers leave out what has a default on purpose; g++ 12 takes moved-from optionals
# for uninitialised values (clang and the sanitizers watch that).
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-pthread;-Wall;-Wextra;-Wshadow;-Werror;-fno-math-errno;-Wno-missing-field-initializers>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # (-Wrestrict, -Warray-bounds and -Wstringop-overflow: false positives on std::string, GCC bugs
  # 105651 and 105329. AddressSanitizer finds the real ones.)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized;-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow>")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Headers of ours carry thread-safety annotations that only clang checks.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wthread-safety>")
endif()
if(PENSTOCK_SANITIZE)
  add_compile_options(-fsanitize=${PENSTOCK_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PENSTOCK_SANITIZE})
endif()

if(PENSTOCK_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)  # What is fuzzed must be seen by libFuzzer, too.
endif()

# Release builds optimise with -O2, which compiles a quarter quicker than -O3. Rooms whose loops do
# the work have -O3 (HOT). Builds with sanitizers optimise those, and what the tests that take longest
# spend their time in (BUSY): elsewhere compiling takes longer than running the tests.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

# Optimises a target of a build with sanitizers. Such options do not fit the precompiled headers.
function(penstock_optimise_sanitized name)
  target_compile_options(${name} PRIVATE "$<$<CONFIG:RelWithDebInfo>:-O1>")
endfunction()

# Eight sources of a room are compiled as one: templates and headers that they share are compiled once,
# which halves the time of a build from nothing. Switch it off where you edit and build often. The check
# preset compiles each source on its own, so an include that is missing does not go unnoticed.
option(PENSTOCK_UNITY "Compile the sources of a room in groups of eight" OFF)
function(penstock_unite name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${PENSTOCK_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  if(PENSTOCK_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ takes a group's sources for headers, in which anonymous namespaces would be errors.
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# penstock_module(NAME SRCS a.cc DEPS other_module [HOT] [BUSY])
# A static library of one room.
function(penstock_module name)
  cmake_parse_arguments(M "HOT;BUSY" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${M_SRCS})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${M_DEPS})
  if(M_HOT)
    target_compile_options(${name} PRIVATE "$<$<CONFIG:Release>:-O3>")
    penstock_optimise_sanitized(${name})
  elseif(M_BUSY AND CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    penstock_optimise_sanitized(${name})
  else()
    penstock_precompile(${name})
    penstock_unite(${name})
  endif()
endfunction()

# penstock_binary(NAME SRCS main.cc DEPS module)
function(penstock_binary name)
  cmake_parse_arguments(M "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${M_SRCS})
  target_link_libraries(${name} PRIVATE ${M_DEPS})
  penstock_precompile(${name})
  penstock_unite(${name})
endfunction()

# What a test may be labelled; `tests_LABEL` builds all of a label. `threads`: worth a run under
# ThreadSanitizer, so without gRPC, whose library is not instrumented. `cli`: runs whole binaries, and is not built with
# sanitizers, which would double what there is to compile.
foreach(label unit cli contract golden threads e2e fuzz cuda optimised)
  add_custom_target(tests_${label})
endforeach()
function(penstock_label_test name)
  foreach(label ${ARGN})
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()

# penstock_test(NAME SRCS a_test.cc DEPS module LABELS unit TIMEOUT 600 [EACH] [ALONE] [BUSY] [RACES filter])
# One ctest test, which runs the whole program. EACH: one for every TEST in it, in processes of their
# own, for tests that take long or change the process. ALONE: no other test runs beside it, because
# it measures time or kills processes. RACES: which of its cases ThreadSanitizer runs, as a filter of
# GoogleTest, where not all of them have threads.
# PENSTOCK_SOURCE_DIR and PENSTOCK_BIN_DIR are in its environment.
function(penstock_test name)
  cmake_parse_arguments(M "EACH;ALONE;BUSY" "TIMEOUT;RACES" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT M_LABELS)
    set(M_LABELS unit)
  endif()
  if(NOT M_TIMEOUT)
    set(M_TIMEOUT 600)  # a test that hangs; with sanitizers the longest take a third of it
  endif()
  set(processors 1)
  if(M_ALONE)
    set(processors 3)  # scripts/test runs three end-to-end tests at once
  endif()
  add_executable(${name} ${M_SRCS})
  target_link_libraries(${name} PRIVATE ${M_DEPS} GTest::gtest_main GTest::gmock)
  if(M_BUSY AND CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    penstock_optimise_sanitized(${name})
  else()
    penstock_precompile_test(${name})
  endif()
  penstock_label_test(${name} ${M_LABELS})
  # UCX patches madvise when it is loaded, which ThreadSanitizer does not survive.
  set(environment "UCX_MEM_EVENTS=n" "PENSTOCK_SOURCE_DIR=${PROJECT_SOURCE_DIR}" "PENSTOCK_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
      "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp"
      "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp")
  if(NOT M_EACH)
    set(filter "")
    if(M_RACES AND PENSTOCK_SANITIZE MATCHES "thread")
      set(filter "--gtest_filter=${M_RACES}")
    endif()
    add_test(NAME ${name} COMMAND ${name} ${filter})
    set_tests_properties(${name} PROPERTIES LABELS "${M_LABELS}" TIMEOUT ${M_TIMEOUT}
                         PROCESSORS ${processors} ENVIRONMENT "${environment}")
  else()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 TEST_LIST ${name}_tests)
    # gtest_discover_tests loses the ';' of lists, so labels and environment are set by a file of ours.
    set(properties ${CMAKE_CURRENT_BINARY_DIR}/${name}_properties.cmake)
    file(WRITE ${properties} "if(${name}_tests)\n  set_tests_properties(\${${name}_tests} PROPERTIES "
      "LABELS \"${M_LABELS}\" TIMEOUT ${M_TIMEOUT} PROCESSORS ${processors} ENVIRONMENT \"${environment}\")\nendif()\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${properties})
  endif()
endfunction()

# penstock_fuzzer(NAME SRCS x_fuzz.cc DEPS module): libFuzzer where PENSTOCK_FUZZERS is on, nothing elsewhere.
function(penstock_fuzzer name)
  cmake_parse_arguments(M "" "" "SRCS;DEPS" ${ARGN})
  if(NOT PENSTOCK_FUZZERS)
    return()
  endif()
  add_executable(${name} ${M_SRCS})
  target_link_libraries(${name} PRIVATE ${M_DEPS})
  penstock_label_test(${name} fuzz)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  file(GLOB seeds ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name})
  # A short run: new inputs go to the build folder, the seed corpus is only read.
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz/${name})
  add_test(NAME ${name} COMMAND ${name} -max_total_time=8 -max_len=65536 -rss_limit_mb=2048 -timeout=10
           ${CMAKE_BINARY_DIR}/fuzz/${name} ${seeds})
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 120)
endfunction()
