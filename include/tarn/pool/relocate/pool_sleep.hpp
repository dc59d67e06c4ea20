// SPDX-License-Identifier: Apache-2.0
#pragma once
// sleep(), wake() and compact() of a pool.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/error.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/misuse_notes.hpp"
#include "tarn/pool/order/reclaim.hpp"
#include "tarn/pool/other_pools.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/tool/quarantine.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE::detail {

template <class Pool>
class pool_sleep {
 public:
  explicit pool_sleep(Pool& pool) noexcept : pool_(pool), heap_(pool.heap_) {}
  pool_sleep& operator=(pool_sleep&&) = delete;

  std::size_t sleep(contents where) {
    heap_.require_no_growth("sleep()");
    if (!heap_.is_lost()) require_pages(heap_.upstream(), sleep_refused);
    misuse_report const last = heap_.misuse_at_end();
    growth_lock const growing = heap_.lock_growth();
    if (heap_.is_lost() || heap_.is_asleep()) return 0;
    require_no_capture("sleep");
    std::size_t given = 0;
    try {
      given = prepare_sleep(growing, where);
    } catch (...) {
      cancel_sleep(growing);
      throw;
    }
    if (where == contents::discarded) discards_.fetch_add(1, std::memory_order_relaxed);
    return given + release(growing);
  }
  [[nodiscard]] std::uint64_t discards() const noexcept { return discards_.load(std::memory_order_relaxed); }
  std::size_t wake(after_waking then) {
    if (heap_.is_asleep()) heap_.require_no_growth("wake()");
    growth_lock const growing = heap_.lock_growth();
    if (heap_.is_lost() || !heap_.is_asleep()) return 0;
    require_no_capture("wake");
    heap_.require_free(prepare_wake(growing));
    std::size_t const taken = restore(growing);
    of_pages(growing, [&](auto& pages) { pages.sleep().keep(growing, then); });
    let_allocate(growing);
    return taken;
  }
  compaction compact() {
    heap_.require_no_growth("compact()");
    misuse_report const last = heap_.misuse_at_end();
    growth_lock const growing = heap_.lock_growth();
    if (heap_.is_lost() || heap_.is_asleep()) return {};
    require_no_capture("compact");
    pool_.drain_.collect(growing, giving::what_is_waited_for);
    compaction result;
    std::size_t const reserved = heap_.counters(growing).reserved;
    try {
      (void)heap_.shrink(growing, 0);
      if (heap_.uses_pages()) {
        own_stream const stream(heap_.driver());  // not made or destroyed under the hot lock
        hot_lock held = heap_.lock_hot();
        result.stretches = of_pages<std::size_t>(growing, [&](auto& pages) {
          return pages.compact(growing, heap_.space(held), may_release(held), stream.get());
        });
      }
    } catch (...) {
      if (of_pages<bool>(growing, [&](auto& pages) { return pages.unmap_incomplete(growing); }))
        refuse_allocations(growing);
      throw;
    }
    hot_lock const held = heap_.lock_hot();
    arena& space = heap_.space(held);
    space.count_splits();
    std::size_t const left = heap_.counters(growing).reserved;
    result.live = space.live_bytes;
    result.reserved = space.reserved_of(common, left);
    result.released = reserved - left;
    return result;
  }

 private:
  /// Calls f with the pages. Blocks cannot be given back and keep their addresses: under a tool, the pool
  /// sleeps and keeps its memory. On a device without pages, the pool refuses to sleep.
  template <class Result = void, class F>
  Result of_pages(growth_lock const& growing, F const& f) {
    return heap_.growth(growing).template visit_pages<Result>(f);
  }

  /// Step 1 of sleep(): all that can fail. Returns the bytes given back; after an exception call
  /// cancel_sleep().
  std::size_t prepare_sleep(growth_lock const& growing, contents where) {
    refuse_allocations(growing);
    end_quarantine(heap_);
    pool_.deferred_.release(growing, true);
    std::size_t const given = heap_.shrink(growing, 0);
    hot_lock held = heap_.lock_hot();
    of_pages(growing,
             [&](auto& pages) { pages.sleep().save(growing, heap_.space(held), may_release(held), where); });
    return given;
  }
  /// Undoes step 1, also if it failed.
  void cancel_sleep(growth_lock const& growing) noexcept {
    of_pages(growing, [&](auto& pages) { pages.sleep().forget(growing); });
    let_allocate(growing);
  }
  /// Step 2 of sleep(): gives everything back.
  std::size_t release(growth_lock const& growing) noexcept {
    return of_pages<std::size_t>(growing, [&](auto& pages) { return pages.sleep().release(growing); });
  }
  /// Step 1 of wake(): gives up what was freed meanwhile; returns the bytes that step 2 takes.
  std::size_t prepare_wake(growth_lock const& growing) {
    hot_lock held = heap_.lock_hot();
    arena& space = heap_.space(held);
    finish_all(growing, space, heap_.order(growing), may_release(held));
    std::size_t const bytes = of_pages<std::size_t>(
        growing, [&](auto& pages) { return pages.prepare_restore(growing, space, may_release(held)); });
    space.count_splits();
    return bytes;
  }
  /// Step 2 of wake(): all that can fail, or nothing; returns the bytes taken.
  std::size_t restore(growth_lock const& growing) {
    hot_lock held = heap_.lock_hot();
    return of_pages<std::size_t>(growing,
                                 [&](auto& pages) { return pages.restore(growing, may_release(held)); });
  }

  void refuse_allocations(growth_lock const& growing) noexcept {
    heap_.set_asleep(growing, true);
    pool_.front_.close();
  }
  void let_allocate(growth_lock const& growing) noexcept {
    heap_.set_asleep(growing, false);
    pool_.front_.open_again();
  }
  /// Synchronising a stream and pinning host memory would invalidate a capture.
  void require_no_capture(char const* call) const {
    if (capture_gate::has_captures())
      throw cuda_error(refused_for_capture(call), heap_.driver().device().value);
  }

  Pool& pool_;
  typename Pool::heap_type& heap_;
  std::atomic<std::uint64_t> discards_{0};
};

}  // namespace TARN_NAMESPACE::detail
