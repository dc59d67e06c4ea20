// SPDX-License-Identifier: Apache-2.0
#pragma once
// The calls that reach a pool through the layers above it. A layer that routes to several resources defines each of them, or does
// not compile.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/layers.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sleeping.hpp"

namespace tarn {

namespace detail {

class waiting_observer;

/// Calls that reach a pool through the layers above it, and all resources below a routing layer.
struct routed_calls {
  struct record_stream {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.record_stream(static_cast<void*>(nullptr),
                                                                              std::size_t{}, stream_ref{}))) {
    }
  };
  struct trim {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.trim(std::size_t{}))) {}
  };
  struct owns {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.owns(static_cast<void const*>(nullptr)))) {}
  };
  struct largest_free_range {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.largest_free_range())) {}
  };
  struct block_bytes {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.block_bytes(std::size_t{}, std::size_t{}))) {}
  };
  struct state {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.state())) {}
  };
  struct reset_peaks {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.reset_peaks())) {}
  };
  struct reset_totals {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.reset_totals())) {}
  };
  struct observe_waiting {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.observe_waiting(std::declval<waiting_observer&>()))) {}
  };
  struct end_observation {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.end_observation(std::declval<waiting_observer&>()))) {}
  };
  using clock = std::uint64_t (*)() noexcept;
  struct note_growth {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.note_growth(std::size_t{}, clock{}))) {}
  };
  struct note_growth_from_now {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.note_growth_from_now(std::size_t{}, clock{}))) {}
  };
  struct sleep {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.sleep(contents{}))) {}
  };
  struct wake {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.wake(after_waking{}))) {}
  };
  struct is_asleep {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.is_asleep())) {}
  };
  struct compact {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.compact())) {}
  };
  struct any_segment {
    void operator()(memory_segment const&) const noexcept {}
  };
  struct each_segment {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.each_segment(static_cast<void const*>(nullptr), std::size_t{},
                                                     any_segment{}))) {}
  };
  struct pin {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.pin(static_cast<void const*>(nullptr), std::size_t{}))) {}
  };
  struct unpin {
    template <class L>
    auto operator()(L& l) const
        -> decltype(static_cast<void>(l.unpin(static_cast<void const*>(nullptr), std::size_t{}))) {}
  };
  struct any_look {
    template <class... Parts>
    void operator()(Parts&...) const noexcept {}
  };
  struct inspect {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<void>(l.inspect(any_look{}))) {}
  };
  struct allocator_backend {
    template <class L>
    auto operator()(L& l) const -> decltype(static_cast<char const*>(l.allocator_backend())) {
      return l.allocator_backend();
    }
  };
  struct new_graph_memory {
    template <class L>
    auto operator()(L& l) const -> decltype(l.new_graph_memory()) {
      return l.new_graph_memory();
    }
  };
};

/// Where memory comes from: the answer of the nearest pool, or of the source below.
struct backend_call {
  template <class L>
  auto operator()(L& l) const -> decltype(static_cast<char const*>(l.allocator_backend())) {
    return l.allocator_backend();
  }
  template <class L>
  auto operator()(L& l) const -> decltype(static_cast<char const*>(l.backend())) {
    return l.backend();
  }
};

/// Whether a call that needs the addresses of a page source reaches the uppermost pool. It must not pass a pool over blocks: that
/// one uses the memory of the pool below it.
template <class Resource, class Call>
constexpr bool keeps_addresses() noexcept {
  using layer = std::remove_reference_t<decltype(layer_of(std::declval<Resource&>()))>;
  if constexpr (std::invocable<Call, layer&>) {
    return true;
  } else if constexpr (stands_on_another<layer> && !routes_calls<layer> && !gives_pieces<layer>) {
    return keeps_addresses<std::remove_reference_t<decltype(std::declval<layer&>().upstream())>, Call>();
  } else {
    return false;
  }
}

/// Returns true if a resource below a routing layer offers a call that the layer does not define.
template <class Layer, class Call, class... Resources>
constexpr bool lacks_route(routes_to<Resources...>) noexcept {
  return (reachable<Resources, Call> || ...) && !std::invocable<Call, Layer&>;
}

/// Reports which calls a routing layer does not define, one static_assert per call.
template <class Layer>
constexpr bool check_routes() {
  if constexpr (routes_calls<Layer>) {
    constexpr typename Layer::routes below;
    static_assert(
        !lacks_route<Layer, routed_calls::record_stream>(below),
        "tarn: this layer routes to several resources but does not route record_stream, so a block could be "
        "reused while another stream uses it; add: void record_stream(void*, size_t bytes, stream_ref)");
    static_assert(!lacks_route<Layer, routed_calls::trim>(below),
                  "tarn: this layer routes to several resources but does not route trim; add: size_t "
                  "trim(size_t keep_bytes)");
    static_assert(!lacks_route<Layer, routed_calls::owns>(below),
                  "tarn: this layer routes to several resources but does not route owns; add: bool owns(void "
                  "const*) const");
    static_assert(
        !lacks_route<Layer, routed_calls::largest_free_range>(below),
        "tarn: this layer routes to several resources but does not route largest_free_range; add: size_t "
        "largest_free_range() const");
    static_assert(!lacks_route<Layer, routed_calls::block_bytes>(below),
                  "tarn: this layer routes to several resources but does not route block_bytes; add: size_t "
                  "block_bytes(size_t bytes, size_t alignment)");
    static_assert(
        !lacks_route<Layer, routed_calls::state>(below),
        "tarn: this layer routes to several resources but does not route state; add: pool_state state()");
    static_assert(!lacks_route<Layer, routed_calls::reset_peaks>(below),
                  "tarn: this layer routes to several resources but does not route reset_peaks; add: void "
                  "reset_peaks()");
    static_assert(!lacks_route<Layer, routed_calls::reset_totals>(below),
                  "tarn: this layer routes to several resources but does not route reset_totals; add: void "
                  "reset_totals()");
    static_assert(!lacks_route<Layer, routed_calls::observe_waiting>(below) &&
                      !lacks_route<Layer, routed_calls::end_observation>(below),
                  "tarn: this layer routes to several resources but does not route observe_waiting and "
                  "end_observation, so active bytes would be counted wrongly; add both, for each resource");
    static_assert(!lacks_route<Layer, routed_calls::note_growth>(below),
                  "tarn: this layer routes to several resources but does not route note_growth; add: void "
                  "note_growth(size_t most, clock)");
    static_assert(
        !lacks_route<Layer, routed_calls::note_growth_from_now>(below),
        "tarn: this layer routes to several resources but does not route note_growth_from_now; add: void "
        "note_growth_from_now(size_t most, clock)");
    static_assert(!lacks_route<Layer, routed_calls::sleep>(below) &&
                      !lacks_route<Layer, routed_calls::wake>(below) &&
                      !lacks_route<Layer, routed_calls::is_asleep>(below),
                  "tarn: this layer routes to several resources but does not route sleep, wake and "
                  "is_asleep; add: size_t "
                  "sleep(contents), size_t wake(after_waking), bool is_asleep() const");
    static_assert(!lacks_route<Layer, routed_calls::allocator_backend>(below),
                  "tarn: this layer routes to several resources but does not route allocator_backend; add: "
                  "char const* allocator_backend() const, of the resource that is asked first");
    static_assert(!lacks_route<Layer, routed_calls::compact>(below),
                  "tarn: this layer routes to several resources but does not route compact; add: compaction "
                  "compact()");
    static_assert(
        !lacks_route<Layer, routed_calls::each_segment>(below) &&
            !lacks_route<Layer, routed_calls::pin>(below) && !lacks_route<Layer, routed_calls::unpin>(below),
        "tarn: this layer routes to several resources but does not route each_segment, pin and unpin, so "
        "pages that are in use elsewhere could be given back; add: void each_segment(void const*, size_t "
        "bytes, f), void pin(void const*, size_t bytes), void unpin(void const*, size_t bytes) noexcept");
    static_assert(
        !lacks_route<Layer, routed_calls::inspect>(below),
        "tarn: this layer routes to several resources but does not route inspect; add: void inspect(look)");
    static_assert(
        !lacks_route<Layer, routed_calls::new_graph_memory>(below),
        "tarn: this layer routes to several resources but does not route new_graph_memory, so a block of "
        "a captured graph could be reused; add: owned<graph_owner> new_graph_memory(), for each");
  }
  return true;
}

}  // namespace detail

}  // namespace tarn
