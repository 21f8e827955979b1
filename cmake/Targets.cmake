# The project's only way to declare libraries, programs, tests and benchmarks, so that
# warnings, sanitizers and include paths are the same everywhere.
#
#   sb_library(NAME SRCS ... HDRS ... DEPS ...)    no SRCS: a header-only library
#   sb_program(NAME SRCS ... DEPS ...)
#   sb_test(NAME SRCS ... DEPS ... [LABELS ...] [TIMEOUT seconds] [ARGS ...])
#   sb_benchmark(NAME SRCS ... DEPS ...)
# Headers are included by their path from the repository's root.

add_library(sb_options INTERFACE)
target_include_directories(sb_options INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(sb_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
    -Wno-unused-parameter -Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-O2>)
target_link_libraries(sb_options INTERFACE Threads::Threads)
# Sanitizers: -O1 and line tables alone compile twice as fast as -O2 -g; reports keep their lines.
if(SPARSEBALANCE_SANITIZE)
  target_compile_options(sb_options INTERFACE -fsanitize=${SPARSEBALANCE_SANITIZE}
                         -fno-omit-frame-pointer -fno-sanitize-recover=all
                         $<$<COMPILE_LANGUAGE:CXX>:-O1> $<$<COMPILE_LANGUAGE:CXX>:-g1>)
  target_link_options(sb_options INTERFACE -fsanitize=${SPARSEBALANCE_SANITIZE})
endif()

# Debian's Abseil is not instrumented: ThreadSanitizer is told about its locks by this file.
set(SB_EXECUTABLE_SRCS)
if(SPARSEBALANCE_SANITIZE MATCHES "thread")
  set(SB_EXECUTABLE_SRCS "${CMAKE_SOURCE_DIR}/tests/support/tsan_absl_mutex.cc")
  target_link_libraries(sb_options INTERFACE absl::synchronization absl::time ${CMAKE_DL_LIBS})
endif()

function(sb_library NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${NAME} STATIC ${ARG_SRCS} ${ARG_HDRS})
    target_link_libraries(${NAME} PUBLIC sb_options ${ARG_DEPS})
  else()
    add_library(${NAME} INTERFACE)
    target_link_libraries(${NAME} INTERFACE sb_options ${ARG_DEPS})
  endif()
endfunction()

function(sb_program NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SRCS} ${SB_EXECUTABLE_SRCS})
  target_link_libraries(${NAME} PRIVATE sb_options ${ARG_DEPS})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
endfunction()

function(sb_test NAME)
  if(NOT SPARSEBALANCE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS;ARGS" ${ARGN})
  add_executable(${NAME} ${ARG_SRCS} ${SB_EXECUTABLE_SRCS})
  target_link_libraries(${NAME} PRIVATE sb_options ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  add_test(NAME ${NAME} COMMAND ${NAME} ${ARG_ARGS})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  # What is there to end tests that hang must not end those that sanitizers slow down.
  if(SPARSEBALANCE_SANITIZE)
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")
  endif()
  # The source tree's parent may hold shared/data; tests that use it skip where it is absent.
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "SPARSEBALANCE_SOURCE_DIR=${CMAKE_SOURCE_DIR};SPARSEBALANCE_BIN_DIR=${CMAKE_BINARY_DIR}/bin")
endfunction()

function(sb_benchmark NAME)
  if(NOT SPARSEBALANCE_BENCHMARKS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SRCS} ${SB_EXECUTABLE_SRCS})
  target_link_libraries(${NAME} PRIVATE sb_options ${ARG_DEPS} benchmark::benchmark_main)
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bench")
endfunction()
