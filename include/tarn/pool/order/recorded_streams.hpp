// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks used on more streams than the one they are freed on. record_stream() records the uses, and a freed
// block is deferred until the device has completed them. Costs one relaxed load per deallocation while
// nothing is recorded, two more while other blocks are.
//
//   record_stream(p, B)     p is recorded, with a use on B's queue
//   deallocate(A, p)     an event is recorded on B; the use is appended to B's queue: first | ... | last
//   allocate(), a miss   the first event of each queue is queried; once it is complete, p is freed on A
//
// A queue's uses are in the order of their events, so one failed query ends the search of a queue. If many
// uses wait, several share the event that was recorded after all of them.
//
// The driver is never called under the mutex. A call in progress keeps what it works on: a deallocation keeps
// the block by a count, a query keeps the event by `asked`, and a group that is marked again is in no list
// meanwhile.
//
// Over 400 lines: the queues, the events and the blocks are under one mutex. Their changes are correct only
// in the order in which one function after another releases it.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/address_map.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/pool/arena/stream_table.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/order/block_table.hpp"
#include "tarn/pool/order/mark_work.hpp"
#include "tarn/pool/order/slot_table.hpp"

namespace TARN_NAMESPACE::detail {

template <stream_driver Driver>
class recorded_streams {
 public:
  /// @param named  what a default stream refers to that is named without an identity
  recorded_streams(Driver const& driver, default_streams named) : driver_(driver), named_(named) {}
  recorded_streams& operator=(recorded_streams&&) = delete;

  [[nodiscard]] bool any() const noexcept { return recorded_count_.load(std::memory_order_relaxed) != 0; }
  /// Makes any() true for a graph memory or a block that graphs use (pool/graph/), so that a deallocation
  /// reads one counter.
  void count_graph_block(bool more) noexcept {
    if (more) {
      recorded_count_.fetch_add(1, std::memory_order_relaxed);
    } else {
      recorded_count_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  /// Returns false if `p` has no recorded use. Takes no lock.
  [[nodiscard]] bool may_hold(void const* p) const noexcept { return recorded_.may_hold(p); }
  [[nodiscard]] bool any_deferred() const noexcept {
    return deferred_count_.load(std::memory_order_relaxed) != 0;
  }

  /// Records a use on a stream with its identity, whose device was learned, and makes room for all that
  /// deallocation needs. Amortised O(1); O(streams that the block is used on). @throws std::bad_alloc:
  /// nothing has changed
  /// @param id  a free under this identity need not wait for the use
  void record(void* p, stream_ref stream, stream_id id) {
    scoped_lock const guard(mutex_);
    slot_number b = recorded_.find(p);
    for (slot_number u = b != 0 ? blocks_[b].uses : 0; u != 0; u = uses_[u].next) {
      if (uses_[u].stream == id) return;
    }
    if (b == 0) {
      blocks_.make_room();
      recorded_.make_room();
    }
    uses_.make_room();
    slot_number const q = queue_of(stream);
    if (b == 0) {
      b = blocks_.take();
      blocks_[b].p = p;
      recorded_.insert(b);
      recorded_count_.fetch_add(1, std::memory_order_relaxed);
    }
    add_use(b, q, id);
  }

  /// Called at deallocation: returns true if the block is deferred, false if it has no recorded use and may
  /// be freed now. Records one event for all of its streams on a device, if the driver can mark all of its
  /// work; otherwise one on each of the streams. O(streams that the block is used on). Waits for the device
  /// only if a stream was destroyed and the driver cannot mark its work.
  bool defer(void* p, std::size_t bytes, std::size_t alignment, stream_ref stream) noexcept {
    lock held(mutex_);
    slot_number const b = take_recorded(p);
    return b != 0 && defer_marked(held, b, {p, bytes, alignment, stream});
  }

  /// As defer(), for a block freed on a stream that the driver does not know, perhaps a destroyed one: defers
  /// it until that stream's work is complete; the block is then free for every stream. If the host has no
  /// memory to record that and the device cannot be waited for, the block stays live until the pool ends.
  bool defer_for_all_work(void* p, std::size_t bytes, std::size_t alignment, stream_ref unknown) noexcept {
    lock held(mutex_);
    slot_number q = 0;
    try {
      blocks_.make_room();
      uses_.make_room();
      q = queue_of(unknown);
    } catch (...) {
      held.unlock();
      bool const over = wait_for_all_work(driver_).ok();
      held.lock();
      return !over;
    }
    slot_number b = take_recorded(p);
    if (b == 0) b = blocks_.take();
    add_use(b, q, stream_ref::unknown_id);
    return defer_marked(held, b, {p, bytes, alignment, stream_ref::from(nullptr, neutral_id)});
  }

  /// Finds out which uses are complete; `wait` makes the host wait for all that were marked before the call.
  /// One thread at a time. At most two queries per queue, plus one for each completed event.
  void settle(bool const wait) noexcept {
    lock held(mutex_);
    for (slot_number q = 1; q <= queues_.last(); ++q) {
      if (queues_[q].users == 0) continue;
      mark_again(held, q);
      // Deallocations continue meanwhile: ignore the groups that they begin, so that this loop ends.
      std::uint64_t const now = ++clock_;
      while (queues_[q].first != 0 && uses_[queues_[q].first].oldest < now && ask_first(held, q, wait)) {
      }
    }
  }

  /// Takes out one block whose uses settle() found complete. Returns false if there is none. Amortised O(1).
  bool take_ready(freed_block& out) noexcept {
    scoped_lock const guard(mutex_);
    while (over_ != 0) {
      slot_number const group = over_;
      slot_number u = uses_[group].members;
      if (u != 0) {
        uses_[group].members = uses_[u].next;
      } else {
        u = group;
        over_ = uses_[group].next;
      }
      slot_number const b = uses_[u].block;
      drop(u);
      if (--blocks_[b].uses_left != 0) continue;
      out = blocks_[b].freed;
      end_deferral(b);
      return true;
    }
    return false;
  }

  /// Whether work may still use deferred blocks and the host may synchronise the device. It may not while a
  /// stream to be marked is capturing, since that would only end the capture.
  [[nodiscard]] bool asks_for_device() const noexcept { return any_deferred() && !waits_for_capture(); }
  /// Whether a capture prevents a stream from being marked that deferred blocks wait for. Uses what settle()
  /// found: a stream's handle is not queried, since the stream may be destroyed.
  [[nodiscard]] bool waits_for_capture() const noexcept {
    scoped_lock const guard(mutex_);
    for (slot_number q = 1; q <= queues_.last() && any_deferred(); ++q) {
      if (queues_[q].unmarked != 0 && queues_[q].captured) return true;
    }
    return false;
  }

  /// Destroys the events of blocks that could not be waited for. The pool is ending, and their memory with
  /// it.
  void close() noexcept {
    lock held(mutex_);
    for (slot_number q = 1; q <= queues_.last(); ++q) {
      for (slot_number u = detail::exchange(queues_[q].first, 0); u != 0; u = uses_[u].next)
        recycle(held, q, uses_[u].event);
    }
    while (idle_count_ != 0) destroy(held, idle_[--idle_count_]);
  }

  /// Calls f(freed_block) for each deferred block. While the growth lock is held none of them is handed out
  /// again.
  template <class F>
  void for_each_deferred(F const& f) const {
    scoped_lock const guard(mutex_);
    for (slot_number b = 1; b <= blocks_.last(); ++b) {
      if (blocks_[b].is_deferred) f(blocks_[b].freed);
    }
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    scoped_lock const guard(mutex_);
    return blocks_.host_bytes() + uses_.host_bytes() + queues_.host_bytes() + recorded_.host_bytes() +
           by_stream_.host_bytes();
  }

 private:
  using lock = scoped_lock<fork_mutex>;

  /// A block from its first recorded use until it is freed. `p` is its key while it has recorded uses.
  struct block {
    void* p = nullptr;
    slot_number next = 0;
    slot_number uses = 0;         ///< until it is deferred: linked by `next`
    std::uint32_t uses_left = 0;  ///< incomplete uses, plus one for a deallocation in progress
    bool is_deferred = false;
    freed_block freed;
  };
  /// A use; after its deallocation, part of a group that one event covers. The first use represents the
  /// group.
  struct use {
    slot_number block = 0;
    slot_number queue = 0;
    slot_number next = 0;     ///< next use of the block, next member of the group, or next group
    slot_number members = 0;  ///< of the group, without the first
    slot_number last_member = 0;
    std::uint32_t count = 1;  ///< number of uses in the group
    stream_id stream = 0;
    std::uint64_t ticket = 0;  ///< taken before the event was recorded; it covers uses up to this
    std::uint64_t oldest = 0;  ///< the first ticket of the group
    event_handle event = nullptr;
  };
  /// The uses of one stream, or of all of a device but the default streams if the driver marks the whole
  /// device's work.
  struct use_queue {
    stream_id key = 0;
    stream_ref stream;
    device_id device;  ///< where it lives; unknown_device: each device in use is marked
    slot_number next = 0;
    slot_number first = 0;  ///< marked groups, linked by `next`
    slot_number last = 0;
    slot_number unmarked = 0;  ///< one group of those that could not be marked when they were freed
    slot_number gathered = 0;  ///< one group of the uses of a block that is being freed
    std::uint32_t users = 0;   ///< uses, in any state
    std::uint32_t marked = 0;  ///< uses in marked groups
    bool asked = false;        ///< the first event is being queried
    bool gone = false;         ///< its stream was destroyed: the handle is not passed on
    bool captured = false;     ///< whether a capture caused the last refusal of a mark
  };

  /// A group has at most this part of the uses that wait on its queue: a use waits for an event recorded
  /// slightly later than its own would be. 32 uses have 32 events; each doubling adds 11.
  static constexpr std::uint32_t group_part = 16;
  /// Number of events others for later marks.
  static constexpr std::size_t most_idle = 64;

  // ---- under the mutex

  /// The key of the uses of a device. No stream has such an identity.
  [[nodiscard]] static stream_id key_of(device_id device) noexcept {
    return neutral_id - static_cast<stream_id>(device.value - unknown_device.value);
  }
  [[nodiscard]] bool is_own(slot_number q) const noexcept {
    return device_of_marks(driver_, queues_[q].device) == driver_.device();
  }
  /// @throws std::bad_alloc, nothing has changed
  slot_number queue_of(stream_ref stream) {
    device_id const device = device_to_mark(driver_, stream, named_);
    bool const shared = marks_all_work<Driver> && !is_default_stream(stream);
    stream_id const key = shared ? key_of(device) : stream.id();
    if (slot_number const known = by_stream_.find(key); known != 0) return known;
    by_stream_.make_room(1);
    queues_.make_room();
    slot_number const q = queues_.take();
    by_stream_.insert(key, q);
    queues_[q].key = key;
    queues_[q].stream = stream;
    queues_[q].device = device;
    queues_[q].gone = key == stream_ref::unknown_id;
    return q;
  }
  void add_use(slot_number b, slot_number q, stream_id id) noexcept {
    slot_number const u = uses_.take();
    uses_[u].block = b;
    uses_[u].queue = q;
    uses_[u].stream = id;
    uses_[u].next = blocks_[b].uses;
    blocks_[b].uses = u;
    ++queues_[q].users;
  }
  void drop(slot_number u) noexcept {
    slot_number const q = uses_[u].queue;
    uses_.give(u);
    if (--queues_[q].users != 0) return;
    (void)by_stream_.erase(queues_[q].key);
    queues_.give(q);
  }
  slot_number take_recorded(void* p) noexcept {
    slot_number const b = recorded_.take(p);
    if (b != 0) recorded_count_.fetch_sub(1, std::memory_order_relaxed);
    return b;
  }
  void end_deferral(slot_number b) noexcept {
    deferred_count_.store(deferred_count_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    blocks_.give(b);
  }
  /// Adds group `added` to group `g`.
  void join(slot_number g, slot_number added) noexcept {
    slot_number const tail = uses_[added].members != 0 ? uses_[added].last_member : added;
    uses_[added].next = detail::exchange(uses_[added].members, 0);
    uses_[tail].next = uses_[g].members;
    if (uses_[g].members == 0) uses_[g].last_member = tail;
    uses_[g].members = added;
    uses_[g].count += uses_[added].count;
  }
  /// Appends a group marked by `event`, which was recorded after `ticket` was taken. Returns an event that is
  /// no longer needed, or null.
  event_handle append(slot_number g, std::uint64_t ticket, event_handle event) noexcept {
    use_queue& in = queues_[uses_[g].queue];
    in.marked += uses_[g].count;
    slot_number const last = in.last;
    // Another thread's deallocation may have taken its ticket after this one and appended its group before
    // it.
    bool const covers_last = last != 0 && uses_[last].ticket <= ticket && !(in.asked && last == in.first);
    if (covers_last && (uses_[last].count + uses_[g].count) * group_part <= in.marked) {
      join(last, g);
      uses_[last].ticket = ticket;
      return detail::exchange(uses_[last].event, event);
    }
    uses_[g].ticket = uses_[g].oldest = ticket;
    uses_[g].event = event;
    (last != 0 ? uses_[last].next : in.first) = g;
    in.last = g;
    return nullptr;
  }
  /// Queues a group whose uses are complete for take_ready().
  void is_over(slot_number g) noexcept {
    uses_[g].next = over_;
    over_ = g;
  }

  // ---- under the mutex, which is released around driver calls

  /// Marks the uses of a freed block. Returns false if there is none left to wait for.
  bool defer_marked(lock& held, slot_number b, freed_block const& freed) noexcept {
    block& of = blocks_[b];  // its address is stable, and `uses_left` keeps it
    std::uint64_t const ticket = ++clock_;
    of.uses_left = 1;
    slot_number others = 0;
    for (slot_number u = detail::exchange(of.uses, 0); u != 0;) {
      slot_number const next = uses_[u].next;
      if (uses_[u].stream == freed.stream.id()) {
        drop(u);
      } else {
        uses_[u].next = detail::exchange(others, u);
        ++of.uses_left;
      }
      u = next;
    }
    if (others == 0) {
      blocks_.give(b);
      return false;
    }
    of.freed = freed;
    of.is_deferred = true;
    deferred_count_.store(deferred_count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    slot_number groups = 0;
    while (others != 0) {
      slot_number const u = detail::exchange(others, detail::exchange(uses_[others].next, 0));
      slot_number& gathered = queues_[uses_[u].queue].gathered;
      if (gathered != 0) {
        join(gathered, u);
      } else {
        gathered = u;
        uses_[u].next = detail::exchange(groups, u);
      }
    }
    for (slot_number g = groups; g != 0; g = uses_[g].next) queues_[uses_[g].queue].gathered = 0;
    while (groups != 0) {
      slot_number const g = detail::exchange(groups, detail::exchange(uses_[groups].next, 0));
      if (!mark(held, g, ticket)) continue;
      of.uses_left -= uses_[g].count;
      for (slot_number u = uses_[g].members; u != 0;) drop(detail::exchange(u, uses_[u].next));
      drop(g);
    }
    if (--of.uses_left != 0) return true;
    end_deferral(b);
    return false;
  }

  /// Marks a group, which is in no list, with an event. A group that cannot be marked now, since a graph is
  /// being captured or the driver refused, is set aside: waiting for the device would invalidate the capture,
  /// and freeing the block would be wrong. Returns true if its uses are complete; the group is then still in
  /// no list.
  bool mark(lock& held, slot_number g, std::uint64_t ticket) noexcept {
    slot_number const q = uses_[g].queue;
    stream_ref const stream = queues_[q].stream;
    // More devices may be in use than when a default stream was recorded.
    bool const is_default = is_default_stream(stream);
    device_id const device = is_default ? device_to_mark(driver_, stream, named_) : queues_[q].device;
    bool const known_gone = queues_[q].gone;
    bool const takes_idle = !known_gone && is_own(q) && idle_count_ != 0;
    event_handle event = takes_idle ? idle_[--idle_count_] : nullptr;
    held.unlock();
    mark_result result = mark_result::gone;
    if (!known_gone) {
      Driver const there = driver_on(driver_, device_of_marks(driver_, device));
      bool const has_event = event != nullptr || there.create_event(event).ok();
      result = has_event ? mark_work(driver_, device, event, stream) : mark_result::refused;
    }
    bool const over = result == mark_result::gone && wait_for_all_work(driver_).ok();
    held.lock();
    use_queue& in = queues_[q];
    in.captured = result == mark_result::captured;
    in.gone = in.gone || result == mark_result::gone;
    if (result == mark_result::marked) {
      recycle(held, q, append(g, ticket, event));
      return false;
    }
    if (!over) {
      if (in.unmarked != 0) join(g, in.unmarked);
      in.unmarked = g;
    }
    if (event != nullptr) destroy(held, event);
    return over;
  }
  /// Retries all uses of a queue that could not be marked: one event covers them all.
  void mark_again(lock& held, slot_number q) noexcept {
    slot_number const g = detail::exchange(queues_[q].unmarked, 0);
    if (g != 0 && mark(held, g, ++clock_)) is_over(g);
  }

  /// Returns whether the first group of a queue is complete.
  bool ask_first(lock& held, slot_number q, bool const wait) noexcept {
    slot_number const g = queues_[q].first;
    event_handle const event = uses_[g].event;
    queues_[q].asked = true;
    held.unlock();
    bool done = driver_.query_event(event).ok();
    if (!done && wait) done = driver_.synchronize_event(event).ok() || wait_for_all_work(driver_).ok();
    held.lock();
    use_queue& in = queues_[q];  // still has users: only this thread takes groups out
    in.asked = false;
    if (!done) return false;
    in.first = uses_[g].next;
    if (in.first == 0) in.last = 0;
    in.marked -= uses_[g].count;
    uses_[g].event = nullptr;
    is_over(g);
    recycle(held, q, event);
    return true;
  }

  /// Keeps an event of the driver's own device for a later mark.
  void recycle(lock& held, slot_number q, event_handle event) noexcept {
    if (event == nullptr) return;
    if (idle_count_ == most_idle || !is_own(q)) return destroy(held, event);
    idle_[idle_count_++] = event;
  }
  void destroy(lock& held, event_handle event) const noexcept {
    held.unlock();
    (void)driver_.destroy_event(event);
    held.lock();
  }

  Driver driver_;
  default_streams named_;
  mutable fork_mutex mutex_;
  slot_table<block> blocks_;
  slot_table<use> uses_;
  slot_table<use_queue> queues_;
  address_map<std::uint32_t> by_stream_;
  block_table<block> recorded_{blocks_};
  slot_number over_ = 0;  ///< groups whose uses are complete
  std::uint64_t clock_ = 0;
  event_handle idle_[most_idle] = {};
  std::size_t idle_count_ = 0;
  std::atomic<std::size_t> recorded_count_{0};
  std::atomic<std::size_t> deferred_count_{0};
};

}  // namespace TARN_NAMESPACE::detail
