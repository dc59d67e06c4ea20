// SPDX-License-Identifier: Apache-2.0
#pragma once
// The calls of a pool, as nearest() takes them: each says once how it is spelled and how it crosses a layer
// that routes to several resources. pool_call::state is beside pool_state, in pool/pool_state.hpp.
//
// Over 400 lines: a short type for each call.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/sequence.hpp"

// How a call is made on a layer `l`. A layer for which the expression does not compile does not have the
// call.
#define TARN_ON_LAYER(expression)                     \
  template <class L>                                  \
  auto operator()(L& l) const->decltype(expression) { \
    return expression;                                \
  }

namespace TARN_NAMESPACE {

// The vocabulary of pools that sleep and are compacted: where contents stay, and what compact() reports. The
// calls are in raii/sleep.hpp and raii/compact.hpp.

/// Where the contents of live blocks stay while a pool sleeps.
enum class contents : std::uint8_t {
  in_pinned_memory,  ///< copied at the full rate of the bus; allocating it takes 460 ms/GiB
  discarded          ///< not kept: indeterminate after waking
};

/// What wake() does with the pinned memory that held the contents.
enum class after_waking : std::uint8_t {
  free_host_memory,
  keep_host_memory  ///< for the next sleep that keeps contents, which then allocates nothing
};

/// What compact() reached; bytes. Without the memory of graph_memories.
struct compaction {
  std::size_t released = 0;  ///< physical memory given back
  std::size_t live = 0;  ///< in live blocks, and in runs of small blocks; thread caches in use are included
  std::size_t stretches = 0;  ///< of contiguous live bytes, counted in each handle; 0 of a pool over blocks
  /// held afterwards: `live`, and less than a granule at each end of a stretch; or segments
  std::size_t reserved = 0;
};

namespace detail {
class deferred_observer;
}

/// What each does is documented at the pool (pool/pool.hpp); of several resources, here.
namespace pool_call {

/// Reaches the resource that the block belongs to.
struct record_stream {
  void* p = nullptr;
  std::size_t bytes = 0;
  stream_ref stream;
  static constexpr auto crosses = crossing::owner;
  [[nodiscard]] void const* address() const noexcept { return p; }
  TARN_ON_LAYER(l.record_stream(p, bytes, stream))
};

/// The bytes that a request occupies: the most of all, since it is needed before it is known which one serves
/// the request.
struct block_bytes {
  std::size_t bytes = 0;
  std::size_t alignment = default_alignment;
  static constexpr auto crosses = crossing::joined;
  static constexpr std::size_t join(std::size_t a, std::size_t b) noexcept { return detail::max_of(a, b); }
  TARN_ON_LAYER(l.block_bytes(bytes, alignment))
};

/// Where the pool's block begins in which the live block at `p` lies: a layer that adds bytes before a block
/// moves it.
struct block_address {
  void* p = nullptr;
  static constexpr bool ends_at_pools = true;
  static constexpr auto crosses = crossing::owner;
  [[nodiscard]] void const* address() const noexcept { return p; }
  TARN_ON_LAYER(l.block_address(p))
};

/// Calls f(p, bytes) for each block of the pool that a layer has in quarantine: its user has freed it.
template <class F>
struct each_quarantined {
  F const& f;
  static constexpr bool ends_at_pools = true;
  static constexpr auto crosses = crossing::each;
  TARN_ON_LAYER(l.each_quarantined(f))
};
template <class F>
each_quarantined(F const&) -> each_quarantined<F>;

/// Verifies what layers have in quarantine and gives it back.
struct release_quarantine {
  static constexpr bool ends_at_pools = true;
  static constexpr auto crosses = crossing::each;
  TARN_ON_LAYER(l.release_quarantine())
};

/// Reserved bytes of all.
struct reserved {
  static constexpr auto crosses = crossing::joined;
  static constexpr std::size_t join(std::size_t a, std::size_t b) noexcept { return a + b; }
  TARN_ON_LAYER(static_cast<std::size_t>(l.state().reserved))
};

/// Gives cached memory back until all together hold at most `keep_bytes`, that of the last resource first.
struct trim {
  std::size_t keep_bytes = 0;
  static constexpr auto crosses = crossing::itself;
  TARN_ON_LAYER(static_cast<std::size_t>(l.trim(keep_bytes)))
  template <class... Resources>
  std::size_t across(Resources&... resources) const {
    auto const one = [&](auto& resource) -> std::size_t {
      std::size_t others = 0;
      ((others +=
        is_same(resources, resource) ? 0 : detail::nearest_or(resources, reserved{}, std::size_t{})),
       ...);
      std::size_t const keep = keep_bytes > others ? keep_bytes - others : 0;
      return detail::nearest_or(resource, trim{keep}, std::size_t{});
    };
    return from_the_last(one, resources...);
  }

 private:
  static bool is_same(auto const& a, auto const& b) noexcept {
    return static_cast<void const*>(&a) == static_cast<void const*>(&b);
  }
  template <class One, class First, class... Rest>
  static std::size_t from_the_last(One const& one, First& first, Rest&... rest) {
    std::size_t given = 0;
    if constexpr (sizeof...(rest) != 0) given = from_the_last(one, rest...);
    return given + one(first);
  }
};

/// Whether one of them reserved the memory at `p`.
struct owns {
  void const* p = nullptr;
  static constexpr auto crosses = crossing::joined;
  static constexpr bool join(bool a, bool b) noexcept { return a || b; }
  TARN_ON_LAYER(static_cast<bool>(l.owns(p)))
};

/// The largest one of all.
struct largest_free_range {
  static constexpr auto crosses = crossing::joined;
  static constexpr std::size_t join(std::size_t a, std::size_t b) noexcept { return detail::max_of(a, b); }
  TARN_ON_LAYER(static_cast<std::size_t>(l.largest_free_range()))
};

/// That of the first.
struct allocator_backend {
  static constexpr auto crosses = crossing::joined;
  static constexpr char const* join(char const* first, char const*) noexcept { return first; }
  TARN_ON_LAYER(static_cast<char const*>(l.allocator_backend()))
};

struct reset_peaks {
  static constexpr auto crosses = crossing::each;
  TARN_ON_LAYER(l.reset_peaks())
};

struct reset_totals {
  static constexpr auto crosses = crossing::each;
  TARN_ON_LAYER(l.reset_totals())
};

struct note_growth {
  using clock_type = std::uint64_t (*)() noexcept;
  std::size_t most = 0;
  clock_type clock = nullptr;
  static constexpr auto crosses = crossing::each;
  TARN_ON_LAYER(l.note_growth(most, clock))
};

struct note_growth_from_now {
  std::size_t most = 0;
  note_growth::clock_type clock = nullptr;
  static constexpr auto crosses = crossing::each;
  TARN_ON_LAYER(l.note_growth_from_now(most, clock))
};

struct end_observation {
  detail::deferred_observer& observer;
  static constexpr auto crosses = crossing::each;
  TARN_ON_LAYER(l.end_observation(observer))
};

struct observe_deferred {
  detail::deferred_observer& observer;
  static constexpr auto crosses = crossing::each;
  TARN_ON_LAYER(l.observe_deferred(observer))
  template <class Resource>
  void undo(Resource& resource) const noexcept {
    nearest(resource, end_observation{observer});
  }
};

/// Inspects one pool after the other.
template <class Look>
struct inspect {
  Look& look;
  static constexpr auto crosses = crossing::each;
  TARN_ON_LAYER(l.inspect(look))
};
template <class Look>
inspect(Look&) -> inspect<Look>;
/// What inspect() passes a pool's parts to, where only the call is in question.
struct any_look {
  template <class... Parts>
  void operator()(Parts&...) const noexcept {}
};

/// Lists the pools that are awake and can sleep.
struct list_awake {
  detail::sequence<void const*>& pools;
  static constexpr bool ends_at_pools = true;
  static constexpr auto crosses = crossing::each;
  template <class L>
    requires requires(L& l) { l.wake(after_waking{}); }
  void operator()(L& l) const {
    if (!l.is_asleep()) pools.push_back(&l);
  }
};

/// Asks each resource. One that fails is still asleep, and the first error is thrown; call again.
struct wake {
  after_waking then = after_waking::free_host_memory;
  detail::sequence<void const*> const* only = nullptr;  ///< these pools; null: all
  static constexpr bool ends_at_pools = true;
  static constexpr auto crosses = crossing::itself;
  template <class... Resources>
  std::size_t across(Resources&... resources) const {
    std::size_t taken = 0;
    std::exception_ptr first;
    auto const ask = [&](auto& resource) {
      try {
        taken += detail::nearest_or(resource, *this, std::size_t{});
      } catch (...) {
        if (first == nullptr) first = std::current_exception();
      }
    };
    (ask(resources), ...);
    if (first != nullptr) std::rethrow_exception(first);
    return taken;
  }
  [[nodiscard]] bool wakes(void const* pool) const noexcept {
    if (only == nullptr) return true;
    for (void const* const p : *only) {
      if (p == pool) return true;
    }
    return false;
  }
  TARN_ON_LAYER(wakes(&l) ? static_cast<std::size_t>(l.wake(then)) : std::size_t{})
};
/// Wakes those of the listed pools that it can.
template <class Resource>
void wake_again(Resource& resource, detail::sequence<void const*> const& pools) noexcept {
  try {
    (void)detail::nearest_or(resource, wake{after_waking::free_host_memory, &pools}, std::size_t{});
  } catch (...) {  // is_asleep() reports it
  }
}

/// If one resource fails, the pools that this call put to sleep are woken.
struct sleep {
  contents where = contents::in_pinned_memory;
  static constexpr bool ends_at_pools = true;
  static constexpr auto crosses = crossing::itself;
  TARN_ON_LAYER(static_cast<std::size_t>(l.sleep(where)))
  template <class... Resources>
  std::size_t across(Resources&... resources) const {
    detail::sequence<void const*> awake;
    detail::ask_each(list_awake{awake}, resources...);
    std::size_t given = 0;
    try {
      ((given += detail::nearest_or(resources, *this, std::size_t{})), ...);
    } catch (...) {
      (wake_again(resources, awake), ...);
      throw;
    }
    return given;
  }
};

/// Whether one of them sleeps.
struct is_asleep {
  static constexpr auto crosses = crossing::joined;
  static constexpr bool join(bool a, bool b) noexcept { return a || b; }
  TARN_ON_LAYER(static_cast<bool>(l.is_asleep()))
};

/// How often sleep() has discarded contents; the sum.
struct discards {
  static constexpr bool ends_at_pools = true;
  static constexpr auto crosses = crossing::joined;
  static constexpr std::uint64_t join(std::uint64_t a, std::uint64_t b) noexcept { return a + b; }
  TARN_ON_LAYER(static_cast<std::uint64_t>(l.discards()))
};

struct compact {
  static constexpr bool ends_at_pools = true;
  static constexpr auto crosses = crossing::joined;
  static constexpr compaction join(compaction const& a, compaction const& b) noexcept {
    return {a.released + b.released, a.live + b.live, a.stretches + b.stretches, a.reserved + b.reserved};
  }
  TARN_ON_LAYER(compaction(l.compact()))
};

/// Through no layer that routes: the blocks of one buffer are of one pool.
struct reserve_growing {
  std::size_t bytes = 0;
  TARN_ON_LAYER(l.reserve_growing(bytes))
};
struct suggest_growth {
  stream_ref stream;
  void const* at = nullptr;
  std::size_t bytes = 0;
  TARN_ON_LAYER(l.suggest_growth(stream, at, bytes))
};
struct has_one_handle {
  TARN_ON_LAYER(static_cast<bool>(l.has_one_handle_per_block()))
};
struct end_growing {
  void* p = nullptr;
  TARN_ON_LAYER(l.end_growing(p))
};

template <class F>
struct each_segment {
  void const* p = nullptr;
  std::size_t bytes = 0;
  F const& f;
  static constexpr auto crosses = crossing::owner;
  [[nodiscard]] void const* address() const noexcept { return p; }
  TARN_ON_LAYER(l.each_segment(p, bytes, f))
};
template <class F>
each_segment(void const*, std::size_t, F const&) -> each_segment<F>;

struct pin {
  void const* p = nullptr;
  std::size_t bytes = 0;
  static constexpr auto crosses = crossing::owner;
  [[nodiscard]] void const* address() const noexcept { return p; }
  TARN_ON_LAYER(l.pin(p, bytes))
};

struct unpin {
  void const* p = nullptr;
  std::size_t bytes = 0;
  static constexpr auto crosses = crossing::owner;
  [[nodiscard]] void const* address() const noexcept { return p; }
  TARN_ON_LAYER(l.unpin(p, bytes))
};

/// One owner for the memory of captured graphs in each.
struct new_graph_memory {
  using owner = detail::owned<detail::graph_owner>;
  static constexpr auto crosses = crossing::joined;
  [[nodiscard]] static owner join(owner first, owner second) {
    return owner(new detail::two_graph_owners(std::move(first), std::move(second)));
  }
  TARN_ON_LAYER(owner(l.new_graph_memory()))
};

}  // namespace pool_call

namespace detail {

/// Whether there is a pool somewhere below.
template <class Resource>
concept records_streams = reachable<Resource, pool_call::record_stream>;

template <class... Resources>
constexpr bool records_in_all_or_none(routes_to<Resources...>) noexcept {
  return (records_streams<Resources> && ...) || !(records_streams<Resources> || ...);
}
/// Asserts that a layer that routes says how.
template <class Layer>
constexpr bool check_routes() {
  if constexpr (routes_calls<Layer>) {
    static_assert(
        requires(Layer& layer) { layer.with_routes(pool_call::any_look{}); },
        "tarn: this layer routes to several resources; add how each is reached, in the order of "
        "routes: auto with_routes(auto const& f) { return f(first, second); }");
    static_assert(
        requires(Layer& layer, void const* p) { static_cast<std::size_t>(layer.route_of(p)); },
        "tarn: this layer routes to several resources but does not say which one an address belongs "
        "to; add: size_t route_of(void const*) const noexcept, an index into routes");
    static_assert(
        std::invocable<pool_call::record_stream, Layer&> || records_in_all_or_none(typename Layer::routes{}),
        "tarn: this layer routes to several resources but does not route record_stream, and not all of "
        "them have it, so a block could be reused while another stream uses it; add: void "
        "record_stream(void*, size_t bytes, stream_ref)");
  }
  return true;
}

/// Returns the bytes that a request occupies: what the nearest pool rounds it to, otherwise the request
/// itself.
template <class Resource>
[[nodiscard]] std::size_t block_bytes_of(Resource& memory, std::size_t bytes,
                                         std::size_t alignment) noexcept {
  return nearest_or(memory, pool_call::block_bytes{bytes, alignment}, bytes);
}
/// Returns where the pool's block begins that holds the live block at `p`.
template <class Resource>
[[nodiscard]] void* block_address_of(Resource& memory, void* p) noexcept {
  return nearest_or(memory, pool_call::block_address{p}, p);
}
/// Calls f(p, bytes) for each block of the pool that a layer has in quarantine.
template <class Resource, class F>
void for_each_quarantined(Resource& memory, F const& f) {
  if constexpr (reachable<Resource, pool_call::each_quarantined<F>>)
    nearest(memory, pool_call::each_quarantined{f});
}
template <class Resource>
void release_quarantine(Resource& memory) {
  if constexpr (reachable<Resource, pool_call::release_quarantine>)
    nearest(memory, pool_call::release_quarantine{});
}
/// The bytes of a request that count against a limit. Zero bytes need no memory.
template <class Resource>
[[nodiscard]] std::size_t counted_bytes(Resource& memory, std::size_t bytes, std::size_t alignment) noexcept {
  if (bytes == 0 || bytes > max_request_bytes) return bytes;
  return block_bytes_of(memory, bytes, alignment);
}

/// Returns whether a pool below sleeps: then its memory must not be touched.
template <class Resource>
[[nodiscard]] bool sleeps(Resource& memory) noexcept {
  return nearest_or(memory, pool_call::is_asleep{}, false);
}
/// How often the contents below were discarded: what was written before the number rose is lost.
template <class Resource>
[[nodiscard]] std::uint64_t discards_of(Resource& memory) noexcept {
  return nearest_or(memory, pool_call::discards{}, std::uint64_t{});
}

/// Returns whether all pools below sleep that can. @throws std::bad_alloc
template <class Resource>
[[nodiscard]] bool all_sleep(Resource& memory) {
  sequence<void const*> awake;
  nearest(memory, pool_call::list_awake{awake});
  return awake.empty();
}

/// Where memory comes from: the answer of the nearest pool, or of the source below.
struct backend_call : pool_call::allocator_backend {
  using pool_call::allocator_backend::operator();
  TARN_ON_LAYER(static_cast<char const*>(l.backend()))
};

/// Whether the layer itself takes requests for the owner of a graph's memory: a policy that does not would be
/// passed by.
template <class Resource>
concept allocates_for_owners =
    requires(Resource& memory, graph_owner& owner, stream_ref stream, std::size_t bytes) {
      layer_of(memory).allocate_for(owner, stream, bytes, bytes);
    };

}  // namespace detail

}  // namespace TARN_NAMESPACE

#undef TARN_ON_LAYER
