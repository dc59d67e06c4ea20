// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a pool, their handling of fork(), and their state for reports and tools. pool.hpp implements allocate() and
// deallocate() on them.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/waiting_block.hpp"
#include "tarn/pool/front/front.hpp"
#include "tarn/pool/heap.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/pool/pool_statistics.hpp"
#include "tarn/pool/waiting_blocks.hpp"

namespace tarn::detail {

template <memory_source Upstream>
class pool_parts {
 public:
  using driver_type = typename Upstream::driver_type;

  pool_parts(pool_parts const&) = delete;
  pool_parts& operator=(pool_parts const&) = delete;

  /// Returns whether `p` lies in memory that the pool reserved. Takes the growth lock.
  [[nodiscard]] bool owns(void const* p) const noexcept {
    std::lock_guard const cold(heap_.cold);
    return heap_.growth.contains(reinterpret_cast<std::uintptr_t>(p));
  }

  /// The largest block that the heap can hand out without a driver call, bytes.
  [[nodiscard]] std::size_t largest_free_range() const {
    hot_lock const held(heap_.hot);
    return heap_.space(held).largest_free();
  }

  /// Bytes that a request occupies. Pure.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) const noexcept {
    return rounded_bytes(bytes, alignment);
  }

  /// All statistics at one moment; exact while no other thread is in a call. O(free ranges + threads).
  [[nodiscard]] pool_state state() const {
    std::lock_guard const cold(heap_.cold);
    return detail::read_state(heap_, front_, waiting_);
  }

  /// Restarts the peaks from the current values.
  void reset_peaks() noexcept {
    std::lock_guard const cold(heap_.cold);
    detail::reset_peaks(heap_);
  }

  /// Restarts the totals of `small`, `large` and `split` from zero. The other totals continue; `totals_reset` holds their
  /// values at this call.
  void reset_totals() noexcept {
    std::lock_guard const cold(heap_.cold);
    detail::reset_totals(heap_);
  }

  /// Notifies `observer` when a freed block starts or stops waiting for other streams, until end_observation().
  /// @throws std::bad_alloc, nothing has changed
  void observe_waiting(waiting_observer& observer) { waiting_.attach(observer); }
  void end_observation(waiting_observer& observer) noexcept { waiting_.detach(observer); }

  /// Keeps the latest `most` records of handles and segments created and given back from now on; 0 stops recording. `clock`
  /// supplies the time of each record. @throws std::bad_alloc, nothing has changed
  void note_growth(std::size_t most, growth_notes::clock_type clock) {
    std::lock_guard const cold(heap_.cold);
    heap_.counters.notes.open(most, clock);
  }

  /// Starts recording as above unless it is already on. @throws std::bad_alloc
  void note_growth_from_now(std::size_t most, growth_notes::clock_type clock) {
    std::lock_guard const cold(heap_.cold);
    if (!heap_.counters.notes.is_open()) heap_.counters.notes.open(most, clock);
  }

  /// Calls `look(heap, front, waiting blocks)` while nothing grows and no thread cache is created or destroyed. For
  /// pool/inspection/inspection.hpp, which takes the other locks in their order.
  template <class Look>
  void inspect(Look&& look) {
    std::lock_guard const cold(heap_.cold);
    if (!heap_.is_lost()) look(heap_, front_, waiting_);
  }

  [[nodiscard]] Upstream& upstream() noexcept { return heap_.upstream(); }
  [[nodiscard]] driver_type const& driver() const noexcept { return heap_.growth.source().driver(); }

 protected:
  using heap_type = heap<Upstream>;
  using front_type = front<heap_type>;
  using waiting_type = waiting_blocks<heap_type>;

  pool_parts(Upstream upstream, pooled const& options) : heap_(std::move(upstream), options) {}
  ~pool_parts() = default;

  mutable heap_type heap_;
  waiting_type waiting_{heap_};
  front_type front_{heap_};

 private:
  /// Keeps every thread out. The caller has taken the locks that were made before this pool's at_fork.
  [[nodiscard]] bool prepare_fork() noexcept {
    if (heap_.is_lost()) return true;
    if (!heap_.cold.is_mine()) return false;
    front_.keep_threads_out();
    heap_.hot.lock();
    return true;
  }
  void end_fork(fork_side side) noexcept {
    if (heap_.is_lost()) return;
    if (side == fork_side::child_without) {
      heap_.renew_hot_lock();
      front_.announce();
    } else {
      heap_.hot.unlock();
    }
    bool const goes_on =
        side == fork_side::parent || (side == fork_side::child && survives_fork(heap_.driver()));
    heap_.set_lost(!goes_on);
    if (!goes_on) return;
    if (side == fork_side::parent) {
      front_.let_threads_in();
    } else {
      front_.let_threads_in_child();
    }
  }

  at_fork member_{
      this, [](void* self) noexcept { return static_cast<pool_parts*>(self)->prepare_fork(); },
      [](void* self, fork_side side) noexcept { static_cast<pool_parts*>(self)->end_fork(side); }};
};

}  // namespace tarn::detail
