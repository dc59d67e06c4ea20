// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory of captured graphs. A graph holds addresses: what is allocated inside a capture must not serve anything else until no
// graph uses it any more. Each graph_memory therefore owns a part, which is a pool of its own over the same source.
//
//   a capture_scope opens       its stream has no cache on any thread from now on, so that all its calls take the slow path; so do
//                               all calls of the thread, which ask whether their stream is captured: it may have joined the capture
//   allocate, captured stream   from the part, under an identity that the capture gives the stream
//   deallocate there            to the part under the same identity: reused inside the capture in the order of the stream
//     of a block of the pool    deferred until the owner has ended: the graph uses it
//   deallocate elsewhere        to the part, in the order of that stream
//   allocate for an owner       inside its capture as above; elsewhere from a second part, in the order of the stream: what captures
//                               received is for captures alone. See graph_memory::allocate()
//   the scope ends              what captured streams freed is free for the owner's next capture
//   the owner ends              when the device has completed all work submitted before and no block is live, the part's memory
//                               goes back to the source and the deferred blocks to the pool
//
// Other threads and streams pay nothing. A live block of a part is recorded by its address, so that deallocation finds it with one
// load more while there is one.
//
// Over 400 lines: what calls, owners and pins do with the parts, whose list has one mutex.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/graph/capture_cache.hpp"
#include "tarn/pool/graph/graph_blocks.hpp"
#include "tarn/pool/graph/graph_captures.hpp"
#include "tarn/pool/graph/graph_part.hpp"
#include "tarn/pool/graph/open_captures.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/pool/pool_statistics.hpp"

namespace tarn::detail {

/// What a pool keeps of its graph memories. Mutexes are never held across a call of a pool or driver.
template <class Upstream, class Heap, class Front, class Deferred>
class graph_memories {
 public:
  using driver_type = typename Upstream::driver_type;
  using part = graph_part<Upstream, Deferred>;
  using capture = captured_stream<part>;
  using captures_type = graph_captures<part, Heap, Front>;

  graph_memories(Heap& heap, Front& front, Deferred& deferred) noexcept
      : heap_(heap), deferred_(deferred), captures_(heap, front) {}
  graph_memories(graph_memories const&) = delete;
  graph_memories& operator=(graph_memories const&) = delete;
  ~graph_memories() {
    if (!heap_.is_lost()) return;
    for (auto& p : parts_) p->end.abandon();
  }

  // ---- calls of the pool

  /// Whether a call that is not warm must look for a capture.
  [[nodiscard]] bool is_watching() const noexcept { return captures_.any(); }
  /// The same for a deallocation.
  [[nodiscard]] bool watches_frees() const noexcept { return captures_.watches_frees(); }
  /// Returns false if `p` is no live block of a part. Takes no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept { return blocks_.may_hold(p); }

  /// Serves a request if its stream is captured; null if it is not. `Pool` is the pool itself.
  /// @throws out_of_memory; cuda_error: captured, and no scope says for which owner; std::bad_alloc: nothing has changed
  template <class Pool>
  [[nodiscard]] void* allocate(Pool& whole, stream_id id, stream_ref stream, std::size_t bytes,
                               std::size_t alignment) {
    if (part* const owner = captures_.cached(id); owner != nullptr) {
      capture_cache& cache = owner->cache;
      stream_ref const as = stream_ref::from(nullptr, cache.kept_as);
      void* p = nullptr;
      if (alignment <= default_alignment)
        p = owner->memory.front_.take(cache.kept_as, lazy_block_size{bytes});
      if (p == nullptr) p = take(whole, *owner, as, id, bytes, alignment);
      if (cache.is_old()) clear(*owner);
      if (!cache.take(p)) record(p, *owner, as, bytes, alignment, &cache);
      return p;
    }
    capture const at = captures_.of_allocation(id, stream);
    if (at.kept_as == 0) return nullptr;
    stream_ref const as = stream_ref::from(nullptr, at.kept_as);
    void* const p = take(whole, *at.owner, as, id, bytes, alignment);
    record(p, *at.owner, as, bytes, alignment, nullptr);
    return p;
  }

  /// Serves a request of an owner, whether its stream is captured or not; see graph_memory::allocate().
  /// @param captured  the part of the owner's captures
  /// @param outside   called as outside() for the part of other requests @throws as allocate()
  template <class Pool, class Outside>
  [[nodiscard]] void* allocate_for(Pool& whole, part& captured, Outside const& outside, stream_id id,
                                   stream_ref stream, std::size_t bytes, std::size_t alignment) {
    capture const at = is_watching() ? captures_.of_allocation(id, stream) : capture{};
    bool const is_own = at.owner == &captured;
    part& from = is_own ? captured : outside();
    stream_ref as = stream_ref::from(stream.handle(), id);
    // The part keeps no order of the streams of another owner's capture.
    if (at.kept_as != 0) as = stream_ref::from(nullptr, is_own ? at.kept_as : neutral_id);
    void* const p = take(whole, from, as, id, bytes, alignment);
    record(p, from, as, bytes, alignment, nullptr);
    return p;
  }

  /// Takes back a live block of a part. Returns false if `p` is none. `id` may be neutral_id, or unknown for a destroyed stream.
  bool deallocate(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                  std::size_t alignment) noexcept {
    if (part* const owner = captures_.cached(id);
        owner != nullptr && !owner->cache.is_old() && owner->cache.give(p)) {
      stream_id const kept_as = owner->cache.kept_as;
      auto& memory = owner->memory;
      if (alignment > default_alignment || memory.deferred_.any_recorded() ||
          !memory.front_.put(kept_as, p, lazy_block_size{bytes}))
        memory.deallocate(stream_ref::from(nullptr, kept_as), p, bytes, alignment);
      return true;
    }
    auto const of = blocks_.take(p);
    if (!of.is_there()) return false;
    deferred_.count_graph_block(false);
    part* const owner = of.owner;
    capture const at = captures_.of_deallocation(id, stream);
    bool const is_others = at.kept_as != 0 && (at.owner != owner || at.is_guess);
    if (is_others || !of.users.empty()) {
      block_type freed{p, bytes, alignment, owner, of.users};  // with the block's reference to its owner
      defer(freed, is_others, at.owner);
      return true;
    }
    if (at.kept_as != 0) {
      owner->memory.deallocate(stream_ref::from(nullptr, at.kept_as), p, bytes, alignment);
    } else if (id == neutral_id) {
      owner->memory.deallocate_sync(p, bytes, alignment);
    } else {
      owner->memory.deallocate(stream_ref::from(stream.handle(), id), p, bytes, alignment);
    }
    --owner->references;
    return true;
  }

  /// Defers a block of the pool that is freed on a captured stream. Returns false if the stream is not captured.
  bool defer_if_captured(stream_id id, stream_ref stream, void* p, std::size_t bytes, std::size_t alignment,
                         if_unknown then = if_unknown::ask) noexcept {
    capture const at = captures_.of_deallocation(id, stream, then);
    if (at.kept_as == 0) return false;
    block_type freed{p, bytes, alignment, nullptr, {}};
    defer(freed, true, at.owner);
    return true;
  }

  /// Records a use of a part's block, or of any block by a captured stream. Returns false if it is neither.
  /// Notes the identity of a bare handle in `stream`. A captured stream of no known capture is refused: the event that an ordinary use
  /// waits for does not cover the replays. @throws std::bad_alloc, cuda_error: nothing has changed
  bool record_stream(void* p, std::size_t bytes, stream_ref& stream) {
    if (watches_frees()) {
      if (capture const at = captures_.of_use(stream); at.owner != nullptr) {
        if (blocks_.record_use(p, *at.owner)) deferred_.count_graph_block(true);
        if (!may_be_own(p)) return true;
      }
    }
    if (!may_hold(p)) return false;
    part* const owner = blocks_.owner_of(p);
    if (owner == nullptr) return false;
    call_in_progress const call(*owner);
    owner->memory.record_stream(p, bytes, stream);
    return true;
  }

  // ---- owners and captures

  /// @param other  the part of the same owner's captures; null to make that
  /// @throws what the pool's constructor throws, std::bad_alloc: nothing has changed
  [[nodiscard]] part& make_part(growth_lock const& growing, part const* other) {
    std::uint64_t const owner = other != nullptr ? other->owner : ++last_owner_;
    owned<part> made(new part(heap_, deferred_, ++last_number_, owner));
    made->memory.observe_deferred(made->observer);
    made->memory.heap_.join(growing, made->owner, heap_.sums, other == nullptr);
    if (heap_.counters(growing).notes.is_open())
      made->memory.note_growth(heap_.counters(growing).notes.most(), heap_.counters(growing).notes.clock());
    std::lock_guard const guard(mutex_);
    parts_.push_back(std::move(made));
    return *parts_.back();
  }
  /// Waits for the graphs that the device still runs, and gives back what ended owners had. The pool ends: there is no owner left.
  /// Returns false if a capture prevents it.
  template <class Pool>
  [[nodiscard]] bool finish(growth_lock const& growing, Pool& whole) noexcept {
    for (auto& p : parts_) (void)p->end.is_complete(true);
    (void)reap(growing, whole, true);
    for (auto& p : parts_) {
      if (p->end.waits_for_capture()) return false;
    }
    return true;
  }
  /// Whether the pool has a block that is deferred until it ends. Graphs may use it, and no stream's work covers that.
  [[nodiscard]] bool defers_until_end() const noexcept {
    return defers_until_end_.load(std::memory_order_relaxed);
  }
  /// The pool ends while work may use what its ended owners had: none of it is given back.
  void keep_mapped(growth_lock const& growing) noexcept {
    for (auto& p : parts_) p->memory.heap_.keep_mapped(growing);
  }
  /// Ends an owner. Its memory is given back now if the device has completed its work, else later.
  template <class Pool>
  void end_part(growth_lock const& growing, Pool& whole, part& of) noexcept {
    {
      std::lock_guard const guard(mutex_);
      of.is_over = true;
      ++over_count_;
    }
    if (!heap_.is_lost()) (void)reap(growing, whole, false);
  }

  /// @throws cuda_error, std::bad_alloc: nothing has changed
  template <class Pool>
  [[nodiscard]] capture_number begin_capture(growth_lock const& growing, Pool& whole, part& owner,
                                             stream_ref stream) {
    if (captures_.is_memory_scarce(growing)) whole.drain_.prepare_for_capture(growing);
    owner.memory.drain_.prepare_for_capture(growing);
    {
      std::lock_guard const guard(mutex_);
      owner.deferred.reserve(owner.deferred.size() + deferred_at_least);
    }
    return captures_.begin(growing, owner, stream);
  }
  void join_capture(growth_lock const& growing, part& owner, capture_number number, stream_ref stream) {
    captures_.add(growing, owner, number, stream);
  }
  void end_capture(growth_lock const& growing, part& owner, capture_number number) noexcept {
    if (captures_.end_cached(growing, owner, number)) clear(owner);
    captures_.end(growing, owner, number);
  }

  /// Gives back what ended owners had, as far as nothing uses it. `wait` makes the host wait for graphs that still run. Returns
  /// true if anything was given back.
  template <class Pool>
  bool reap(growth_lock const& growing, Pool& whole, bool const wait) noexcept {
    bool any = false;
    for (std::uint64_t last = 0; over_count_ != 0;) {
      part* const p = next_over(last);
      if (p == nullptr) break;
      last = p->number;
      {
        std::lock_guard const guard(mutex_);
        if (std::exchange(p->is_mark_old, false)) p->end.renew();
      }
      if (!p->end.is_complete(wait)) continue;
      // Before the part itself: blocks of ended owners that are deferred for each other, or for their own, would hold them forever.
      bool const gave_deferred = give_back_all_deferred(whole, *p);
      // Its destructor must find nothing to wait for: a capture may open at any moment.
      bool const can_end = p->memory.drain_.can_end_now(growing) ||
                           (!capture_gate::has_captures() && p->memory.drain_.finish(growing));
      owned<part> const gone = can_end ? take_part(*p) : owned<part>();
      if (gave_deferred || gone.get() != nullptr) {
        any = true;
        last = 0;  // an ended owner that was passed may have waited for a block deferred for this one
      }
      if (gone.get() == nullptr) continue;
      add_ended(heap_.sums, gone->memory.state());
      gone->memory.heap_.counters(growing).leave_sums();
    }
    return any;
  }
  [[nodiscard]] bool has_ended_parts() const noexcept { return over_count_ != 0; }

  // ---- reports

  [[nodiscard]] graph_state state_of(part& of) const {
    pool_state const s = of.memory.state();
    std::lock_guard const guard(mutex_);
    return {s.reserved, s.live > s.deferred ? s.live - s.deferred : 0, of.deferred_bytes, of.owner};
  }
  /// Calls f(pool) for each part. reap() leaves alone what a call refers to.
  template <class F>
  void for_each_pool(growth_lock const&, F const& f) {
    part* p = nullptr;
    for (std::uint64_t last = 0; (p = next_part(last)) != nullptr;) {
      call_in_progress const call(*p);
      last = p->number;
      f(p->memory);
    }
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return blocks_.host_bytes(); }
  /// Calls f(address, bytes, number of the owner) for each block that is deferred for a graph; the number is 0 if until the pool ends.
  template <class F>
  void for_each_deferred(growth_lock const&, F const& f) const {
    std::lock_guard const guard(mutex_);
    for (auto const& p : parts_) {
      for (auto const& b : p->deferred) f(b.p, b.bytes, p->owner);
    }
    for (auto const& b : deferred_until_end_) f(b.p, b.bytes, std::uint64_t{0});
  }

  // ---- pins: a part stays, also after its owner has ended.

  void add_reference(growth_lock const&, void const* p) noexcept { ++part_with(p)->references; }
  void remove_reference(growth_lock const&, void const* p) noexcept { --part_with(p)->references; }

 private:
  using block_type = deferred_block<part>;
  static constexpr std::size_t deferred_at_least =
      64;  ///< blocks of each capture for which there is room beforehand

  /// Whether `p` is a live block of a part, and not only used by one.
  [[nodiscard]] bool may_be_own(void const* p) noexcept {
    part* const owner = blocks_.owner_of(p);
    if (owner != nullptr) --owner->references;
    return owner != nullptr;
  }
  /// Gives up, at the end of a call, a reference that was taken for it.
  class call_in_progress {
   public:
    explicit call_in_progress(part& of) noexcept : of_(of) {}
    call_in_progress(call_in_progress const&) = delete;
    call_in_progress& operator=(call_in_progress const&) = delete;
    ~call_in_progress() { --of_.references; }

   private:
    part& of_;
  };

  /// Records a block that was handed out under the identity of `as`, and adds it to the cache of its capture.
  /// @throws std::bad_alloc, the block is free again
  void record(void* p, part& owner, stream_ref as, std::size_t bytes, std::size_t alignment,
              capture_cache* cache) {
    bool const is_cached = cache != nullptr && cache->has_room();
    bool is_new = false;
    try {
      is_new = blocks_.record(p, owner, is_cached ? recorded_for::capture_cache : recorded_for::live_block);
    } catch (...) {
      owner.memory.deallocate(as, p, bytes, alignment);
      throw;
    }
    if (is_new) deferred_.count_graph_block(true);
    if (is_cached) cache->add(p);
  }
  /// Empties the cache of a capture.
  void clear(part& owner) noexcept {
    owner.cache.clear([&](void* const* free, std::size_t count) {
      for (std::size_t left = blocks_.forget(free, count, owner); left != 0; --left)
        deferred_.count_graph_block(false);
    });
  }

  template <class Pool>
  void* take(Pool& whole, part& from, stream_ref as, stream_id id, std::size_t bytes, std::size_t alignment) {
    try {
      return from.memory.allocate(as, bytes, alignment);
    } catch (out_of_memory& refused) {
      memory_report report = refused.report();
      if (whole.trim(0) != 0) {
        try {
          return from.memory.allocate(as, bytes, alignment);
        } catch (out_of_memory const& again) {
          report = again.report();
        }
      }
      report.stream = id;
      refused.set_report(report);
      throw;
    }
  }

  /// Defers a block until none of its users is left, and `by`, if a capture freed it. Without host memory to record it, the block
  /// is deferred until the pool ends. So is one of an unknown capture.
  void defer(block_type& b, bool is_of_capture, part* by) noexcept {
    std::lock_guard const guard(mutex_);
    count_deferred(b, 1);
    if (by != nullptr) b.users.add(*by);
    if ((is_of_capture && by == nullptr) || b.users.is_too_many()) {
      b.users.clear();
      return defer_until_end(b);
    }
    pass_on(b);
  }
  /// Defers a block until the pool ends. One for which there is no host memory is not listed in snapshots. Under the mutex.
  void defer_until_end(block_type const& b) noexcept {
    defers_until_end_.store(true, std::memory_order_relaxed);
    try {
      deferred_until_end_.push_back(b);
    } catch (...) {  // it is deferred all the same
    }
  }
  /// Defers a block for its next user. Under the mutex.
  void pass_on(block_type& b) noexcept {
    part& next = b.users.take();
    try {
      next.deferred.push_back(b);
      next.is_mark_old = next.is_over;
      next.deferred_bytes += rounded_bytes(b.bytes, b.alignment);
    } catch (...) {
      b.users.clear();
      defer_until_end(b);
    }
    --next.references;
  }
  void count_deferred(block_type const& b, std::int64_t sign) noexcept {
    if (b.from == nullptr) {
      deferred_.count_for_graphs(b.bytes, b.alignment, sign);
    } else {
      b.from->memory.deferred_.count_for_graphs(b.bytes, b.alignment, sign);
    }
  }
  template <class Pool>
  void give_back_deferred(Pool& whole, block_type& b) noexcept {
    if (!b.users.empty()) {
      std::lock_guard const guard(mutex_);
      return pass_on(b);
    }
    count_deferred(b, -1);
    if (b.from == nullptr) {
      whole.deallocate_sync(b.p, b.bytes, b.alignment);
    } else {
      b.from->memory.deallocate_sync(b.p, b.bytes, b.alignment);
      --b.from->references;
    }
  }

  /// Gives back the blocks that were deferred for an ended owner, whose work is complete. Returns false if there was none.
  template <class Pool>
  bool give_back_all_deferred(Pool& whole, part& of) noexcept {
    sequence<block_type> blocks;
    {
      std::lock_guard const guard(mutex_);
      if (of.is_mark_old) return false;  // deferred since the mark: at the next call
      blocks.swap(of.deferred);
      of.deferred_bytes = 0;
    }
    for (auto& b : blocks) give_back_deferred(whole, b);
    return !blocks.empty();
  }

  /// The ended part with the lowest number above `last` that a block is deferred for, or that nothing refers to.
  part* next_over(std::uint64_t last) noexcept {
    std::lock_guard const guard(mutex_);
    part* next = nullptr;
    for (auto& p : parts_) {
      if (p->number > last && p->is_over && (p->references == 0 || !p->deferred.empty()) &&
          (next == nullptr || p->number < next->number))
        next = p.get();
    }
    return next;
  }
  /// The part that reserved an address; there is one.
  part* part_with(void const* p) noexcept {
    std::lock_guard const guard(mutex_);
    std::size_t i = 0;
    while (!parts_[i]->memory.owns(p)) ++i;
    return parts_[i].get();
  }
  part* next_part(std::uint64_t last) noexcept {
    std::lock_guard const guard(mutex_);
    part* next = nullptr;
    for (auto& p : parts_) {
      if (p->number > last && (next == nullptr || p->number < next->number)) next = p.get();
    }
    if (next != nullptr) ++next->references;
    return next;
  }
  /// Takes a part out of the list, unless something refers to it again.
  owned<part> take_part(part& gone) noexcept {
    std::lock_guard const guard(mutex_);
    owned<part> taken;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].get() != &gone || gone.references != 0 || !gone.deferred.empty()) continue;
      taken = std::move(parts_[i]);
      parts_.erase_unordered(i);
      --over_count_;
      break;
    }
    return taken;
  }

  Heap& heap_;
  Deferred& deferred_;
  captures_type captures_;
  graph_blocks<part> blocks_;
  mutable fork_mutex mutex_;
  sequence<owned<part>> parts_;
  std::uint64_t last_number_ = 0;
  std::uint64_t last_owner_ = 0;
  std::atomic<std::size_t> over_count_{0};
  std::atomic<bool> defers_until_end_{false};
  sequence<block_type> deferred_until_end_;  ///< under the mutex
};

}  // namespace tarn::detail
