// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks used on more streams than the one they are freed on: noted by record_use(), held back at
// deallocation until the device is past those uses. Costs one relaxed load a deallocation while nothing is
// noted. Above it: pool. Below it: ordering.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/sequence.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/pool/mark_work.hpp"
#include "tarn/pool/size_class.hpp"
#include "tarn/pool/stream_order.hpp"

namespace tarn::detail {

template <stream_driver Driver>
class recorded_uses {
 public:
  struct waiting {
    void* p = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    stream_ref stream;
    sequence<event_handle> events;  ///< of the uses that are marked
    sequence<stream_ref> unmarked;  ///< of those that could not be: tried again when the block is asked for

    [[nodiscard]] bool is_over() const noexcept { return events.empty() && unmarked.empty(); }
  };

  explicit recorded_uses(Driver const& driver) : driver_(driver) {}

  [[nodiscard]] bool any() const noexcept { return noted_.load(std::memory_order_relaxed) != 0; }
  [[nodiscard]] bool any_waiting() const noexcept {
    return waiting_count_.load(std::memory_order_relaxed) != 0;
  }

  /// Notes a use. @throws std::bad_alloc, cuda_error: nothing has changed
  void note(void* p, stream_ref stream) {
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id) {
      if (status const s = driver_.identify(stream, id); !s.ok()) throw cuda_error(s, driver_.device().value);
      stream = stream_ref::from(stream.handle(), id);
    }
    std::lock_guard const guard(mutex_);
    for (use const& u : uses_) {
      if (u.p == p && u.stream == stream) return;
    }
    uses_.push_back({p, stream});
    noted_.store(uses_.size(), std::memory_order_relaxed);
  }

  /// At deallocation: true where the block has been held back, false where nothing was noted and it may be
  /// freed now. Records one event on each stream noted.
  bool hold_back(void* p, std::size_t bytes, std::size_t alignment, stream_ref stream) noexcept {
    std::lock_guard const guard(mutex_);
    waiting w{p, bytes, alignment, stream, {}, {}};
    bool known = true;
    for (std::size_t i = 0; i < uses_.size();) {
      if (uses_[i].p != p) {
        ++i;
        continue;
      }
      stream_ref const used_on = uses_[i].stream;
      uses_.erase_unordered(i);
      if (!(used_on == stream)) known = mark(w, used_on) && known;
    }
    noted_.store(uses_.size(), std::memory_order_relaxed);
    return keep(w, known);
  }

  /// The same for a block freed on a stream that the driver does not know, destroyed perhaps: held back until that
  /// stream's work is done, then anybody's.
  bool hold_back_for_all(void* p, std::size_t bytes, std::size_t alignment, stream_ref unknown) noexcept {
    std::lock_guard const guard(mutex_);
    waiting w{p, bytes, alignment, stream_ref::from(nullptr, neutral_id), {}, {}};
    bool const known = mark(w, unknown);
    return keep(w, known);
  }

  /// Takes out one block whose uses are over; `wait` makes the host wait for the oldest. False if there is
  /// none.
  bool take_ready(waiting& out, bool const wait) noexcept {
    std::lock_guard const guard(mutex_);
    for (std::size_t i = 0; i < held_.size(); ++i) {
      waiting& w = held_[i];
      mark_again(w);
      while (!w.events.empty() && driver_.query_event(w.events.back()).ok()) {
        (void)driver_.destroy_event(w.events.back());
        w.events.pop_back();
      }
      if (!w.is_over() && !(wait && finish(w))) continue;
      waiting_bytes_ -= rounded_bytes(w.bytes, w.alignment);
      out = std::move(w);
      held_.erase_unordered(i);
      waiting_count_.store(held_.size(), std::memory_order_relaxed);
      return true;
    }
    return false;
  }

  /// True where work may still run on blocks held back and the device can be asked: while a stream that is to be marked is
  /// captured it cannot, and the question would only end the capture.
  [[nodiscard]] bool asks_for_device() const noexcept {
    std::lock_guard const guard(mutex_);
    for (waiting const& w : held_) {
      for (stream_ref const used_on : w.unmarked) {
        bool capturing = false;
        if (driver_.is_capturing(used_on, capturing).ok() && capturing) return false;
      }
    }
    return !held_.empty();
  }

  /// Frees the events of blocks that could not be waited for. The pool is ending, and their memory with it.
  void close() noexcept {
    std::lock_guard const guard(mutex_);
    for (waiting& w : held_) drop_events(w);
    held_.clear();
  }

  /// Calls f(waiting) for each block held back. While the growth lock is held none of them is freed.
  template <class F>
  void for_each_waiting(F const& f) const {
    std::lock_guard const guard(mutex_);
    for (waiting const& w : held_) f(w);
  }
  [[nodiscard]] std::size_t waiting_bytes() const noexcept {
    std::lock_guard const guard(mutex_);
    return waiting_bytes_;
  }

 private:
  struct use {
    void* p;
    stream_ref stream;
  };

  /// Marks a use by an event. What cannot be marked now, since a graph is being captured or the driver refused, is
  /// remembered: waiting for the device would spoil the capture, and freeing the block would be wrong. False where the
  /// host has no memory even for that and the device cannot be waited for.
  bool mark(waiting& w, stream_ref used_on) noexcept {
    try {
      w.events.reserve(w.events.size() + 1);
      w.unmarked.reserve(w.unmarked.size() + 1);
    } catch (...) {
      return driver_.synchronize_device().ok();
    }
    if (!is_marked(w, used_on)) w.unmarked.push_back(used_on);
    return true;
  }
  /// True where an event covers the use, or it is over. There is room for the event.
  bool is_marked(waiting& w, stream_ref used_on) noexcept {
    event_handle event = nullptr;
    mark_result result = mark_result::refused;
    if (driver_.create_event(event).ok()) result = mark_work(driver_, event, used_on);
    if (result == mark_result::marked) {
      w.events.push_back(event);
      return true;
    }
    if (event != nullptr) (void)driver_.destroy_event(event);
    return result == mark_result::gone && driver_.synchronize_device().ok();
  }
  void mark_again(waiting& w) noexcept {
    for (std::size_t i = w.unmarked.size(); i-- > 0;) {
      try {
        w.events.reserve(w.events.size() + 1);
      } catch (...) {
        return;
      }
      if (is_marked(w, w.unmarked[i])) w.unmarked.erase_unordered(i);
    }
  }

  /// True where the block is not to be freed now. Where that cannot be noted, it stays live until the pool ends: nobody
  /// gets it while work may still use it.
  bool keep(waiting& w, bool const known) noexcept {
    if (known && w.is_over()) return false;
    bool has_room = true;
    try {
      held_.reserve(held_.size() + 1);
    } catch (...) {
      has_room = false;
    }
    if (!known || !has_room) {
      if (known && finish(w)) return false;
      drop_events(w);
      return true;
    }
    waiting_bytes_ += rounded_bytes(w.bytes, w.alignment);
    held_.push_back(std::move(w));
    waiting_count_.store(held_.size(), std::memory_order_relaxed);
    return true;
  }

  /// Waits on the host for the marked uses; false where some use is not marked or cannot be waited for.
  bool finish(waiting& w) const noexcept {
    while (!w.events.empty()) {
      if (!driver_.synchronize_event(w.events.back()).ok() && !driver_.synchronize_device().ok())
        return false;
      (void)driver_.destroy_event(w.events.back());
      w.events.pop_back();
    }
    return w.is_over();
  }
  void drop_events(waiting& w) const noexcept {
    for (event_handle const event : w.events) (void)driver_.destroy_event(event);
    w.events.clear();
  }

  Driver driver_;
  mutable std::mutex mutex_;
  sequence<use> uses_;
  sequence<waiting> held_;
  std::size_t waiting_bytes_ = 0;
  std::atomic<std::size_t> noted_{0};
  std::atomic<std::size_t> waiting_count_{0};
};

}  // namespace tarn::detail
