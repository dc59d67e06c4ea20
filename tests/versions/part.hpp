// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the program calls in a shared library that has a tarn of its own. No header of tarn: the library is
// compiled with one version, and the program has two such libraries.

enum class tarn_error { no_memory, overflow, alignment, captured };
enum class caught_as { nothing, own_type, standard_type };

struct part_calls {
  char const* (*version)();
  bool (*begin)();
  /// Several threads that use all pools, and free what another one allocated.
  bool (*run_threads)();
  /// The calling thread uses all pools.
  bool (*use)();
  /// In a forked child: pools from before the fork refuse, new ones work.
  bool (*works_in_child)();
  bool (*end)();

  void (*raise)(tarn_error which);
  caught_as (*catch_from)(void (*raise)(tarn_error), tarn_error which);
  /// Calls raise(which) in a handler inside of an allocation. Whether the error passed, and the memory still
  /// works.
  bool (*pass_through)(void (*raise)(tarn_error), tarn_error which);

  bool (*begin_capture)();
  bool (*end_capture)();
  bool (*sees_capture)();
  bool (*sees_own_thread)();  ///< that the calling thread has a capture open
  bool (*may_mark_device)();
  /// Uses memory on a stream that is captured without a scope; CUDA refuses to identify it.
  bool (*use_captured_stream)();
};

extern "C" {
part_calls const* first_part();
part_calls const* second_part();
/// Of a library that is compiled with hidden symbols.
bool hidden_sees_capture();
}
