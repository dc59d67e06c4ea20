// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pool: stream-ordered allocation from cached memory. The files of an allocation, in the order of its
// steps:
//
//   0 core/shared_resource.hpp, policy/tracked.hpp: how a call on device_pool comes here, by allocate_sized()
//   1 arena/size_class.hpp: the request is rounded to a size class, or to 512 bytes (block_request.hpp)
//   2 cache/front.hpp: the calling thread's cache (thread_cache.hpp) with its lock (owner_lock.hpp) and its
//     magazines. A warm call ends here; slow_path.hpp continues the others
//   3 heap.hpp: what all threads share, under the hot lock. arena/arena.hpp has the free ranges of each
//     stream (arena/stream_order.hpp, with a picture) and the runs that small blocks are cut from
//   4 ladder.hpp: the steps if nothing fits, under the growth lock. order/reclaim.hpp takes memory from other
//     streams by an event (order/ordering.hpp, order/mark_work.hpp); pages/page_growth.hpp gets new handles,
//     or free ones in a view (page_choice.hpp, page_views.hpp); over blocks it is pages/segment_growth.hpp
//   5 source/cuda_pages.hpp: pages, by calls of driver/cuda_driver.hpp
//
// deallocate() goes through 1 to 3 in the same way. A block with recorded uses is deferred until they are
// over (order/deferred_blocks.hpp). Calls on a stream that is captured into a graph go to graph/, whose table
// in graph_memories.hpp has what becomes of each block. sleep() and compact() are in relocate/, and what
// snapshots read is in inspection/.
//
// What a program no longer needs goes back to the driver once the live peak has fallen:
// arena/live_window.hpp.
//
// Over 400 lines: each call that a pool has is here, with its contract.
//
// Bounds: the magazines of one stream on one thread hold at most 104 MiB; if they hold more than 1/1024 of
// the reserved memory, or one thread alone allocates, they are emptied before a pool that is no longer small
// grows. Reserved memory stays within the live peak plus the slack of the requests (slack_of() in
// pages/growth_rules.hpp) while whole free handles suffice. Host memory is 64 bytes per range.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tarn/core/deferred_count.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/cache/front.hpp"
#include "tarn/pool/graph/graph_memories.hpp"
#include "tarn/pool/graph/graph_owner_of.hpp"
#include "tarn/pool/heap.hpp"
#include "tarn/pool/in_place.hpp"
#include "tarn/pool/misuse_notes.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/order/deferred_blocks.hpp"
#include "tarn/pool/other_pools.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/pages/memory_left.hpp"
#include "tarn/pool/pages/physical_segments.hpp"
#include "tarn/pool/pool_drain.hpp"
#include "tarn/pool/pool_fork.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/pool/pool_statistics.hpp"
#include "tarn/pool/relocate/pool_sleep.hpp"
#include "tarn/pool/slow_path.hpp"
#include "tarn/pool/tool/quarantine.hpp"

namespace TARN_NAMESPACE {

/// A stream-ordered caching pool over pages or over blocks of another resource. Use it through `source |
/// pooled{}`. Any number of threads may call it concurrently. A warm call takes no shared lock and, if the
/// identity of its stream is known, submits nothing to the driver; a deallocation asks it whether the stream
/// is captured, see capture_watch.
///
/// fork() is safe while any number of threads use the pool. In the child it refuses, whatever its memory is:
/// allocation throws cuda_error of kind `forked`, other calls do nothing, and nothing is freed. Make another
/// pool there.
template <memory_source Upstream>
class pool {
  using heap_type = detail::heap<Upstream>;

 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  /// The pool returns pieces of its blocks, so a tool must not treat any of them as a heap.
  static constexpr bool hands_out_pieces = true;

  explicit pool(Upstream upstream, pooled const& options = {})
      : heap_(std::move(upstream), options),
        others_(heap_.driver(), this, &drain_type::give_back_to_others, &drain_type::reserved_of,
                place_in_list()) {}
  pool& operator=(pool&&) = delete;

  /// Waits for the streams that freed memory here, then gives everything back. Does nothing after the driver
  /// has unloaded. While a capture_scope is open on any thread, that work cannot be waited for: the
  /// destructor waits until the scopes are closed, up to 10 s. If one is still open then, as one of the
  /// caller's own thread is, the memory stays mapped until the process ends.
  ~pool() {
    others_.leave();
    detail::misuse_report const last = heap_.misuse_at_end();
    front_.detach();
    if (heap_.is_lost()) return;
    detail::growth_lock const growing = heap_.lock_growth();
    if constexpr (heap_type::has_tool) {
      if (heap_.tool().active() && detail::wait_for_all_work(heap_.driver()).kind == failure::unloading)
        heap_.tool().abandon();
    }
    drain_.finish_or_keep_mapped(growing);
    deferred_.close();
    heap_.close(growing);
  }

  /// Allocates for work on `stream`.
  /// @param stream     of any device that can use the memory: every device can use pinned and managed memory,
  ///                   and pages those that accessible_from names. A default stream is that of the pool's
  ///                   device, whichever is current; of host memory it is the calling thread's current
  ///                   device's
  /// @param bytes      zero returns null; blocks up to 1 MiB are rounded to a size class, others to 512 bytes
  /// @param alignment  a power of two up to 2 MiB; above 256 the block has no magazine
  /// Reuses memory freed on the same stream at once, and memory of other streams once it is ordered (see
  /// pool/arena/stream_order.hpp).
  /// @throws misuse  the stream is of a device that cannot use the memory
  /// @throws out_of_memory, bad_alignment, cuda_error, std::bad_alloc (host): nothing has changed
  /// O(1) from a magazine or the heap; calls the driver only when it climbs the ladder, sweeps streams that
  /// ended, or must query the identity of a stream. A climb is O(streams + their free ranges + handles of
  /// those + views), in driver calls those for the memory that it creates or maps, and for the work of other
  /// streams one mark, query and wait for all of a device; before CUDA 12.5, for each stream. If the device
  /// refuses, each other pool on it is asked.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    return allocate_sized(detail::lazy_block_size{bytes}, stream, bytes, alignment);
  }

  /// Frees a block; work enqueued on `stream`, of any device, before this call may still use it. `bytes` and
  /// `alignment` are those of the allocation. Never throws; detected misuse is reported to the misuse
  /// handler. O(1), and O(streams that the block was recorded for): one mark for all of a device; before
  /// CUDA 12.5, for each.
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    deallocate_sized(detail::lazy_block_size{bytes}, stream, p, bytes, alignment);
  }
  /// Allocates and frees for a layer that has computed the block_size for itself; `bytes` and `p` are not 0.
  template <class Size>
  [[nodiscard]] TARN_ALWAYS_INLINE void* allocate_sized(Size size, stream_ref stream, std::size_t bytes,
                                                        std::size_t alignment) {
    return allocate_on(heap_.identity_of(stream), stream, size, bytes, alignment);
  }
  template <class Size>
  TARN_ALWAYS_INLINE void deallocate_sized(Size size, stream_ref stream, void* p, std::size_t bytes,
                                           std::size_t alignment) noexcept {
    stream_id id = stream.id();
    bool asks = asks_at_frees();
    if (id == stream_ref::unknown_id) {
      detail::capture_gate::watch const scopes;
      if (!heap_.identify(stream, id).ok()) [[unlikely]]
        return slow_.deallocate_unknown(stream, p, bytes, alignment);
      // While no scope is open, CUDA refuses to identify a captured stream.
      asks = asks && (scopes.saw_capture() || detail::is_default_stream(stream));
    }
    if (deferred_.any_recorded() && may_be_recorded(p) &&
        slow_.take_back_recorded(id, stream, p, bytes, alignment)) [[unlikely]]
      return;
    if (asks && is_freed_in_capture(id, stream) && graphs_.defer_if_captured(id, stream, p, bytes, alignment))
        [[unlikely]]
      return;
    deallocate_on(id, stream, p, size, bytes, alignment);
  }

  /// Allocates memory that every stream may use at once. Waits for other streams' frees if nothing else
  /// serves the request. Costs as allocate().
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    return allocate_on(detail::neutral_id, {}, detail::lazy_block_size{bytes}, bytes, alignment);
  }

  /// Frees memory that no stream uses any more; every stream may reuse it at once. Costs as deallocate().
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    if (deferred_.any_recorded() && may_be_recorded(p) &&
        slow_.take_back_recorded(detail::neutral_id, {}, p, bytes, alignment)) [[unlikely]]
      return;
    deallocate_on(detail::neutral_id, {}, p, detail::lazy_block_size{bytes}, bytes, alignment);
  }

  /// Records that work on `stream`, enqueued before the block is deallocated, uses the block although it is
  /// freed on another stream. The freed block is deferred until that work is done; other blocks are not.
  /// Amortised host cost O(1); host memory 140 bytes times the peak number of recorded uses.
  /// @throws misuse  no block starts at `p`, as at an address within one
  /// @throws std::bad_alloc, cuda_error; nothing has changed
  void record_stream(void* p, std::size_t, stream_ref stream) {
    if (p == nullptr || heap_.is_lost()) return;
    if (!heap_.is_block(p)) detail::refuse_pointer(p, "record_stream");
    stream_id as = stream_ref::unknown_id;
    if (!graphs_.record_stream(p, stream, as)) deferred_.record(p, stream, as);
  }

  /// Makes a live block longer where it is, if the memory behind it is free for work on `stream` at once. The
  /// new bytes are for that stream. From then on the block has `bytes + more` bytes, and is freed with them.
  /// Returns whether it did: always where the longer size rounds to the same block; otherwise not if the
  /// block is small (below 32 KiB) or grows past 1 MiB from below, lies in a view, or is of a graph; not for
  /// a stream captured in a scope, under a tool, or asleep. Contents stay. Makes no driver call but to
  /// identify the stream. O(1)
  /// @param bytes, alignment  those of the block
  /// @throws misuse  no block starts at `p`; std::bad_alloc, cuda_error. Nothing has changed
  [[nodiscard]] bool extend(stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                            std::size_t alignment) {
    if (p == nullptr || heap_.is_lost()) return false;
    if (!heap_.is_block(p)) detail::refuse_pointer(p, "extend");
    return in_place_.extend(heap_.identity_of(stream), stream, p, bytes, more, alignment);
  }

  /// Gives cached memory back to the driver until at most `keep_bytes` are reserved. Waits for the streams
  /// that freed it; other threads continue meanwhile. Returns the bytes given back. O(streams + free ranges +
  /// handles log handles + slots of views), over blocks O(streams + free ranges): two driver calls for each
  /// handle and its places in views, one for each block.
  std::size_t trim(std::size_t keep_bytes) {
    detail::misuse_report const last = heap_.misuse_at_end();
    detail::growth_lock const growing = heap_.lock_growth();
    if (heap_.is_lost()) return 0;
    return drain_.give_back(growing, keep_bytes, detail::giving::what_is_waited_for);
  }

  /// The largest block that allocate() would serve now, see tarn::largest_available_block(). O(ranges +
  /// handles)
  /// @throws cuda_error, std::bad_alloc
  [[nodiscard]] std::size_t largest_available_block() {
    detail::misuse_report const last = heap_.misuse_at_end();
    detail::growth_lock const growing = heap_.lock_growth();
    if (heap_.is_lost() || heap_.is_asleep()) return 0;
    if (graphs_.has_ended()) (void)graphs_.reap(growing, *this, false);
    front_.flush_all();
    detail::end_quarantine(heap_);
    deferred_.release(growing, false);
    detail::memory_bound const left = detail::memory_left(detail::layer_of(heap_.upstream()));
    if (!left.query.ok()) throw cuda_error(left.query, heap_.driver().device().value);
    detail::hot_lock held = heap_.lock_hot();
    return heap_.growth(growing).visit([&](auto const& memory) {
      return memory.largest_block(heap_.space(held), left.bytes, detail::may_remap(heap_.options()));
    });
  }

  // ---- sleep, for pools over pages; see raii/sleep.hpp and raii/compact.hpp

  /// See tarn::sleep().
  std::size_t sleep(contents where)
    requires page_source<Upstream>
  {
    return sleep_.sleep(where);
  }
  /// See tarn::wake(). Before the device refuses, other pools there give back what they cache.
  std::size_t wake(after_waking then)
    requires page_source<Upstream>
  {
    return others_.with_help([&] { return sleep_.wake(then); },
                             [](memory_report const& refused) {
                               return refused.lacking != memory_report::unknown ? refused.lacking
                                                                                : refused.asked;
                             });
  }
  /// See tarn::compact(). A pool that uses blocks gives back those without a live byte. If the driver can map
  /// a handle neither at its new nor at its old place, the pool is asleep and keeps its memory: wake() maps
  /// it.
  compaction compact()
    requires page_source<Upstream>
  {
    return sleep_.compact();
  }
  [[nodiscard]] bool is_asleep() const noexcept
    requires page_source<Upstream>
  {
    return heap_.is_asleep();
  }
  /// How often sleep() has discarded contents.
  [[nodiscard]] std::uint64_t discards() const noexcept
    requires page_source<Upstream>
  {
    return sleep_.discards();
  }

  // ---- blocks that grow in place, for growing_buffer

  /// Reserves addresses, without memory, for blocks that follow each other: allocate_at() makes them. Returns
  /// null where the memory is not pages, or they are larger than 2 MiB: nothing grows in place there.
  /// O(views)
  /// @param bytes  at most; rounded up to 2 MiB
  /// @throws out_of_memory  no addresses are left; cuda_error, std::bad_alloc. Nothing has changed
  [[nodiscard]] void* reserve_growing(std::size_t bytes)
    requires page_source<Upstream>
  {
    (void)heap_.tool().decide();  // under a tool the memory is blocks
    heap_.require_no_growth("growing_buffer");
    detail::growth_lock const growing = heap_.lock_growth();
    if (heap_.is_lost()) heap_.refuse_forked();
    if (heap_.is_asleep()) heap_.refuse_asleep(bytes);
    auto const can_grow = [](auto const& pages) { return pages.can_grow_in_place(); };
    if (!heap_.growth(growing).template visit_pages<bool>(can_grow)) return nullptr;
    detail::hot_lock held = heap_.lock_hot();
    void* const p = heap_.growth(growing).template visit_pages<void*>([&](auto& pages) {
      return pages.reserve_growing(heap_.space(held), detail::may_release(held), heap_.order(growing),
                                   heap_.left(growing).device_total(), bytes);
    });
    if (p != nullptr) return p;
    memory_report report;
    report.asked = bytes;
    report.device = heap_.driver().device().value;
    report.stream = memory_report::no_stream;
    report.refused_by = "the pool's addresses for growing buffers";
    throw out_of_memory(report);
  }
  /// Allocates a block of whole 2 MiB at an address where the blocks of reserve_growing() end. Its memory is
  /// whole handles: free ones that the stream can be ordered behind, then new ones. 36 us for each that is
  /// mapped; none of the contents moves.
  /// @throws as allocate(); cuda_error  the stream is captured; misuse  `at` is not of reserve_growing()
  [[nodiscard]] void* allocate_at(stream_ref stream, void* at, std::size_t bytes, std::size_t)
    requires page_source<Upstream>
  {
    return in_place_.allocate_at(heap_.identity_of(stream), stream, at, bytes);
  }
  /// The bytes to ask allocate_at() for, at least `bytes`: so many that free handles have them together.
  /// O(views + free ranges + handles) @throws cuda_error, std::bad_alloc
  [[nodiscard]] std::size_t suggest_growth(stream_ref stream, void const* at, std::size_t bytes)
    requires page_source<Upstream>
  {
    return in_place_.suggest_growth(heap_.identity_of(stream), stream, at, bytes);
  }
  /// Frees the last of these blocks, as deallocate() does. Its handles serve other requests; the addresses
  /// stay reserved.
  void deallocate_at(stream_ref stream, void* p, std::size_t bytes, std::size_t) noexcept
    requires page_source<Upstream>
  {
    if (heap_.is_lost()) return;
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id && !heap_.identify(stream, id).ok()) id = stream_ref::unknown_id;
    if (id != stream_ref::unknown_id) {
      if (deferred_.any_recorded() && slow_.take_back_recorded(id, stream, p, bytes, default_alignment))
        return;
      if ((asks_at_frees() || graphs_.watches_frees()) &&
          graphs_.defer_if_captured(id, stream, p, bytes, default_alignment))
        return;
    }
    in_place_.deallocate_at(id, stream, p, bytes);
  }
  /// Gives the addresses back; waits for a growth that another thread is in. What the blocks' handles are
  /// mapped at stays mapped for other blocks, or until the device has completed the work on them.
  void end_growing(void* p) noexcept
    requires page_source<Upstream>
  {
    detail::growth_lock const growing = heap_.lock_growth();
    if (heap_.is_lost()) return;
    detail::hot_lock held = heap_.lock_hot();
    heap_.growth(growing).visit_pages(
        [&](auto& pages) { pages.end_growing(heap_.space(held), detail::may_release(held), p); });
  }

  // ---- physical segments

  /// Calls f(memory_segment) for each physical segment behind a live block, or a part of one, in order.
  /// Returns the cached blocks of all threads to the heap first, so that those are seen to be free. The
  /// caller holds no lock of the pool; f may throw.
  /// @throws misuse       not all of the bytes are live in this pool
  /// @throws pool_asleep  the pool sleeps
  /// @throws cuda_error   in a forked child; std::bad_alloc. Nothing has changed
  /// O(views + segments)
  template <class F>
  void each_segment(void const* p, std::size_t bytes, F const& f)
    requires page_source<Upstream>
  {
    detail::sequence<memory_segment> found;
    {
      detail::growth_lock const growing = heap_.lock_growth();
      detail::find_segments(growing, heap_, front_, {"segments_of", p, bytes}, found);
    }
    for (memory_segment const& s : found) f(s);
  }
  /// Keeps the pages behind a live block mapped where they are, until unpin(): they are not given back, moved
  /// or put to sleep, also after the block is freed. Pins are counted. O(views + segments) @throws as
  /// each_segment(); misuse: by a handler of the pool's own growth, which may be moving the pages
  void pin(void const* p, std::size_t bytes)
    requires page_source<Upstream>
  {
    heap_.require_no_growth("page_pin");
    detail::sequence<memory_segment> found;
    detail::growth_lock const growing = heap_.lock_growth();
    detail::find_segments(growing, heap_, front_, {"page_pin", p, bytes}, found);
    heap_.growth(growing).visit_pages(
        [&](auto& pages) { pages.segments().pin(reinterpret_cast<std::uintptr_t>(p), bytes); });
  }
  /// Waits for the growth lock. O(views + segments)
  void unpin(void const* p, std::size_t bytes) noexcept
    requires page_source<Upstream>
  {
    detail::growth_lock const growing = heap_.lock_growth();
    if (heap_.is_lost()) return;
    heap_.growth(growing).visit_pages(
        [&](auto& pages) { pages.segments().unpin(reinterpret_cast<std::uintptr_t>(p), bytes); });
  }

  // ---- facts

  /// Returns whether `p` lies in memory that the pool reserved. Takes the growth lock. O(1), over blocks
  /// O(segments)
  [[nodiscard]] bool owns(void const* p) const noexcept {
    detail::growth_lock const growing = heap_.lock_growth();
    return heap_.growth(growing).contains(reinterpret_cast<std::uintptr_t>(p));
  }

  /// The largest block that the heap can hand out without a driver call, bytes.
  [[nodiscard]] std::size_t largest_free_range() const {
    detail::hot_lock const held = heap_.lock_hot();
    return heap_.space(held).largest_free();
  }

  /// Free bytes that serve the captures of graph_memories alone. O(parts)
  [[nodiscard]] std::size_t free_for_captures() const {
    detail::hot_lock const held = heap_.lock_hot();
    return heap_.space(held).free_for_captures();
  }

  /// Whether the memory is pages, which can be put together: false over blocks, and where pages cannot be
  /// used. Needs no lock.
  [[nodiscard]] bool uses_pages() const noexcept { return heap_.uses_pages(); }
  /// Whether each block lies within one handle, see pooled::handles.
  [[nodiscard]] bool has_one_handle_per_block() const noexcept {
    return heap_.options().handles == handles_per_block::one;
  }
  /// Where the memory comes from, see tarn::allocator_backend(). Static storage. Needs no lock.
  [[nodiscard]] char const* allocator_backend() const noexcept {
    if (heap_.uses_plain_blocks()) return "cudaMalloc";
    if constexpr (reachable<Upstream, detail::backend_call>) {
      return nearest(heap_.upstream(), detail::backend_call{});
    } else {
      return page_source<Upstream> ? "pages" : "blocks";
    }
  }

  /// Bytes that a request occupies. Pure.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) const noexcept {
    return detail::rounded_bytes(bytes, alignment);
  }

  [[nodiscard]] Upstream& upstream() noexcept { return heap_.upstream(); }
  [[nodiscard]] driver_type const& driver() const noexcept { return heap_.driver(); }

  // ---- statistics

  /// All statistics at one moment, those of graph memories included; exact while no other thread is in a
  /// call. O(threads + streams).
  [[nodiscard]] pool_state state() const {
    detail::growth_lock const growing = heap_.lock_growth();
    pool_state all = detail::read_state(growing, heap_, front_, deferred_);
    all.host_bytes += graphs_.host_bytes();
    return all;
  }

  /// Restarts the peaks from the current values.
  void reset_peaks() noexcept {
    detail::growth_lock const growing = heap_.lock_growth();
    detail::reset_peaks(growing, heap_);
  }

  /// Restarts the totals of `smaller`, `larger` and `split` from zero. The other totals continue;
  /// `totals_reset` holds their values at this call.
  void reset_totals() noexcept {
    detail::growth_lock const growing = heap_.lock_growth();
    detail::reset_totals(growing, heap_, state());
  }

  /// Notifies `observer` when a block becomes deferred, and when it is free, until end_observation().
  /// @throws std::bad_alloc, nothing has changed
  void observe_deferred(detail::deferred_observer& observer) { deferred_.attach(observer); }
  void end_observation(detail::deferred_observer& observer) noexcept { deferred_.detach(observer); }

  /// Keeps the latest `most` records of handles and segments created and given back from now on; 0 stops
  /// recording. `clock` supplies the time of each record. @throws std::bad_alloc, nothing has changed
  void note_growth(std::size_t most, detail::growth_notes::clock_type clock) {
    detail::growth_lock const growing = heap_.lock_growth();
    heap_.counters(growing).notes.start(growing, most, clock);
  }

  /// Starts recording as above unless it is already on. @throws std::bad_alloc
  void note_growth_from_now(std::size_t most, detail::growth_notes::clock_type clock) {
    detail::growth_lock const growing = heap_.lock_growth();
    detail::growth_notes& notes = heap_.counters(growing).notes;
    if (!notes.is_on()) notes.start(growing, most, clock);
  }

  /// Calls `look(lock, heap, front, deferred blocks, graph memories)` while nothing grows.
  /// For pool/inspection/inspection.hpp, which takes the other locks in their order.
  template <class Look>
  void inspect(Look&& look) {
    detail::growth_lock const growing = heap_.lock_growth();
    if (heap_.is_lost()) return;
    look(growing, heap_, front_, deferred_, graphs_);
  }

  // ---- graph memories

  /// Makes an owner for the memory of captured graphs, for graph_memory (raii/graph_memory.hpp).
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  [[nodiscard]] detail::owned<detail::graph_owner> new_graph_memory() {
    if (heap_.is_lost()) heap_.refuse_forked();
    return detail::owned<detail::graph_owner>(new detail::graph_owner_of<pool>(*this));
  }
  /// Allocates a block of an owner that new_graph_memory() of this pool made; see graph_memory::allocate().
  /// @throws as allocate()
  [[nodiscard]] void* allocate_for(detail::graph_owner& owner, stream_ref stream, std::size_t bytes,
                                   std::size_t alignment) {
    if (bytes == 0) return nullptr;
    require_alignment(alignment);
    return static_cast<detail::graph_owner_of<pool>&>(owner).allocate(stream, bytes, alignment);
  }

 private:
  using front_type = detail::front<heap_type>;
  using deferred_type = detail::deferred_blocks<heap_type>;
  using graphs_type = detail::graph_memories<heap_type, front_type, deferred_type>;
  using others_type = detail::other_pools<driver_type>;
  using drain_type = detail::pool_drain<pool>;

  friend class detail::slow_path<pool>;
  friend class detail::in_place<pool>;
  friend class detail::pool_sleep<pool>;
  friend drain_type;
  friend graphs_type;
  friend class detail::graph_owner_of<pool>;

  /// Host memory without a device has no streams that can be captured.
  static constexpr bool has_captures = !std::same_as<driver_type, no_driver>;

  [[nodiscard]] static constexpr typename others_type::goes_to place_in_list() noexcept {
    using goes_to = typename others_type::goes_to;
    if (!has_captures || has_property<Upstream, host_accessible>) return goes_to::no_device;
    using layer = std::remove_reference_t<decltype(detail::layer_of(std::declval<Upstream&>()))>;
    return detail::may_stand_on_a_pool<layer>() ? goes_to::another_pool : goes_to::the_device;
  }

  /// Whether each deallocation that names a stream asks is_freed_in_capture() first.
  [[nodiscard]] TARN_ALWAYS_INLINE bool asks_at_frees() const noexcept {
    return has_captures && heap_.options().captures == capture_watch::at_frees;
  }
  /// Whether a stream that a block is freed on is captured; at most one driver call.
  [[nodiscard]] TARN_ALWAYS_INLINE bool is_freed_in_capture(stream_id id, stream_ref stream) const noexcept {
    return !heap_.is_lost() && detail::is_freed_in_capture(heap_.driver(), stream, id);
  }
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_be_recorded(void const* p) const noexcept {
    return deferred_.may_hold(p) || graphs_.may_hold(p);
  }

  template <class Size>
  TARN_ALWAYS_INLINE void* allocate_on(stream_id id, stream_ref stream, Size size, std::size_t bytes,
                                       std::size_t alignment) {
    if (alignment != default_alignment) [[unlikely]]
      require_alignment(alignment);
    if (alignment <= default_alignment) [[likely]] {
      if (void* const p = front_.take(id, size); p != nullptr) [[likely]]
        return p;
    }
    return slow_.allocate(id, stream, bytes, alignment);
  }

  template <class Size>
  TARN_ALWAYS_INLINE void deallocate_on(stream_id id, stream_ref stream, void* p, Size size,
                                        std::size_t bytes, std::size_t alignment) noexcept {
    if (alignment <= default_alignment && front_.put(id, p, size)) [[likely]]
      return;
    slow_.deallocate(id, stream, p, bytes, alignment);
  }

  mutable heap_type heap_;
  deferred_type deferred_{heap_};
  front_type front_{heap_};
  mutable graphs_type graphs_{heap_, front_, deferred_};
  detail::slow_path<pool> slow_{*this};
  detail::in_place<pool> in_place_{*this, slow_};
  detail::pool_sleep<pool> sleep_{*this};
  drain_type drain_{*this};
  detail::pool_fork<heap_type, front_type> fork_{heap_, front_};
  others_type others_;
};

}  // namespace TARN_NAMESPACE
