// SPDX-License-Identifier: Apache-2.0
#pragma once
// The byte patterns that the debugging policies write into device memory and compare: in blocks, and in the
// fences around them.

#include <cstddef>
#include <cstring>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

/// Each is unlikely as data, odd as a pointer, and a NaN or huge as a float; in a debugger it identifies what
/// happened.
namespace pattern {
inline constexpr unsigned char fence = 0xFD;          ///< around a block: never the user's
inline constexpr unsigned char uninitialised = 0xCD;  ///< handed out, not yet written ("clean")
inline constexpr unsigned char freed = 0xDD;          ///< given back ("dead")
}  // namespace pattern

namespace detail {

/// Waits for the stream and finds the first byte that differs; `bytes` if none does, or if it cannot be read.
/// Host cost: a copy of all bytes, up to 1 MiB at a time.
template <class Driver>
std::size_t first_difference(Driver const& driver, stream_ref stream, void const* p, unsigned char byte,
                             std::size_t bytes) noexcept {
  unsigned char smaller[512];
  unsigned char* window = smaller;
  std::size_t width = sizeof smaller;
  sequence<unsigned char> larger;
  if (bytes > 16 * width) {
    try {
      larger.resize(min_of(bytes, std::size_t{1} << 20));
      window = larger.begin();
      width = larger.size();
    } catch (...) {  // the small window is slower, but works
    }
  }
  for (std::size_t at = 0; at < bytes; at += width) {
    std::size_t const n = min_of(width, bytes - at);
    if (!driver.copy(stream, window, static_cast<unsigned char const*>(p) + at, n).ok()) return bytes;
    if (!driver.synchronize_stream(stream).ok()) return bytes;
    if (window[0] == byte && std::memcmp(window, window + 1, n - 1) == 0) continue;
    for (std::size_t i = 0; i < n; ++i) {
      if (window[i] != byte) return at + i;
    }
  }
  return bytes;
}

// The guard bytes of a block: where they are, how they are written and how they are verified.
//
//   whole |--- fence ---|----- requested bytes ----|--- fence ---|
//                       p                          p + bytes

/// Where a block's fences were overwritten; zero if they were not.
struct breach {
  void const* p = nullptr;
  std::size_t before = 0;  ///< distance of the first overwritten byte from the block's start
  std::size_t after = 0;   ///< offset of the first overwritten byte from the block's start
  explicit operator bool() const noexcept { return before != 0 || after != 0; }
};

/// Fences of a minimum width, wider if an alignment requires it, so that the block itself stays aligned.
class fences {
 public:
  /// @throws length_error  no block has room for them, and their size would wrap
  explicit fences(std::size_t least) : least_(max_of(least, std::size_t{1})) {
    if (least > max_request_bytes)
      throw length_error("tarn: fence_bytes is larger than any block; use fewer");
  }

  [[nodiscard]] std::size_t width(std::size_t alignment) const noexcept {
    return align_up(least_, alignment);
  }
  [[nodiscard]] std::size_t whole_bytes(std::size_t bytes, std::size_t alignment) const noexcept {
    return bytes > max_request_bytes ? bytes : bytes + 2 * width(alignment);
  }
  /// The request for a block and its fences.
  [[nodiscard]] request whole_of(request const& r) const noexcept {
    return {r.stream, whole_bytes(r.bytes, r.alignment), r.alignment, r.kind};
  }
  [[nodiscard]] void* whole_of(void* p, std::size_t alignment) const noexcept {
    return static_cast<unsigned char*>(p) - width(alignment);
  }
  [[nodiscard]] void* block_in(void* whole, std::size_t alignment) const noexcept {
    return static_cast<unsigned char*>(whole) + width(alignment);
  }

  /// Writes both fences in stream order.
  template <class Driver>
  [[nodiscard]] status draw(Driver const& driver, stream_ref stream, void* p, std::size_t bytes,
                            std::size_t alignment) const noexcept {
    status const s = fill_in_order(driver, stream, whole_of(p, alignment), pattern::fence, width(alignment));
    if (!s.ok()) return s;
    return fill_in_order(driver, stream, static_cast<unsigned char*>(p) + bytes, pattern::fence,
                         width(alignment));
  }

  /// Waits for the stream and compares both fences.
  template <class Driver>
  [[nodiscard]] breach find_breach(Driver const& driver, stream_ref stream, void* p, std::size_t bytes,
                                   std::size_t alignment) const noexcept {
    std::size_t const wide = width(alignment);
    std::size_t const front = first_difference(driver, stream, whole_of(p, alignment), pattern::fence, wide);
    std::size_t const back =
        first_difference(driver, stream, static_cast<unsigned char*>(p) + bytes, pattern::fence, wide);
    return {p, wide - front, back != wide ? bytes + back : 0};
  }

 private:
  std::size_t least_;
};

/// Makes a refusal report the bytes that the caller requested, without the fences.
template <class Allocate>
void* asking_for(std::size_t bytes, Allocate const& allocate) {
  try {
    return allocate();
  } catch (out_of_memory& error) {
    memory_report report = error.report();
    report.asked = bytes;
    error.set_report(report);
    throw;
  }
}

}  // namespace detail

}  // namespace TARN_NAMESPACE
