// SPDX-License-Identifier: Apache-2.0
#pragma once
// reservation: an amount of memory that a task takes before it starts, so that it never runs out of memory
// half way.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/policy/byte_budget.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

/// A reservation has no room for an allocation. Nothing has changed.
class reservation_exceeded : public out_of_memory {
 public:
  explicit reservation_exceeded(memory_report const& report) noexcept
      : out_of_memory(report, " Reserve more, or free memory of this reservation first.") {}
};

namespace detail {

/// A handle on a limit over blocks.
template <class Memory>
inline constexpr bool divides_a_limit = false;
template <class Upstream>
inline constexpr bool divides_a_limit<shared_resource<limited_layer<Upstream>>> = resource<Upstream>;

/// A thread that waits for bytes of a budget.
class waiting_thread final : public budget_waiter {
 public:
  using budget_waiter::budget_waiter;
  void wake() noexcept override {
    std::lock_guard const guard(mutex_);
    is_awake_ = true;
    changed_.notify_one();
  }
  /// Waits until the bytes were given or never can be, or the time is over.
  void wait(std::chrono::nanoseconds at_most) {
    std::unique_lock lock(mutex_);
    auto const is_awake = [this] { return is_awake_; };
    // A time that the clock cannot represent is as good as no end.
    if (at_most > std::chrono::hours(24 * 365)) return changed_.wait(lock, is_awake);
    (void)changed_.wait_for(lock, at_most, is_awake);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_awake_ = false;
};

/// Takes bytes of a budget, or waits for them. Returns false if they did not become free in time.
[[nodiscard]] inline bool take_or_wait(byte_budget& budget, std::size_t bytes,
                                       std::chrono::nanoseconds at_most) {
  if (budget.take_in_turn(bytes)) return true;
  if (at_most <= std::chrono::nanoseconds::zero()) return false;
  waiting_thread self(bytes);
  if (!budget.wait_for(self)) return false;
  self.wait(at_most);
  return budget.stop_waiting(self);
}

/// The part of a limit that one reservation has. It allocates below the limit, so nothing is counted twice; a
/// block that is freed after the reservation has ended returns its bytes to the limit.
template <class Memory>
class reserved_layer
    : public resource_adaptor<reserved_layer<Memory>, typename Memory::layer_type::upstream_type> {
  using upstream_type = typename Memory::layer_type::upstream_type;
  using base = resource_adaptor<reserved_layer, upstream_type>;

 public:
  /// The bytes were taken from the limit.
  reserved_layer(Memory const& memory, std::size_t bytes)
      : base(memory->upstream()), memory_(memory), bytes_(bytes), left_(bytes) {}
  ~reserved_layer() { end(); }

  /// @throws reservation_exceeded  more than is left, or the reservation has ended; out_of_memory: the
  /// upstream refused
  void* around_allocate(request const& r, auto const& next) {
    std::size_t const counted = counted_bytes(this->upstream(), r.bytes, r.alignment);
    if (!take(counted)) [[unlikely]]
      refuse(r);
    void* p = nullptr;
    try {
      p = next.allocate(r);
    } catch (...) {
      give(counted);
      throw;
    }
    std::size_t const used = used_.fetch_add(counted, std::memory_order_relaxed) + counted;
    for (std::size_t peak = peak_.load(std::memory_order_relaxed); peak < used;) {
      if (peak_.compare_exchange_weak(peak, used, std::memory_order_relaxed)) break;
    }
    return p;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    std::size_t const counted = counted_bytes(this->upstream(), r.bytes, r.alignment);
    next.deallocate(r, p);
    used_.fetch_sub(counted, std::memory_order_relaxed);
    give(counted);
  }

  [[nodiscard]] std::size_t limit() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }

  /// Gives unused bytes back to the limit, all but `keep`; returns how many.
  std::size_t release_unused(std::size_t keep) noexcept {
    std::size_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left == ended || left <= keep) return 0;
    } while (!left_.compare_exchange_weak(left, keep, std::memory_order_relaxed));
    bytes_.fetch_sub(left - keep, std::memory_order_relaxed);
    memory_->budget().give(left - keep);
    return left - keep;
  }
  /// Gives all unused bytes back, now and whenever a block is freed, and refuses new blocks.
  void end() noexcept {
    std::size_t const left = left_.exchange(ended, std::memory_order_relaxed);
    if (left == ended) return;
    bytes_.fetch_sub(left, std::memory_order_relaxed);
    memory_->budget().give(left);
  }

 private:
  /// reserve() gives out no more than max_request_bytes
  static constexpr std::size_t ended = ~std::size_t{0};

  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    std::size_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left == ended || left < bytes) return false;
    } while (!left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed));
    return true;
  }
  void give(std::size_t bytes) noexcept {
    std::size_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left != ended) continue;
      bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      memory_->budget().give(bytes);
      return;
    } while (!left_.compare_exchange_weak(left, left + bytes, std::memory_order_relaxed));
  }
  [[noreturn]] TARN_NOINLINE void refuse(request const& r) const {
    memory_report report = this->report_of(r);
    report.limit = limit();
    report.limit_used = used();
    report.live = used();
    bool const has_ended = left_.load(std::memory_order_relaxed) == ended;
    report.refused_by = has_ended ? "the reservation, which has ended" : "the reservation";
    throw reservation_exceeded(report);
  }

  Memory memory_;                     ///< with the limit
  std::atomic<std::size_t> bytes_;    ///< taken from the limit
  std::atomic<std::size_t> left_;     ///< of them, not in blocks; or `ended`
  std::atomic<std::size_t> used_{0};  ///< in blocks
  std::atomic<std::size_t> peak_{0};
};

}  // namespace detail

/// An amount of memory that reserve() took from a limit ahead of time: no other user of the limit can have it
/// until it is given back. A task that knows its peak reserves it, and then allocates through resource(),
/// where the limit refuses nothing up to that amount.
///
/// Blocks count as the pool rounds them. A block must be freed through the resource that it was allocated
/// from, as owners do. It may outlive the reservation: its bytes return to the limit when it is freed, all
/// others at once.
///
/// Safe from any thread, except that the reservation is moved and destroyed by one. An allocation costs three
/// more atomic operations on memory that the task's threads share, a deallocation two.
template <class Memory>
class [[nodiscard]] reservation {
  using layer = detail::reserved_layer<Memory>;

 public:
  using resource_type = shared_resource<layer>;

  /// For reserve(): the bytes were taken from the limit.
  reservation(Memory const& memory, std::size_t bytes) : resource_(std::in_place, memory, bytes) {}
  reservation(reservation&&) noexcept = default;
  /// Ends this reservation, and takes over the other.
  reservation& operator=(reservation other) noexcept {
    std::swap(resource_, other.resource_);
    return *this;
  }
  ~reservation() {
    if (resource_) resource_->end();
  }

  // A reservation that was moved from has no bytes and no resource.

  /// The memory to allocate from. Its handle may have layers on top, as in `task.resource() | tracked{}`.
  /// Once the reservation has ended, it refuses to allocate.
  [[nodiscard]] resource_type const& resource() const noexcept { return resource_; }
  /// Returns how much of the limit is reserved, bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return resource_ ? resource_->limit() : 0; }
  /// Returns how much of it is in blocks, bytes.
  [[nodiscard]] std::size_t used() const noexcept { return resource_ ? resource_->used() : 0; }
  /// Returns the largest used() so far, bytes: what such a task needs to reserve.
  [[nodiscard]] std::size_t peak() const noexcept { return resource_ ? resource_->peak() : 0; }
  /// Gives unused bytes back, all but `keep`, when a task is past its peak; returns how many.
  // NOLINTNEXTLINE(modernize-use-nodiscard): may be ignored
  std::size_t release_unused(std::size_t keep = 0) noexcept {
    return resource_ ? resource_->release_unused(keep) : 0;
  }

 private:
  resource_type resource_;
};

/// Reserves bytes of a limit for a task, so that it starts only when its peak fits beside those of the
/// others: `auto memory = pool | limited{bytes};`, and on each task's thread `auto task = reserve(memory,
/// peak, 60s);`.
///
/// Requests that wait are served in the order in which they came, but one that fits is served before one that
/// does not, at most 16 times. Allocations that are not made through a reservation do not queue. The limit
/// should be what the device really has for the pool, `available_memory(pool).bytes`, less a part for free
/// ranges that are too small for a request: 5 per cent where the tasks' blocks are similar, 10 where they are
/// not. With 16 threads and random blocks of up to a twentieth of the device, about one program in 1,000 ran
/// out of memory at 5 per cent and none of 3,000 at 10 (tests/transfer/reservation.cpp, simulated device).
///
/// @param memory  has a limit on live bytes as its uppermost layer
/// @param bytes   the peak of what is live at once, as the pool rounds it: peak() of an earlier run, for
/// example
/// @param wait    how long to wait until they are free; 0: not at all; nanoseconds::max(): without end
/// @throws out_of_memory  the bytes are not free, or did not become free in time, or a request that waits for
///                        them was passed 16 times; or exceed the limit, now or as set_limit() lowers it
///                        meanwhile, which is not waited for; or exceed max_request_bytes
/// @throws std::bad_alloc, std::system_error  the host refused. Nothing has changed
/// Thread-safe. A thread that waits must not hold a reservation that the others wait for. One host
/// allocation; O(requests that wait).
template <class Memory>
[[nodiscard]] auto reserve(Memory const& memory, std::size_t bytes,
                           std::chrono::nanoseconds wait = std::chrono::nanoseconds::zero(),
                           source_location where = source_location::current()) {
  static_assert(detail::divides_a_limit<Memory>,
                "tarn: reserve() divides a limit on live bytes, which must be the uppermost layer: "
                "`auto memory = pool | tarn::limited{bytes};`, then reserve(memory, ...)");
  if constexpr (detail::divides_a_limit<Memory>) {
    return detail::called_from(where, [&] {
      detail::byte_budget& budget = memory->budget();
      if (bytes > max_request_bytes || !detail::take_or_wait(budget, bytes, wait)) {
        memory_report report;
        report.asked = bytes;
        report.device = memory.device().value;
        report.stream = memory_report::no_stream;
        report.limit = budget.limit();
        report.limit_used = budget.used();
        report.refused_by = "limited";
        report.call = wait > std::chrono::nanoseconds::zero() ? "reserve, which waits" : "reserve";
        throw out_of_memory(report);
      }
      try {
        return reservation<Memory>(memory, bytes);
      } catch (...) {
        budget.give(bytes);
        throw;
      }
    });
  }
}

}  // namespace TARN_NAMESPACE
