// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counts the calls of cudaDeviceSynchronize of the whole program. Link with -Wl,--wrap=cudaDeviceSynchronize.

#include <cstdint>

namespace tarn_clients {

/// Returns the number of calls so far in this process. Any thread may call it.
[[nodiscard]] std::uint64_t device_synchronisations() noexcept;

}  // namespace tarn_clients
