// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the pools of others ask of the CUDA runtime. The linker sends their calls through here (--wrap), so
// that each peer is counted alike and untouched.

#include <cstdint>

namespace tarn::bench {

/// Calls that allocate, free, or order: cudaMalloc and cudaFree, their stream-ordered kin, events, waits.
/// Not counted: look-ups such as cudaGetDevice, which never leave the process.
struct cuda_calls {
  /// Calls so far in this process.
  [[nodiscard]] static std::uint64_t made() noexcept;
  /// Bytes that cudaMalloc handed out and cudaFree has not taken back: the most since reset_peak().
  [[nodiscard]] static std::uint64_t peak_bytes() noexcept;
  static void reset_peak() noexcept;
};

}  // namespace tarn::bench
