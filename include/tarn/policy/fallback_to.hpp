// SPDX-License-Identifier: Apache-2.0
#pragma once
// fallback_to: a second resource for what the first one cannot serve, such as managed or host memory.

#include <cstddef>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/waiting_block.hpp"
#include "tarn/policy/block_set.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/pool_calls.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/pool/pool_state.hpp"

namespace tarn {

template <class Upstream, class Other>
class fallback_layer;

/// Allocates from `other` when the upstream throws out_of_memory. Its memory must be usable wherever the upstream's is.
///
/// Pool calls reach both resources: record_stream() and owns() the one that the block belongs to; trim(), state(), reset_peaks(),
/// reset_totals(), note_growth() and inspect() both. The features of other layers (limits, exact statistics, records) work only
/// over this layer, where they cover the blocks of both.
template <class Other>
struct fallback_to {
  Other other;

  explicit fallback_to(Other resource) : other(std::move(resource)) {}

  template <class Upstream>
  using layer = fallback_layer<Upstream, Other>;
};

namespace detail {

/// Whether one of two resources, or a layer below it, accepts a call.
template <class First, class Second, class Call>
concept either_reaches = reachable<First, Call> || reachable<Second, Call>;

/// Two pools as one. Peaks are the sum of both peaks, which is an upper bound: they may have occurred at different times.
[[nodiscard]] inline pool_state sum_of_states(pool_state const& a, pool_state const& b) noexcept {
  auto const joined_stat = [](stat const& x, stat const& y) {
    return stat{x.current + y.current, x.peak + y.peak, x.allocated + y.allocated, x.freed + y.freed};
  };
  auto const joined_split = [&](split_ranges const& x, split_ranges const& y) {
    return split_ranges{joined_stat(x.blocks, y.blocks), joined_stat(x.bytes, y.bytes)};
  };
  auto const joined_part = [&](pool_part const& x, pool_part const& y) {
    return pool_part{joined_stat(x.reserved, y.reserved), joined_stat(x.handles, y.handles),
                     x.free_blocks + y.free_blocks, x.inactive_split_bytes + y.inactive_split_bytes,
                     joined_split(x.split, y.split)};
  };
  pool_state s = a;
  s.live += b.live;
  s.live_blocks += b.live_blocks;
  s.reserved += b.reserved;
  s.reserved_peak += b.reserved_peak;
  s.cached += b.cached;
  s.pending += b.pending;
  s.pending_blocks += b.pending_blocks;
  s.largest_free_range = max_of(a.largest_free_range, b.largest_free_range);
  s.free_blocks += b.free_blocks;
  s.inactive_split_bytes += b.inactive_split_bytes;
  s.split = joined_split(a.split, b.split);
  s.reserved_total += b.reserved_total;
  s.released_total += b.released_total;
  s.handles += b.handles;
  s.handles_peak += b.handles_peak;
  s.creates += b.creates;
  s.destroys += b.destroys;
  s.maps += b.maps;
  s.unmaps += b.unmaps;
  s.remaps += b.remaps;
  s.alloc_retries += b.alloc_retries;
  s.ooms += b.ooms;
  s.host_waits += b.host_waits;
  s.device_waits += b.device_waits;
  s.host_bytes += b.host_bytes;
  s.small = joined_part(a.small, b.small);
  s.large = joined_part(a.large, b.large);
  s.totals_reset.reserved += b.totals_reset.reserved;
  s.totals_reset.released += b.totals_reset.released;
  s.totals_reset.creates += b.totals_reset.creates;
  s.totals_reset.destroys += b.totals_reset.destroys;
  s.totals_reset.alloc_retries += b.totals_reset.alloc_retries;
  s.totals_reset.host_waits += b.totals_reset.host_waits;
  return s;
}

}  // namespace detail

/// Each block returns to the resource that it came from: the addresses of fallback blocks are kept out of band. While none is
/// live, a deallocation costs one more relaxed load. Thread-safe.
template <class Upstream, class Other>
class fallback_layer : public resource_adaptor<fallback_layer<Upstream, Other>, Upstream> {
  using base = resource_adaptor<fallback_layer<Upstream, Other>, Upstream>;

 public:
  static_assert(resource<Other>,
                "tarn: fallback_to needs blocks; pages need a pool: fallback_to{pages | pooled{}}");
  static_assert(
      (has_property<Other, device_accessible> ||
       !has_property<Upstream, device_accessible>)&&(has_property<Other, host_accessible> ||
                                                     !has_property<Upstream, host_accessible>),
      "tarn: memory that fallback_to adds must be usable wherever the first is; for device memory use "
      "pinned_host or managed");
  using base::driver;
  using routes = routes_to<Upstream, Other>;

  fallback_layer(Upstream upstream, fallback_to<Other> options)
      : base(std::move(upstream)), other_(std::move(options.other)) {}

  /// @throws out_of_memory  both refused; the error is the fallback's
  void* around_allocate(request const& r, auto const& next) {
    try {
      return next.allocate(r);
    } catch (out_of_memory const&) {
    }
    next_layer const other(other_);
    void* const p = other.allocate(r);
    if (p == nullptr) return p;
    try {
      blocks_.insert(p);
    } catch (...) {
      other.deallocate(r, p);
      throw;
    }
    return p;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    // Waits for the device if record_stream() named a block that no pool holds back.
    if (used_.erase(p)) (void)driver().synchronize_device();
    if (blocks_.erase(p)) {
      next_layer(other_).deallocate(r, p);
    } else {
      next.deallocate(r, p);
    }
  }

  // Pool calls, for both resources.

  /// Reaches the resource that the block belongs to. If that one has no pool, the block's deallocation waits for the whole
  /// device.
  /// @throws std::bad_alloc, cuda_error: nothing has changed
  void record_stream(void* p, std::size_t bytes, stream_ref stream)
    requires(detail::records_streams<Upstream> || detail::records_streams<Other>)
  {
    if (p == nullptr) return;
    detail::record_stream_call const use{p, bytes, stream};
    if (blocks_.contains(p)) {
      record_in(other_, use);
    } else {
      record_in(this->upstream(), use);
    }
  }
  /// Gives cached memory back until both together hold at most `keep_bytes`, the fallback's first; returns the bytes given
  /// back.
  std::size_t trim(std::size_t keep_bytes)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::trim>
  {
    std::size_t const first = reserved_in(this->upstream());
    std::size_t const given = trim_one(other_, keep_bytes > first ? keep_bytes - first : 0);
    std::size_t const second = reserved_in(other_);
    return given + trim_one(this->upstream(), keep_bytes > second ? keep_bytes - second : 0);
  }
  /// Whether `p` lies in memory that either pool reserved.
  [[nodiscard]] bool owns(void const* p)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::owns>
  {
    auto const ask = [p](auto& l) -> decltype(static_cast<bool>(l.owns(p))) { return l.owns(p); };
    return of_each(ask, [](bool a, bool b) { return a || b; });
  }
  /// The larger one of both.
  [[nodiscard]] std::size_t largest_free_range()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::largest_free_range>
  {
    auto const ask = [](auto& l) -> decltype(static_cast<std::size_t>(l.largest_free_range())) {
      return l.largest_free_range();
    };
    return of_each(ask, [](std::size_t a, std::size_t b) { return detail::max_of(a, b); });
  }
  /// The bytes that a request occupies in either resource, the larger value if they round differently: it is needed before it
  /// is known which of them serves, and limits must hold for both.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) noexcept {
    return detail::max_of(detail::block_bytes_of(this->upstream(), bytes, alignment),
                          detail::block_bytes_of(other_, bytes, alignment));
  }
  /// The sum of both, each read at one moment. Peaks are an upper bound, see detail::sum_of_states().
  [[nodiscard]] pool_state state()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::state>
  {
    auto const ask = [](auto& l) -> decltype(pool_state(l.state())) { return l.state(); };
    return of_each(ask, detail::sum_of_states);
  }
  void reset_peaks()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::reset_peaks>
  {
    to_each([](auto& l) -> decltype(static_cast<void>(l.reset_peaks())) { l.reset_peaks(); });
  }
  void reset_totals()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::reset_totals>
  {
    to_each([](auto& l) -> decltype(static_cast<void>(l.reset_totals())) { l.reset_totals(); });
  }
  /// Notifies of waiting blocks in both. @throws std::bad_alloc, nothing has changed
  void observe_waiting(detail::waiting_observer& observer)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::observe_waiting>
  {
    try {
      to_each([&](auto& l) -> decltype(static_cast<void>(l.observe_waiting(observer))) {
        l.observe_waiting(observer);
      });
    } catch (...) {
      end_observation(observer);
      throw;
    }
  }
  void end_observation(detail::waiting_observer& observer) noexcept
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::end_observation>
  {
    to_each([&](auto& l) -> decltype(static_cast<void>(l.end_observation(observer))) {
      l.end_observation(observer);
    });
  }
  /// @throws std::bad_alloc
  template <class Clock>
  void note_growth(std::size_t most, Clock clock)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::note_growth>
  {
    to_each([&](auto& l) -> decltype(static_cast<void>(l.note_growth(most, clock))) {
      l.note_growth(most, clock);
    });
  }
  /// @throws std::bad_alloc
  template <class Clock>
  void note_growth_from_now(std::size_t most, Clock clock)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::note_growth_from_now>
  {
    to_each([&](auto& l) -> decltype(static_cast<void>(l.note_growth_from_now(most, clock))) {
      l.note_growth_from_now(most, clock);
    });
  }
  /// Inspects one pool, then the other; see pool::inspect().
  template <class Look>
  void inspect(Look&& look)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::inspect>
  {
    to_each([&](auto& l) -> decltype(static_cast<void>(l.inspect(look))) { l.inspect(look); });
  }

  /// Number of live blocks that came from the fallback.
  [[nodiscard]] std::size_t fallback_blocks() const noexcept { return blocks_.size(); }

 private:
  /// Calls each resource that accepts the call, and joins the results.
  template <class Ask, class Join>
  auto of_each(Ask const& ask, Join const& join) {
    if constexpr (!reachable<Upstream, Ask>) {
      return nearest(other_, ask);
    } else if constexpr (!reachable<Other, Ask>) {
      return nearest(this->upstream(), ask);
    } else {
      return join(nearest(this->upstream(), ask), nearest(other_, ask));
    }
  }
  template <class Call>
  void to_each(Call const& call) {
    if constexpr (reachable<Upstream, Call>) nearest(this->upstream(), call);
    if constexpr (reachable<Other, Call>) nearest(other_, call);
  }
  template <class Resource>
  static std::size_t trim_one(Resource& resource, std::size_t keep_bytes) {
    auto const ask = [&](auto& l) -> decltype(static_cast<std::size_t>(l.trim(keep_bytes))) {
      return l.trim(keep_bytes);
    };
    if constexpr (reachable<Resource, decltype(ask)>) {
      return nearest(resource, ask);
    } else {
      return 0;
    }
  }
  template <class Resource>
  static std::size_t reserved_in(Resource& resource) {
    auto const ask = [](auto& l) -> decltype(static_cast<std::size_t>(l.state().reserved)) {
      return l.state().reserved;
    };
    if constexpr (reachable<Resource, decltype(ask)>) {
      return nearest(resource, ask);
    } else {
      return 0;
    }
  }

  template <class Resource>
  void record_in(Resource& resource, detail::record_stream_call const& use) {
    if constexpr (detail::records_streams<Resource>) {
      nearest(resource, use);
    } else {
      used_.insert(use.p);
    }
  }

  Other other_;
  detail::block_set blocks_;  ///< live blocks of the fallback
  detail::block_set used_;    ///< blocks that no pool holds back, with uses on other streams
};

}  // namespace tarn
