// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operations of simulated streams: kernels, copies and fills, with the bytes that each reads or writes.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "tarn/core/element.hpp"
#include "tarn/driver/sim/sim_memory.hpp"

namespace TARN_NAMESPACE {

/// Whether simulated work reads or writes.
enum class sim_use : std::uint8_t { reads, writes };

/// Bytes that simulated work accesses.
struct sim_access {
  void const* p = nullptr;
  std::size_t bytes = 0;
  sim_use use = sim_use::reads;
};
[[nodiscard]] constexpr sim_access sim_reads(void const* p, std::size_t bytes) noexcept {
  return {p, bytes, sim_use::reads};
}
[[nodiscard]] constexpr sim_access sim_writes(void const* p, std::size_t bytes) noexcept {
  return {p, bytes, sim_use::writes};
}

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE::detail {

/// True while the calling thread runs a simulated kernel, where driver calls are not permitted. Atomic only
/// because ThreadSanitizer treats the kernel as another thread.
inline thread_local std::atomic<bool> sim_inside_work{false};

/// Passes an access to the tool, if there is one.
inline void show_tool(sim_memory const& memory, sim_access const& a) noexcept {
  if (memory.tool() == nullptr) return;
  try {
    memory.tool()->check_access(a.p, a.bytes, a.use == sim_use::reads ? "read" : "write");
  } catch (...) {  // without host memory for its finding the tool reports nothing
  }
}

/// The effect of an operation when it becomes due. Shared by the replays of a graph.
struct sim_work {
  virtual ~sim_work() = default;
  /// Checks that the accessed memory exists, and passes the accesses to the tool.
  virtual sim_code check_access(sim_memory& memory) noexcept {
    for (sim_access const& a : touched) {
      if (!memory.accessible(a.p, a.bytes)) return sim_code::illegal_address;
      show_tool(memory, a);
    }
    return sim_code::ok;
  }
  /// Performs the operation, after check_access() succeeded.
  virtual void act() noexcept = 0;

  std::vector<sim_access> touched;  ///< for the order checker, too
};

/// A kernel: the bytes that it declares to access, and its effect on the host.
template <class F>
struct sim_kernel final : sim_work {
  sim_kernel(std::initializer_list<sim_access> what, F f) : body(std::move(f)) { touched = what; }
  void act() noexcept override { body(); }
  F body;
};

/// An operation on elements, which has no effect unless all of them are real.
struct sim_element_work : sim_work {
  sim_code check_access(sim_memory& memory) noexcept override {
    if (!memory.is_real(to) || !memory.is_real(from)) real.store(false, std::memory_order_relaxed);
    return sim_work::check_access(memory);
  }
  void act() noexcept final {
    if (real.load(std::memory_order_relaxed)) write();
  }
  virtual void write() noexcept = 0;

  void* to = nullptr;
  void const* from = nullptr;
  std::atomic<bool> real{true};  ///< atomic for the same reason as sim_inside_work
};

/// A copy, or a fill if there is no source.
struct sim_transfer_work final : sim_element_work {
  void write() noexcept override {
    if (from != nullptr) {
      std::memmove(to, from, bytes);
    } else {
      std::memset(to, byte, bytes);
    }
  }
  int byte = 0;
  std::size_t bytes = 0;
};

// Element conversion as simulated work: a kernel whose reads and writes the order checker records.

template <class To, class From>
class sim_conversion final : public sim_element_work {
 public:
  sim_conversion(To* target, From const* source, std::size_t count, int device)
      : count_(count), device_(device) {
    to = target;
    from = source;
    touched = {sim_reads(from, count * sizeof(From)), sim_writes(to, count * sizeof(To))};
  }

  sim_code check_access(sim_memory& memory) noexcept override {
    for (sim_access const& a : touched) {
      if (!memory.is_reachable(a.p, device_)) return sim_code::illegal_address;
    }
    return sim_element_work::check_access(memory);
  }
  void write() noexcept override {
    for (std::size_t i = 0; i < count_; ++i)
      static_cast<To*>(to)[i] = element_cast<To>(static_cast<From const*>(from)[i]);
  }

 private:
  std::size_t count_;
  int device_;
};

}  // namespace TARN_NAMESPACE::detail
