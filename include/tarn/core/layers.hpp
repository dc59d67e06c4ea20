// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a stack is walked: from the top down to the layer that accepts a call, or through all of its layers.
//
// | a layer that           | says                                                                                            |
// |------------------------|-------------------------------------------------------------------------------------------------|
// | stands on another one  | upstream()                                                                                      |
// | routes to several      | `using routes = routes_to<Upstream, Other>`; with_routes(f), which returns f(upstream(), other_); |
// |                        | route_of(p): the index of the resource that an address belongs to                               |
//
// A call is a function object that accepts each layer that has the call. A layer that has it is asked,
// otherwise the one below. How it crosses a layer that routes, the call says: `crosses`. All calls of pools
// are in core/pool_call.hpp.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/core/resource.hpp"

namespace TARN_NAMESPACE {

template <class Layer>
class shared_resource;

/// Declared by a layer that routes calls to several resources below it, with all of them, in the order of
/// with_routes(). The layer need not define the calls of pools: each says how it crosses such a layer.
/// Another call ends there, since one of the resources would answer for all.
template <class... Resources>
struct routes_to {};

/// How a call crosses a layer that routes to several resources. Those that the call does not reach are left
/// out.
enum class crossing : std::uint8_t {
  each,  ///< all are asked; if one throws, call.undo(resource) is called for those before it, where the call
         ///< has that
  joined,  ///< all are asked, and call.join(first, second) makes one answer of theirs
  owner,   ///< the one that call.address() belongs to
  itself   ///< call.across(resources...) does it
};

namespace detail {

template <class T>
inline constexpr bool is_shared = false;
template <class Layer>
inline constexpr bool is_shared<shared_resource<Layer>> = true;

template <class Layer>
concept stands_on_another = requires(Layer& layer) { layer.upstream(); };

/// A layer whose blocks are pieces of those below it: a pool.
template <class Layer>
concept gives_pieces = Layer::hands_out_pieces;

/// A layer with several resources below it.
template <class Layer>
concept routes_calls = requires { typename Layer::routes; };

/// Returns the layer behind a handle; a source is a plain value and is its own layer.
template <class Resource>
constexpr auto& layer_of(Resource& resource) noexcept {
  if constexpr (is_shared<std::remove_const_t<Resource>>) {
    return resource.layer();
  } else {
    return resource;
  }
}

/// The type of the layer behind a handle, and of the one below a layer.
template <class Resource>
using layer_behind = std::remove_reference_t<decltype(layer_of(std::declval<Resource&>()))>;
template <class Layer>
using layer_below = std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>;

/// A call that passes a layer that routes to several resources.
template <class Call>
concept crosses_routes = requires { Call::crosses; };
/// A call that a pool answers for the pools below it: they lend it the memory that the call is about.
template <class Call>
concept ends_at_pools = requires { requires Call::ends_at_pools; };

template <class Layer, class Call>
constexpr bool can_reach() noexcept;
template <class Call, class... Resources>
constexpr bool any_can_reach(routes_to<Resources...>) noexcept {
  return (can_reach<layer_behind<Resources>, Call>() || ...);
}
template <class Layer, class Call>
constexpr bool can_reach() noexcept {
  if constexpr (std::invocable<Call const&, Layer&>) {
    return true;
  } else if constexpr (routes_calls<Layer>) {
    if constexpr (crosses_routes<Call>) return any_can_reach<Call>(typename Layer::routes{});
    return false;
  } else if constexpr (stands_on_another<Layer> && !(gives_pieces<Layer> && ends_at_pools<Call>)) {
    return can_reach<layer_below<Layer>, Call>();
  } else {
    return false;
  }
}

}  // namespace detail

/// True if `call` accepts the resource's layer or one below it.
template <class Resource, class Call>
inline constexpr bool reachable = detail::can_reach<detail::layer_behind<Resource>, Call>();

template <class Resource, class Call>
  requires reachable<Resource, Call>
decltype(auto) nearest(Resource& resource, Call const& call);

namespace detail {

/// Calls next(); if it throws, undoes what `call` did to `resource`.
template <class Call, class Resource, class Next>
void or_undo(Call const& call, Resource& resource, Next const& next) {
  if constexpr (requires { call.undo(resource); }) {
    try {
      next();
    } catch (...) {
      call.undo(resource);
      throw;
    }
  } else {
    next();
  }
}
template <class Call, class First, class... Rest>
decltype(auto) ask_each(Call const& call, First& first, Rest&... rest) {
  if constexpr (!can_reach<layer_behind<First>, Call>()) {
    return ask_each(call, rest...);
  } else if constexpr (!(can_reach<layer_behind<Rest>, Call>() || ...)) {
    return nearest(first, call);
  } else if constexpr (Call::crosses == crossing::joined) {
    auto answer = nearest(first, call);
    return call.join(std::move(answer), ask_each(call, rest...));
  } else {
    nearest(first, call);
    or_undo(call, first, [&] { ask_each(call, rest...); });
  }
}
/// Asks the resource of index `route`; the last that has the call if it is not among them, which then refuses
/// the address.
template <class Call, class First, class... Rest>
decltype(auto) ask_owner(Call const& call, std::size_t route, First& first, Rest&... rest) {
  if constexpr (!can_reach<layer_behind<First>, Call>()) {
    return ask_owner(call, route - 1, rest...);
  } else if constexpr (!(can_reach<layer_behind<Rest>, Call>() || ...)) {
    return nearest(first, call);
  } else {
    return route == 0 ? nearest(first, call) : ask_owner(call, route - 1, rest...);
  }
}
template <class Layer, class Call>
constexpr decltype(auto) reach(Layer& layer, Call const& call) {
  if constexpr (std::invocable<Call const&, Layer&>) {
    return call(layer);
  } else if constexpr (routes_calls<Layer>) {
    return layer.with_routes([&](auto&... resources) -> decltype(auto) {
      if constexpr (Call::crosses == crossing::owner) {
        return ask_owner(call, layer.route_of(call.address()), resources...);
      } else if constexpr (Call::crosses == crossing::itself) {
        return call.across(resources...);
      } else {
        return ask_each(call, resources...);
      }
    });
  } else {
    return reach(layer_of(layer.upstream()), call);
  }
}

template <class Layer, class Test>
constexpr bool any_layer(Test const& test) noexcept;
template <class Test, class... Resources>
constexpr bool any_layer_of(Test const& test, routes_to<Resources...>) noexcept {
  return (any_layer<layer_behind<Resources>>(test) || ...);
}
/// Whether test(std::type_identity<Layer>{}) holds for a layer of the stack.
template <class Layer, class Test>
constexpr bool any_layer(Test const& test) noexcept {
  if (test(std::type_identity<Layer>{})) return true;
  if constexpr (routes_calls<Layer>) {
    return any_layer_of(test, typename Layer::routes{});
  } else if constexpr (stands_on_another<Layer>) {
    return any_layer<layer_below<Layer>>(test);
  } else {
    return false;
  }
}
/// Calls f(layer) for each layer, from the source up. Of a layer that routes, only upstream() is followed.
template <class Layer, class F>
constexpr void for_each_layer(Layer& layer, F const& f) {
  if constexpr (stands_on_another<Layer>) for_each_layer(layer_of(layer.upstream()), f);
  f(layer);
}

// Not a requires-expression in the lambda: clang from 17 on refuses one that fails.
template <class Layer>
concept place_recorder = requires { requires Layer::records_places; };
/// Whether a layer records the places of calls.
template <class Layer>
constexpr bool records_places() noexcept {
  return any_layer<Layer>([]<class L>(std::type_identity<L>) { return place_recorder<L>; });
}
/// Sets the place of the user's call, if a layer records it.
template <class Resource>
using location_of_call =
    std::conditional_t<records_places<layer_behind<Resource>>(), location_scope, no_location_scope>;

/// Runs an owner's part of the user's call: layers that record the places of calls record that one, and
/// errors name it.
template <class Resource, class Call>
TARN_ALWAYS_INLINE decltype(auto) called_from(attribution const& from, Call const& call) {
  [[maybe_unused]] location_of_call<Resource> const here(from);
  return called_from(from.where, call);
}

/// A handle that can be empty.
template <class Resource>
concept has_empty_state = requires(Resource const& memory) {
  Resource(nullptr);
  static_cast<bool>(memory);
};
/// Whether an owner can be constructed without a resource: with an empty handle, or with a source, which is a
/// plain value.
template <class Resource>
concept can_be_absent = has_empty_state<Resource> || std::default_initializable<Resource>;
template <class Resource>
inline constexpr bool is_nothrow_absent =
    has_empty_state<Resource> || std::is_nothrow_default_constructible_v<Resource>;
template <can_be_absent Resource>
[[nodiscard]] Resource absent_resource() noexcept(is_nothrow_absent<Resource>) {
  if constexpr (has_empty_state<Resource>) {
    return Resource(nullptr);
  } else {
    return Resource();
  }
}
/// Returns the resource of an owner. @throws misuse  it has none
template <class Resource>
TARN_ALWAYS_INLINE Resource& required(Resource& memory, source_location where = source_location::current()) {
  if constexpr (has_empty_state<std::remove_const_t<Resource>>) {
    if (!memory) {
      throw at(where,
               misuse(misuse_kind::no_resource, nullptr,
                      "an owner without a resource cannot allocate, copy or order; assign one that has "
                      "a resource, as make_device_buffer<T>(pool, count, stream) returns it"));
    }
  }
  return memory;
}

/// Frees a block for an owner or a container, whose own line says nothing to the user: layers that record
/// places record that of a scope around it, or none.
template <class Resource>
void free_block(Resource& memory, stream_ref stream, void* p, std::size_t bytes,
                std::size_t alignment) noexcept {
  [[maybe_unused]] location_of_call<Resource> const here{attribution{}};
  memory.deallocate(stream, p, bytes, alignment);
}
template <class Resource>
void free_block_sync(Resource& memory, void* p, std::size_t bytes, std::size_t alignment) noexcept {
  [[maybe_unused]] location_of_call<Resource> const here{attribution{}};
  memory.deallocate_sync(p, bytes, alignment);
}

/// Whether the device of a page source has pages; for nearest().
struct has_pages_call {
  template <class Layer>
  constexpr auto operator()(Layer& layer) const noexcept -> decltype(static_cast<bool>(layer.has_pages())) {
    return layer.has_pages();
  }
};

/// Returns true if a layer, or everything below it, allocates blocks; false over a bare page source. Not a
/// member of shared_resource: EDG (nvcc) does not find a member in the constraint of a member template.
template <class Layer>
constexpr bool allocates() noexcept {
  if constexpr (has_allocate<Layer>) {
    return true;
  } else if constexpr (stands_on_another<Layer>) {
    return resource<typename Layer::upstream_type>;
  } else {
    return false;
  }
}

}  // namespace detail

/// Calls the first layer, from the top down, that accepts the call, for example the pool under a stack of
/// policies. Give a lambda a trailing return type, so that acceptance can be tested: `nearest(memory,
/// [](auto& layer) -> decltype(layer.limit()) { return layer.limit(); })`. Only the calls of pool_call pass a
/// layer that routes, such as fallback_to.
template <class Resource, class Call>
  requires reachable<Resource, Call>
decltype(auto) nearest(Resource& resource, Call const& call) {
  return detail::reach(detail::layer_of(resource), call);
}

namespace detail {
/// The same, or `otherwise` if no layer has the call.
template <class Resource, class Call, class Otherwise>
constexpr auto nearest_or(Resource& resource, Call const& call, Otherwise const& otherwise) {
  if constexpr (reachable<Resource, Call>) {
    return nearest(resource, call);
  } else {
    return otherwise;
  }
}
}  // namespace detail

}  // namespace TARN_NAMESPACE
