// SPDX-License-Identifier: Apache-2.0
#pragma once
// Composition: `source | policy | policy` and `stack<source, policy, policy>` are the same type, and position
// is meaning. A policy is a small value (its options) with `template <class Upstream> using layer = ...;`;
// the layer is constructed from (Upstream, policy) and defines only the calls it changes: shared<> lets the
// rest through. Above it: user code. Below it: core/shared.

#include <concepts>
#include <type_traits>
#include <utility>

#include "tarn/core/shared.hpp"

namespace tarn {

namespace detail {
/// Any resource, for asking whether a type is a policy at all.
template <class P, class Upstream>
concept makes_layer = requires {
  typename P::template layer<Upstream>;
};
}  // namespace detail

/// A policy over a given upstream: options that make a layer.
template <class P, class Upstream>
concept policy_over = memory_source<Upstream> && detail::makes_layer<P, Upstream> &&
    std::constructible_from<typename P::template layer<Upstream>, Upstream, P>;

namespace detail {
template <class Source, class... Policies>
struct stack_of {
  using type = Source;
};
template <class Source, class First, class... Rest>
struct stack_of<Source, First, Rest...> {
  using type = typename stack_of<shared<typename First::template layer<Source>>, Rest...>::type;
};
}  // namespace detail

/// The type of `Source | Policies...`; default-constructible where its parts are.
template <class Source, class... Policies>
using stack = typename detail::stack_of<Source, Policies...>::type;

/// Puts a policy on a source or stack. O(1): one small host allocation.
template <class Upstream, class Policy>
requires detail::makes_layer<std::remove_cvref_t<Policy>, std::remove_cvref_t<Upstream>> &&
    memory_source<std::remove_cvref_t<Upstream>>
[[nodiscard]] auto operator|(Upstream&& upstream, Policy&& policy) {
  using source = std::remove_cvref_t<Upstream>;
  using layer = typename std::remove_cvref_t<Policy>::template layer<source>;
  return shared<layer>(std::in_place, source(std::forward<Upstream>(upstream)), std::forward<Policy>(policy));
}

}  // namespace tarn
