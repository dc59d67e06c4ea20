// SPDX-License-Identifier: Apache-2.0
#pragma once
// The stamps that simulated kernels write into blocks and expect to read back. They name the block and the
// place; they are dense in small blocks, one per host page in large ones.

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model.hpp"

namespace simulation {

/// Visits the stamped places of a block: its start, its end, and steps between.
template <class Visit>
void each_stamp(std::size_t bytes, Visit const& visit) {
  std::size_t const step = bytes <= 64 * 1024 ? 256 : 4096;
  for (std::size_t at = 0; at < bytes; at += step) visit(at, bytes - at < 8 ? bytes - at : 8);
  if (bytes > 8) visit(bytes - 8, std::size_t{8});
}
[[nodiscard]] inline std::uint64_t stamp(std::uint64_t block, std::size_t at) noexcept {
  return (block << 40 ^ at) * 0x9E3779B97F4A7C15 + block;
}

struct write_stamps {
  void* p;
  std::size_t bytes;
  std::uint64_t block;
  void operator()() const {
    each_stamp(bytes, [&](std::size_t at, std::size_t n) {
      // The last stamp may overlap the one before: it depends only on the end.
      std::uint64_t const s = stamp(block, at + 8 == bytes ? bytes : at);
      std::memcpy(static_cast<char*>(p) + at, &s, n);
    });
  }
};

struct read_stamps {
  void const* p;
  std::size_t bytes;
  std::uint64_t block;
  findings* found;
  std::size_t from = 0, to = ~std::size_t{0};  ///< only stamps in these bytes
  void operator()() const {
    bool reported = false;
    std::size_t const last = bytes > 8 ? bytes - 8 : bytes;
    each_stamp(bytes, [&](std::size_t at, std::size_t n) {
      if (at != last && at + n > last && bytes > 8)
        n = at < last ? last - at : 0;  // the rest belongs to the last stamp
      if (at < from || at + n > to) return;
      std::uint64_t const s = stamp(block, at + 8 == bytes ? bytes : at);
      if (reported || n == 0 || std::memcmp(static_cast<char const*>(p) + at, &s, n) == 0) return;
      reported = true;
      std::uint64_t is = 0;
      std::memcpy(&is, static_cast<char const*>(p) + at, n);
      found->push_back(text("block %" PRIu64 " (%zu bytes at %p): byte %zu holds 0x%" PRIx64
                            " instead of 0x%" PRIx64,
                            block, bytes, p, at, is, s));
    });
  }
};

/// Bytes that an owner was filled with.
struct read_fill {
  void const* p;
  std::size_t bytes;
  unsigned char value;
  findings* found;
  void operator()() const {
    auto const* const at = static_cast<unsigned char const*>(p);
    for (std::size_t i = 0; i < bytes; i += i < 4096 ? 1 : 509) {
      if (at[i] == value) continue;
      return found->push_back(
          text("an owner's byte %zu of %zu at %p is 0x%02x instead of 0x%02x", i, bytes, p, at[i], value));
    }
    if (bytes != 0 && at[bytes - 1] != value)
      found->push_back(text("an owner's last byte of %zu is wrong", bytes));
  }
};

}  // namespace simulation
