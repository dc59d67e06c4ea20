// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page map: the physical handle behind each address. Every handle is first mapped at its home address,
// within one long virtual range, and stays mapped there until it is destroyed or the pool sleeps. All records
// of free and live bytes use home addresses. (Views map handles at further addresses: view.hpp.)

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/zeroed_array.hpp"
#include "tarn/pool/arena/range.hpp"

namespace TARN_NAMESPACE::detail {

using handle_ref = std::uint32_t;  ///< index of a handle; 0 is none

/// Whether there is memory behind a handle's addresses. Other states than `mapped` occur only while the pool
/// sleeps.
enum class backing : std::uint8_t {
  mapped,    ///< at its home address, and in the views that show it
  unmapped,  ///< created, but not mapped
  released   ///< destroyed; its addresses, size and ranges are kept
};

/// One physical handle.
struct physical {
  page_handle id = 0;
  std::size_t bytes = 0;    ///< 0 if the entry is unused
  std::uintptr_t home = 0;  ///< in an unused entry: the index of the next one
  backing state = backing::mapped;
  part_ref part = common;  ///< of the heap; that of all ranges in it
  bool stays = false;      ///< the pool sleeps, but not this handle: it was pinned when the pool fell asleep
  std::uint32_t pins = 0;  ///< while there are any, it is not given back, replaced or put to sleep
};

class page_map {
 public:
  page_map() noexcept = default;
  page_map& operator=(page_map&&) = delete;

  /// Home addresses lie in [base, base + home_bytes); views follow up to base + bytes. @throws std::bad_alloc
  void set_up(std::uintptr_t base, std::size_t home_bytes, std::size_t bytes, std::size_t granularity) {
    handles_.resize(1);
    zeroed_array<std::atomic<part_ref>> parts(bytes / granularity);
    table_ = zeroed_array<handle_ref>(home_bytes / granularity);
    parts_ = std::move(parts);
    base_ = base;
    home_bytes_ = home_bytes;
    bytes_ = bytes;
    granularity_ = granularity;
    shift_ = static_cast<unsigned>(std::countr_zero(granularity));
  }
  [[nodiscard]] bool is_set_up() const noexcept { return static_cast<bool>(table_); }

  /// The handle at a home address, 0 if none.
  [[nodiscard]] handle_ref at(std::uintptr_t address) const noexcept {
    return table_[(address - base_) >> shift_];
  }
  [[nodiscard]] physical const& operator[](handle_ref h) const noexcept { return TARN_VISIT(), handles_[h]; }
  /// One more than the largest index.
  [[nodiscard]] handle_ref size() const noexcept { return static_cast<handle_ref>(handles_.size()); }
  [[nodiscard]] std::uintptr_t end_of(handle_ref h) const noexcept {
    return handles_[h].home + handles_[h].bytes;
  }

  /// Makes room to add `count` handles. @throws std::bad_alloc
  void make_room(std::size_t count) { handles_.reserve(handles_.size() + count); }

  /// Adds a handle that is mapped at its home address. Requires make_room().
  handle_ref add(page_handle id, std::size_t bytes, std::uintptr_t home) noexcept {
    handle_ref h = first_unused_;
    if (h != 0) {
      first_unused_ = static_cast<handle_ref>(handles_[h].home);
      handles_[h] = physical{id, bytes, home};
    } else {
      h = size();
      handles_.push_back(physical{id, bytes, home});
    }
    fill(h, h);
    ++count_;
    return h;
  }
  /// Changes what is behind a handle's addresses. The arena reads neither value.
  void set(handle_ref h, page_handle id, backing state) noexcept {
    handles_[h].id = id;
    handles_[h].state = state;
  }
  void pin(handle_ref h) noexcept { ++handles_[h].pins; }
  void unpin(handle_ref h) noexcept { --handles_[h].pins; }
  /// At the begin of a sleep: pinned handles stay; at its end: none is treated apart.
  void keep_pinned() noexcept {
    for (physical& p : handles_) p.stays = p.pins != 0;
  }
  void treat_all_alike() noexcept {
    for (physical& p : handles_) p.stays = false;
  }
  void remove(handle_ref h) noexcept {
    fill(h, 0);
    handles_[h] = physical{0, 0, first_unused_};
    first_unused_ = h;
    --count_;
  }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::size_t granularity() const noexcept { return granularity_; }
  [[nodiscard]] std::uintptr_t base() const noexcept { return base_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    return is_set_up() && address >= base_ && address - base_ < bytes_;
  }
  [[nodiscard]] bool is_home(std::uintptr_t address) const noexcept { return address - base_ < home_bytes_; }

  /// The part that a live block belongs to, which starts at `address`. Needs no lock.
  [[nodiscard]] part_ref part_at(std::uintptr_t address) const noexcept {
    return contains(address) ? parts_[(address - base_) >> shift_].load(std::memory_order_relaxed) : common;
  }
  /// Notes the part of whole handles at their home addresses. O(granules)
  void set_part(std::uintptr_t home, std::size_t bytes, part_ref part) noexcept {
    std::size_t const first = (home - base_) >> shift_;
    for (std::size_t g = first; g < first + (bytes >> shift_); ++g) {
      parts_[g].store(part, std::memory_order_relaxed);
      if (table_[g] != 0) handles_[table_[g]].part = part;
    }
  }
  /// Notes the part of a block in a view, which that of its handles is.
  void set_part_of_view(std::uintptr_t address, part_ref part) noexcept {
    parts_[(address - base_) >> shift_].store(part, std::memory_order_relaxed);
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return handles_.capacity() * sizeof(physical); }

 private:
  void fill(handle_ref h, handle_ref value) noexcept {
    std::size_t const first = (handles_[h].home - base_) >> shift_;
    for (std::size_t g = 0; g < handles_[h].bytes >> shift_; ++g) table_[first + g] = value;
  }

  zeroed_array<handle_ref> table_;             ///< one entry per granule of the home addresses
  zeroed_array<std::atomic<part_ref>> parts_;  ///< one entry per granule of all addresses
  sequence<physical> handles_;
  std::uintptr_t base_ = 0;
  std::size_t home_bytes_ = 0;
  std::size_t bytes_ = 0;
  std::size_t granularity_ = 0;
  std::size_t count_ = 0;
  unsigned shift_ = 0;
  handle_ref first_unused_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
