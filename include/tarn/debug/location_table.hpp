// SPDX-License-Identifier: Apache-2.0
#pragma once
// The locations that calls came from, each stored once and identified by a number.

#include <cstddef>
#include <cstdint>

#include "tarn/core/address_map.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/debug/memory_history.hpp"

namespace TARN_NAMESPACE::detail {

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

}  // namespace TARN_NAMESPACE::detail
