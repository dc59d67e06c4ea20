// SPDX-License-Identifier: Apache-2.0
#pragma once
// The standard library's pools, over an upstream that counts.

#include <algorithm>
#include <atomic>
#include <memory_resource>
#include <new>

#include "peers/peer.hpp"

namespace tarn::bench {

/// operator new, counting the bytes held and the number of calls.
class counted_host_memory final : public std::pmr::memory_resource {
 public:
  explicit counted_host_memory(std::uint64_t capacity) : capacity_(capacity) {}
  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (capacity_ != 0 && held_.load(std::memory_order_relaxed) + bytes > capacity_) throw std::bad_alloc();
    void* const block = ::operator new(bytes, std::align_val_t{alignment});
    calls_.fetch_add(1, std::memory_order_relaxed);
    std::uint64_t const now = held_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < now && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
    return block;
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override {
    calls_.fetch_add(1, std::memory_order_relaxed);
    held_.fetch_sub(bytes, std::memory_order_relaxed);
    ::operator delete(block, std::align_val_t{alignment});
  }
  [[nodiscard]] bool do_is_equal(memory_resource const& other) const noexcept override {
    return this == &other;
  }

  std::uint64_t capacity_;
  std::atomic<std::uint64_t> held_{0}, peak_{0}, calls_{0};
};

/// std::pmr's pool resource, with blocks aligned to 256 bytes, as device memory is.
template <class Resource>
class std_pmr_pool {
 public:
  static constexpr place_of_memory where = place_of_memory::host;

  explicit std_pmr_pool(setup const& s) : memory_(s.capacity) {}

  void* allocate(std::size_t /*stream*/, std::size_t bytes) { return pool_.allocate(bytes, alignment); }
  void deallocate(std::size_t /*stream*/, void* block, std::size_t bytes) noexcept {
    if (block != nullptr) pool_.deallocate(block, bytes, alignment);
  }
  [[nodiscard]] usage used() const noexcept { return {memory_.peak(), memory_.calls(), 0}; }

 private:
  static constexpr std::size_t alignment = 256;
  counted_host_memory memory_;
  Resource pool_{&memory_};
};

struct std_pmr : std_pmr_pool<std::pmr::unsynchronized_pool_resource> {
  static constexpr std::string_view name = "std_pmr";
  static constexpr std::string_view about = "std::pmr::unsynchronized_pool_resource over host memory";
  static constexpr bool thread_safe = false;
  using std_pmr_pool::std_pmr_pool;
};
static_assert(peer<std_pmr>);

struct std_pmr_sync : std_pmr_pool<std::pmr::synchronized_pool_resource> {
  static constexpr std::string_view name = "std_pmr_sync";
  static constexpr std::string_view about = "std::pmr::synchronized_pool_resource over host memory";
  using std_pmr_pool::std_pmr_pool;
};
static_assert(peer<std_pmr_sync>);

}  // namespace tarn::bench
