// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the ladder asks of a growth and what every growth counts, whether it grows by pages or by segments.
// Above it: page_growth, segment_growth, ladder. Below it: range.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tarn/core/bytes.hpp"
#include "tarn/pool/range.hpp"

namespace tarn::detail {

struct growth_request {
  domain_ref taker = neutral;
  zone where = zone::small;
  std::size_t bytes = 0;
  std::size_t alignment = default_alignment;
  std::size_t asked = 0;  ///< bytes and alignment of the caller's request, for the error
  std::size_t asked_alignment = 0;
  std::size_t may_create = 0;          ///< bytes that may be created before free handles are moved instead
  std::size_t largest_handle = 2_MiB;  ///< of handles that are created
  bool may_exceed = true;              ///< where moving does not suffice, create more all the same
  bool may_move = true;                ///< false: handles stay where they are
  bool extend = true;                  ///< a free range with a hole after it may be extended
};

/// Under the growth lock; read without it for statistics, hence plain loads of one writer's values are
/// enough.
struct growth_counters {
  std::size_t reserved = 0;
  std::size_t reserved_peak = 0;
  std::size_t reserved_total = 0;  ///< ever taken from the driver
  std::size_t released_total = 0;
  std::uint64_t creates = 0;
  std::uint64_t destroys = 0;
  std::uint64_t maps = 0;
  std::uint64_t unmaps = 0;
  std::uint64_t remaps = 0;  ///< maps of handles that served elsewhere before
  std::uint64_t handles_peak = 0;

  void hold(std::size_t bytes) noexcept {
    reserved += bytes;
    reserved_total += bytes;
    reserved_peak = std::max(reserved_peak, reserved);
    handles_peak = std::max(handles_peak, creates - destroys);
  }
  void release(std::size_t bytes) noexcept {
    reserved -= bytes;
    released_total += bytes;
  }
};

}  // namespace tarn::detail
