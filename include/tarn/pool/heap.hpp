// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shared part of a pool, with its locks: the arena and the object that grows it. heap::take() takes
// blocks and heap::put() returns them. If neither the stream's own memory nor the neutral memory has a
// fitting range, the ladder decides what to do (ladder.hpp).
//
// Two locks, in this order, with the mutex of the list of caches between them (front.hpp):
//
//   growth lock   One thread at a time climbs the ladder, grows and shrinks. The upstream is called under it.
//                 A handler of the upstream (retry_on_oom) may call the pool, so its owner may take it again.
//   hot lock      The arena's. Held for tens of nanoseconds, never across a driver call.
//
// No deallocation waits for the growth lock: its owner may be waiting for the device.
//
// Over 400 lines: all that takes the hot lock for a caller is here.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/looked_up.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/graph/captured_streams.hpp"
#include "tarn/pool/misuse_notes.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/order/reclaim.hpp"
#include "tarn/pool/other_pools.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/pages/growth_rules.hpp"
#include "tarn/pool/pages/memory_left.hpp"
#include "tarn/pool/pages/pool_growth.hpp"
#include "tarn/source/refusal.hpp"

namespace TARN_NAMESPACE::detail {

template <memory_source Upstream>
class heap {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using growth_type = pool_growth<Upstream>;
  /// Whether a tool that watches memory may be notified of the blocks.
  static constexpr bool has_tool = tool_can_watch<Upstream>;

  /// @throws cuda_error  of kind `unsupported`: the device has no pages, and a layer over the source does not
  /// pass plain blocks on
  heap(Upstream upstream, pooled const& chosen)
      : options_(chosen),
        order_(upstream.driver(), named),
        growth_(std::move(upstream), counters_, tool_),
        tool_(driver()) {
    bool const by_pages = page_source<Upstream> && growth_.has_pages();
    space_.keeps_handles_whole = by_pages && may_remap(options_);
    space_.joins_handles = !by_pages || options_.handles == handles_per_block::any;
    space_.end_room_with(hot_.hold().number());
  }
  heap& operator=(heap&&) = delete;

  captured_streams captured;  ///< streams whose calls go to graph memories (graph/)

  // ---- locks

  [[nodiscard]] TARN_ALWAYS_INLINE hot_lock lock_hot() noexcept { return hot_lock(hot_); }
  [[nodiscard]] growth_lock lock_growth() { return growth_lock(growth_mutex_); }
  /// Returns false if another thread holds the growth lock. Otherwise the caller calls adopt_growth_lock()
  /// next.
  [[nodiscard]] bool try_lock_growth() noexcept { return growth_mutex_.try_lock(); }
  [[nodiscard]] growth_lock adopt_growth_lock() noexcept { return {growth_mutex_, already_locked{}}; }
  /// Whether the calling thread holds it.
  [[nodiscard]] bool holds_growth_lock() const noexcept { return growth_mutex_.is_mine(); }
  /// Reports the misuse that a call has found when the call ends. Called before the call takes its locks.
  [[nodiscard]] misuse_report misuse_at_end() noexcept { return {notes_, hot_}; }

  // ---- parts

  [[nodiscard]] pooled const& options() const noexcept { return options_; }
  /// What tools that watch memory see. It has a lock of its own.
  [[nodiscard]] typename growth_type::regions_type& tool() noexcept { return tool_; }

  /// The arena, under the hot lock.
  [[nodiscard]] arena& space(hot_lock const&) noexcept { return space_; }
  /// What holds memory from the source, under the growth lock.
  [[nodiscard]] growth_type& growth(growth_lock const&) noexcept { return growth_; }
  [[nodiscard]] growth_counters& counters(growth_lock const&) noexcept { return counters_; }
  /// Bytes reserved, for threads without the growth lock.
  [[nodiscard]] std::size_t reserved_now() const noexcept {
    return counters_.reserved_now.load(std::memory_order_relaxed);
  }
  /// How much the growth can still create.
  [[nodiscard]] known_left& left(growth_lock const&) noexcept { return left_; }
  /// The order of streams, under the growth lock.
  [[nodiscard]] ordering<driver_type>& order(growth_lock const&) noexcept { return order_; }

  [[nodiscard]] driver_type const& driver() const noexcept { return order_.driver(); }
  [[nodiscard]] Upstream& upstream() noexcept { return growth_.source(); }
  /// Whether the memory is plain blocks in place of what the source is made for. May become true before the
  /// first growth.
  [[nodiscard]] bool uses_plain_blocks() const noexcept { return growth_.uses_plain_blocks(); }
  /// Whether the memory is pages: physical handles at addresses that the pool keeps.
  [[nodiscard]] bool uses_pages() const noexcept { return growth_.uses_pages(); }
  // ---- taking

  /// Takes a block, or up to `batch.wanted` blocks of a class that has runs, from the taker's own memory,
  /// then from neutral memory. Returns false if neither has one. Requires arena::make_room(). O(1).
  bool take(hot_lock const&, domain_ref taker, block_request const& r, block_batch& batch) noexcept {
    if (is_asleep()) [[unlikely]]
      return false;
    if (r.in_run) {
      batch.count = space_.take_small(taker, r.size_class, batch.blocks, batch.wanted);
    } else if ((batch.blocks[0] = space_.take(taker, r.where, r.block, r.alignment)) != nullptr) {
      batch.count = 1;
    }
    batch.ends_step = space_.window.is_step_over() && uses_pages();
    return batch.count != 0;
  }

  // ---- parts

  /// Returns false if a live block is of the common part. May return true for such a block where the memory
  /// is segments. Needs no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_be_in_part(void const* p) const noexcept {
    if (space_.reserved_in_parts.load(std::memory_order_relaxed) == 0) return false;
    return space_.pages == nullptr || space_.pages->part_at(reinterpret_cast<std::uintptr_t>(p)) != common;
  }
  /// The part of a live block. Takes the hot lock only where the memory is segments.
  [[nodiscard]] part_ref part_of(void const* p) noexcept {
    if (space_.reserved_in_parts.load(std::memory_order_relaxed) == 0) return common;
    if (space_.pages != nullptr) return space_.pages->part_at(reinterpret_cast<std::uintptr_t>(p));
    hot_lock const held(hot_);
    return space_.part_of(p);
  }

  /// Whether a block starts at an address; a freed one that a thread caches is still one.
  [[nodiscard]] bool is_block(void const* p) noexcept {
    hot_lock const held(hot_);
    return space_.is_block(p);
  }

  // ---- putting: never throws, never waits for the growth lock

  /// Returns blocks of a size class, all of one part, to the arena. `count` is not 0.
  void put(stream_id id, stream_ref stream, unsigned k, void* const* blocks, std::uint32_t count) noexcept {
    hot_lock held(hot_);
    bool const in_run = k < run_class_count;
    looked_up_domain giver = domain_of(may_release(held), id, stream, blocks[0]);
    for (std::uint32_t i = 0; i < count; ++i) {
      if (giver.get(held) == no_domain) {
        count_uncached(held, static_cast<std::int64_t>(class_bytes(k)), 1);
        continue;
      }
      auto result = in_run ? space_.release_small(giver.get(held), k, blocks[i])
                           : space_.release(giver.get(held), blocks[i], class_bytes(k));
      if (result == release_result::needs_finish) {
        bool const finished = wait_for_device(may_release(held)).ok();
        // Its place may belong to another stream now.
        giver = domain_of(may_release(held), id, stream, blocks[i]);
        if (!finished) {
          count_uncached(held, static_cast<std::int64_t>(class_bytes(k)), 1);
          continue;
        }
        result = space_.release_small(neutral_of(held, blocks[i]), k, blocks[i]);
      }
      if (result != release_result::done) note_misuse(held, result, blocks[i], class_bytes(k));
    }
    space_.count_splits();
  }
  /// Returns blocks of `bytes` each to the arena, in the way the request for one of them was served.
  void put(block_request const& r, void* const* blocks, std::uint32_t count, std::size_t bytes) noexcept {
    if (r.size_class != class_count) return put(r.id, r.stream, r.size_class, blocks, count);
    for (std::uint32_t i = 0; i < count; ++i) put_range(r.id, r.stream, blocks[i], bytes);
  }
  /// Returns a block without a size class to the arena. @param block  its rounded bytes
  void put_range(stream_id id, stream_ref stream, void* p, std::size_t block) noexcept {
    hot_lock held(hot_);
    put_range(may_release(held), id, stream, p, block);
    space_.count_splits();
  }
  void put(freed_block const& b) noexcept {
    if (has_class(b.bytes, b.alignment)) {
      put(b.stream.id(), b.stream, class_of(b.bytes), &b.p, 1);
    } else {
      put_range(b.stream.id(), b.stream, b.p, rounded_bytes(b.bytes, b.alignment));
    }
  }
  void put_range(may_release held, stream_id id, stream_ref stream, void* p, std::size_t block) noexcept {
    domain_ref const giver = domain_of(held, id, stream, p).get(held.held());
    if (giver == no_domain) [[unlikely]]
      return count_uncached(held.held(), static_cast<std::int64_t>(block), 1);
    auto const result = space_.release(giver, p, block);
    if (result != release_result::done) [[unlikely]]
      note_misuse(held.held(), result, p, block);
  }

  /// Live blocks that no thread cache counts.
  [[nodiscard]] live_count const& uncached_live(hot_lock const&) const noexcept { return uncached_live_; }
  void count_uncached(hot_lock const&, std::int64_t bytes, std::int64_t blocks) noexcept {
    uncached_live_.bytes += bytes;
    uncached_live_.blocks += blocks;
  }
  /// Counts a served request. @param uncached  whether no thread cache counts the block; a guard is not
  /// counted
  void count_if_uncached(hot_lock const& held, block_request const& r, bool uncached) noexcept {
    if (uncached) count_uncached(held, static_cast<std::int64_t>(rounded_bytes(r.asked, r.alignment)), 1);
    space_.count_splits();
  }
  void count_given(std::size_t block) noexcept {
    hot_lock const held(hot_);
    count_uncached(held, -static_cast<std::int64_t>(block), -1);
  }
  void note_double_free(block_request const& r, void const* p) noexcept {
    hot_lock const held(hot_);
    note_misuse(held, release_result::twice, p, r.block);
  }
  /// Records a misuse, and counts the block as live again since it was not freed.
  void note_misuse(hot_lock const& held, release_result what, void const* p, std::size_t block) noexcept {
    count_uncached(held, static_cast<std::int64_t>(block), 1);
    notes_.add(held, what, p);
  }

  // ---- streams

  /// What a default stream refers to that a call names without an identity.
  static constexpr default_streams named = default_streams_of<Upstream>();
  [[nodiscard]] TARN_ALWAYS_INLINE status identify(stream_ref stream, stream_id& id) const noexcept {
    return identify_named<named>(driver(), stream, id);
  }
  /// @throws cuda_error  the driver does not know the stream
  [[nodiscard]] TARN_ALWAYS_INLINE stream_id identity_of(stream_ref stream) const {
    if (stream.id() != stream_ref::unknown_id) [[likely]]
      return stream.id();
    stream_id id = 0;
    status const s = identify(stream, id);
    if (!s.ok()) {
      if (is_lost()) refuse_forked();
      throw cuda_error(is_capture_error(s) ? refused_for_capture(captured_without_scope) : s,
                       driver().device().value);
    }
    return id;
  }

  /// A stream that exists, with its identity and, for later, the device where it lives. @throws cuda_error
  /// the driver does not know it
  [[nodiscard]] stream_ref with_identity(stream_ref stream) const {
    stream_id id = stream.id();
    if (id != stream_ref::unknown_id) return stream;
    if (status const s = identify(stream, id); !s.ok()) throw cuda_error(s, driver().device().value);
    stream_ref const found = stream_ref::from(stream.handle(), id);
    (void)find_device(driver(), found);
    return found;
  }
  /// Learns where the stream of a deallocation lives if the call names it by a bare handle, so that it
  /// exists.
  void learn_if_named(stream_id id, stream_ref stream) const noexcept {
    if (stream.id() == stream_ref::unknown_id)
      (void)find_device(driver(), stream_ref::from(stream.handle(), id));
  }
  /// Learns where the stream of an allocation lives, which exists. @throws misuse  its device cannot use the
  /// memory
  void require_access(stream_ref stream) {
    device_id const device = find_device(driver(), stream);
    if (device == driver().device() || device == unknown_device || can_use(device)) return;
    throw unusable_from(stream, driver());
  }

  /// Returns whether streams should be swept. Needs no lock.
  [[nodiscard]] bool is_crowded() const noexcept { return space_.streams.is_crowded(); }
  /// Forgets streams that no longer use the pool, including default streams of ended threads. If another
  /// thread is climbing, a later call does it.
  TARN_NOINLINE void sweep_streams(sweep_of which) noexcept {
    if (!try_lock_growth()) return;
    growth_lock const growing = adopt_growth_lock();
    hot_lock held(hot_);
    if (is_crowded()) sweep(growing, space_, order_, may_release(held), which);
  }

  // ---- under the growth lock

  /// Gives free memory back to the source until at most `keep_bytes` are reserved, after the host has waited
  /// for the streams that freed it. Returns the bytes given back.
  std::size_t shrink(growth_lock const& growing, std::size_t keep_bytes,
                     giving how = giving::what_is_waited_for) {
    hot_lock held(hot_);
    bool const waits = how == giving::what_is_waited_for;
    if (waits) {
      finish_all(growing, space_, order_, may_release(held));
    } else {
      collect_finished(growing, space_, order_, may_release(held));
    }
    std::size_t const given = growth_.shrink(growing, space_, may_release(held), keep_bytes);
    // What was given back no longer counts as a peak up to which growth creates handles before it remaps free
    // ones: an emptied pool grows as a new one does. Otherwise NanoVDB's grids took 1,434 MiB after
    // empty_cache() instead of 1,364.
    std::size_t const reserved = space_.reserved_of(common, counters_.reserved);
    if (waits) space_.live_peak = max_of(space_.live_bytes, min_of(space_.live_peak, reserved));
    space_.count_splits();
    return given;
  }
  /// Ends a step of the live_window. If the live peak has fallen, gives back free handles until the window's
  /// peak is reserved. Never waits, since no request lacks the memory: marks the work of all streams, and
  /// leaves what is not complete to a later step. Only where memory is pages, since the driver waits for the
  /// device before it frees a plain block.
  void give_back_unused(growth_lock const& growing, stream_id id) {
    if (is_asleep()) return;
    hot_lock held(hot_);
    may_release const releasing(held);
    if (!space_.window.is_step_over()) return;  // another thread has ended it
    std::size_t const peak = space_.window.peak();
    bool const fell = space_.window.end_step(space_.reserved_of(common, counters_.reserved),
                                             space_.live_bytes, space_.live_peak);
    std::size_t const keep = space_.reserved_in_parts.load(std::memory_order_relaxed) +
                             max_of(peak + peak / 1000 * slack_of(0, options_.slack_per_mille, 0, true),
                                    min_of(options_.release_threshold, max_request_bytes));
    if (!fell || counters_.reserved <= keep || capture_gate::has_captures()) return;
    if (domain_ref const d = space_.streams.find(id); d != neutral && !space_.streams[d].gone) {
      stream_ref const stream = space_.streams[d].stream;
      bool is_captured = true;
      {
        unlocked const released(releasing);
        is_captured = may_be_capturing(driver(), stream);
      }
      if (is_captured) return;
      // The mark of the step before: where the device is always behind, a new one would never be found
      // complete.
      if (!order_.is_running(space_, releasing, d)) (void)order_.settle(space_, releasing, d);
    }
    mark_other_streams(growing, releasing, id);
    std::size_t const given = growth_.shrink(growing, space_, releasing, keep);
    space_.window.note_given(given, counters_.reserved);
    if (counters_.reserved <= keep) space_.live_peak = max_of(peak, space_.live_bytes);
    space_.count_splits();
  }
  /// Refuses to wake if the device, or a limit that no layer can raise, does not have `bytes`.
  void require_free(std::size_t bytes) {
    memory_bound const bound = memory_left(layer_of(upstream()));
    bool const by_limit = bound.limit != memory_report::unknown;
    if (bytes <= bound.bytes || (by_limit && !only_bounds<layer_behind<Upstream>>())) return;
    memory_report r =
        refusal_of(memory_report::no_stream, bytes, usual_granule, "the device, to wake the pool");
    r.device_free = bound.device_free;
    r.device_total = bound.device_total;
    r.headroom = bound.headroom;
    r.limit = bound.limit;
    r.limit_used = bound.limit_used;
    if (by_limit || bound.headroom != memory_report::unknown) r.refused_by = bound.by;
    r.lacking = bytes - bound.bytes;
    throw out_of_memory(r);
  }
  /// Waits for all work on the pool's memory, as far as the driver can report it. Returns false if an open
  /// capture forbids it.
  /// @param asks_for_device  whether blocks are deferred for uses that only a device synchronisation covers
  [[nodiscard]] bool finish(growth_lock const& growing, bool asks_for_device) noexcept {
    hot_lock held(hot_);
    finish_all(growing, space_, order_, may_release(held));
    // A stream whose end the driver does not report: its work must not see its memory unmapped.
    if (!has_unfinished(space_) && !asks_for_device) return true;
    status s = wait_for_device(may_release(held));
    if (!s.ok()) s = wait_for_device(may_release(held));
    return !is_capture_error(s);
  }
  /// Work may still use the memory when the pool ends: close() will give none of it back.
  void keep_mapped(growth_lock const&) noexcept { keeps_mapped_ = true; }
  [[nodiscard]] bool keeps_mapped() const noexcept { return keeps_mapped_; }
  /// Gives everything back to the source, unless keep_mapped() was called.
  void close(growth_lock const& growing) noexcept {
    order_.close(space_);
    if (!keeps_mapped_) growth_.visit([&](auto& memory) { memory.close(growing); });
  }

  // ---- fork

  /// Returns true in a forked child of the process that made the pool. Its thread caches are closed, so every
  /// call reaches a check of this.
  [[nodiscard]] bool is_lost() const noexcept { return lost_.load(std::memory_order_relaxed); }
  /// Takes the hot lock for the time of a fork().
  void begin_fork() noexcept { hot_.lock(); }
  /// In the child, where a thread that holds the hot lock does not exist, the pool is lost.
  void end_fork(fork_side side) noexcept {
    if (side == fork_side::parent) return hot_.unlock();
    lost_.store(true, std::memory_order_relaxed);
    (void)::new (static_cast<void*>(&hot_)) hot_mutex;
  }
  /// Whether the pool sleeps: its thread caches are closed, so every call reaches a check of this. Changed
  /// under both locks.
  [[nodiscard]] bool is_asleep() const noexcept { return asleep_.load(std::memory_order_relaxed); }
  void set_asleep(growth_lock const&, bool asleep) noexcept {
    hot_lock const held(hot_);
    asleep_.store(asleep, std::memory_order_relaxed);
  }
  /// @throws cuda_error of kind `forked`, pool_asleep; out_of_memory: the request is larger than any block
  void require_ready(stream_id id, std::size_t bytes, std::size_t alignment) const {
    if (is_lost()) [[unlikely]]
      refuse_forked();
    if (is_asleep()) [[unlikely]]
      refuse_asleep(bytes);
    if (bytes > max_request_bytes) refuse(id, bytes, alignment);
  }
  /// A handler of the source runs inside a growth, which would continue on memory that has changed.
  /// @throws misuse
  void require_no_growth(char const* call) const {
    if (!holds_growth_lock()) return;
    message<256> const text(
        call, " was called by a handler of the pool's own growth; call it when the allocation has returned");
    throw misuse(misuse_kind::recursion, nullptr, text.view());
  }
  [[noreturn]] void refuse_forked() const {
    status const s{failure::forked, 3, "cudaErrorInitializationError", "allocation in a forked child"};
    throw cuda_error(s, driver().device().value);
  }
  [[noreturn]] void refuse(stream_id id, std::size_t bytes, std::size_t alignment,
                           char const* refused_by = "the pool") const {
    throw out_of_memory(refusal_of(id, bytes, alignment, refused_by));
  }
  [[noreturn]] void refuse_asleep(std::size_t bytes) const {
    throw pool_asleep(bytes, driver().device().value);
  }

 private:
  /// Whether work on another device may use the memory. Pages say which devices reach them. A program may
  /// have enabled peer access to plain blocks, which tarn cannot see.
  [[nodiscard]] bool can_use(device_id device) {
    constexpr auto reached_from = [](auto& layer) -> decltype(layer.reached_from()) {
      return layer.reached_from();
    };
    if (has_property<Upstream, host_accessible> || !uses_pages()) return true;
    if constexpr (reachable<Upstream, decltype(reached_from)>) {
      for (device_id const other : nearest(upstream(), reached_from)) {
        if (other == device) return true;
      }
    }
    return false;
  }
  using looked_up_domain = looked_up<domain_ref>;
  /// If the host has no memory to record a free and the device cannot be waited for, the block stays live
  /// until the pool ends: no thread may reuse it while work may still use it.
  static constexpr domain_ref no_domain = static_cast<domain_ref>(-1);

  [[nodiscard]] memory_report refusal_of(stream_id id, std::size_t bytes, std::size_t alignment,
                                         char const* refused_by) const {
    memory_report r;
    r.asked = bytes;
    r.alignment = alignment;
    r.device = driver().device().value;
    r.stream = id;
    r.refused_by = refused_by;
    return r;
  }

  /// The neutral domain of a block's part.
  [[nodiscard]] domain_ref neutral_of(hot_lock const&, void const* p) const noexcept {
    return space_.streams.part(space_.part_of(p)).neutral_domain;
  }
  /// The domain that a free belongs to, in the part of the block. If the host has no memory to make one,
  /// waits for the stream's work instead.
  looked_up_domain domain_of(may_release held, stream_id id, stream_ref stream, void const* p) noexcept {
    part_ref const part = space_.part_of(p);
    domain_ref found = no_domain;
    if (is_captured_id(id)) [[unlikely]] {
      // It has one while its capture is open. With it the order of its streams ends.
      found = space_.streams.find(id, part);
      bool const is_open = found != neutral && !space_.streams[found].gone;
      return {held.held(), is_open ? found : neutral_of(held.held(), p)};
    }
    try {
      found = space_.streams.get(id, stream, part);
    } catch (...) {
      if (wait_for_device(held).ok()) found = neutral_of(held.held(), p);
    }
    return {held.held(), found};
  }
  /// Marks the work of streams other than `id` that have free memory, and finds out which earlier marks are
  /// complete. Without it, a stream that has queued work, but allocates nothing, would keep what it freed.
  /// Never waits.
  void mark_other_streams(growth_lock const&, may_release held, stream_id id) {
    typename ordering<driver_type>::pass const all(order_);
    auto const each = [&](auto const& f) {
      space_.streams.for_each([&](domain_ref d) {
        stream_domain const& domain = space_.streams[d];
        if (domain.id != id && domain.has_free() && !domain.is_completed()) f(d);
      });
    };
    auto const each_idle = [&](auto const& f) {
      each([&](domain_ref d) {
        if (space_.streams[d].recorded <= space_.streams[d].completed) f(d);
      });
    };
    each([&](domain_ref d) { (void)order_.is_running(space_, held, d); });
    order_.mark_together(space_, held, each_idle);
    each([&](domain_ref d) {
      if (!order_.is_running(space_, held, d))
        (void)order_.settle(space_, held, d, gone_stream::stays_unknown);
    });
  }
  /// Waits for the device, not the stream: the stream of a late free may be destroyed, and its handle must
  /// not be used.
  status wait_for_device(may_release held) noexcept {
    unlocked const released(held);
    return wait_for_all_work(driver());
  }

  // Warm calls read these. What the hot lock protects begins on another cache line.
  pooled const options_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> asleep_{false};
  bool keeps_mapped_ = false;
  ordering<driver_type> order_;

  alignas(cache_line_bytes) hot_mutex hot_;
  misuse_notes notes_;
  live_count uncached_live_;  ///< of calls without a thread cache; under the hot lock
  arena space_;
  recursive_fork_mutex growth_mutex_;
  growth_counters counters_;
  known_left left_;
  growth_type growth_;
  typename growth_type::regions_type tool_;  ///< last: away from the members that a warm call reads
};

}  // namespace TARN_NAMESPACE::detail
