// SPDX-License-Identifier: Apache-2.0
#pragma once
// peak_scope: measures the high-water mark of memory during a scope.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/min_max.hpp"
#include "tarn/policy/tracked.hpp"

namespace TARN_NAMESPACE {

/// Observes memory that has a `tracked` layer, from construction to destruction. Scopes nest and overlap
/// freely: each has its own mark and does not affect other scopes or the pool's peak. Exact while no two
/// calls overlap, else within tracked::peak_error for each thread; bytes as the pool rounds them. With
/// peak_of::this_thread only calls of the constructing thread count, starting from zero, exactly; memory
/// freed by another thread does not lower it. Thread-safe. While such a scope lives, calls of its thread take
/// a lock; with other scopes only the next call of each thread takes it.
template <class Resource>
class peak_scope {
 public:
  explicit peak_scope(Resource memory, peak_of whose = peak_of::all_threads) : memory_(std::move(memory)) {
    with_layer([&](auto& layer) -> decltype(layer.add(mark_, whose)) { return layer.add(mark_, whose); });
  }
  peak_scope& operator=(peak_scope&&) = delete;
  ~peak_scope() {
    with_layer([&](auto& layer) -> decltype(layer.remove(mark_)) { return layer.remove(mark_); });
  }

  /// Returns the most bytes allocated at once during the scope, including those allocated before it: what
  /// max_memory_allocated() returns after a reset.
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return detail::positive(read().peak); }
  /// Returns how far the scope rose above its start, bytes: what the scope itself needed.
  [[nodiscard]] std::size_t peak_above_start() const noexcept {
    high_water_mark const m = read();
    return detail::positive(m.peak - m.start);
  }
  /// Returns the bytes allocated now.
  [[nodiscard]] std::size_t current_bytes() const noexcept { return detail::positive(read().current); }
  /// Returns the bytes allocated now minus those at the start; negative if more was freed.
  [[nodiscard]] std::int64_t net_bytes() const noexcept {
    high_water_mark const m = read();
    return m.current - m.start;
  }
  /// Returns the number of blocks allocated during the scope.
  [[nodiscard]] std::size_t count() const noexcept { return detail::positive(read().allocations); }

 private:
  template <class Call>
  decltype(auto) with_layer(Call const& call) const {
    static_assert(reachable<Resource, Call>, "tarn: peak_scope needs exact numbers; add: | tarn::tracked{}");
    return nearest(memory_, call);
  }
  [[nodiscard]] high_water_mark read() const noexcept {
    return with_layer([&](auto& layer) -> decltype(layer.read(mark_)) { return layer.read(mark_); });
  }

  mutable Resource memory_;
  high_water_mark mark_;
};

}  // namespace TARN_NAMESPACE
