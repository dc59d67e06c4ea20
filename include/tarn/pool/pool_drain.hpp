// SPDX-License-Identifier: Apache-2.0
#pragma once
// How memory that a pool caches returns to the heap and to the driver: for trim(), for another pool on the
// device, before a capture, and when the pool ends.

#include <cstddef>

#include "tarn/driver/capture_gate.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/misuse_notes.hpp"
#include "tarn/pool/order/reclaim.hpp"
#include "tarn/pool/other_pools.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/tool/quarantine.hpp"

namespace TARN_NAMESPACE::detail {

template <class Pool>
class pool_drain {
 public:
  explicit pool_drain(Pool& pool) noexcept : pool_(pool), heap_(pool.heap_) {}
  pool_drain& operator=(pool_drain&&) = delete;

  /// Returns to the heap the blocks in thread caches, and the deferred blocks whose uses are complete. If it
  /// may wait, those of which the host waits for the uses, and those in quarantine, too.
  void collect(growth_lock const& growing, giving how) noexcept {
    bool const waits = how == giving::what_is_waited_for;
    pool_.front_.flush_all();
    if (waits) end_quarantine(heap_);
    pool_.deferred_.release(growing, waits);
  }

  /// Gives cached memory back until at most `keep_bytes` are reserved. Returns the bytes given back.
  std::size_t give_back(growth_lock const& growing, std::size_t keep_bytes, giving how) {
    if (heap_.counters(growing).reserved <= keep_bytes) return 0;
    if (pool_.graphs_.has_ended())
      (void)pool_.graphs_.reap(growing, pool_, how == giving::what_is_waited_for);
    collect(growing, how);
    return heap_.shrink(growing, keep_bytes, how);
  }
  /// Gives cached memory back to the device for another pool. Returns the bytes given back; 0 while a thread
  /// grows this pool.
  static std::size_t give_back_to_others(void* pool, std::size_t bytes, giving how) noexcept {
    auto& drain = static_cast<Pool*>(pool)->drain_;
    auto& heap = drain.heap_;
    misuse_report const last = heap.misuse_at_end();
    if (!heap.try_lock_growth()) return 0;
    growth_lock const growing = heap.adopt_growth_lock();
    if (heap.is_lost() || heap.is_asleep()) return 0;
    std::size_t const reserved = heap.counters(growing).reserved;
    try {
      return drain.give_back(growing, reserved > bytes ? reserved - bytes : 0, how);
    } catch (...) {
      return 0;
    }
  }

  /// Bytes reserved, for a report about all pools of the process. Takes no lock: the caller may be in a
  /// handler of another growth.
  static std::size_t reserved_of(void* pool) noexcept {
    auto const& heap = static_cast<Pool*>(pool)->heap_;
    return heap.is_lost() ? 0 : heap.reserved_now();
  }

  /// Makes free memory that the device has finished with usable by every stream, and marks the rest: while a
  /// capture is open, the host can wait only for what was marked before.
  void prepare_for_capture(growth_lock const& growing) {
    collect(growing, giving::what_is_idle);
    hot_lock held = heap_.lock_hot();
    collect_finished(growing, heap_.space(held), heap_.order(growing), may_release(held));
  }
  /// Waits for all work on the pool's memory and for its graphs. Returns false if a capture prevents it: work
  /// may then run still.
  [[nodiscard]] bool finish(growth_lock const& growing) noexcept {
    bool const graphs_done = pool_.graphs_.finish(growing, pool_);
    collect(growing, giving::what_is_waited_for);
    bool const done =
        heap_.finish(growing, pool_.deferred_.asks_for_device() || pool_.graphs_.defers_until_end());
    return done && graphs_done;
  }
  /// The same, but waits for the captures in scopes. If one stays open, none of the pool's memory is given
  /// back when it ends.
  void finish_or_keep_mapped(growth_lock const& growing) noexcept {
    bool done = false;
    for (int tries = 0; tries < 8 && !heap_.keeps_mapped(); ++tries) {  // the next capture may have begun
      bool const in_scope = capture_gate::has_captures();
      done = finish(growing);
      if (done && !pool_.deferred_.waits_for_capture()) return;
      // A capture without a scope is not waited for: nothing reports its end.
      if ((tries != 0 && !in_scope) || !capture_gate::wait_for_captures()) break;
    }
    // Recorded uses on a stream that is captured without a scope are never waited for.
    if (done && !capture_gate::has_captures()) return;
    heap_.keep_mapped(growing);
  }

 private:
  Pool& pool_;
  typename Pool::heap_type& heap_;
};

}  // namespace TARN_NAMESPACE::detail
