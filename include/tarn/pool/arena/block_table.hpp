// SPDX-License-Identifier: Apache-2.0
#pragma once
// A hash table from a key to a node: ranges by start address, runs by the 64 KiB frame of a block, domains by stream.

#include <cstdint>

#include "tarn/core/address_map.hpp"

namespace tarn::detail {

/// Values are indices of nodes; 0 is none.
using block_table = address_map<std::uint32_t>;

}  // namespace tarn::detail
