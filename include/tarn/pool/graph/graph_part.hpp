// SPDX-License-Identifier: Apache-2.0
#pragma once
// A part of a pool that one graph_memory owns: a pool of its own over the same source, the blocks of the pool that its captures
// freed, and the event after which nothing uses either.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/deferred_count.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/graph/capture_cache.hpp"
#include "tarn/pool/options.hpp"

namespace tarn {

template <memory_source Upstream>
class pool;

namespace detail {

/// Counts the deferred blocks of a part as the pool's.
template <class Deferred>
class forward_deferred final : public deferred_observer {
 public:
  explicit forward_deferred(Deferred& to) noexcept : to_(to) {}
  /// Takes back what is left: a part may end with a deferred block that can never be waited for.
  ~forward_deferred() override {
    to_.count_of_part({-small_.blocks, -small_.bytes, -small_.requested},
                      {-large_.blocks, -large_.bytes, -large_.requested});
  }
  forward_deferred(forward_deferred const&) = delete;
  forward_deferred& operator=(forward_deferred const&) = delete;
  void deferred_changed(deferred_amount const& smaller, deferred_amount const& larger) noexcept override {
    small_.add(smaller);
    large_.add(larger);
    to_.count_of_part(smaller, larger);
  }

 private:
  Deferred& to_;
  deferred_amount small_, large_;
};

/// Finds out when the device has completed the work that was submitted before the owner ended, without waiting for it.
template <stream_driver Driver>
class end_mark {
 public:
  explicit end_mark(Driver const& driver) noexcept : driver_(driver) {}
  end_mark(end_mark const&) = delete;
  end_mark& operator=(end_mark const&) = delete;
  ~end_mark() {
    if (event_ != nullptr) (void)driver_.destroy_event(event_);
  }

  /// Returns true once that work is complete. `wait` makes the host wait for it. Without a driver that marks the work of the whole
  /// device, and while a capture is open, later work may be waited for, too.
  bool is_complete(bool const wait) noexcept {
    if (is_complete_) return true;
    if constexpr (marks_all_work<Driver>) {
      if (!is_marked_) {
        status s = event_ != nullptr ? status{} : driver_.create_event(event_);
        if (s.ok()) s = record_all_work_in_use(driver_, event_);
        waits_for_capture_ = is_of_capture(s);
        if (s.kind == failure::unloading || s.kind == failure::unsupported)
          return is_complete_ = host_waits();
        is_marked_ = s.ok();
      }
      if (!is_marked_) return false;
      status s = driver_.query_event(event_);
      if (!s.ok() && wait) s = driver_.synchronize_event(event_);
      return is_complete_ = s.ok() || s.kind == failure::unloading;
    } else {
      return is_complete_ = host_waits();
    }
  }

  /// Whether a capture prevented the last call of is_complete() from finding out.
  [[nodiscard]] bool waits_for_capture() const noexcept { return !is_complete_ && waits_for_capture_; }

  /// Something uses the memory that was submitted after the mark.
  void renew() noexcept { is_marked_ = is_complete_ = false; }

  /// In a forked child that must not use the driver.
  void abandon() noexcept {
    event_ = nullptr;
    is_complete_ = true;
  }

 private:
  bool host_waits() noexcept {
    status const s = wait_for_all_work(driver_);
    waits_for_capture_ = is_of_capture(s);
    return s.ok() || s.kind == failure::unloading;
  }

  Driver const& driver_;
  event_handle event_ = nullptr;
  bool is_marked_ = false;
  bool is_complete_ = false;
  bool waits_for_capture_ = false;
};

/// The owners whose graphs use a block, each with a reference to its part.
template <class Part>
class graph_users {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  /// Whether there were more than it has room for: such a block is deferred until the pool ends.
  [[nodiscard]] bool is_too_many() const noexcept { return is_too_many_; }
  void add(Part& user) noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      if (all_[i] == &user) return;
    }
    if (count_ == most) {
      is_too_many_ = true;
      return;
    }
    all_[count_++] = &user;
    ++user.references;
  }
  /// Removes one; the caller takes over its reference.
  [[nodiscard]] Part& take() noexcept { return *all_[--count_]; }
  void clear() noexcept {
    while (!empty()) --take().references;
  }

 private:
  static constexpr std::size_t most = 4;
  Part* all_[most] = {};
  std::size_t count_ = 0;
  bool is_too_many_ = false;
};

/// A block that a capture freed although it is not the owner's own: work of the graph uses it.
template <class Part>
struct deferred_block {
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  Part* from = nullptr;     ///< whose block it is; null: the pool's
  graph_users<Part> users;  ///< that it is deferred for afterwards
};

/// What one owner's captures received, or what the owner handed out outside captures. The two are apart: an address that a graph
/// holds is given to captures of its owner alone.
template <class Upstream, class Deferred>
struct graph_part {
  template <class Heap>
  graph_part(Heap& heap, Deferred& deferred_in_pool, std::uint64_t of_part, std::uint64_t of_owner)
      : observer(deferred_in_pool),
        memory(heap.upstream(), told(heap.options()), &heap),
        number(of_part),
        owner(of_owner),
        end(heap.driver()) {}

  forward_deferred<Deferred> observer;
  pool<Upstream> memory;
  std::uint64_t const number;  ///< of the part, counted from 1
  std::uint64_t const owner;   ///< number of its graph_memory, counted from 1, as PyTorch's segment_pool_id
  capture_cache cache;         ///< of the open scope that got it first
  sequence<deferred_block<graph_part>> deferred;
  std::size_t deferred_bytes = 0;
  /// Open captures, live blocks, calls in progress, and blocks that are deferred in other parts: while there is one, the part stays.
  std::atomic<std::size_t> references{0};
  bool is_over = false;      ///< its graph_memory was destroyed
  bool is_mark_old = false;  ///< a block was deferred after the mark
  end_mark<typename Upstream::driver_type> end;

 private:
  static pooled told(pooled options) noexcept {
    options.captures = capture_watch::in_scopes;
    return options;
  }
};

}  // namespace detail
}  // namespace tarn
