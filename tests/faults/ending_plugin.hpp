// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plug-in that holds a pool: its static object, created by plugin_begin().

#include <optional>

#include "tarn/tarn.hpp"

namespace tarn_test {

/// `Make` creates the memory.
template <class Make>
struct plugin_pool {
  using memory_type = decltype(Make{}());
  static std::optional<memory_type>& pool() {
    static std::optional<memory_type> memory;
    return memory;
  }
  static bool begin() {
    pool().emplace(Make{}());
    return use();
  }
  static bool use() {
    void* const p = pool()->allocate(tarn::stream_ref{}, 1000);
    void* const q = pool()->allocate(tarn::stream_ref{}, 3 << 20);
    pool()->deallocate(tarn::stream_ref{}, p, 1000);
    pool()->deallocate(tarn::stream_ref{}, q, 3 << 20);
    return p != nullptr && q != nullptr;
  }
  static void end() { pool().reset(); }
  /// Leaves the only copy of the handle to the caller.
  static void hand_over(void* to) {
    *static_cast<std::optional<memory_type>*>(to) = pool();
    pool().reset();
  }
};

}  // namespace tarn_test

#define TARN_TEST_PLUGIN(Make)                                             \
  extern "C" {                                                             \
  __attribute__((visibility("default"))) bool plugin_begin() {             \
    return tarn_test::plugin_pool<Make>::begin();                          \
  }                                                                        \
  __attribute__((visibility("default"))) bool plugin_use() {               \
    return tarn_test::plugin_pool<Make>::use();                            \
  }                                                                        \
  __attribute__((visibility("default"))) void plugin_end() {               \
    tarn_test::plugin_pool<Make>::end();                                   \
  }                                                                        \
  __attribute__((visibility("default"))) void plugin_hand_over(void* to) { \
    tarn_test::plugin_pool<Make>::hand_over(to);                           \
  }                                                                        \
  }
