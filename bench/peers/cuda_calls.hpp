// SPDX-License-Identifier: Apache-2.0
#pragma once
// cuda_calls: counts the CUDA runtime calls of other allocators. The linker redirects their calls to this
// code (--wrap), so that every peer is counted in the same way and unmodified.

#include <cstdint>

namespace tarn::bench {

/// Counts calls that allocate, free, or order: cudaMalloc and cudaFree, their stream-ordered variants,
/// events, waits. Not counted: queries such as cudaGetDevice, which never leave the process.
struct cuda_calls {
  /// Returns the number of calls so far in this process.
  [[nodiscard]] static std::uint64_t made() noexcept;
  /// Returns the maximum of bytes allocated by cudaMalloc and not yet freed since reset_peak().
  [[nodiscard]] static std::uint64_t peak_bytes() noexcept;
  static void reset_peak() noexcept;
};

}  // namespace tarn::bench
