// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks that PyTorch holds, by address: its deleter gets nothing but the address.

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/flat_hash_map.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <tarn/tarn.hpp>
#include <thread>
#include <utility>

namespace tarn_torch {

class private_pool;

struct block {
  std::size_t asked = 0;  ///< bytes that PyTorch asked for
  std::size_t bytes = 0;  ///< bytes that tarn was asked for; `asked`, unless the block was parked in between
  tarn::stream_ref stream;  ///< of the allocation, with its identity
  c10::DeviceIndex device = 0;
  bool has_uses = false;                          ///< recordStream() named another stream
  bool is_shared = false;                         ///< another process may import it
  bool is_parked = false;                         ///< free, but kept as it is for a checkpoint of its pool
  std::uint32_t checkpoints = 0;                  ///< checkpoints that list it
  std::shared_ptr<private_pool> pool;             ///< null: the device's own memory
  std::shared_ptr<c10::GatheredContext> context;  ///< where it was allocated, if that is recorded
};

/// A map in 64 parts, each with its own lock. Thread-safe. O(1).
class block_table {
 public:
  /// Adds a block, in place of one that is parked there. @throws std::bad_alloc  `b` is unchanged
  void insert(void* p, block&& b) {
    part& at = part_of(p);
    std::lock_guard const guard(at.mutex);
    at.blocks[p] = std::move(b);
  }
  /// Removes a block. Returns false if there is none at `p`, or if it is parked.
  bool take(void* p, block& taken) {
    return take_if(p, taken, [](block const&) { return true; });
  }
  /// The same, but a block of a private pool stays, and `taken` is a copy: what the pool knows of it changes
  /// with it, under the pool's mutex.
  bool take_if_common(void* p, block& taken) {
    return take_if(p, taken, [](block const& b) { return b.pool == nullptr; });
  }
  /// Calls f(block&) under the lock. Returns false if there is no block at `p`.
  template <class F>
  bool with(void* p, F const& f) {
    part& at = part_of(p);
    std::lock_guard const guard(at.mutex);
    auto const it = at.blocks.find(p);
    if (it == at.blocks.end()) return false;
    f(it->second);
    return true;
  }

 private:
  /// Locked for less than a system call takes, so a thread that waits does not sleep.
  struct short_mutex {
    void lock() noexcept {
      while (busy.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    void unlock() noexcept { busy.clear(std::memory_order_release); }
    std::atomic_flag busy;
  };
  struct alignas(64) part {
    short_mutex mutex;
    ska::flat_hash_map<void*, block> blocks;
  };
  static constexpr unsigned bits = 6;
  template <class Removes>
  bool take_if(void* p, block& taken, Removes const& removes) {
    part& at = part_of(p);
    std::lock_guard const guard(at.mutex);
    auto const it = at.blocks.find(p);
    if (it == at.blocks.end() || it->second.is_parked) return false;
    if (removes(it->second)) {
      taken = std::move(it->second);
      at.blocks.erase(it);
    } else {
      taken = it->second;
    }
    return true;
  }
  part& part_of(void* p) noexcept {
    return parts_[(reinterpret_cast<std::uintptr_t>(p) * 0x9E3779B97F4A7C15U) >> (64 - bits)];
  }
  std::array<part, std::size_t{1} << bits> parts_;
};

}  // namespace tarn_torch
