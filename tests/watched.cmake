# SPDX-License-Identifier: Apache-2.0
# Runs of tests whose figures `./dev evidence` collects, for each way in which a configuration watches them.
add_custom_target(tarn_watched)
# tarn_watched(WHAT TARGET ARGUMENT...): its last line is `evidence: WHAT ...` (watched.py). What takes long has a COST and starts first.
function(tarn_watched what target)
  add_test(NAME watched.${what} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/watched.py ${what}
    ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:${target}> ${ARGN})
  set_tests_properties(watched.${what} PROPERTIES LABELS watched SKIP_RETURN_CODE 77 TIMEOUT 7200)
  add_dependencies(tarn_watched ${target})
endfunction()
# tarn_watched_tests(WHAT TARGET FILTER...): of a program of Catch2's. Its cases run in as many processes as there are processors.
function(tarn_watched_tests what target)
  tarn_watched(${what} ${target} ${ARGN})
  set_tests_properties(watched.${what} PROPERTIES ENVIRONMENT TARN_TEST_JOBS=${processors} PROCESSORS ${processors})
endfunction()
# tarn_watched_without(CAPABILITIES WHAT FILTER): the unit tests on devices that lack something (driver/absent_capabilities.hpp).
# A case that is about a capability has its tag. The policy matrix has such devices of its own.
function(tarn_watched_without capabilities what filter)
  tarn_watched(${what} tarn_tests ${filter})
  set_tests_properties(watched.${what} PROPERTIES ENVIRONMENT TARN_TEST_ABSENT=${capabilities})
endfunction()

if(CMAKE_CXX_FLAGS MATCHES "fsanitize=address")
  tarn_watched_tests(asan_ubsan_tarn_tests tarn_tests)
  set(programs 1..15)
  if(TARN_THOROUGH)
    set(programs 1..40)
  endif()
  tarn_watched(asan_ubsan_tarn_simulation tarn_simulation --seeds ${programs} --jobs ${processors})
  set_tests_properties(watched.asan_ubsan_tarn_simulation PROPERTIES PROCESSORS ${processors})
  if(TARGET tarn_thrust_cpp_tests)
    tarn_watched_tests(asan_ubsan_tarn_thrust_cpp_tests tarn_thrust_cpp_tests)
  endif()
  # A part on devices without pages; with TARN_LONG_RUNS the preset `host` runs all there.
  tarn_watched_without(pages asan_ubsan_without_pages "[raii]~[pages]~[evict_scope]")
elseif(CMAKE_CXX_FLAGS MATCHES "fsanitize=thread")
  tarn_watched_tests(tsan tarn_thread_tests "[threads]")
  tarn_watched(tsan_free_threads tarn_free_threads 1 6 16 2000)
  if(TARN_LONG_RUNS)
    tarn_watched(tsan_more_free_threads tarn_free_threads 1000001 1 8 2000 300)
  endif()
elseif(CMAKE_CXX_FLAGS MATCHES "--coverage")
  # What only an error leads to, the programs of faults and endings reach.
  tarn_watched(coverage_tests tarn_tests)
  tarn_watched(coverage_driver_faults tarn_driver_faults)
  tarn_watched(coverage_host_faults tarn_host_faults)
  set_tests_properties(watched.coverage_tests PROPERTIES COST 100)
  add_test(NAME watched.coverage_endings COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/faults/endings.py
    $<TARGET_FILE:tarn_endings_sim> $<TARGET_FILE:tarn_ending_plugin_sim>)
  set_tests_properties(watched.coverage_endings PROPERTIES LABELS watched)
  add_dependencies(tarn_watched tarn_endings_sim tarn_ending_plugin_sim)
elseif(CMAKE_CXX_FLAGS MATCHES "_GLIBCXX_DEBUG")
  tarn_watched(glibcxx_debug tarn_tests)
else()
  if(TARN_BUILD_UNIT_TESTS)
    if(CMAKE_CROSSCOMPILING)  # by qemu, which answers for the kernel: tests/README.md
      tarn_watched_tests(${CMAKE_SYSTEM_PROCESSOR}_tests tarn_tests "~[no_emulator]")
    else()
      tarn_watched(host_tests tarn_tests)
    endif()
    if(TARN_LONG_RUNS)
      tarn_watched_without(pages tests_without_pages "~[matrix]~[pages]")
      tarn_watched_without(memory_pools tests_without_memory_pools "~[matrix]~[memory_pools]")
      tarn_watched_without(pages,memory_pools tests_without_pages_memory_pools "~[matrix]~[pages]~[memory_pools]")
    endif()
  endif()
  if(TARN_LONG_RUNS)
    function(tarn_more_programs what)
      add_test(NAME simulation.${what} COMMAND tarn_simulation --jobs ${processors} ${ARGN})
      set_tests_properties(simulation.${what} PROPERTIES PROCESSORS ${processors} TIMEOUT 7200)
    endfunction()
    tarn_more_programs(more --seeds 701..3700)
    tarn_more_programs(more_without_pages --without-pages --seeds 1..1500)
    tarn_more_programs(without_memory_pools --without-memory-pools --seeds 1..300)
    tarn_more_programs(preempted --several --seconds 600 --seeds 1000000)
    tarn_watched(more_free_threads tarn_free_threads 1 1 8 2000 300)
    # Without this, calls of slow scenes fail in a few ways only.
    if(TARGET tarn_driver_faults)
      tarn_watched(all_driver_faults tarn_driver_faults --all-ways)
    endif()
  endif()
endif()
# Valgrind cannot reserve as much address space as a simulated device with real memory behind it has: tests of that kind are left out,
# by what is named here. What the simulated device maps itself, AddressSanitizer watches.
# Not part of an ordinary run: `ctest --preset valgrind`.
add_test(NAME valgrind CONFIGURATIONS Valgrind COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/watched.py valgrind valgrind -q --error-exitcode=9
  --suppressions=${CMAKE_CURRENT_SOURCE_DIR}/valgrind.supp --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite $<TARGET_FILE:tarn_tests>
  "[core]~[threads]~[pages],[trace_format]~[traced],[pool][streams]~[random],[run],[range_index],[stream_order],[address_index]")
set_tests_properties(valgrind PROPERTIES LABELS valgrind SKIP_RETURN_CODE 77 TIMEOUT 7200)
