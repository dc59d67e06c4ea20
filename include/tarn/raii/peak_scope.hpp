// SPDX-License-Identifier: Apache-2.0
#pragma once
// peak_scope: the high-water mark of a scope.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/policy/tracked.hpp"

namespace tarn {

/// Watches memory that has a `tracked` layer, from construction to destruction. Scopes nest and overlap
/// freely: each has its own mark, and none disturbs another or the pool's own peak. Exact, bytes as the pool
/// rounds them. peak_of::this_thread sees the calls of the constructing thread alone, counted from zero;
/// memory that another thread frees does not lower it. Thread-safe. Each live scope adds a few instructions
/// to every call.
template <class Resource>
class peak_scope {
 public:
  explicit peak_scope(Resource memory, peak_of whose = peak_of::all_threads) : memory_(std::move(memory)) {
    with_layer([&](auto& layer) -> decltype(layer.add(mark_, whose)) { return layer.add(mark_, whose); });
  }
  peak_scope(peak_scope const&) = delete;
  peak_scope& operator=(peak_scope const&) = delete;
  ~peak_scope() {
    with_layer([&](auto& layer) -> decltype(layer.remove(mark_)) { return layer.remove(mark_); });
  }

  /// The most bytes that were allocated at once during the scope, what was there before included: the figure
  /// that max_memory_allocated() gives after a reset.
  [[nodiscard]] std::size_t peak_bytes() const noexcept { return positive(read().peak); }
  /// How far the scope went above where it began, bytes: what it needed itself.
  [[nodiscard]] std::size_t peak_above_start() const noexcept {
    high_water_mark const m = read();
    return positive(m.peak - m.start);
  }
  /// Allocated now, bytes.
  [[nodiscard]] std::size_t current_bytes() const noexcept { return positive(read().current); }
  /// Allocated now less allocated at the start; negative where more was freed.
  [[nodiscard]] std::int64_t net_bytes() const noexcept {
    high_water_mark const m = read();
    return m.current - m.start;
  }
  /// Blocks handed out during the scope.
  [[nodiscard]] std::size_t count() const noexcept { return positive(read().allocations); }

 private:
  template <class Call>
  decltype(auto) with_layer(Call const& call) const {
    static_assert(reachable<Resource, Call>, "tarn: peak_scope needs exact numbers; add: | tarn::tracked{}");
    return nearest(memory_, call);
  }
  [[nodiscard]] high_water_mark read() const noexcept {
    return with_layer([&](auto& layer) -> decltype(layer.read(mark_)) { return layer.read(mark_); });
  }
  static std::size_t positive(std::int64_t n) noexcept { return n > 0 ? static_cast<std::size_t>(n) : 0; }

  mutable Resource memory_;
  high_water_mark mark_;
};

}  // namespace tarn
