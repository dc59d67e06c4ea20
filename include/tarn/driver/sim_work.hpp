// SPDX-License-Identifier: Apache-2.0
#pragma once
// What simulated streams do: kernels, copies and fills, each with the bytes that it touches.

#include <atomic>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "tarn/driver/sim_memory.hpp"
#include "tarn/driver/sim_order.hpp"

namespace tarn::detail {

/// What an operation does when its time has come. Shared by the replays of a graph.
struct sim_work {
  virtual ~sim_work() = default;
  /// Whether what it touches is there.
  virtual sim_code check(sim_memory& memory) noexcept = 0;
  /// Then does it.
  virtual void act() noexcept = 0;
  /// What it touches, for the order checker.
  [[nodiscard]] virtual std::vector<sim_access> const& accesses() const noexcept = 0;
};

/// True while the calling thread runs a simulated kernel: there the driver may not be called. Atomic only because the
/// kernel is another thread to ThreadSanitizer.
inline thread_local std::atomic<bool> sim_inside_work{false};

/// The tool, where there is one, sees what work touches.
inline void show_tool(sim_memory const& memory, sim_access const& a) noexcept {
  if (memory.tool() == nullptr) return;
  try {
    memory.tool()->check(a.p, a.bytes, a.use == sim_use::reads ? "read" : "write");
  } catch (...) {  // without host memory for its finding a tool stays silent
  }
}

/// A kernel: bytes it says it touches, and what it does on the host's side of the simulation.
template <class F>
struct sim_kernel final : sim_work {
  sim_kernel(std::initializer_list<sim_access> what, F f) : touched(what), body(std::move(f)) {}
  sim_code check(sim_memory& memory) noexcept override {
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

/// A copy, or a fill where there is no source.
struct sim_transfer_work final : sim_work {
  sim_code check(sim_memory& memory) noexcept override {
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
  std::atomic<bool> real{true};  ///< atomic as sim_inside_work is
};

}  // namespace tarn::detail
