// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds the first layer of a stack, from the top down, that accepts a call.

#include <concepts>
#include <type_traits>
#include <utility>

#include "tarn/core/attribution.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/core/resource.hpp"

namespace tarn {

template <class Layer>
class shared_resource;

/// Declared by a layer that routes calls to several resources below it, with all of them:
/// `using routes = tarn::routes_to<Upstream, Other>;`. A call that such a layer does not define is not forwarded, since one of
/// the resources would answer for all. The layer must define each call of detail::routed_calls that a resource below it
/// offers; otherwise it does not compile.
template <class... Resources>
struct routes_to {};

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

/// Tries `call` with each layer from the top down; returns true if one accepts it.
template <class Layer, class Call>
constexpr bool can_reach() noexcept {
  if constexpr (std::invocable<Call, Layer&>) {
    return true;
  } else if constexpr (stands_on_another<Layer> && !routes_calls<Layer>) {
    return can_reach<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>, Call>();
  } else {
    return false;
  }
}
template <class Layer, class Call>
constexpr decltype(auto) reach(Layer& layer, Call const& call) {
  if constexpr (std::invocable<Call const&, Layer&>) {
    return call(layer);
  } else {
    return reach(layer_of(layer.upstream()), call);
  }
}

template <class Layer>
constexpr bool records_places() noexcept;
template <class... Resources>
constexpr bool any_records_places(routes_to<Resources...>) noexcept {
  return (records_places<std::remove_reference_t<decltype(layer_of(std::declval<Resources&>()))>>() || ...);
}
/// Returns true if this layer or one below it records the places of calls.
template <class Layer>
constexpr bool records_places() noexcept {
  if constexpr (requires { requires Layer::records_places; }) {
    return true;
  } else if constexpr (routes_calls<Layer>) {
    return any_records_places(typename Layer::routes{});
  } else if constexpr (stands_on_another<Layer>) {
    return records_places<std::remove_reference_t<decltype(layer_of(std::declval<Layer&>().upstream()))>>();
  } else {
    return false;
  }
}
/// Sets the place of the user's call, if a layer records it.
template <class Resource>
using location_of_call = std::conditional_t<
    records_places<std::remove_reference_t<decltype(layer_of(std::declval<Resource&>()))>>(), location_scope,
    no_location_scope>;

/// Runs an owner's part of the user's call: layers that record the places of calls record that one, and errors name it.
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
/// Whether an owner can be constructed without a resource: with an empty handle, or with a source, which is a plain value.
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
void give_back(Resource& memory, stream_ref stream, void* p, std::size_t bytes,
               std::size_t alignment) noexcept {
  [[maybe_unused]] location_of_call<Resource> const here{attribution{}};
  memory.deallocate(stream, p, bytes, alignment);
}
template <class Resource>
void give_back_sync(Resource& memory, void* p, std::size_t bytes, std::size_t alignment) noexcept {
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

/// Returns true if a layer, or everything below it, allocates blocks; false over a bare page source. Not a member of
/// shared_resource: EDG (nvcc) does not find a member in the constraint of a member template.
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

/// True if `call` accepts the resource's layer or one below it.
template <class Resource, class Call>
inline constexpr bool reachable =
    detail::can_reach<std::remove_reference_t<decltype(detail::layer_of(std::declval<Resource&>()))>, Call>();

/// Calls the first layer, from the top down, that accepts the call, for example the pool under a stack of policies. Give the
/// lambda a trailing return type, so that acceptance can be tested: `nearest(memory,
/// [](auto& layer) -> decltype(layer.trim(0)) { return layer.trim(0); })`.
template <class Resource, class Call>
  requires reachable<Resource, Call>
decltype(auto) nearest(Resource& resource, Call const& call) {
  return detail::reach(detail::layer_of(resource), call);
}

}  // namespace tarn
