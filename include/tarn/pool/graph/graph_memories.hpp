// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory of captured graphs. A graph holds addresses: what is allocated inside a capture must not serve
// anything else until no graph uses it any more. Each graph_memory therefore owns two parts of the heap
// (graph_parts.hpp): whole handles that serve it alone.
//
//   a capture_scope opens      no thread has a cache of its stream from now on: its calls take the slow path.
//                              So do all calls of the thread, whose stream may have joined the capture
//   allocate, captured stream  from the owner's captured part, under the captured identity; with that it is a
//                              stream as any other, with a cache on each thread
//   deallocate there           of the captured part: reused inside the capture in the order of the stream
//     of any other block       deferred until the owner has ended: the graph uses it
//   deallocate elsewhere       to the block's part, in the order of that stream
//   allocate for an owner      inside its capture as above; elsewhere from its plain part: what captures
//                              received is for captures alone. See graph_memory::allocate()
//   the scope ends             what captured streams freed is free for the owner's next capture
//   the owner ends             once the device has completed earlier work, both parts become common, with the
//                              blocks in them that are live, and the deferred blocks return to the heap
//
// Other threads and streams pay nothing. While an owner exists, a deallocation finds the part of a block with
// one load more.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/graph/captured_streams.hpp"
#include "tarn/pool/graph/deferred_for_graphs.hpp"
#include "tarn/pool/graph/end_mark.hpp"
#include "tarn/pool/graph/graph_captures.hpp"
#include "tarn/pool/graph/graph_parts.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/order/reclaim.hpp"
#include "tarn/pool/pages/growth_lock.hpp"

namespace TARN_NAMESPACE::detail {

/// What a pool keeps of its graph memories.
template <class Heap, class Front, class Deferred>
class graph_memories {
 public:
  using driver_type = typename Heap::driver_type;
  using captures_type = graph_captures<Heap, Front>;

  graph_memories(Heap& heap, Front& front, Deferred& deferred) noexcept
      : heap_(heap), deferred_(deferred), captures_(heap, front), blocks_(deferred), mark_(heap.driver()) {}
  graph_memories& operator=(graph_memories&&) = delete;
  ~graph_memories() {
    if (heap_.is_lost()) mark_.abandon();
  }

  // ---- calls of the pool

  [[nodiscard]] captures_type& captures() noexcept { return captures_; }
  /// Whether a call that is not warm must look for a capture.
  [[nodiscard]] bool is_watching() const noexcept { return captures_.any(); }
  /// The same for a deallocation.
  [[nodiscard]] bool watches_frees() const noexcept { return captures_.watches_frees(); }
  /// Returns false if `p` is of no part of an owner, and no graph is recorded for it. Takes no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept {
    return uses_.may_hold(p) || heap_.may_be_in_part(p);
  }

  /// What becomes of a freed block.
  enum class fate : std::uint8_t {
    ordinary,  ///< the caller frees it as any other
    reused,    ///< the caller frees it under the identity of its capture
    returned,  ///< the caller returns it to its part, past the cache
    deferred   ///< until owners have ended
  };
  /// Called when a block is freed for which may_hold() is true. `id` may be neutral_id, or unknown for a
  /// destroyed stream.
  /// @param as  receives the identity of the capture
  [[nodiscard]] fate take_back(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                               std::size_t alignment, stream_id& as) noexcept {
    part_ref const part = heap_.part_of(p);
    block_of_graphs freed{p, bytes, alignment, {}};
    if (uses_.may_hold(p)) {
      freed.users = uses_.take(p);
      if (!freed.users.empty()) deferred_.count_graph_block(false);
    }
    if (part == common && freed.users.empty()) return fate::ordinary;
    captured_stream const at = captures_.of_deallocation(id, stream);
    if (part != common) count_handed_out(at, part, p, -rounded(bytes, alignment));
    bool const is_others = at.is_captured() && !at.may_reuse(part);
    if (blocks_.defer(freed, is_others, at.owner)) return fate::deferred;
    if (part == common) return fate::ordinary;
    as = at.captured_as;
    return at.is_captured() ? fate::reused : fate::returned;
  }

  /// Defers a block of the common part that is freed on a captured stream. Returns false if the stream is not
  /// captured.
  bool defer_if_captured(stream_id id, stream_ref stream, void* p, std::size_t bytes, std::size_t alignment,
                         if_unknown then = if_unknown::ask) noexcept {
    captured_stream const at = captures_.of_deallocation(id, stream, then);
    if (!at.is_captured()) return false;
    block_of_graphs freed{p, bytes, alignment, {}};
    return blocks_.defer(freed, true, at.owner);
  }

  /// Records a use of a block by the stream of a capture. Returns false if `stream` must be recorded as any
  /// other, too: it is of no capture, or the block is of an owner's part, which other streams reuse. Notes
  /// the identity of a bare handle in `stream`, and in `as` the one under which the capture frees a block of
  /// its own part. A captured stream of no known capture is refused: the event that an ordinary use waits for
  /// does not cover the replays.
  /// @throws std::bad_alloc, cuda_error: nothing has changed
  bool record_stream(void* p, stream_ref& stream, stream_id& as) {
    if (!watches_frees()) return false;
    captured_stream const at = captures_.of_use(stream);
    if (at.owner == nullptr) return false;
    part_ref const part = heap_.part_of(p);
    if (part != at.owner->captured && uses_.record(p, *at.owner)) deferred_.count_graph_block(true);
    if (part == at.owner->captured && !at.is_guess) as = at.captured_as;
    return part == common;
  }

  // ---- owners and captures

  /// @throws std::bad_alloc: nothing has changed
  [[nodiscard]] graph_parts& make_owner(growth_lock const&) {
    owners_.reserve(owners_.size() + 1);
    ended_.reserve(owners_.size() + ended_.size() + 1);
    owned<graph_parts> made(new graph_parts(last_owner_ + 1));
    made->captured = make_part(*made, true);
    ++last_owner_;
    deferred_.count_graph_block(true);  // deallocations look for the part of a block
    made->place = owners_.size();
    owners_.push_back(std::move(made));
    return *owners_.back();
  }
  /// The part for requests outside captures, made when the first one comes. @throws std::bad_alloc: nothing
  /// has changed
  [[nodiscard]] part_ref plain_of(growth_lock const&, graph_parts& owner) {
    if (part_ref const made = owner.plain.load(std::memory_order_relaxed); made != common) return made;
    part_ref const made = make_part(owner, false);
    owner.plain.store(made, std::memory_order_release);
    return made;
  }
  /// Waits for the graphs that the device still runs, and makes what ended owners had common. The pool ends:
  /// there is no owner left. Returns false if a capture prevents it.
  template <class Pool>
  [[nodiscard]] bool finish(growth_lock const& growing, Pool& whole) noexcept {
    (void)reap(growing, whole, true);
    return !has_ended() || !mark_.waits_for_capture();
  }
  /// Whether the pool has a block that is deferred until it ends. Graphs may use it, and no stream's work
  /// covers that.
  [[nodiscard]] bool defers_until_end() const noexcept { return blocks_.any_until_end(); }
  /// Ends an owner. Its memory becomes common now if the device has completed its work, else later.
  template <class Pool>
  void end_owner(growth_lock const& growing, Pool& whole, graph_parts& of) noexcept {
    blocks_.set_state(of, life::ended);
    std::size_t const place = of.place;
    ended_.push_back(std::move(owners_[place]));  // has room
    owners_.erase_unordered(place);
    if (place < owners_.size()) owners_[place]->place = place;
    ++ended_count_;
    if (!heap_.is_lost()) (void)reap(growing, whole, false);
  }

  /// Does not wait for a thread that grows the pool where nothing is to be collected for the capture, and the
  /// device is known to have ample memory. @throws cuda_error, std::bad_alloc: nothing has changed
  template <class Pool>
  [[nodiscard]] capture_number begin_capture(Pool& whole, graph_parts& owner, stream_ref stream) {
    if (heap_.try_lock_growth()) {
      prepare_for_capture(heap_.adopt_growth_lock(), whole, owner);
    } else if (has_uncollected(owner) || !captures_.is_known_ample(heap_.reserved_now())) {
      prepare_for_capture(heap_.lock_growth(), whole, owner);
    }
    blocks_.reserve(owner, deferred_at_least);
    return captures_.begin(owner, stream);
  }

  /// Makes the memory of ended owners common, as far as nothing uses it. `wait` makes the host wait for
  /// graphs that still run. Returns true if there was any. The owners that end until a mark is complete share
  /// the next one, so that there is one event for all. Nothing inside restore() and compact(), which know the
  /// parts of handles.
  template <class Pool>
  bool reap(growth_lock const& growing, Pool& whole, bool const wait) noexcept {
    auto const is_moving = [](auto const& pages) { return pages.is_moving(); };
    if (heap_.growth(growing).template visit_pages<bool>(is_moving)) return false;
    bool any = false;
    for (bool goes_on = true; goes_on && has_ended();) {
      if (!has_marked_ && !mark_ended()) break;
      if (!mark_.is_complete(wait)) break;
      has_marked_ = false;
      goes_on = false;
      for (auto const& owner : ended_) {
        bool const is_complete =
            blocks_.take_mark(*owner, [&](void* p, std::size_t bytes, std::size_t alignment) {
              whole.slow_.free_deferred(p, bytes, alignment);
            });
        // One for which a block was deferred since the mark waits for another one.
        if (!is_complete) goes_on = goes_on || (wait && owner->is_mark_old);
        if (!is_complete || !end_parts(growing, *owner, wait)) continue;
        goes_on = any = true;
        if (blocks_.is_over(*owner)) --ended_count_;
      }
    }
    drop_over();
    return any;
  }
  [[nodiscard]] bool has_ended() const noexcept { return ended_count_ != 0; }

  // ---- reports

  [[nodiscard]] graph_state state_of(graph_parts const& of) const {
    graph_state state;
    {
      hot_lock const held = heap_.lock_hot();
      stream_table const& streams = heap_.space(held).streams;
      state.reserved = streams.part(of.captured).reserved;
      if (part_ref const plain = of.plain.load(std::memory_order_acquire); plain != common)
        state.reserved += streams.part(plain).reserved;
    }
    state.reserved = min_of(state.reserved, heap_.reserved_now());  // nothing is behind it in a sleeping pool
    std::int64_t const bytes = of.handed_out.load(std::memory_order_relaxed);
    state.allocated = bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
    state.number = of.number;
    state.kept = blocks_.bytes_of(of);
    return state;
  }
  /// Calls f(graph_state) for each owner whose memory is not common yet.
  template <class F>
  void for_each_state(growth_lock const&, F const& f) const {
    for (auto const& owner : owners_) f(state_of(*owner));
    for (auto const& owner : ended_) {
      if (owner->captured != common) f(state_of(*owner));
    }
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return uses_.host_bytes() + (owners_.size() + ended_.size()) * sizeof(graph_parts);
  }
  /// Calls f(address, bytes, number of the owner) for each block that is deferred for a graph; the number is
  /// 0 if until the pool ends.
  template <class F>
  void for_each_deferred(growth_lock const&, F const& f) const {
    for (auto const& owner : owners_) blocks_.for_each(*owner, f);
    for (auto const& owner : ended_) blocks_.for_each(*owner, f);
    blocks_.for_each_until_end(f);
  }

  /// Counts a block that an owner has handed out.
  static void count_allocated(graph_parts& owner, std::size_t bytes, std::size_t alignment) noexcept {
    owner.handed_out.fetch_add(rounded(bytes, alignment), std::memory_order_relaxed);
  }

 private:
  using life = graph_parts::life;
  /// blocks of each capture for which there is room beforehand
  static constexpr std::size_t deferred_at_least = 64;

  /// @param captured  whether captures take from it @throws std::bad_alloc: nothing has changed
  [[nodiscard]] part_ref make_part(graph_parts& owner, bool captured) {
    hot_lock const held = heap_.lock_hot();
    stream_table& streams = heap_.space(held).streams;
    part_ref const made = streams.make_part(owner.number, captured);
    streams.part(made).handed_out = &owner.handed_out;
    if (!captured) streams.part(owner.captured).beside = made;
    return made;
  }
  [[nodiscard]] static std::int64_t rounded(std::size_t bytes, std::size_t alignment) noexcept {
    return static_cast<std::int64_t>(rounded_bytes(bytes, alignment));
  }
  /// Of a block of the capture itself without a lock.
  void count_handed_out(captured_stream const& at, part_ref part, void const* p,
                        std::int64_t bytes) noexcept {
    if (at.may_reuse(part)) {
      at.owner->handed_out.fetch_add(bytes, std::memory_order_relaxed);
      return;
    }
    hot_lock const held = heap_.lock_hot();
    arena& space = heap_.space(held);
    // Of now: its owner may have ended since `part` was read.
    if (auto* const count = space.streams.part(space.part_of(p)).handed_out; count != nullptr)
      count->fetch_add(bytes, std::memory_order_relaxed);
  }

  /// Calls f(part_ref) for each part that an owner has.
  template <class F>
  static void for_each_part(arena const& space, graph_parts const& owner, F const& f) {
    part_ref const beside = space.streams.part(owner.captured).beside;
    f(owner.captured);
    if (beside != common) f(beside);
  }
  /// Whether streams outside captures have freed memory of an owner that may be complete.
  [[nodiscard]] bool has_uncollected(graph_parts const& owner) noexcept {
    hot_lock const held = heap_.lock_hot();
    arena const& space = heap_.space(held);
    bool any = false;
    for_each_part(space, owner, [&](part_ref part) {
      any = any || others_have_free(space, space.streams.part(part).neutral_domain);
    });
    return any;
  }
  /// While a capture is open, nothing can be marked: what is complete now is free for it.
  template <class Pool>
  void prepare_for_capture(growth_lock const& growing, Pool& whole, graph_parts const& owner) {
    if (captures_.is_memory_scarce(growing)) {
      whole.drain_.prepare_for_capture(growing);
    } else {
      deferred_.release(growing, false);
    }
    hot_lock held = heap_.lock_hot();
    arena& space = heap_.space(held);
    for_each_part(space, owner, [&](part_ref part) {
      collect_finished(growing, space, heap_.order(growing), may_release(held), part);
    });
  }
  /// Starts a mark for all ended owners. Returns false if there are none.
  bool mark_ended() noexcept {
    for (auto const& owner : ended_) {
      if (owner->state != life::ended) continue;
      blocks_.set_state(*owner, life::marked);
      has_marked_ = true;
    }
    if (has_marked_) mark_.renew();
    return has_marked_;
  }
  /// Makes the parts of an owner common whose graphs are complete. Returns false if work may still use what
  /// was freed in them since.
  bool end_parts(growth_lock const& growing, graph_parts& owner, bool wait) noexcept {
    if (owner.captured == common) return true;
    part_ref const all[] = {owner.captured, owner.plain.load(std::memory_order_relaxed)};
    std::size_t const count = all[1] != common ? 2 : 1;
    hot_lock held = heap_.lock_hot();
    arena& space = heap_.space(held);
    for (std::size_t i = 0; i < count; ++i)
      settle_part(growing, space, heap_.order(growing), may_release(held), all[i], wait);
    for (std::size_t i = 0; i < count; ++i) {
      // A tool knows nothing of these blocks: they are not common while they are live.
      bool const is_live = heap_.tool().active() && space.live_of(all[i]) != 0;
      if (is_live || !is_settled(space, all[i])) return false;
    }
    for (std::size_t i = 0; i < count; ++i) space.end_part(growing, all[i]);
    // A tool does not know these segments: none of them serves common blocks, unless the host has no memory.
    if (heap_.tool().active()) {
      try {
        (void)heap_.growth(growing).shrink(growing, space, may_release(held), 0);
      } catch (...) {
      }
    }
    space.count_splits();
    owner.captured = common;
    owner.plain = common;
    deferred_.count_graph_block(false);
    return true;
  }
  /// Forgets owners that are over and that no block refers to.
  void drop_over() noexcept {
    for (std::size_t i = ended_.size(); i-- > 0;) {
      if (ended_[i]->state == life::over && ended_[i]->references == 0) ended_.erase_unordered(i);
    }
  }

  Heap& heap_;
  Deferred& deferred_;
  graph_uses uses_;  ///< read by deallocations of all threads
  alignas(cache_line_bytes) captures_type captures_;
  deferred_for_graphs<Deferred> blocks_;
  // Under the growth lock:
  sequence<owned<graph_parts>> owners_;
  sequence<owned<graph_parts>> ended_;  ///< has room for all owners
  end_mark<driver_type> mark_;          ///< of the owners that are `marked`
  bool has_marked_ = false;
  std::uint64_t last_owner_ = 0;
  std::atomic<std::size_t> ended_count_{0};
};

}  // namespace TARN_NAMESPACE::detail
