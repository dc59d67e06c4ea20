// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks used on more streams than the one they are freed on: noted by record_use(), held back at deallocation until
// the device is past those uses. Costs one relaxed load a deallocation while nothing is noted. While a graph is
// captured nothing can be marked, and waiting would end the capture: then blocks are marked later.
// Above it: pool. Below it: ordering.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "tarn/core/sequence.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/pool/mark_work.hpp"

namespace tarn::detail {

template <stream_driver Driver>
class recorded_uses {
 public:
  struct waiting {
    void* p = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    stream_ref stream;
    sequence<event_handle> events;
    sequence<stream_ref> unmarked;  ///< used there, too, but not marked by an event yet
  };

  explicit recorded_uses(Driver const& driver) : driver_(driver) {}
  recorded_uses(recorded_uses const&) = delete;
  recorded_uses& operator=(recorded_uses const&) = delete;
  ~recorded_uses() {
    for (waiting& w : held_) destroy_events(w);
  }

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

  /// At deallocation: true where the block has been held back, false where nothing was noted and it may be freed now.
  /// Records one event on each stream noted, or where that is refused later, in take_ready(). Where the host has no
  /// memory, or nothing can be recorded on the stream any more, the device is waited for.
  bool hold_back(void* p, std::size_t bytes, std::size_t alignment, stream_ref stream) noexcept {
    std::lock_guard const guard(mutex_);
    waiting w{p, bytes, alignment, stream, {}, {}};
    for (std::size_t i = 0; i < uses_.size();) {
      if (uses_[i].p != p) {
        ++i;
        continue;
      }
      stream_ref const used_on = uses_[i].stream;
      uses_.erase_unordered(i);
      if (!(used_on == stream)) cover(w, used_on);
    }
    noted_.store(uses_.size(), std::memory_order_relaxed);
    if (w.events.empty() && w.unmarked.empty()) return false;
    try {
      held_.push_back(std::move(w));
    } catch (...) {
      finish(w);
      return false;
    }
    waiting_bytes_ += bytes;
    waiting_count_.store(held_.size(), std::memory_order_relaxed);
    return true;
  }

  /// Takes out one block whose uses are over; `wait` makes the host wait for the oldest. False if there is
  /// none.
  bool take_ready(waiting& out, bool const wait) noexcept {
    std::lock_guard const guard(mutex_);
    bool refused = false;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      waiting& w = held_[i];
      for (std::size_t k = w.unmarked.size(); k-- > 0 && !refused;) {
        stream_ref const used_on = w.unmarked[k];
        w.unmarked.erase_unordered(k);
        refused = !cover(w, used_on);
      }
      while (!w.events.empty() && driver_.query_event(w.events.back()).ok()) {
        (void)driver_.destroy_event(w.events.back());
        w.events.pop_back();
      }
      if (!w.unmarked.empty() || (!w.events.empty() && !wait)) continue;
      finish(w);
      waiting_bytes_ -= w.bytes;
      out = std::move(w);
      held_.erase_unordered(i);
      waiting_count_.store(held_.size(), std::memory_order_relaxed);
      return true;
    }
    return false;
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

  /// Marks the work of one more stream; false where it could not be marked or waited for and is noted as unmarked.
  bool cover(waiting& w, stream_ref used_on) const noexcept {
    bool room = true;
    try {
      w.events.reserve(w.events.size() + 1);
      w.unmarked.reserve(w.unmarked.size() + 1);
    } catch (...) {
      room = false;
    }
    event_handle event = nullptr;
    mark_result result = mark_result::refused;
    if (room && driver_.create_event(event).ok()) result = mark_work(driver_, event, used_on);
    if (result == mark_result::marked) {
      w.events.push_back(event);
      return true;
    }
    if (event != nullptr) (void)driver_.destroy_event(event);
    if ((result == mark_result::gone || !room) && (driver_.synchronize_device().ok() || !room)) return true;
    w.unmarked.push_back(used_on);
    return false;
  }

  void finish(waiting& w) const noexcept {
    if (!w.unmarked.empty()) (void)driver_.synchronize_device();
    for (event_handle const event : w.events) {
      if (!driver_.synchronize_event(event).ok()) (void)driver_.synchronize_device();
    }
    w.unmarked.clear();
    destroy_events(w);
  }
  void destroy_events(waiting& w) const noexcept {
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
