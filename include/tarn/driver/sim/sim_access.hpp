// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bytes that work of the simulated GPU reads or writes.

#include <cstddef>
#include <cstdint>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

/// Whether simulated work reads or writes.
enum class sim_use : std::uint8_t { reads, writes };

/// Bytes that simulated work accesses.
struct sim_access {
  void const* p = nullptr;
  std::size_t bytes = 0;
  sim_use use = sim_use::reads;
};
[[nodiscard]] constexpr sim_access sim_reads(void const* p, std::size_t bytes) noexcept {
  return {p, bytes, sim_use::reads};
}
[[nodiscard]] constexpr sim_access sim_writes(void const* p, std::size_t bytes) noexcept {
  return {p, bytes, sim_use::writes};
}

}  // namespace TARN_NAMESPACE
