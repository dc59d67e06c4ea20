// SPDX-License-Identifier: Apache-2.0
#pragma once
// The base of the scenes: a small machine that checks stream order, and streams and a pool of a driver whose
// calls are made to fail.

#include <cstddef>
#include <optional>
#include <utility>

#include "faults/trial.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/cuda_pages.hpp"

namespace tarn_test {

using stream = basic_stream<sited_driver>;

[[nodiscard]] inline sim_options machine_of(std::size_t capacity, std::size_t host_capacity) {
  sim_options o;
  o.capacity = capacity;
  o.taken = 0;
  o.host_capacity = host_capacity;
  o.checks = sim_checks::stream_order;
  return o;
}

/// A pool that reports the owners of its blocks to the order checker.
template <class Driver>
[[nodiscard]] auto watched_pool(trial& t, Driver driver, pooled options = {}) {
  return basic_pages<Driver>(std::move(driver)) | options | order_watched{t.machine()} | tracked{};
}
[[nodiscard]] inline auto watched_pool(trial& t, device_id device = {}) {
  return watched_pool(t, t.driver(device));
}

/// A kernel that writes a block and runs for long. Does nothing for null.
inline void write(trial& t, stream_ref s, void* p, std::size_t bytes) {
  host_faults::not_counted const own;
  if (p != nullptr) (void)t.machine().launch(s, 1'000'000'000, {sim_writes(p, bytes)});
}

/// Calls act(scope) while a stream is captured for an owner of graphs, if there is one, and both its scope
/// and the capture begin.
template <class Owner, class Stream, class Act>
void in_capture(trial& t, std::optional<Owner>& owner, Stream const& on, Act const& act) {
  if (!owner.has_value()) return;
  std::optional<capture_scope> scope;
  t.attempt("open a capture_scope", [&] { scope.emplace(*owner, on); });
  if (!scope.has_value() || !t.begin_capture(on)) return;
  act(*scope);
  t.check(t.end_capture(on) || t.struck(), "the capture was invalidated");
}

}  // namespace tarn_test
