// SPDX-License-Identifier: Apache-2.0
#pragma once
// The byte patterns that the debugging policies write, and functions to write and compare them in device
// memory.

#include <cstddef>
#include <cstring>

#include "tarn/core/min_max.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"

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

}  // namespace detail
}  // namespace TARN_NAMESPACE
