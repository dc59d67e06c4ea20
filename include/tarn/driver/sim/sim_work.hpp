// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operations of simulated streams: kernels, copies and fills, with the bytes that each accesses.

#include <atomic>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "tarn/driver/sim/sim_access.hpp"
#include "tarn/driver/sim/sim_memory.hpp"

namespace tarn::detail {

/// The effect of an operation when it becomes due. Shared by the replays of a graph.
struct sim_work {
  virtual ~sim_work() = default;
  /// Checks that the accessed memory exists.
  virtual sim_code check_access(sim_memory& memory) noexcept = 0;
  /// Performs the operation, after check() succeeded.
  virtual void act() noexcept = 0;
  /// The accesses, for the order checker.
  [[nodiscard]] virtual std::vector<sim_access> const& accesses() const noexcept = 0;
};

/// True while the calling thread runs a simulated kernel, where driver calls are not permitted. Atomic only because
/// ThreadSanitizer treats the kernel as another thread.
inline thread_local std::atomic<bool> sim_inside_work{false};

/// Passes an access to the tool, if there is one.
inline void show_tool(sim_memory const& memory, sim_access const& a) noexcept {
  if (memory.tool() == nullptr) return;
  try {
    memory.tool()->check_access(a.p, a.bytes, a.use == sim_use::reads ? "read" : "write");
  } catch (...) {  // without host memory for its finding the tool reports nothing
  }
}

/// A kernel: the bytes that it declares to access, and its effect on the host.
template <class F>
struct sim_kernel final : sim_work {
  sim_kernel(std::initializer_list<sim_access> what, F f) : touched(what), body(std::move(f)) {}
  sim_code check_access(sim_memory& memory) noexcept override {
    for (sim_access const& a : touched) {
      if (!memory.accessible(a.p, a.bytes)) return sim_code::illegal_address;
      show_tool(memory, a);
    }
    return sim_code::ok;
  }
  void act() noexcept override { body(); }
  [[nodiscard]] std::vector<sim_access> const& accesses() const noexcept override { return touched; }
  std::vector<sim_access> touched;
  F body;
};

/// A copy, or a fill if there is no source.
struct sim_transfer_work final : sim_work {
  sim_code check_access(sim_memory& memory) noexcept override {
    for (sim_access const& a : touched) {
      if (!memory.accessible(a.p, a.bytes)) return sim_code::illegal_address;
      show_tool(memory, a);
    }
    if (!memory.is_real(to) || (from != nullptr && !memory.is_real(from)))
      real.store(false, std::memory_order_relaxed);
    return sim_code::ok;
  }
  void act() noexcept override {
    if (!real.load(std::memory_order_relaxed)) return;
    if (from != nullptr) {
      std::memmove(to, from, bytes);
    } else {
      std::memset(to, byte, bytes);
    }
  }
  [[nodiscard]] std::vector<sim_access> const& accesses() const noexcept override { return touched; }
  std::vector<sim_access> touched;
  void* to = nullptr;
  void const* from = nullptr;
  int byte = 0;
  std::size_t bytes = 0;
  std::atomic<bool> real{true};  ///< atomic for the same reason as sim_inside_work
};

}  // namespace tarn::detail
