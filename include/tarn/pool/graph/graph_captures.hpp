// SPDX-License-Identifier: Apache-2.0
#pragma once
// The captures that capture_scopes have opened in a pool, with the streams of each.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/thread_tag.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/captured_handles.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/pool/arena/hot_lock.hpp"
#include "tarn/pool/arena/stream_table.hpp"
#include "tarn/pool/cache/thread_cache.hpp"
#include "tarn/pool/graph/captured_streams.hpp"
#include "tarn/pool/graph/graph_parts.hpp"
#include "tarn/pool/options.hpp"
#include "tarn/pool/order/reclaim.hpp"
#include "tarn/pool/pages/growth_lock.hpp"

namespace TARN_NAMESPACE::detail {

/// What to do about a stream that is part of no known capture.
enum class if_unknown : std::uint8_t {
  ask,          ///< the driver, if captures without a scope are looked for
  not_captured  ///< nothing: the driver was asked in this call
};

/// A scope holds a reference to its owner's record.
template <class Heap, class Front>
class graph_captures {
 public:
  using driver_type = typename Heap::driver_type;

  graph_captures(Heap& heap, Front& front) noexcept : heap_(heap), front_(front) {
    if (always()) front_.watch_all();
  }
  graph_captures& operator=(graph_captures&&) = delete;

  /// Whether a call that is not warm must look for a capture.
  [[nodiscard]] bool any() const noexcept { return heap_.captured.any() || always(); }
  /// Whether a deallocation must look for one.
  [[nodiscard]] bool watches_frees() const noexcept { return heap_.captured.any() || looks_outside_scopes(); }

  /// The capture of an allocation; `captured_as` is 0 if its stream is not captured.
  /// @throws cuda_error  it is captured, and it is not known by which capture
  [[nodiscard]] captured_stream of_allocation(stream_id id, stream_ref stream) {
    if (captured_stream const at = of_this_thread(id); at.is_captured()) return at;
    captured_stream const at = known_capture_of(id);
    stream_ref const named = stream_ref::from(stream.handle(), id);
    return at.is_captured() || !is_unannounced_capture(named) ? at : join(named);
  }
  /// The capture of a deallocation. The stream may be destroyed: then the driver must not be asked about it.
  [[nodiscard]] captured_stream of_deallocation(stream_id id, stream_ref stream,
                                                if_unknown then = if_unknown::ask) noexcept {
    if (id == neutral_id || id == stream_ref::unknown_id || !watches_frees()) return {};
    captured_stream at = of_this_thread(id);
    if (!at.is_captured()) at = known_capture_of(id);
    if (at.is_captured() || then == if_unknown::not_captured) return at;
    if (!looks_outside_scopes() && !may_have_joined()) return at;
    if (!is_freed_in_capture(heap_.driver(), stream, id)) return at;
    at.captured_as = captured_id(0);
    at.is_guess = true;
    scoped_lock const guard(mutex_);
    if (scope const* const guessed = guess(); guessed != nullptr) at.owner = guessed->owner;
    return at;
  }

  /// The capture of a stream that record_stream() names; no owner if it is not captured. Notes the identity
  /// of a bare handle in `stream`.
  /// @throws cuda_error  the driver does not know the stream, or it is captured, and not known by which
  /// capture; nothing has changed
  [[nodiscard]] captured_stream of_use(stream_ref& stream) {
    stream_ref const named = detail::exchange(stream, heap_.with_identity(stream));
    captured_stream const at = of_deallocation(stream.id(), named);
    if (at.is_captured() && at.owner == nullptr) refuse_unknown();
    return at;
  }

  // ---- scopes

  /// Whether a capture may have to take memory that the pool caches. The driver call takes 5 us, more than
  /// the rest of opening a scope: an answer that was far from scarce holds for some captures, unless the pool
  /// grows.
  [[nodiscard]] bool is_memory_scarce(growth_lock const& growing) noexcept {
    std::size_t const reserved = heap_.counters(growing).reserved;
    if (is_known_ample(reserved)) return false;
    std::size_t free = 0;
    std::size_t total = 0;
    if (!heap_.driver().memory_info(free, total).ok()) return false;
    captures_with_ample_memory_ = free >= total / 4 ? 63 : 0;
    ample_up_to_ = reserved + total / 16;
    return free < total / 8;
  }
  /// Whether that is known without asking, and no longer once the answer has served enough captures.
  [[nodiscard]] bool is_known_ample(std::size_t reserved) noexcept {
    unsigned left = captures_with_ample_memory_.load(std::memory_order_relaxed);
    if (left == 0 || reserved > ample_up_to_.load(std::memory_order_relaxed)) return false;
    (void)captures_with_ample_memory_.compare_exchange_strong(left, left - 1, std::memory_order_relaxed);
    return true;
  }

  /// @throws cuda_error, std::bad_alloc: nothing has changed
  [[nodiscard]] capture_number begin(graph_parts& owner, stream_ref stream) {
    capture_number const made = add_scope(owner);
    stream_id captured_as = 0;
    try {
      captured_as = add_stream(stream, {0, made, &owner});
    } catch (...) {
      (void)remove_scope(made);
      throw;
    }
    front_.set_capture(stream.id(), captured_as, &owner);
    capture_gate::begin_capture();
    return made;
  }
  /// Adds a stream, unless it is part of a capture of this owner. @throws cuda_error  it is part of another
  /// one's, or too many streams
  void add(graph_parts& owner, capture_number number, stream_ref stream) {
    captured_stream const at = known_capture_of(stream.id());
    if (!at.is_captured() || at.capture == number) return (void)add_stream(stream, {0, number, &owner});
    if (at.owner != &owner) refuse("capture_scope::join (this stream is part of another owner's capture)");
  }
  void end(graph_parts& owner, capture_number number) noexcept {
    for (stream_id captured_as = 0; (captured_as = take_stream(number)) != 0;) {
      front_.end_capture(captured_as);
      front_.drop_stream(captured_as);
      end_order(captured_as, owner.captured);
    }
    capture_gate::end_capture(remove_scope(number));
  }

 private:
  struct scope {
    capture_number number = 0;
    graph_parts* owner = nullptr;
    std::uint64_t thread = 0;   ///< number of the one that opened it
    std::uint64_t watched = 0;  ///< cache of that thread, 0 if none
  };

  [[nodiscard]] bool always() const noexcept { return heap_.options().captures == capture_watch::always; }
  [[nodiscard]] bool looks_outside_scopes() const noexcept {
    return heap_.options().captures != capture_watch::in_scopes;
  }

  /// The capture of a stream that the calling thread has opened; takes no lock.
  [[nodiscard]] captured_stream of_this_thread(stream_id id) noexcept {
    if (unwatched_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      watch_again();
    captured_stream at;
    if (id == stream_ref::unknown_id) return at;
    auto const noted = front_.capture_of(id);
    at.captured_as = noted.captured_as;
    at.owner = static_cast<graph_parts*>(noted.owner);
    at.stream = id;
    return at;
  }
  /// The capture that a stream is known to be part of; `captured_as` is 0 if none. Its scope keeps the
  /// owner's record.
  [[nodiscard]] captured_stream known_capture_of(stream_id id) const noexcept {
    if (id == stream_ref::unknown_id || !heap_.captured.has(id)) return {};
    scoped_lock const guard(mutex_);
    std::size_t const place = heap_.captured.find(id);
    return place == captured_streams::most ? captured_stream{} : streams_[place];
  }
  /// Whether the stream of an allocation, of no known capture, is captured. Asked only by threads that have
  /// opened a scope, or in capture_watch::always.
  [[nodiscard]] bool is_unannounced_capture(stream_ref stream) const noexcept {
    return !is_legacy_stream<driver_type>(stream) && may_have_joined() &&
           is_capturing(heap_.driver(), stream);
  }
  [[nodiscard]] bool may_have_joined() const noexcept {
    auto const is_watched = front_.is_this_thread_watched();
    if (is_watched != Front::watched::unknown) return is_watched == Front::watched::yes;
    if (always()) return true;
    scoped_lock const guard(mutex_);
    for (scope const& s : scopes_) {
      if (s.thread == this_thread_number()) return true;
    }
    return false;
  }
  /// Adds a stream to the capture that it must have joined. @throws cuda_error  it is not known which one
  [[nodiscard]] captured_stream join(stream_ref stream) {
    captured_stream of;
    {
      scoped_lock const guard(mutex_);
      scope const* const guessed = guess();
      if (guessed == nullptr) refuse_unknown();
      of = {0, guessed->number, guessed->owner};
    }
    (void)add_stream(stream, of);
    return known_capture_of(stream.id());
  }
  /// The scope of the calling thread; null if it has none or several. Under the mutex.
  [[nodiscard]] scope const* guess() const noexcept {
    scope const* own = nullptr;
    for (scope const& s : scopes_) {
      if (s.thread != this_thread_number()) continue;
      if (own != nullptr) return nullptr;
      own = &s;
    }
    return own;
  }

  /// Watches the calls of the calling thread from now on.
  capture_number add_scope(graph_parts& owner) {
    capture_number made = 0;
    {
      scoped_lock const guard(mutex_);
      made = last_capture_ + 1;
      scopes_.push_back(scope{made, &owner, this_thread_number()});
      ++last_capture_;
      ++owner.references;
      ++unwatched_;
    }
    watch_again();
    return made;
  }
  /// Watches the calling thread for those of its scopes for which it could not be watched. No call makes it a
  /// cache before.
  TARN_NOINLINE void watch_again() noexcept {
    scoped_lock const guard(mutex_);
    for (scope& s : scopes_) {
      if (s.watched != 0 || s.thread != this_thread_number()) continue;
      s.watched = front_.watch_this_thread();
      if (s.watched != 0) --unwatched_;
    }
  }
  /// Returns whether the calling thread opened it.
  bool remove_scope(capture_number number) noexcept {
    std::uint64_t watched = 0;
    bool is_own = false;
    {
      scoped_lock const guard(mutex_);
      for (std::size_t i = 0; i < scopes_.size(); ++i) {
        if (scopes_[i].number != number) continue;
        watched = scopes_[i].watched;
        if (watched == 0) --unwatched_;
        is_own = scopes_[i].thread == this_thread_number();
        --scopes_[i].owner->references;
        scopes_.erase_unordered(i);
        break;
      }
    }
    if (watched != 0) front_.end_watch(watched);
    return is_own;
  }
  /// Adds a stream and closes its caches. Returns the identity that it has in the capture.
  stream_id add_stream(stream_ref stream, captured_stream of) {
    stream_id const id = stream.id();
    {
      scoped_lock const guard(mutex_);
      std::size_t place = heap_.captured.find(id);
      if (place == captured_streams::most) {
        place = heap_.captured.free_place();
        if (place == captured_streams::most) refuse("capture_scope (64 streams are captured already)");
        of.captured_as = captured_id(last_identity_ + 1);
        of.stream = id;
        {
          hot_lock const held = heap_.lock_hot();
          (void)heap_.space(held).streams.get(of.captured_as, stream_ref::from(nullptr, of.captured_as),
                                              of.owner->captured);
        }
        ++last_identity_;
        captured_handles::add(stream);
        streams_[place] = of;
        heap_.captured.set(place, id);
      } else if (streams_[place].capture != of.capture) {
        refuse("capture_scope (this stream is already part of an open one)");
      }
      of.captured_as = streams_[place].captured_as;
    }
    front_.drop_stream(id);  // also if another thread has added the stream, and not dropped it yet
    return of.captured_as;
  }
  /// Removes one stream of a capture. Returns what its memory is kept as, 0 if none is left.
  stream_id take_stream(capture_number number) noexcept {
    scoped_lock const guard(mutex_);
    for (std::size_t i = 0; i < captured_streams::most; ++i) {
      if (streams_[i].capture != number) continue;
      heap_.captured.clear(i);
      captured_handles::remove(streams_[i].stream);
      return detail::exchange(streams_[i], {}).captured_as;
    }
    return 0;
  }
  /// Ends the order of a stream in its capture. While another thread grows, which may keep the place of its
  /// domain, a sweep forgets it later.
  void end_order(stream_id captured_as, part_ref part) noexcept {
    bool const may_forget = heap_.try_lock_growth();
    {
      hot_lock const held = heap_.lock_hot();
      end_captured_stream(heap_.space(held), captured_as, part);
    }
    if (!may_forget) return;
    growth_lock const growing = heap_.adopt_growth_lock();
    hot_lock const held = heap_.lock_hot();
    arena& space = heap_.space(held);
    if (domain_ref const d = space.streams.find(captured_as, part); d != neutral)
      retire_stream(growing, space, d);
  }

  [[noreturn]] void refuse_unknown() const { refuse(captured_without_scope); }
  [[noreturn]] void refuse(char const* call) const {
    throw cuda_error(refused_for_capture(call), heap_.driver().device().value);
  }

  Heap& heap_;
  Front& front_;
  mutable fork_mutex mutex_;  ///< of what follows; taken before the hot lock
  sequence<scope> scopes_;
  captured_stream streams_[captured_streams::most];  ///< by their places in heap::captured
  capture_number last_capture_ = 0;
  std::uint64_t last_identity_ = 0;
  std::atomic<unsigned> captures_with_ample_memory_{0};  ///< for which is_memory_scarce() does not ask
  std::atomic<std::size_t> ample_up_to_{0};              ///< bytes reserved
  std::atomic<unsigned> unwatched_{0};                   ///< scopes whose thread is not watched
};

}  // namespace TARN_NAMESPACE::detail
