// SPDX-License-Identifier: Apache-2.0
#pragma once
// Address to node: ranges are found by their start, runs by the 64 KiB frame that a block lies in, domains by
// their stream.

#include <cstdint>

#include "tarn/core/address_map.hpp"

namespace tarn::detail {

/// Values are indices of nodes; 0 is none.
using block_table = address_map<std::uint32_t>;

}  // namespace tarn::detail
