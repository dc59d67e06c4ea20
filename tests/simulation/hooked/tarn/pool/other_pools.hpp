// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header
// The library's list of other pools, which counts how often a pool asks them. Precedes the library in the
// include path.

#define other_pools plain_other_pools
#include_next "tarn/pool/other_pools.hpp"
#undef other_pools

#include "asked_pools.hpp"

namespace TARN_NAMESPACE::detail {

template <class Driver>
class other_pools : public plain_other_pools<Driver> {
 public:
  using plain_other_pools<Driver>::plain_other_pools;

  std::size_t ask(std::size_t bytes, giving how) noexcept {
    std::size_t const given = plain_other_pools<Driver>::ask(bytes, how);
    simulation::asked_pools.asks.fetch_add(1, std::memory_order_relaxed);
    if (given != 0) simulation::asked_pools.answered.fetch_add(1, std::memory_order_relaxed);
    simulation::asked_pools.given.fetch_add(given, std::memory_order_relaxed);
    return given;
  }
};

}  // namespace TARN_NAMESPACE::detail
