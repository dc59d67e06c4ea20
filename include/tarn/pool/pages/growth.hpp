// SPDX-License-Identifier: Apache-2.0
#pragma once
// The request that the ladder passes to a growth, the counters of every growth, by pages or by segments, and
// a ring of its latest records.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/pool_state.hpp"

namespace TARN_NAMESPACE::detail {

enum class growth_change : std::uint8_t { made, given_back };

struct growth_note {
  std::uint64_t time = 0;  ///< from the clock
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  growth_change what = growth_change::made;
};

/// Until start(), a record costs one null pointer check, next to driver calls of microseconds.
class growth_notes {
 public:
  using clock_type = std::uint64_t (*)() noexcept;

  /// Keeps the latest `most` records from now on, 32 bytes each, all allocated now; drops earlier records. 0
  /// stops recording.
  /// @throws std::bad_alloc  nothing has changed
  void start(growth_lock const&, std::size_t most, clock_type of_records) {
    sequence<growth_note> ring;
    ring.resize(most);
    ring_.swap(ring);
    clock_ = most != 0 ? of_records : nullptr;
    count_ = 0;
  }
  [[nodiscard]] bool is_on() const noexcept { return clock_ != nullptr; }

  void add(growth_lock const&, growth_change what, std::uintptr_t address, std::size_t bytes) noexcept {
    if (clock_ == nullptr) return;
    ring_[count_++ % ring_.size()] = {clock_(), address, bytes, what};
  }

  /// The number of records kept, and one of them, the oldest first.
  [[nodiscard]] std::size_t size() const noexcept { return count_ < ring_.size() ? count_ : ring_.size(); }
  [[nodiscard]] growth_note const& operator[](std::size_t i) const noexcept {
    return ring_[(count_ - size() + i) % ring_.size()];
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return ring_.capacity() * sizeof(growth_note); }

 private:
  sequence<growth_note> ring_;
  std::size_t count_ = 0;  ///< added since start()
  clock_type clock_ = nullptr;
};

struct growth_request {
  domain_ref taker = neutral;
  part_ref part = common;  ///< of the taker
  zone where = zone::smaller;
  std::size_t bytes = 0;
  std::size_t alignment = default_alignment;
  std::size_t asked = 0;  ///< bytes and alignment of the caller's request, for the error
  std::size_t asked_alignment = 0;
  // The ladder sets the rest for each step. A small pool that grows at once, and a step that only puts memory
  // together, do not exceed may_create; other growth may.
  std::size_t device_bytes = 0;        ///< all memory of the device, 0 if it is not known
  std::size_t may_create = 0;          ///< bytes that may be created before free handles are remapped instead
  std::size_t largest_handle = 2_MiB;  ///< upper bound for handles that are created
  std::size_t least_growth = 2_MiB;    ///< small requests share a handle of this size, if it may be created
  std::size_t segment = 0;    ///< bytes of a new segment, if the source has as many; at least those requested
  bool may_exceed = true;     ///< if remapping does not suffice, create more anyway
  bool may_remap = true;      ///< false: handles are mapped only at their home addresses
  bool uses_up_ends = false;  ///< see the function uses_up_ends()
  bool extend = true;         ///< whether a free range followed by a hole may be extended
};

/// Counts a handle, or a segment, that was taken from the driver.
inline void count_taken(pool_state& s, std::size_t bytes, zone where) noexcept {
  s.reserved += bytes;
  s.reserved_total += bytes;
  s.reserved_peak = max_of(s.reserved_peak, s.reserved);
  ++s.creates;
  ++s.handles;
  s.handles_peak = max_of(s.handles_peak, s.handles);
  pool_part& part = where == zone::smaller ? s.smaller : s.larger;
  part.reserved.increase(static_cast<std::int64_t>(bytes));
  part.handles.increase(1);
}
/// Counts handles or segments that were given back.
inline void count_given(pool_state& s, std::size_t bytes, std::size_t handles, zone where) noexcept {
  s.reserved -= bytes;
  s.released_total += bytes;
  s.destroys += handles;
  s.handles -= handles;
  pool_part& part = where == zone::smaller ? s.smaller : s.larger;
  part.reserved.decrease(static_cast<std::int64_t>(bytes));
  part.handles.decrease(static_cast<std::int64_t>(handles));
}

/// What a pool counts as it grows and shrinks; `reserved` is also read without it. There is one writer, so
/// plain loads are enough.
struct growth_counters : pool_state {
  growth_notes notes;
  std::atomic<std::size_t> reserved_now{0};  ///< `reserved`, for threads without the growth lock

  void hold(growth_lock const& growing, std::uintptr_t address, std::size_t bytes, zone where) noexcept {
    notes.add(growing, growth_change::made, address, bytes);
    count_taken(*this, bytes, where);
    reserved_now.store(reserved, std::memory_order_relaxed);
  }
  void release(growth_lock const& growing, std::uintptr_t address, std::size_t bytes, zone where) noexcept {
    notes.add(growing, growth_change::given_back, address, bytes);
    count_given(*this, bytes, 1, where);
    reserved_now.store(reserved, std::memory_order_relaxed);
  }
};

/// One piece of the memory that a growth holds, for inspection: a handle at its home address, or a segment.
struct held_memory {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  zone where = zone::smaller;  ///< the zone it was taken for
  bool is_handle = false;      ///< otherwise a segment, which is never joined to another or remapped
  bool is_asleep = false;      ///< only its addresses are held
};

}  // namespace TARN_NAMESPACE::detail
