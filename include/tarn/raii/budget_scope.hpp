// SPDX-License-Identifier: Apache-2.0
#pragma once
// budget_scope: a limit for a scope.

#include <cstddef>
#include <utility>

#include "tarn/core/extremes.hpp"
#include "tarn/core/shared.hpp"
#include "tarn/policy/limited.hpp"

namespace tarn {

/// Lets memory that has a `limited` layer grow by at most `bytes` during a scope; never raises the limit
/// there was. Other threads are bound likewise while it lives. Scopes nest and overlap freely, on any threads: the
/// smallest bound of all that live holds, and each ends with its scope.
template <class Resource>
class budget_scope {
 public:
  budget_scope(Resource memory, std::size_t bytes) : memory_(std::move(memory)) {
    ask([&](auto& layer) -> decltype(layer.add(bound_, bytes)) { return layer.add(bound_, bytes); });
  }
  budget_scope(budget_scope const&) = delete;
  budget_scope& operator=(budget_scope const&) = delete;
  /// Takes this scope's bound away; no other's.
  ~budget_scope() {
    ask([&](auto& layer) -> decltype(layer.remove(bound_)) { return layer.remove(bound_); });
  }

  /// What may still be allocated, bytes.
  [[nodiscard]] std::size_t remaining() const noexcept {
    std::size_t const limit = ask([](auto& layer) -> decltype(layer.limit()) { return layer.limit(); });
    std::size_t const used = ask([](auto& layer) -> decltype(layer.used()) { return layer.used(); });
    return limit - detail::smaller_of(limit, used);
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

}  // namespace tarn
