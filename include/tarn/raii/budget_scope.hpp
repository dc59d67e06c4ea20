// SPDX-License-Identifier: Apache-2.0
#pragma once
// budget_scope: limits how much memory may grow during a scope.

#include <cstddef>
#include <utility>

#include "tarn/core/min_max.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/policy/limited.hpp"

namespace TARN_NAMESPACE {

/// Limits memory that has a `limited` layer to grow by at most `bytes` during a scope. It never raises an
/// existing limit. The bound applies to all threads. Scopes nest and overlap freely on any threads: the
/// smallest live bound holds, and each ends with its scope.
template <class Resource>
class budget_scope {
 public:
  budget_scope(Resource memory, std::size_t bytes) : memory_(std::move(memory)) {
    ask([&](auto& layer) -> decltype(layer.add(bound_, bytes)) { return layer.add(bound_, bytes); });
  }
  budget_scope& operator=(budget_scope&&) = delete;
  /// Removes the bound of this scope only.
  ~budget_scope() {
    ask([&](auto& layer) -> decltype(layer.remove(bound_)) { return layer.remove(bound_); });
  }

  /// Returns the bytes that may still be allocated.
  [[nodiscard]] std::size_t remaining() const noexcept {
    std::size_t const limit = ask([](auto& layer) -> decltype(layer.limit()) { return layer.limit(); });
    std::size_t const used = ask([](auto& layer) -> decltype(layer.used()) { return layer.used(); });
    return limit - detail::min_of(limit, used);
  }

 private:
  template <class Call>
  decltype(auto) ask(Call const& call) const {
    static_assert(reachable<Resource, Call>,
                  "tarn: budget_scope needs a limit to lower; add: | tarn::limited{bytes}");
    return nearest(memory_, call);
  }
  mutable Resource memory_;
  detail::budget_bound bound_;
};

}  // namespace TARN_NAMESPACE
