// SPDX-License-Identifier: Apache-2.0
#pragma once
// The time to fail because of tarn's limits: from a request that cannot be served to the error.
//
//   fail/above_limit   2 GiB requested from a pool under a limit of 1 GiB
//   fail/above_pages   the same, with the limit between the pool and its pages
//   fail/limited/B     as fail/full/B of refusals.hpp, but the limit below the pool is reached, not the device's memory

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "hot_paths/refusals.hpp"
#include "peers/tarn_pool.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/policy/limited.hpp"

namespace tarn::bench {

namespace hot {

inline constexpr std::size_t low_limit = 1_GiB;
inline constexpr std::size_t above_low_limit = 2_GiB;

/// The default pool under a limit of live bytes.
struct with_limit : with_defaults {
  template <class Pages>
  static auto over(Pages pages, pooled const& options) {
    return pages | options | limited{low_limit};
  }
};

/// The default pool over a limit of reserved bytes.
template <std::size_t Limit>
struct with_limited_pages : with_defaults {
  template <class Pages>
  static auto over(Pages pages, pooled const& options) {
    return pages | limited{Limit} | options;
  }
};

template <peer P>
void refused_at_once(plan const& p, row& r, std::size_t bytes) {
  P pool{setup{}};
  time_refusals(pool, bytes, p, r);
}

}  // namespace hot

/// Adds the refusals by tarn's limits on `Device`.
template <class Device>
void add_limits(std::vector<entry>& list) {
  using over_pool = tarn_pool<Device, hot::with_limit>;
  using below_pool = tarn_pool<Device, hot::with_limited_pages<hot::low_limit>>;
  using filled = tarn_pool<Device, hot::with_limited_pages<hot::full_bytes>>;
  auto const add = [&](std::string work, auto run) {
    list.push_back({std::move(work), "tarn", std::string(to_text(Device::where)), 1, run});
  };
  add("fail/above_limit",
      [](plan const& p, row& r) { hot::refused_at_once<over_pool>(p, r, hot::above_low_limit); });
  add("fail/above_pages",
      [](plan const& p, row& r) { hot::refused_at_once<below_pool>(p, r, hot::above_low_limit); });
  for (std::size_t const bytes : hot::refused_bytes) {
    add("fail/limited/" + std::to_string(bytes),
        [bytes](plan const& p, row& r) { hot::refused_when_full<filled>(p, r, bytes, 0); });
  }
}

}  // namespace tarn::bench
