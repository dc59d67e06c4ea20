// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a pool, their handling of fork(), and their state for reports and tools. pool.hpp implements allocate() and
// deallocate() on them.
//
// Over 400 lines: each call that a pool has besides those two is here, and passes it on to the parts.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/sleeping.hpp"
#include "tarn/core/waiting_block.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/pool/front/front.hpp"
#include "tarn/pool/graph/graph_memories.hpp"
#include "tarn/pool/growth/growth_lock.hpp"
#include "tarn/pool/heap.hpp"
#include "tarn/pool/inspection/described_blocks.hpp"
#include "tarn/pool/misuse_notes.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/pool_segments.hpp"
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
    growth_lock const growing(heap_.growth_mutex);
    bool found = heap_.growth(growing).contains(reinterpret_cast<std::uintptr_t>(p));
    graphs_.for_each_pool(growing, [&](auto const& pool) { found = found || pool.owns(p); });
    return found;
  }

  /// The largest block that the heap can hand out without a driver call, bytes.
  [[nodiscard]] std::size_t largest_free_range() const {
    hot_lock const held(heap_.hot);
    return heap_.space(held).largest_free();
  }

  /// Whether the memory is pages, which can be put together: false over blocks, and where pages cannot be used. Needs no lock.
  [[nodiscard]] bool uses_pages() const noexcept { return heap_.uses_pages(); }
  /// Whether each block lies within one handle, see pooled::handles.
  [[nodiscard]] bool has_one_handle_per_block() const noexcept {
    return heap_.options.handles == handles_per_block::one;
  }
  /// Where the memory comes from, see tarn::allocator_backend(). Static storage. Needs no lock.
  [[nodiscard]] char const* allocator_backend() const noexcept {
    if (heap_.uses_plain_blocks()) return "cudaMalloc";
    if constexpr (reachable<Upstream, backend_call>) {
      return nearest(heap_.upstream(), backend_call{});
    } else {
      return page_source<Upstream> ? "pages" : "blocks";
    }
  }

  /// Bytes that a request occupies. Pure.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) const noexcept {
    return rounded_bytes(bytes, alignment);
  }

  /// All statistics at one moment, those of graph memories included; exact while no other thread is in a call.
  /// O(free ranges + threads), for each graph memory.
  [[nodiscard]] pool_state state() const {
    growth_lock const growing(heap_.growth_mutex);
    pool_state all = detail::read_state(growing, heap_, front_, waiting_);
    if (heap_.graph_memory != 0) return all;
    graphs_.for_each_pool(growing, [&](auto const& pool) {
      pool_state of_graphs = pool.state();
      of_graphs.pending = of_graphs.pending_blocks = 0;  // `all` has counted them, and the sums these
      all = sum_of_states(all, of_graphs);
    });
    all.host_bytes += graphs_.host_bytes();
    all.totals_reset = heap_.totals_reset;
    add_sums(all, heap_.sums);
    return all;
  }

  /// Restarts the peaks from the current values.
  void reset_peaks() noexcept {
    growth_lock const growing(heap_.growth_mutex);
    detail::reset_peaks(growing, heap_);
    graphs_.for_each_pool(growing, [](auto& pool) { pool.reset_peaks(); });
  }

  /// Restarts the totals of `small`, `large` and `split` from zero. The other totals continue; `totals_reset` holds their
  /// values at this call.
  void reset_totals() noexcept {
    growth_lock const growing(heap_.growth_mutex);
    detail::reset_totals(growing, heap_, state());
    graphs_.for_each_pool(growing, [](auto& pool) { pool.reset_totals(); });
  }

  /// Notifies `observer` when a freed block starts or stops waiting for other streams, until end_observation().
  /// @throws std::bad_alloc, nothing has changed
  void observe_waiting(waiting_observer& observer) { waiting_.attach(observer); }
  void end_observation(waiting_observer& observer) noexcept { waiting_.detach(observer); }

  /// Keeps the latest `most` records of handles and segments created and given back from now on; 0 stops recording. `clock`
  /// supplies the time of each record. @throws std::bad_alloc, nothing has changed
  void note_growth(std::size_t most, growth_notes::clock_type clock) {
    growth_lock const growing(heap_.growth_mutex);
    heap_.counters.notes.open(most, clock);
    graphs_.for_each_pool(growing, [&](auto& pool) { pool.note_growth(most, clock); });
  }

  /// Starts recording as above unless it is already on. @throws std::bad_alloc
  void note_growth_from_now(std::size_t most, growth_notes::clock_type clock) {
    growth_lock const growing(heap_.growth_mutex);
    if (!heap_.counters.notes.is_open()) heap_.counters.notes.open(most, clock);
    graphs_.for_each_pool(growing, [&](auto& pool) { pool.note_growth_from_now(most, clock); });
  }

  /// Calls `look(lock, heap, front, waiting blocks, graph memories)` while nothing grows and no thread cache is created or destroyed, and
  /// then the same for each graph memory. For pool/inspection/inspection.hpp, which takes the other locks in their order.
  template <class Look>
  void inspect(Look&& look) {
    growth_lock const growing(heap_.growth_mutex);
    if (heap_.is_lost()) return;
    look(growing, heap_, front_, waiting_, graphs_);
    graphs_.for_each_pool(growing, [&](auto& pool) { pool.inspect(look); });
  }

  /// Counts a block of a graph_memory that another one keeps as waiting, or as waiting no more.
  void count_kept(std::size_t bytes, std::size_t alignment, std::int64_t sign) noexcept {
    waiting_.count_kept(bytes, alignment, sign);
  }
  /// Takes the pool of a graph_memory out of the sums of the whole, before it is destroyed.
  void leave_whole() noexcept { heap_.counters.leave_sums(); }
  /// Makes this the pool of a graph_memory, for snapshots.
  void mark_as_graph_memory(std::uint64_t number, pool_state& sums) noexcept {
    if constexpr (heap_type::describes) heap_.description.keep_silent();
    hot_lock const held(heap_.hot);
    heap_.space(held).keeps_addresses = true;
    heap_.graph_memory = number;
    heap_.counters.sums = &sums;
  }

  /// Gives all physical memory back to the driver and keeps every address, for the pool and its graph memories together; returns
  /// the bytes given back. No work uses the pool's memory from this call until wake() returns: the caller has waited for the
  /// streams that did, also for those that freed blocks. Until then allocations throw pool_asleep; all other calls work. Does
  /// nothing if the pool is asleep.
  /// Waits on the host for the copies of the contents. Other threads continue; their cached blocks are returned to the heap.
  /// @throws out_of_memory               pinned memory for the contents is lacking; the pool is awake, only its cache is empty
  /// @throws cuda_error, std::bad_alloc  likewise; cuda_error also while a capture_scope is open
  /// @throws cuda_error                  of kind `unsupported`: the device has no virtual memory management; nothing has changed
  /// @throws misuse                      called by a handler of the pool's own growth
  /// O(handles + slots of views + ranges), 35 us per handle on an H200, plus the copies.
  std::size_t sleep(contents where)
    requires page_source<typename heap<Upstream>::source_type>
  {
    require_no_growth("sleep");
    if (!heap_.is_lost()) require_pages(heap_.source(), sleep_refused);
    misuse_report const last(heap_.notes, heap_.hot);
    growth_lock const growing(heap_.growth_mutex);
    if (heap_.is_lost() || heap_.is_asleep()) return 0;
    require_no_capture("sleep");
    std::size_t given = 0;
    try {
      graphs_.for_each_pool(growing, [&](auto& part) { given += part.prepare_sleep(growing, where); });
      given += prepare_sleep(growing, where);
    } catch (...) {
      graphs_.for_each_pool(growing, [&](auto& part) { part.cancel_sleep(growing); });
      cancel_sleep(growing);
      throw;
    }
    graphs_.for_each_pool(growing, [&](auto& part) { given += part.release_asleep(growing); });
    return given + release_asleep(growing);
  }
  /// Takes the memory again, at the same addresses, with the contents that were kept; returns the bytes taken. Blocks that were
  /// freed meanwhile need none. Does nothing if the pool is awake.
  /// @throws out_of_memory  the device or a limit has not enough: report().lacking is what must become free. The pool and its
  ///                        graph memories are asleep, contents kept; free memory and call again
  /// @throws cuda_error, std::bad_alloc  likewise; cuda_error also while a capture_scope is open
  /// @throws misuse                      called by a handler of the source while the pool is woken
  /// O(handles + slots of views), 45 us per handle on an H200, plus the copies.
  std::size_t wake(after_waking then)
    requires page_source<typename heap<Upstream>::source_type>
  {
    if (heap_.is_asleep()) require_no_growth("wake");
    growth_lock const growing(heap_.growth_mutex);
    if (heap_.is_lost() || !heap_.is_asleep()) return 0;
    require_no_capture("wake");
    std::size_t lacking = prepare_wake(growing);
    graphs_.for_each_pool(growing, [&](auto& part) { lacking += part.prepare_wake(growing); });
    heap_.require_free(lacking);
    std::size_t taken = 0;
    try {
      graphs_.for_each_pool(growing, [&](auto& part) { taken += part.restore(growing); });
      taken += restore(growing);
    } catch (...) {
      graphs_.for_each_pool(growing, [&](auto& part) { (void)part.release_asleep(growing); });
      throw;
    }
    graphs_.for_each_pool(growing, [&](auto& part) { part.end_sleep(growing, then); });
    end_sleep(growing, then);
    return taken;
  }
  /// Gives back all granules without a live byte, at unchanged addresses; see tarn::compact(). The promise is that of sleep(). A pool
  /// that uses blocks gives back those without a live byte.
  /// @throws cuda_error, std::bad_alloc  contents and addresses are kept. If the driver can map a handle neither at its new nor at
  ///                                     its old place, the pool is asleep and keeps its memory: wake() maps it
  /// @throws out_of_memory               only in that case
  /// @throws misuse                      called by a handler of the pool's own growth
  compaction compact()
    requires page_source<typename heap<Upstream>::source_type>
  {
    require_no_growth("compact");
    misuse_report const last(heap_.notes, heap_.hot);
    growth_lock const growing(heap_.growth_mutex);
    if (heap_.is_lost() || heap_.is_asleep()) return {};
    require_no_capture("compact");
    front_.flush_all(growing);
    end_quarantine(heap_);
    waiting_.release(growing, true);
    try {
      return heap_.compact(growing);
    } catch (...) {
      if (heap_.growth(growing).unmap_incomplete()) refuse_allocations(growing);
      throw;
    }
  }
  [[nodiscard]] bool is_asleep() const noexcept
    requires page_source<typename heap<Upstream>::source_type>
  {
    return heap_.is_asleep();
  }

  /// Calls f(memory_segment) for each physical segment behind a live block, or a part of one, in order. Returns the cached blocks of
  /// all threads to the heap first, so that those are seen to be free. The caller holds no lock of the pool; f may throw.
  /// @throws misuse       not all of the bytes are live in this pool
  /// @throws pool_asleep  the pool sleeps
  /// @throws cuda_error   in a forked child; std::bad_alloc. Nothing has changed
  /// O(views + segments)
  template <class F>
  void each_segment(void const* p, std::size_t bytes, F const& f)
    requires page_source<typename heap<Upstream>::source_type>
  {
    sequence<memory_segment> found;
    growth_lock const growing(heap_.growth_mutex);
    find_segments(growing, {"segments_of", p, bytes}, found, [](auto&) noexcept {});
    for (memory_segment const& s : found) f(s);
  }
  /// Keeps the pages behind a live block mapped where they are, until unpin(): they are not given back, moved or put to sleep, also
  /// after the block is freed. Pins are counted. @throws as each_segment()
  void pin(void const* p, std::size_t bytes)
    requires page_source<typename heap<Upstream>::source_type>
  {
    sequence<memory_segment> found;
    growth_lock const growing(heap_.growth_mutex);
    find_segments(growing, {"page_pin", p, bytes}, found,
                  [&](auto& growth) noexcept { growth.pin(reinterpret_cast<std::uintptr_t>(p), bytes); });
    if (!heap_.growth(growing).contains(reinterpret_cast<std::uintptr_t>(p)))
      graphs_.add_reference(growing, p);
  }
  /// Finds the segments, and calls then(growth) if all of them are there. For the parts of a pool.
  template <class Then>
  void find_segments(growth_lock const& growing, segments_wanted const& wanted,
                     sequence<memory_segment>& found, Then const& then)
    requires page_source<typename heap<Upstream>::source_type>
  {
    if (find_own_segments(growing, heap_, front_, wanted, found, then)) return;
    bool is_found = false;
    graphs_.for_each_pool(growing, [&](auto& part) {
      if (is_found || !part.owns(wanted.p)) return;
      part.find_segments(growing, wanted, found, then);
      is_found = true;
    });
    if (!is_found) refuse_segments(wanted);
  }
  /// Waits for the growth lock.
  void unpin(void const* p, std::size_t bytes) noexcept
    requires page_source<typename heap<Upstream>::source_type>
  {
    growth_lock const growing(heap_.growth_mutex);
    if (heap_.is_lost()) return;
    if (heap_.growth(growing).contains(reinterpret_cast<std::uintptr_t>(p)))
      return heap_.growth(growing).unpin(reinterpret_cast<std::uintptr_t>(p), bytes);
    graphs_.for_each_pool(growing, [&](auto& part) {
      if (part.owns(p)) part.unpin(p, bytes);
    });
    graphs_.remove_reference(growing, p);
  }

  // The steps of sleep() and wake(), for the pools of graph memories.

  /// Step 1 of sleep(): all that can fail. Returns the bytes given back; after an exception call cancel_sleep().
  std::size_t prepare_sleep(growth_lock const& growing, contents where) {
    refuse_allocations(growing);
    end_quarantine(heap_);
    waiting_.release(growing, true);
    return heap_.prepare_sleep(growing, where);
  }
  /// Undoes step 1, also if it failed or was not reached.
  void cancel_sleep(growth_lock const& growing) noexcept {
    if (!heap_.is_asleep()) return;
    heap_.growth(growing).forget();
    let_allocate(growing);
  }
  /// Step 2 of sleep(), and undoes step 2 of wake(): gives everything back. A graph_memory that was made meanwhile is awake.
  std::size_t release_asleep(growth_lock const& growing) noexcept {
    return heap_.is_asleep() ? heap_.growth(growing).release() : 0;
  }
  /// Step 1 of wake(): returns the bytes that step 2 takes.
  std::size_t prepare_wake(growth_lock const& growing) {
    return heap_.is_asleep() ? heap_.prepare_wake(growing) : 0;
  }
  /// Step 2 of wake(): all that can fail; returns the bytes taken.
  std::size_t restore(growth_lock const& growing) { return heap_.is_asleep() ? heap_.restore(growing) : 0; }
  /// Step 3 of wake().
  void end_sleep(growth_lock const& growing, after_waking then) noexcept {
    if (!heap_.is_asleep()) return;
    heap_.growth(growing).keep(then);
    let_allocate(growing);
  }

  [[nodiscard]] Upstream& upstream() noexcept { return heap_.upstream(); }
  [[nodiscard]] driver_type const& driver() const noexcept { return heap_.driver(); }

 protected:
  using heap_type = heap<Upstream>;
  using front_type = front<heap_type>;
  using waiting_type = waiting_blocks<heap_type>;
  using graphs_type = graph_memories<Upstream, heap_type, front_type, waiting_type>;

  pool_parts(Upstream upstream, pooled const& options, recursive_fork_mutex* shared)
      : heap_(std::move(upstream), options, shared) {}
  ~pool_parts() = default;

  mutable heap_type heap_;
  waiting_type waiting_{heap_};
  front_type front_{heap_};
  mutable graphs_type graphs_{heap_, front_, waiting_};

 private:
  void refuse_allocations(growth_lock const& growing) noexcept {
    heap_.set_asleep(growing, true);
    front_.close(growing);
  }
  void let_allocate(growth_lock const& growing) noexcept {
    heap_.set_asleep(growing, false);
    front_.open_again(growing);
  }
  /// A handler of the source runs inside a growth, which would continue on memory that is gone.
  void require_no_growth(std::string_view call) const {
    if (!heap_.growth_mutex.is_mine()) return;
    message<128> text;
    text.add(call).add(
        "() was called by a handler of the pool's own growth; call it when the allocation has returned");
    throw misuse(misuse_kind::recursion, nullptr, text.view());
  }

  /// Synchronising a stream and pinning host memory would invalidate a capture.
  void require_no_capture(char const* call) const {
    if (capture_gate::has_captures()) throw cuda_error(refused_for_capture(call), driver().device().value);
  }

  /// Keeps every thread out. The caller has taken the locks that were made before this pool's at_fork.
  [[nodiscard]] bool prepare_fork() noexcept {
    if (heap_.is_lost()) return true;
    if (!heap_.growth_mutex.is_mine()) return false;
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
