// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records of `with_history`: live blocks, the latest events, and the bytes of each tag.

#include <cstddef>
#include <cstdint>
#include <new>

#include "tarn/core/address_map.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/combining_lock.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/tag.hpp"
#include "tarn/debug/memory_history.hpp"

namespace TARN_NAMESPACE::detail {

// The locations that calls came from, each stored once and identified by a number.

/// Where a call came from: the recorded location and, if stacks are captured, the stack.
struct call_origin {
  source_location where;
  void* frames[stack_depth];
  std::size_t depth = 0;
};

/// The caller locks.
class location_table {
 public:
  struct known_location {
    source_location where;
    std::size_t first_frame = 0;
    std::size_t depth = 0;
  };

  /// The number of an origin, from 1; 0 if nothing is known of it, or if `most` are stored already. O(1) plus
  /// the depth.
  /// @throws std::bad_alloc  nothing has changed
  std::uint32_t number_of(call_origin const& o, std::size_t most) {
    if (o.where.line == 0 && o.depth == 0) return 0;
    std::uint64_t key = key_of(o);
    for (;; ++key) {
      std::uint32_t const known = index_.find(key);
      if (known == 0) break;
      if (is_same(locations_[known - 1], o)) return known;
    }
    if (locations_.size() >= most) return 0;
    index_.make_room(1);
    locations_.reserve(locations_.size() + 1);
    frames_.reserve(frames_.size() + o.depth);
    known_location made;
    made.where = o.where;
    made.first_frame = frames_.size();
    made.depth = o.depth;
    for (std::size_t i = 0; i < o.depth; ++i) frames_.push_back(o.frames[i]);
    locations_.push_back(made);
    auto const number = static_cast<std::uint32_t>(locations_.size());
    index_.insert(key, number);
    return number;
  }

  [[nodiscard]] sequence<known_location> const& locations() const noexcept { return locations_; }
  [[nodiscard]] sequence<void*> const& frames() const noexcept { return frames_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return locations_.capacity() * sizeof(known_location) + frames_.capacity() * sizeof(void*) +
           index_.host_bytes();
  }

 private:
  [[nodiscard]] static std::uint64_t key_of(call_origin const& o) noexcept {
    auto hash = static_cast<std::uint64_t>(o.where.line);
    auto const mix = [&hash](void const* p) {
      hash = (hash ^ reinterpret_cast<std::uintptr_t>(p)) * 0x9E3779B97F4A7C15U;
      hash ^= hash >> 32;
    };
    mix(o.where.file);
    for (std::size_t i = 0; i < o.depth; ++i) mix(o.frames[i]);
    return hash;
  }
  /// Texts are static: equal pointers are equal texts. A location is stored twice if a compiler emitted its
  /// text twice.
  [[nodiscard]] bool is_same(known_location const& known, call_origin const& o) const noexcept {
    if (known.where.file != o.where.file || known.where.line != o.where.line ||
        known.where.function != o.where.function || known.depth != o.depth) {
      return false;
    }
    for (std::size_t i = 0; i < o.depth; ++i) {
      if (frames_[known.first_frame + i] != o.frames[i]) return false;
    }
    return true;
  }

  sequence<known_location> locations_;
  sequence<void*> frames_;
  address_map<std::uint32_t> index_;
};

/// The amounts of one tag; bytes as blocks occupy them.
struct tag_account {
  std::size_t bytes = 0;
  std::size_t peak_bytes = 0;
  std::size_t requested = 0;
  std::size_t blocks = 0;
  std::uint64_t allocations = 0;
};

/// One order of all threads' calls, under one lock that is held for tens of nanoseconds and never around a
/// call of the layer below. Under contention one thread makes the records of the others, too, so that they
/// stay in its processor's cache. Host memory: 48 bytes and an index of 32 to 64 per live block (room is kept
/// for the peak number), 56 per event of the ring, 40 per tag, 48 per location and 8 per frame of its stack.
class history_log {
 public:
  /// @throws std::bad_alloc
  history_log(std::size_t history, std::size_t most_places) : most_locations_(most_places) {
    ring_.resize(history);
  }

  /// Records a block that was handed out. `b` holds its address, its numbers and its tag id; the location is
  /// looked up from `origin`.
  /// @throws std::bad_alloc  nothing has changed
  void note_allocation(history_block const& b, call_origin const& origin) {
    bool refused = false;
    one_by_one([&]() noexcept {
      try {
        begin(b, origin);
      } catch (...) {
        refused = true;
      }
    });
    if (refused) throw std::bad_alloc();
  }

  /// Records that a block has become `longer`. It keeps its tag and its location.
  void note_extension(history_block longer) noexcept {
    one_by_one([&]() noexcept {
      std::uint32_t const known = index_.find(longer.address);
      if (known == 0) return;
      longer.tag = blocks_[known - 1].tag;
      longer.location = blocks_[known - 1].location;
      start(longer);
    });
  }

  /// Records that a block is about to be freed. An unknown block is left to the layers below.
  void note_free(std::uintptr_t address, stream_id stream, call_origin const& origin,
                 std::uint64_t time_ns) noexcept {
    one_by_one([&]() noexcept {
      std::uint32_t const known = index_.erase(address);
      if (known == 0) return;
      std::uint32_t from = 0;
      if (ring_.size() != 0) {
        try {
          from = locations_.number_of(origin, most_locations_);
        } catch (...) {
        }
      }
      end(known, stream, from, time_ns);
    });
  }

  /// Records a refused request, and returns the tags that hold the most.
  void note_refusal(history_event e, call_origin const& origin, bytes_of_tag (&biggest)[3]) noexcept {
    scoped_lock const guard(lock_);
    try {
      e.location = locations_.number_of(origin, most_locations_);
    } catch (...) {
    }
    e.time_ns = in_order(e.time_ns);
    note(e);
    for (bytes_of_tag& t : biggest) t = {};
    if (accounts_.size() < 2) return;  // no tag was ever used
    for (std::size_t id = 0; id < accounts_.size(); ++id) {
      bytes_of_tag t{known_tags.name_of(static_cast<std::uint32_t>(id)), accounts_[id].bytes};
      for (bytes_of_tag& location : biggest) {
        if (t.bytes > location.bytes) std::swap(t, location);
      }
    }
  }

  /// The numbers of elements to copy.
  struct sizes {
    std::size_t live = 0;
    std::size_t events = 0;
    std::size_t tags = 0;
    std::size_t locations = 0;
    std::size_t frames = 0;
  };
  [[nodiscard]] sizes count() noexcept {
    scoped_lock const guard(lock_);
    return counted();
  }
  /// Calls `take(*this)` under the lock if all of it fits `room`; returns false if more was added meanwhile.
  /// `take` must neither throw nor call the memory that it records.
  template <class Take>
  [[nodiscard]] bool copy(sizes const& room, Take const& take) noexcept {
    scoped_lock const guard(lock_);
    sizes const now = counted();
    if (now.live > room.live || now.events > room.events || now.tags > room.tags ||
        now.locations > room.locations || now.frames > room.frames) {
      return false;
    }
    take(*this);
    return true;
  }

  // For `take`:

  template <class F>
  void for_each_live(F const& f) const {
    for (history_block const& b : blocks_) {
      if (b.address != 0) f(b);
    }
  }
  /// Oldest first.
  template <class F>
  void for_each_event(F const& f) const {
    std::size_t const held = counted().events;
    for (std::uint64_t i = noted_ - held; i != noted_; ++i)
      f(ring_[static_cast<std::size_t>(i % ring_.size())]);
  }
  [[nodiscard]] std::uint64_t forgotten() const noexcept { return noted_ - counted().events; }
  [[nodiscard]] sequence<tag_account> const& accounts() const noexcept { return accounts_; }
  [[nodiscard]] location_table const& locations() const noexcept { return locations_; }
  [[nodiscard]] std::uint64_t last_ns() const noexcept { return last_ns_; }

  /// Current host memory of the records.
  [[nodiscard]] std::size_t host_bytes() noexcept {
    scoped_lock const guard(lock_);
    return blocks_.capacity() * sizeof(history_block) + index_.host_bytes() +
           ring_.capacity() * sizeof(history_event) + accounts_.capacity() * sizeof(tag_account) +
           locations_.host_bytes();
  }

  /// Restarts the peaks of the tags from their current values.
  void reset_peaks() noexcept {
    scoped_lock const guard(lock_);
    for (tag_account& a : accounts_) a.peak_bytes = a.bytes;
  }

 private:
  /// A thread's pending record: a callable on its stack, while the thread waits.
  struct change {
    void (*make)(void*) noexcept = nullptr;
    void* of = nullptr;
  };
  template <class Make>
  void one_by_one(Make make) noexcept {
    (void)lock_.run(change{[](void* of) noexcept { (*static_cast<Make*>(of))(); }, &make},
                    [](change const& c) noexcept { c.make(c.of); });
  }

  /// @throws std::bad_alloc  nothing has changed
  void begin(history_block b, call_origin const& origin) {
    b.location = locations_.number_of(origin, most_locations_);
    while (accounts_.size() <= b.tag) accounts_.push_back(tag_account{});
    index_.make_room(1);
    if (vacant_ == 0) blocks_.reserve(blocks_.size() + 1);
    start(b);
  }
  /// Records a block, for which room has been made.
  void start(history_block b) noexcept {
    // Handed out again without a free through this layer, where it was freed below; or made longer.
    if (std::uint32_t const known = index_.erase(b.address); known != 0)
      end(known, b.stream, b.location, b.time_ns);
    b.time_ns = in_order(b.time_ns);
    index_.insert(b.address, keep(b));
    tag_account& a = accounts_[b.tag];
    a.bytes += b.bytes;
    a.peak_bytes = max_of(a.peak_bytes, a.bytes);
    a.requested += b.requested;
    ++a.blocks;
    ++a.allocations;
    note({history_event_kind::allocate, b.address, b.requested, b.bytes, b.stream, b.tag, b.location,
          b.time_ns});
  }

  [[nodiscard]] sizes counted() const noexcept {
    auto const held = min_of<std::uint64_t>(noted_, ring_.size());
    return {index_.size(), static_cast<std::size_t>(held), accounts_.size(), locations_.locations().size(),
            locations_.frames().size()};
  }
  /// Clocks are read before the lock is taken, so a later call may have the earlier time.
  [[nodiscard]] std::uint64_t in_order(std::uint64_t time_ns) noexcept {
    return last_ns_ = max_of(last_ns_, time_ns);
  }
  void note(history_event const& e) noexcept {
    if (ring_.size() != 0) {
      ring_[next_] = e;
      if (++next_ == ring_.size()) next_ = 0;
    }
    ++noted_;
  }
  /// Stores a block, for which room has been made. Returns its number, from 1.
  std::uint32_t keep(history_block const& b) noexcept {
    if (vacant_ == 0) {
      blocks_.push_back(b);
      return static_cast<std::uint32_t>(blocks_.size());
    }
    std::uint32_t const number = vacant_;
    vacant_ = blocks_[number - 1].location;
    blocks_[number - 1] = b;
    return number;
  }
  void end(std::uint32_t number, stream_id stream, std::uint32_t from, std::uint64_t time_ns) noexcept {
    history_block& b = blocks_[number - 1];
    tag_account& a = accounts_[b.tag];
    a.bytes -= b.bytes;
    a.requested -= b.requested;
    --a.blocks;
    note({history_event_kind::free, b.address, b.requested, b.bytes, stream, b.tag, from, in_order(time_ns)});
    b.address = 0;
    b.location = vacant_;  // vacant entries form a list
    vacant_ = number;
  }

  combining_lock<change> lock_;
  std::uint32_t vacant_ = 0;
  std::size_t const most_locations_;
  sequence<history_block> blocks_;
  address_map<std::uint32_t> index_;  ///< address to number in blocks_
  sequence<tag_account> accounts_;    ///< by tag id
  location_table locations_;
  sequence<history_event> ring_;
  std::size_t next_ = 0;     ///< index of the next event
  std::uint64_t noted_ = 0;  ///< events so far
  std::uint64_t last_ns_ = 0;
  held_at_fork<combining_lock<change>> member_{lock_};
};

}  // namespace TARN_NAMESPACE::detail
