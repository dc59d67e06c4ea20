// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pool: a byte's whole path in allocate() and deallocate(), tier by tier. Read on in magazine.hpp,
// run.hpp, arena.hpp, ladder.hpp.
//
// What is looked at first: the magazine of the thread, stream and size class (magazine.hpp); a run or a free range of the
// stream's own domain, then of the neutral one (arena.hpp); then the ladder (ladder.hpp), whose last rungs are the driver.
//
// Which lock covers what, in the order of taking: `cold` (one thread climbs the ladder, the driver is
// called), each thread cache's owner_lock, `hot` (the arena; tens of nanoseconds, never across a driver
// call). The mutex of the recorded uses is taken under `cold` or alone, never across a driver call. No deallocation
// waits for `cold`: its holder may wait for the device.
//
// What is bounded by what: magazines by 104 MiB a stream and thread, and emptied before a pool that is not small grows;
// reserved memory by the live peak plus pool_options::slack_per_mille while whole free handles suffice; host memory by
// 64 bytes a range. Above it: policy. Below it: ladder, thread_cache.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/misuse.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/waiting_block.hpp"
#include "tarn/pool/described_source.hpp"
#include "tarn/pool/hot_lock.hpp"
#include "tarn/pool/ladder.hpp"
#include "tarn/pool/looked_up.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/pool/record_use.hpp"
#include "tarn/pool/thread_cache.hpp"

namespace tarn {

/// A stream-ordered caching pool over pages or over blocks of another resource. Use it through `source |
/// pooled{}`. Safe from any number of threads. A warm call takes no lock and makes no driver call.
///
/// fork() is safe with any number of threads inside. In the child a pool of host memory goes on with a copy of all blocks;
/// what other threads were doing at that moment stays undone. A pool over a driver that does not survive it, such as CUDA,
/// refuses there: allocation throws cuda_error of kind `forked`, everything else does nothing, and nothing is freed.
template <memory_source Upstream>
class pool {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  /// What it hands out are pieces of its blocks: a tool takes none of them as a heap.
  static constexpr bool hands_out_pieces = true;

  explicit pool(Upstream upstream, pool_options const& options = {})
      : ladder_(described::wrap(std::move(upstream), described_), options),
        uses_(ladder_.order.driver()),
        described_(ladder_.order.driver()) {
    link_->pool = this;
    link_->retire = [](void* self, detail::thread_cache* cache) noexcept {
      static_cast<pool*>(self)->retire(cache);
    };
  }
  pool(pool const&) = delete;
  pool& operator=(pool const&) = delete;

  /// Waits for the streams that freed memory here, then gives everything back. After the driver is gone:
  /// nothing.
  ~pool() {
    teller const last(*this);
    {
      std::lock_guard const guard(link_->mutex);
      link_->pool = nullptr;
    }
    if (is_lost()) return;
    std::lock_guard const cold(ladder_.cold);
    if constexpr (describes) {
      if (described_.active() && driver().synchronize_device().kind == failure::unloading)
        described_.abandon();
    }
    flush_all();
    bring_kept_home();
    release_waiting(true);
    {
      lock held(ladder_.hot);
      may_release const hot(held);
      ladder_.finish_all(hot);
      // A stream whose end the driver would not tell: its work must not see its memory unmapped.
      if ((ladder_.has_unfinished() || uses_.asks_for_device()) && !finish(hot)) (void)finish(hot);
    }
    uses_.close();
    ladder_.order.close(ladder_.space);
    ladder_.growth.close();
  }

  /// Allocates for work on `stream`.
  /// @param bytes      zero gives null; blocks up to 1 MiB are rounded to a size class, others to 512
  /// @param alignment  a power of two up to 2 MiB; above 256 the block has no magazine
  /// Reuses what was freed on the same stream at once; other streams' memory once ordered (see
  /// pool/stream_order.hpp).
  /// @throws out_of_memory, bad_alignment, cuda_error, std::bad_alloc (host): nothing has changed
  /// O(1) from a magazine or the arena, with no driver call unless the ladder is climbed.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    return allocate_on(identity(stream), stream, bytes, alignment);
  }

  /// Gives a block back; work on `stream` enqueued before this may still use it. `bytes` and `alignment` are
  /// those of the allocation. Never throws; misuse is told to the misuse handler where it is noticed.
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id && !ladder_.order.driver().identify(stream, id).ok()) [[unlikely]]
      return deallocate_unknown(stream, p, bytes, alignment);
    if (uses_.any() && uses_.may_hold(p) && hold_back(id, stream, p, bytes, alignment)) [[unlikely]]
      return;
    deallocate_on(id, stream, p, bytes, alignment);
  }

  /// Allocates memory that every stream may use at once. Waits for other streams' frees where only they would
  /// do.
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    if (bytes == 0) return nullptr;
    return allocate_on(detail::neutral_id, {}, bytes, alignment);
  }

  /// Gives back memory that no stream uses any more; every stream may have it at once.
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    if (uses_.any() && uses_.may_hold(p) && hold_back(detail::neutral_id, {}, p, bytes, alignment))
        [[unlikely]]
      return;
    deallocate_on(detail::neutral_id, {}, p, bytes, alignment);
  }

  /// Says that work on `stream`, enqueued up to the block's deallocation, uses it, though it is freed on
  /// another. The block is held back until that work is done; other blocks are not. Host cost O(1) amortised; 140 bytes of
  /// host memory for each of the most uses recorded at one time. @throws std::bad_alloc, cuda_error, nothing has changed
  void record_use(void* p, std::size_t, stream_ref stream) {
    if (p != nullptr && !is_lost()) uses_.note(p, stream);
  }

  /// Gives cached memory back to the driver until at most `keep_bytes` are reserved. Waits for the streams
  /// that freed it; other threads go on meanwhile. Returns the bytes given back. O(handles given back + free
  /// ranges).
  std::size_t trim(std::size_t keep_bytes) {
    teller const last(*this);
    std::lock_guard const cold(ladder_.cold);
    if (ladder_.counters.reserved <= keep_bytes || is_lost()) return 0;
    flush_all();
    bring_kept_home();
    release_waiting(true);
    lock held(ladder_.hot);
    ladder_.finish_all(may_release(held));
    std::size_t const given = ladder_.growth.shrink(ladder_.space, may_release(held), keep_bytes);
    ladder_.space.count_splits();
    return given;
  }

  /// True where `p` lies in what the pool reserved. Takes the growth lock.
  [[nodiscard]] bool owns(void const* p) const noexcept {
    std::lock_guard const cold(ladder_.cold);
    return ladder_.growth.contains(reinterpret_cast<std::uintptr_t>(p));
  }

  /// The largest block that the arena would hand out without a driver call, bytes.
  [[nodiscard]] std::size_t largest_free_range() const {
    std::lock_guard const hot(ladder_.hot);
    return ladder_.space.largest_free();
  }

  /// Bytes that a request occupies. Pure.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) const noexcept {
    return detail::rounded_bytes(bytes, alignment);
  }

  /// All numbers at one moment; exact while no other thread is inside. O(free ranges + threads).
  [[nodiscard]] pool_state state() const {
    std::lock_guard const cold(ladder_.cold);
    pool_state s;
    std::int64_t live = retired_live_bytes_;
    std::int64_t blocks = retired_live_blocks_;
    for (auto const& cache : caches_) {
      live += cache->live_bytes.load(std::memory_order_relaxed);
      blocks += cache->live_blocks.load(std::memory_order_relaxed);
      s.host_bytes += sizeof(*cache) + cache->host_bytes.load(std::memory_order_relaxed);
    }
    detail::growth_counters const& c = ladder_.counters;
    detail::waiting_amount const waiting = waiting_.now();
    s.pending = waiting.bytes > 0 ? static_cast<std::size_t>(waiting.bytes) : 0;
    s.pending_blocks = waiting.blocks > 0 ? static_cast<std::size_t>(waiting.blocks) : 0;
    s.host_bytes += uses_.host_bytes();
    std::lock_guard const hot(ladder_.hot);
    live += uncached_live_bytes_;
    blocks += uncached_live_blocks_;
    s.live = live > 0 ? static_cast<std::size_t>(live) : 0;
    s.live_blocks = blocks > 0 ? static_cast<std::size_t>(blocks) : 0;
    s.reserved = c.reserved;
    s.reserved_peak = c.reserved_peak;
    s.cached = c.reserved > s.live ? c.reserved - s.live : 0;
    s.largest_free_range = ladder_.space.largest_free();
    for (detail::zone const where : {detail::zone::small, detail::zone::large}) {
      pool_part& part = where == detail::zone::small ? s.small : s.large;
      part.reserved = c.reserved_in[static_cast<std::size_t>(where)];
      part.handles = c.handles_in[static_cast<std::size_t>(where)];
      for (detail::domain_ref d = 0; d < ladder_.space.streams.size(); ++d) {
        detail::range_index const& index = ladder_.space.streams[d].ranges(where);
        part.free_blocks += index.count();
        part.inactive_split_bytes += index.bytes();
      }
      s.free_blocks += part.free_blocks;
      s.inactive_split_bytes += part.inactive_split_bytes;
    }
    ladder_.space.count_splits();  // what a call that threw has changed
    detail::split_statistics const& splits = ladder_.space.splits;
    s.split = {splits.blocks[0], splits.bytes[0]};
    s.small.split = {splits.blocks[1], splits.bytes[1]};
    s.large.split = {splits.blocks[2], splits.bytes[2]};
    s.totals_reset = totals_reset_;
    s.reserved_total = c.reserved_total;
    s.released_total = c.released_total;
    s.handles = c.creates - c.destroys;
    s.handles_peak = c.handles_peak;
    s.creates = c.creates;
    s.destroys = c.destroys;
    s.maps = c.maps;
    s.unmaps = c.unmaps;
    s.remaps = c.remaps;
    s.alloc_retries = ladder_.alloc_retries;
    s.ooms = ladder_.ooms;
    s.host_waits = ladder_.order.host_waits();
    s.device_waits = ladder_.order.device_waits();
    s.host_bytes += ladder_.space.host_bytes() + ladder_.growth.host_bytes() + c.notes.host_bytes();
    return s;
  }

  /// Lets the peaks start again from now.
  void reset_peaks() noexcept {
    std::lock_guard const cold(ladder_.cold);
    ladder_.counters.reserved_peak = ladder_.counters.reserved;
    ladder_.counters.handles_peak = ladder_.counters.creates - ladder_.counters.destroys;
    for (std::size_t z = 0; z < detail::zone_count; ++z) {
      ladder_.counters.reserved_in[z].reset_peak();
      ladder_.counters.handles_in[z].reset_peak();
    }
    std::lock_guard const hot(ladder_.hot);
    ladder_.space.count_splits();
    for (stat& s : ladder_.space.splits.blocks) s.reset_peak();
    for (stat& s : ladder_.space.splits.bytes) s.reset_peak();
  }

  /// Lets the totals start again from zero: those of `small`, `large` and `split`; the others go on, and `totals_reset` holds
  /// what they were.
  void reset_totals() noexcept {
    std::lock_guard const cold(ladder_.cold);
    detail::growth_counters& c = ladder_.counters;
    totals_reset_.reserved = c.reserved_total;
    totals_reset_.released = c.released_total;
    totals_reset_.creates = c.creates;
    totals_reset_.destroys = c.destroys;
    totals_reset_.host_waits = ladder_.order.host_waits();
    for (std::size_t z = 0; z < detail::zone_count; ++z) {
      c.reserved_in[z].reset_totals();
      c.handles_in[z].reset_totals();
    }
    std::lock_guard const hot(ladder_.hot);
    totals_reset_.alloc_retries = ladder_.alloc_retries;
    ladder_.space.count_splits();
    for (stat& s : ladder_.space.splits.blocks) s.reset_totals();
    for (stat& s : ladder_.space.splits.bytes) s.reset_totals();
  }

  /// Notifies `observer` when a freed block begins or stops to wait for other streams, until end_observation().
  /// @throws std::bad_alloc, nothing has changed
  void observe_waiting(detail::waiting_observer& observer) { waiting_.attach(observer); }
  void end_observation(detail::waiting_observer& observer) noexcept { waiting_.detach(observer); }

  /// Keeps the latest `most` notes of handles and segments made and given back from now on; 0 ends it. `clock` is asked for
  /// the time of each. @throws std::bad_alloc, nothing has changed
  void note_growth(std::size_t most, detail::growth_notes::clock_type clock) {
    std::lock_guard const cold(ladder_.cold);
    ladder_.counters.notes.open(most, clock);
  }

  /// The same where nobody has asked for them yet. @throws std::bad_alloc
  void note_growth_from_now(std::size_t most, detail::growth_notes::clock_type clock) {
    std::lock_guard const cold(ladder_.cold);
    if (!ladder_.counters.notes.is_open()) ladder_.counters.notes.open(most, clock);
  }

  /// Calls `look(ladder, thread caches, recorded uses, description)` while nothing grows and no thread cache comes or goes:
  /// for pool/inspection.hpp, which knows the order of the other locks.
  template <class Look>
  void inspect(Look&& look) {
    std::lock_guard const cold(ladder_.cold);
    if (!is_lost()) look(ladder_, caches_, uses_, described_);
  }

  [[nodiscard]] Upstream& upstream() noexcept { return described::unwrap(ladder_.growth.source()); }
  [[nodiscard]] driver_type const& driver() const noexcept { return ladder_.growth.source().driver(); }

 private:
  using lock = detail::hot_lock;
  using may_release = detail::may_release;
  using unlocked = detail::unlocked;
  using described = detail::description_of<Upstream>;
  static constexpr bool describes = detail::is_describable<Upstream>;

  // ---- the way down: magazine, arena, ladder

  void* allocate_on(stream_id id, stream_ref stream, std::size_t bytes, std::size_t alignment) {
    if (alignment > default_alignment || !is_alignment(alignment)) [[unlikely]] {
      require_alignment(alignment);
    } else if (detail::thread_cache* const cache = local(); cache != nullptr) [[likely]] {
      if (void* const p = from_magazine(*cache, id, bytes); p != nullptr) [[likely]]
        return p;
    }
    return allocate_slow(id, stream, bytes, alignment);
  }

  /// Tier 1. Null on a miss.
  TARN_ALWAYS_INLINE void* from_magazine(detail::thread_cache& cache, stream_id id,
                                         std::size_t bytes) noexcept {
    if (!cache.lock.try_enter()) [[unlikely]]
      return nullptr;
    void* p = nullptr;
    std::size_t block = 0;
    if (detail::stream_cache* const mine = cache.find(id); mine != nullptr) [[likely]] {
      if (bytes <= detail::class_limit) [[likely]] {
        unsigned const k = detail::class_of(bytes);
        detail::magazine& m = mine->magazines[k];
        if (m.count != 0) [[likely]] {
          p = m.blocks[--m.count];
          block = detail::class_bytes(k);
        }
      } else if (mine->large_block != nullptr && mine->large_bytes == align_up(bytes, detail::range_grain)) {
        p = std::exchange(mine->large_block, nullptr);
        block = mine->large_bytes;
      }
      if (p != nullptr) {
        cache.count_live(static_cast<std::int64_t>(block), 1);
        cache.count_held(0, block);
      }
    }
    cache.lock.leave();
    return p;
  }

  /// Tiers 2 to 5.
  TARN_NOINLINE void* allocate_slow(stream_id id, stream_ref stream, std::size_t bytes,
                                    std::size_t alignment) {
    if (is_lost()) [[unlikely]]
      refuse_forked();
    if (bytes > max_request_bytes) refuse(id, bytes, alignment);
    teller const last(*this);
    if (ladder_.space.streams.is_crowded()) [[unlikely]]
      sweep_streams(id != detail::neutral_id && ladder_.order.is_capturing(stream)
                        ? detail::sweep_of::default_streams
                        : detail::sweep_of::all_streams);
    std::size_t const asked = bytes;
    detail::room_to_describe room(described_);
    if (described_.active()) [[unlikely]]
      bytes += detail::guard_bytes;
    bool const classed = detail::has_class(bytes, alignment);
    unsigned const k = classed ? detail::class_of(bytes) : 0;
    bool const in_run = classed && k < detail::run_class_count;
    std::size_t const block = detail::rounded_bytes(bytes, alignment);
    detail::zone const where = detail::zone_of(block);
    detail::thread_cache* const cache = local_or_new();
    detail::stream_cache* mine = cache != nullptr ? stream_cache_of(*cache, id, stream) : nullptr;
    // What large ranges are coalesced from must be home.
    void* home = nullptr;
    std::size_t home_bytes = 0;
    if (mine != nullptr && where != detail::zone::small) home = take_large(*cache, *mine, home_bytes);

    void* got[64];
    std::uint32_t count = 0;
    std::uint32_t const wanted = mine != nullptr && in_run ? detail::magazine_batch(k) : 1;
    detail::arena& space = ladder_.space;
    auto const take = [&](detail::domain_ref taker) {
      if (in_run) {
        count = space.take_small(taker, k, got, wanted);
      } else if ((got[0] = space.take(taker, where, block, alignment)) != nullptr) {
        count = 1;
      }
      return count != 0;
    };
    auto const uncached = [&] {
      if (cache == nullptr)  // a guard is nobody's
        count_uncached(static_cast<std::int64_t>(detail::rounded_bytes(asked, alignment)), 1);
      space.count_splits();
    };
    bool served = false;
    {
      lock held(ladder_.hot);
      if (home != nullptr) return_range(may_release(held), id, stream, home, home_bytes);
      space.make_room();
      served = take(space.streams.get(id, stream));
      if (served) uncached();
    }
    if (!served) {
      if (ladder_.cold.is_mine()) [[unlikely]]  // it cannot grow while it grows
        refuse(id, asked, alignment, "the pool, since it is asked by a handler of its own growth");
      std::lock_guard const cold(ladder_.cold);
      release_waiting(false);
      lock held(ladder_.hot);
      detail::growth_request request;
      request.taker = space.streams.get(id, stream);
      request.where = where;
      request.bytes = in_run ? detail::run_bytes(k) : block;
      request.alignment = in_run ? detail::frame_bytes : alignment;
      request.asked = asked;
      request.asked_alignment = alignment;
      void* const put_together = ladder_.climb(
          may_release(held), request, idle(), take, [this] { flush_all(); },
          [this] {
            bring_kept_home();
            release_waiting(true);
          });
      if (put_together != nullptr) {
        got[0] = put_together;
        count = 1;
      }
      uncached();
    }
    if (!served && cache != nullptr)  // a handler of the upstream may have used other streams meanwhile
      mine = stream_cache_of(*cache, id, stream);
    if (cache != nullptr) {
      cache->lock.enter();
      cache->count_live(static_cast<std::int64_t>(block), 1);
      while (count > 1 && mine != nullptr && put_in(*cache, *mine, k, got[count - 1])) --count;
      if (mine != nullptr && where == detail::zone::large) mine->newest_large = got[0];
      cache->lock.leave();
    }
    if (count > 1) give_back(id, stream, k, got + 1, count - 1);
    room.use(got[0], asked);
    return got[0];
  }

  // ---- the way up

  /// The stream was destroyed: nothing can be ordered after it, so all work is waited for, now or later.
  TARN_NOINLINE void deallocate_unknown(stream_ref stream, void* p, std::size_t bytes,
                                        std::size_t alignment) noexcept {
    if (is_lost()) return;
    count_waiting(bytes, alignment, 1);
    if (uses_.hold_back_for_all(p, bytes, alignment, stream)) return;
    count_waiting(bytes, alignment, -1);
    deallocate_sync(p, bytes, alignment);
  }

  TARN_ALWAYS_INLINE void deallocate_on(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                        std::size_t alignment) noexcept {
    if (alignment <= default_alignment) [[likely]] {
      if (detail::thread_cache* const cache = local(); cache != nullptr) [[likely]] {
        if (to_magazine(*cache, id, p, bytes)) [[likely]]
          return;
      }
    }
    deallocate_slow(id, stream, p, bytes, alignment);
  }

  TARN_ALWAYS_INLINE bool to_magazine(detail::thread_cache& cache, stream_id id, void* p,
                                      std::size_t bytes) noexcept {
    if (!cache.lock.try_enter()) [[unlikely]]
      return false;
    bool done = false;
    if (detail::stream_cache* const mine = cache.find(id); mine != nullptr) [[likely]] {
      if (bytes <= detail::class_limit) [[likely]] {
        unsigned const k = detail::class_of(bytes);
        done = put_in(cache, *mine, k, p);
        if (done) cache.count_live(-static_cast<std::int64_t>(detail::class_bytes(k)), -1);
      } else if (mine->large_block == nullptr && mine->newest_large == p) {
        mine->large_block = p;
        mine->large_bytes = align_up(bytes, detail::range_grain);
        cache.count_live(-static_cast<std::int64_t>(mine->large_bytes), -1);
        cache.count_held(mine->large_bytes, 0);
        done = true;
      }
    }
    cache.lock.leave();
    return done;
  }

  TARN_NOINLINE void deallocate_slow(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept {
    if (is_lost()) [[unlikely]]
      return;
    teller const last(*this);
    // The stream may be destroyed, so it cannot be asked whether it is captured.
    if (ladder_.space.streams.is_crowded()) [[unlikely]]
      sweep_streams(detail::sweep_of::default_streams);
    if (described_.active()) [[unlikely]]
      return take_back_described(id, stream, p, bytes, alignment, reuse::later);
    std::size_t const block = detail::rounded_bytes(bytes, alignment);
    bool const classed = detail::has_class(bytes, alignment);
    unsigned const k = classed ? detail::class_of(bytes) : detail::class_count;
    detail::thread_cache* const cache = local_or_new();
    detail::stream_cache* const mine = cache != nullptr ? stream_cache_of(*cache, id, stream) : nullptr;
    void* out[64];
    std::uint32_t count = 0;
    if (mine != nullptr) {
      cache->lock.enter();
      cache->count_live(-static_cast<std::int64_t>(block), -1);
      bool cached = false;
      if (classed) {
        detail::magazine& m = mine->magazines[k];
        if (m.count == m.capacity && m.count != 0) {
          // Full: the older half goes home.
          count = detail::magazine_batch(k);
          for (std::uint32_t i = 0; i < count; ++i) out[i] = m.blocks[i];
          for (std::uint32_t i = count; i < m.count; ++i) m.blocks[i - count] = m.blocks[i];
          m.count -= count;
          cache->count_held(0, count * block);
        }
        cached = put_in(*cache, *mine, k, p);
      } else if (alignment <= default_alignment && mine->newest_large == p) {
        out[0] = std::exchange(mine->large_block, p);
        if (out[0] == p) [[unlikely]] {
          cache->lock.leave();
          lock const held(ladder_.hot);
          return notice(detail::release_result::twice, p, block);
        }
        std::size_t const before = std::exchange(mine->large_bytes, block);
        cache->count_held(block, out[0] != nullptr ? before : 0);
        cache->lock.leave();
        if (out[0] != nullptr) give_back_range(id, stream, out[0], before);
        return;
      }
      cache->lock.leave();
      if (count != 0) give_back(id, stream, k, out, count);
      if (cached) return;
    } else {
      lock const held(ladder_.hot);
      count_uncached(-static_cast<std::int64_t>(block), -1);
    }
    if (classed) {
      give_back(id, stream, k, &p, 1);
    } else {
      give_back_range(id, stream, p, block);
    }
  }

  /// Puts a block in its magazine, if there is room. The owner is inside.
  TARN_ALWAYS_INLINE bool put_in(detail::thread_cache& cache, detail::stream_cache& mine, unsigned k,
                                 void* p) noexcept {
    detail::magazine& m = mine.magazines[k];
    if (m.count == m.capacity) [[unlikely]] {
      if (m.capacity != 0 || !mine.open(k)) return false;
      cache.count_host(m.capacity * sizeof(void*), 0);
    }
    m.blocks[m.count++] = p;
    cache.count_held(detail::class_bytes(k), 0);
    return true;
  }

  /// Takes the cached large block out, to be given back.
  [[nodiscard]] TARN_ALWAYS_INLINE void* take_large(detail::thread_cache& cache, detail::stream_cache& mine,
                                                    std::size_t& bytes) noexcept {
    cache.lock.enter();
    void* const p = std::exchange(mine.large_block, nullptr);
    bytes = mine.large_bytes;
    if (p != nullptr) cache.count_held(0, bytes);
    cache.lock.leave();
    return p;
  }

  /// Gives blocks of a class back to the arena.
  void give_back(stream_id id, stream_ref stream, unsigned k, void* const* blocks,
                 std::uint32_t count) noexcept {
    lock held(ladder_.hot);
    looked_up_domain giver = domain_of(may_release(held), id, stream);
    for (std::uint32_t i = 0; i < count; ++i) {
      bool const in_run = k < detail::run_class_count;
      if (giver.get(held) == nobody) {
        count_uncached(static_cast<std::int64_t>(detail::class_bytes(k)), 1);
        continue;
      }
      auto result = in_run ? ladder_.space.release_small(giver.get(held), k, blocks[i])
                           : ladder_.space.release(giver.get(held), blocks[i], detail::class_bytes(k));
      if (result == detail::release_result::needs_finish) {
        bool const finished = finish(may_release(held));
        giver = domain_of(may_release(held), id, stream);  // it may be another stream's by now
        if (!finished) {
          count_uncached(static_cast<std::int64_t>(detail::class_bytes(k)), 1);
          continue;
        }
        result = ladder_.space.release_small(detail::neutral, k, blocks[i]);
      }
      if (result != detail::release_result::done) notice(result, blocks[i], detail::class_bytes(k));
    }
    ladder_.space.count_splits();
  }
  void give_back_range(stream_id id, stream_ref stream, void* p, std::size_t block) noexcept {
    lock held(ladder_.hot);
    return_range(may_release(held), id, stream, p, block);
    ladder_.space.count_splits();
  }
  void return_range(may_release hot, stream_id id, stream_ref stream, void* p, std::size_t block) noexcept {
    detail::domain_ref const giver = domain_of(hot, id, stream).get(hot.held());
    if (giver == nobody) [[unlikely]]
      return count_uncached(static_cast<std::int64_t>(block), 1);
    auto const result = ladder_.space.release(giver, p, block);
    if (result != detail::release_result::done) [[unlikely]]
      notice(result, p, block);
  }

  /// Where the host has no memory to note a free and the device cannot be waited for, the block stays live until the pool
  /// ends: nobody may have it while work may still use it.
  using looked_up_domain = detail::looked_up<detail::domain_ref>;
  static constexpr detail::domain_ref nobody = static_cast<detail::domain_ref>(-1);

  /// The domain that a free belongs to. Where the host has no memory to make one, its work is waited for instead.
  looked_up_domain domain_of(may_release hot, stream_id id, stream_ref stream) noexcept {
    detail::domain_ref found = nobody;
    try {
      found = ladder_.space.streams.get(id, stream);
    } catch (...) {
      if (finish(hot)) found = detail::neutral;
    }
    return {hot.held(), found};
  }
  /// Waits for the device: a stream whose blocks come home late may be destroyed, and its handle must not be asked.
  bool finish(may_release hot) noexcept {
    unlocked const open(hot);
    return ladder_.order.driver().synchronize_device().ok();
  }

  // ---- with a tool that watches (description.hpp)

  /// Whether a freed block waits in quarantine.
  enum class reuse : std::uint8_t { later, at_once };

  TARN_NOINLINE void take_back_described([[maybe_unused]] stream_id id, [[maybe_unused]] stream_ref stream,
                                         [[maybe_unused]] void* p, [[maybe_unused]] std::size_t bytes,
                                         [[maybe_unused]] std::size_t alignment,
                                         [[maybe_unused]] reuse when) noexcept {
    if constexpr (describes) {
      detail::freed_block const b{p, bytes + detail::guard_bytes, alignment, id, stream};
      std::size_t const block = detail::rounded_bytes(bytes, alignment);  // as it was counted
      std::size_t const asked = described_.take_back(p, bytes);
      {
        lock const held(ladder_.hot);
        count_uncached(-static_cast<std::int64_t>(block), -1);
        if (asked != bytes)
          return notice(asked == 0 ? detail::release_result::foreign : detail::release_result::wrong_size, p,
                        block);
      }
      // What was held back has been waited for, and its stream may be destroyed.
      if (id == detail::neutral_id || when == reuse::at_once) {
        described_.region_ends(p);
      } else {
        described_.region_ends(p, bytes, stream);
      }
      if (when == reuse::at_once || !described_.fits(b)) return bring_home(b);
      detail::freed_block oldest;
      while (!described_.keep(b)) {
        if (described_.take_kept(oldest)) bring_home(oldest);
      }
    }
  }
  /// Ends the quarantine.
  void bring_kept_home() noexcept {
    if constexpr (describes) {
      detail::freed_block b;
      while (described_.take_kept(b)) bring_home(b);
    }
  }
  void bring_home(detail::freed_block const& b) noexcept {
    if (detail::has_class(b.bytes, b.alignment)) {
      give_back(b.id, b.stream, detail::class_of(b.bytes), &b.p, 1);
    } else {
      give_back_range(b.id, b.stream, b.p, detail::rounded_bytes(b.bytes, b.alignment));
    }
  }

  // ---- misuse

  /// A misuse noticed under a lock.
  struct noticed {
    detail::release_result what = detail::release_result::done;
    void const* p = nullptr;
  };

  /// Tells what was noticed when the call ends and its locks are released, so that the handler may use the pool. Comes
  /// before the locks of its function.
  class teller {
   public:
    explicit teller(pool& self) noexcept : self_(self) {}
    teller(teller const&) = delete;
    teller& operator=(teller const&) = delete;
    ~teller() {
      while (self_.noticed_count_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
          noticed next;
          {
            lock const held(self_.ladder_.hot);
            unsigned const count = self_.noticed_count_.load(std::memory_order_relaxed);
            if (count == 0) return;
            next = self_.noticed_[count - 1];
            self_.noticed_count_.store(count - 1, std::memory_order_relaxed);
          }
          tell(next);
        }
    }

   private:
    pool& self_;
  };

  /// Notes a misuse for the teller, and that what was counted as freed was not; of very many at once the first are told.
  /// The hot lock is held.
  void notice(detail::release_result what, void const* p, std::size_t block) noexcept {
    count_uncached(static_cast<std::int64_t>(block), 1);
    unsigned const count = noticed_count_.load(std::memory_order_relaxed);
    if (count == most_noticed) return;
    noticed_[count] = {what, p};
    noticed_count_.store(count + 1, std::memory_order_relaxed);
  }

  static void tell(noticed const& n) noexcept {
    message<160> text;
    misuse_kind kind = misuse_kind::foreign_pointer;
    text.add("deallocation of ").add_hex(reinterpret_cast<std::uintptr_t>(n.p)).add(": ");
    switch (n.what) {
      case detail::release_result::wrong_size:
        kind = misuse_kind::wrong_size;
        text.add("the block has another size; pass the bytes and alignment of its allocation");
        break;
      case detail::release_result::twice:
        kind = misuse_kind::double_free;
        text.add("the block is free already");
        break;
      default:
        text.add("no live block of this pool starts there (freed twice, or another pool's)");
        break;
    }
    report_misuse(misuse(kind, n.p, text.view()));
  }

  // ---- threads

  [[nodiscard]] TARN_ALWAYS_INLINE detail::thread_cache* local() const noexcept {
    return detail::local_caches.find(link_.get(), link_number_);
  }

  /// This thread's cache, made on first use. Null once the thread is ending, without host memory, or while another thread
  /// holds the growth lock: then a later call makes it.
  [[nodiscard]] TARN_ALWAYS_INLINE detail::thread_cache* local_or_new() noexcept {
    if (auto* const cache = local(); cache != nullptr) [[likely]]
      return cache;
    return new_local();
  }
  TARN_NOINLINE detail::thread_cache* new_local() noexcept {
    if (detail::thread_exit::over || described_.active() || is_lost()) return nullptr;
    try {
      detail::thread_exit& hook = detail::thread_exit::of_this_thread();
      detail::owned made(new detail::thread_cache);
      detail::thread_cache* const cache = made.get();
      // Not waited for: its holder may wait for work that this thread goes on to launch after a deallocation.
      std::unique_lock const cold(ladder_.cold, std::try_to_lock);
      if (!cold.owns_lock()) return nullptr;
      caches_.reserve(caches_.size() + 1);
      hook.add(link_, cache);
      caches_.push_back(std::move(made));
      return cache;
    } catch (...) {
      return nullptr;
    }
  }

  /// This thread's cache of a stream, made on first use; null without host memory. A thread that comes with
  /// stream after stream brings the magazines of the oldest home.
  detail::stream_cache* stream_cache_of(detail::thread_cache& cache, stream_id id,
                                        stream_ref stream) noexcept {
    detail::owned<detail::stream_cache> oldest;
    cache.lock.enter();
    detail::stream_cache* mine = cache.find(id);
    if (mine == nullptr) {
      try {
        mine = cache.make(id, stream, oldest);
      } catch (...) {
        mine = nullptr;
      }
    }
    cache.lock.leave();
    if (oldest.get() != nullptr) bring_home(*oldest);
    return mine;
  }

  /// An ending thread's cache comes home. Called with the link's mutex held.
  void retire(detail::thread_cache* cache) noexcept {
    if (is_lost()) return;
    teller const last(*this);
    std::lock_guard const cold(ladder_.cold);
    flush(*cache);
    retired_live_bytes_ += cache->live_bytes.load(std::memory_order_relaxed);
    retired_live_blocks_ += cache->live_blocks.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      if (caches_[i].get() != cache) continue;
      caches_.erase_unordered(i);
      break;
    }
  }

  /// What the magazines keep. The growth lock is held.
  [[nodiscard]] detail::idle_blocks idle() const noexcept {
    detail::idle_blocks sum{0, caches_.size() != 0 ? caches_.size() : 1};
    for (auto const& cache : caches_) sum.bytes += cache->held_bytes.load(std::memory_order_relaxed);
    return sum;
  }

  /// Brings every magazine home. The growth lock is held.
  void flush_all() noexcept {
    detail::thread_cache* const own = local();
    bool any = false;
    for (auto const& cache : caches_) {
      if (cache->held_bytes.load(std::memory_order_relaxed) == 0) continue;
      if (cache.get() == own) {  // its owner needs no barrier
        own->lock.enter();
        bring_home(*own);
        own->lock.leave();
        continue;
      }
      cache->lock.announce();
      any = true;
    }
    if (!any) return;
    detail::remote_barrier();
    for (auto const& cache : caches_) {
      if (cache->lock.is_announced()) empty(*cache);
    }
  }

  void flush(detail::thread_cache& cache) noexcept {
    cache.lock.announce();
    detail::remote_barrier();
    empty(cache);
  }

  /// After announce() and a barrier.
  void empty(detail::thread_cache& cache) noexcept {
    cache.lock.visit();
    bring_home(cache);
    cache.lock.end_visit();
  }

  /// Empties all magazines of a thread. The caller is inside.
  void bring_home(detail::thread_cache& cache) noexcept {
    for (auto const& mine : cache.streams) bring_home(*mine);
    cache.held_bytes.store(0, std::memory_order_relaxed);
  }

  /// Empties a stream's magazines, which nobody else can reach meanwhile.
  void bring_home(detail::stream_cache& mine) noexcept {
    if (mine.large_block != nullptr) {
      give_back_range(mine.id, mine.stream, std::exchange(mine.large_block, nullptr), mine.large_bytes);
    }
    for (unsigned k = 0; k < detail::class_count; ++k) {
      detail::magazine& m = mine.magazines[k];
      if (m.count != 0) give_back(mine.id, mine.stream, k, m.blocks, std::exchange(m.count, 0));
    }
  }

  /// True where record_use() holds the block back. The stream is known by its identity from now on: when the block is
  /// freed it may be destroyed, its handle another's, and the calling thread another.
  TARN_NOINLINE bool hold_back(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                               std::size_t alignment) noexcept {
    if (is_lost()) return true;
    if constexpr (describes) {
      if (described_.active() && id != detail::neutral_id) described_.wait_if_live(p, bytes, stream);
    }
    // Counted first: once it is held back another thread may free it.
    count_waiting(bytes, alignment, 1);
    bool const held = uses_.hold_back(p, bytes, alignment, stream_ref::from(stream.handle(), id));
    if (!held) count_waiting(bytes, alignment, -1);
    return held;
  }
  void count_waiting(std::size_t bytes, std::size_t alignment, std::int64_t sign) noexcept {
    waiting_.change(bytes <= detail::class_limit, detail::rounded_bytes(bytes, alignment), bytes, sign);
  }

  /// Frees blocks that record_use() held back and whose uses are over. The growth lock is held.
  void release_waiting(bool const wait) noexcept {
    if (!uses_.any_waiting()) return;
    uses_.settle(wait);
    typename detail::recorded_uses<driver_type>::waiting w;
    while (uses_.take_ready(w)) {
      count_waiting(w.bytes, w.alignment, -1);
      stream_id const id = w.stream.id();
      if (described_.active()) {
        take_back_described(id, w.stream, w.p, w.bytes, w.alignment, reuse::at_once);
        continue;
      }
      {
        lock const held(ladder_.hot);
        count_uncached(-static_cast<std::int64_t>(detail::rounded_bytes(w.bytes, w.alignment)), -1);
      }
      bring_home(detail::freed_block{w.p, w.bytes, w.alignment, id, w.stream});
    }
  }

  void count_uncached(std::int64_t bytes, std::int64_t blocks) noexcept {
    uncached_live_bytes_ += bytes;
    uncached_live_blocks_ += blocks;
  }

  // ---- streams

  /// Forgets streams that are done with the pool, ended threads' default streams among them. Where another thread climbs,
  /// a later call does it.
  TARN_NOINLINE void sweep_streams(detail::sweep_of which) noexcept {
    if (!ladder_.cold.try_lock()) return;
    std::lock_guard const cold(ladder_.cold, std::adopt_lock);
    lock held(ladder_.hot);
    if (ladder_.space.streams.is_crowded()) ladder_.sweep(may_release(held), which);
  }

  [[nodiscard]] TARN_ALWAYS_INLINE stream_id identity(stream_ref stream) const {
    if (stream.id() != stream_ref::unknown_id) [[likely]]
      return stream.id();
    stream_id id = 0;
    status const s = ladder_.order.driver().identify(stream, id);
    if (!s.ok()) {
      if (is_lost()) refuse_forked();
      throw cuda_error(s, ladder_.order.driver().device().value);
    }
    return id;
  }

  // ---- fork

  /// True in a forked child that cannot use what the driver gave its parent. Its magazines are shut, so that every call comes
  /// to where this is asked.
  [[nodiscard]] bool is_lost() const noexcept { return lost_.load(std::memory_order_relaxed); }

  [[noreturn]] void refuse_forked() const {
    status const s{failure::forked, 3, "cudaErrorInitializationError", "allocation in a forked child"};
    throw cuda_error(s, ladder_.order.driver().device().value);
  }

  /// Keeps every thread out. The locks that were made before this pool's at_fork are taken.
  [[nodiscard]] bool take_for_fork() noexcept {
    if (is_lost()) return true;
    if (!ladder_.cold.is_mine()) return false;
    for (auto const& cache : caches_) cache->lock.announce();
    detail::remote_barrier();
    for (auto const& cache : caches_) cache->lock.visit();
    ladder_.hot.lock();
    return true;
  }
  void release_after_fork(detail::fork_side side) noexcept {
    if (is_lost()) return;
    if (side == detail::fork_side::child_without) {
      (void)::new (static_cast<void*>(&ladder_.hot)) detail::hot_mutex;
      for (auto const& cache : caches_) cache->lock.announce();
    } else {
      ladder_.hot.unlock();
    }
    bool const goes_on = side == detail::fork_side::parent ||
                         (side == detail::fork_side::child && survives_fork(ladder_.order.driver()));
    lost_.store(!goes_on, std::memory_order_relaxed);
    if (!goes_on) return;
    if (side == detail::fork_side::parent) {
      for (auto const& cache : caches_) cache->lock.end_visit();
    } else {
      detail::renew_remote_barrier();
      for (auto const& cache : caches_) cache->lock.end_visit_in_child();
    }
  }

  [[noreturn]] void refuse(stream_id id, std::size_t bytes, std::size_t alignment,
                           char const* refused_by = "the pool") const {
    memory_report r;
    r.asked = bytes;
    r.alignment = alignment;
    r.device = ladder_.order.driver().device().value;
    r.stream = id;
    r.refused_by = refused_by;
    throw out_of_memory(r);
  }

  mutable detail::ladder<typename described::source_type> ladder_;
  detail::recorded_uses<driver_type> uses_;
  detail::waiting_count waiting_;
  detail::counted<detail::pool_link> link_;
  std::uint32_t const link_number_ = link_->number;
  detail::sequence<detail::owned<detail::thread_cache>> caches_;  ///< under the growth lock
  pool_totals totals_reset_;                                      ///< under the growth lock
  std::int64_t retired_live_bytes_ = 0;  ///< of threads that ended; under the growth lock
  std::int64_t retired_live_blocks_ = 0;
  std::int64_t uncached_live_bytes_ = 0;  ///< of calls without a thread cache; under the hot lock
  std::int64_t uncached_live_blocks_ = 0;
  static constexpr unsigned most_noticed = 16;
  noticed noticed_[most_noticed];  ///< misuse not told yet; under the hot lock
  std::atomic<unsigned> noticed_count_{0};
  std::atomic<bool> lost_{false};
  typename described::type described_;  ///< away from what a warm call looks at
  detail::at_fork member_{this, [](void* self) noexcept { return static_cast<pool*>(self)->take_for_fork(); },
                          [](void* self, detail::fork_side side) noexcept {
                            static_cast<pool*>(self)->release_after_fork(side);
                          }};
};

}  // namespace tarn
