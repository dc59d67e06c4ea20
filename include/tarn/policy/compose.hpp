// SPDX-License-Identifier: Apache-2.0
#pragma once
// Composition: `source | policy | policy` and `stack<source, policy, policy>` are the same type, and position
// is meaning. A policy is a small value (its options) with `template <class Upstream> using layer = ...;`.
// The layer is constructed from (Upstream, policy) and defines only what it changes: shared_resource<> passes
// the rest on. A layer defines once what it does around a request and the next layer, see resource_adaptor;
// around<> is for the shortest policies. A layer that also sends calls to a second resource declares both,
// see tarn::routes_to; the calls of pools then reach both.

#include <concepts>
#include <type_traits>
#include <utility>

#include "tarn/core/shared_resource.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

namespace detail {
template <class P, class Upstream>
concept makes_layer = requires { typename P::template layer<Upstream>; };

template <class P>
constexpr bool is_only_around() noexcept {
  if constexpr (std::is_class_v<P> && !std::is_final_v<P> && !makes_layer<P, int>) {
    return names_around_allocate<P> || names_around_deallocate<P>;
  } else {
    return false;
  }
}
template <class P>
concept says_only_around = is_only_around<P>();

/// Whether a policy has the type of a resource as template argument, to which its layers send calls.
template <class Policy>
inline constexpr bool holds_resource = false;
template <template <class...> class Policy, class... Arguments>
inline constexpr bool holds_resource<Policy<Arguments...>> = (memory_source<Arguments> || ...);

/// Asserts at the composition what a layer must define.
template <class Policy, class Upstream>
constexpr bool check_policy() {
  using layer = typename Policy::template layer<Upstream>;
  if constexpr (std::derived_from<layer, resource_adaptor<layer, Upstream>>) check_adaptor<layer, Upstream>();
  static_assert(
      !holds_resource<Policy> || routes_calls<layer>,
      "tarn: this policy holds a second resource, so its layer must name the resources that it calls; "
      "add: using routes = tarn::routes_to<Upstream, Other>");
  return true;
}

template <class Source, class... Policies>
struct stack_of {
  using type = Source;
};
template <class Source, class First, class... Rest>
struct stack_of<Source, First, Rest...> {
  static_assert(check_policy<First, Source>());
  using type = typename stack_of<shared_resource<typename First::template layer<Source>>, Rest...>::type;
};
}  // namespace detail

/// The type of `Source | Policies...`; default-constructible if its parts are.
template <class Source, class... Policies>
using stack = typename detail::stack_of<Source, Policies...>::type;

/// Puts a policy on a source or stack. O(1): one small host allocation.
template <class Upstream, class Policy>
  requires detail::makes_layer<std::remove_cvref_t<Policy>, std::remove_cvref_t<Upstream>> &&
           memory_source<std::remove_cvref_t<Upstream>>
[[nodiscard]] auto operator|(Upstream&& upstream, Policy&& policy) {
  using source = std::remove_cvref_t<Upstream>;
  static_assert(detail::check_policy<std::remove_cvref_t<Policy>, source>());
  using layer = typename std::remove_cvref_t<Policy>::template layer<source>;
  return shared_resource<layer>(std::in_place, source(std::forward<Upstream>(upstream)),
                                std::forward<Policy>(policy));
}
/// Explains a composition that does not begin with memory.
template <class Left, class Policy>
  requires(detail::makes_layer<std::remove_cvref_t<Policy>, int> && !memory_source<std::remove_cvref_t<Left>>)
void operator|(Left&&, Policy&&) = delete;  // begin with a source: tarn::check_memory_source<S>() of yours
/// Explains a policy that only says what it does around a request.
template <class Upstream, class Policy>
  requires(memory_source<std::remove_cvref_t<Upstream>> &&
           detail::says_only_around<std::remove_cvref_t<Policy>>)
void operator|(Upstream&&, Policy&&) = delete;  // wrap the policy: memory | tarn::around<policy>{}

}  // namespace TARN_NAMESPACE
