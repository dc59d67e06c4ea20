// SPDX-License-Identifier: Apache-2.0
#pragma once
// fallback_to: a second resource for what the first one cannot serve, such as managed or host memory.
//
// Over 400 lines: each call of a pool is routed here.

#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/waiting_block.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/policy/block_set.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/pool_calls.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/pool/pool_state.hpp"
#include "tarn/pool/sum_of_states.hpp"

namespace tarn {

template <class Upstream, class Other>
class fallback_layer;

/// Allocates from `other` when the upstream throws out_of_memory; other errors, such as pool_asleep, are
/// passed on. Its memory must be usable wherever the upstream's is.
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

/// The memory of captured graphs in two pools.
class two_graph_owners final : public graph_owner {
 public:
  two_graph_owners(owned<graph_owner> first, owned<graph_owner> second) noexcept
      : first_(std::move(first)), second_(std::move(second)) {}

  [[nodiscard]] capture_number begin_capture(stream_ref stream) override {
    {
      std::lock_guard const guard(mutex_);
      open_.reserve(open_.size() + ++expected_);
    }
    numbers made{};
    try {
      made.in_first = first_->begin_capture(stream);
      try {
        made.in_second = second_->begin_capture(stream);
      } catch (...) {
        first_->end_capture(made.in_first);
        throw;
      }
    } catch (...) {
      std::lock_guard const guard(mutex_);
      --expected_;
      throw;
    }
    std::lock_guard const guard(mutex_);
    --expected_;
    made.own = ++last_;
    open_.push_back(made);
    return made.own;
  }
  /// If it throws, the stream may have joined in the first pool.
  void join_capture(capture_number capture, stream_ref stream) override {
    numbers const of = find(capture);
    first_->join_capture(of.in_first, stream);
    second_->join_capture(of.in_second, stream);
  }
  void end_capture(capture_number capture) noexcept override {
    numbers const of = find(capture);
    second_->end_capture(of.in_second);
    first_->end_capture(of.in_first);
    std::lock_guard const guard(mutex_);
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (open_[i].own == capture) return open_.erase_unordered(i);
    }
  }
  [[nodiscard]] graph_state state() const override {
    graph_state const a = first_->state();
    graph_state const b = second_->state();
    return {a.reserved + b.reserved, a.allocated + b.allocated, a.kept + b.kept};
  }

 private:
  struct numbers {
    capture_number own = 0, in_first = 0, in_second = 0;
  };
  [[nodiscard]] numbers find(capture_number capture) const noexcept {
    std::lock_guard const guard(mutex_);
    for (numbers const& n : open_) {
      if (n.own == capture) return n;
    }
    return {};
  }
  owned<graph_owner> first_;
  owned<graph_owner> second_;
  mutable fork_mutex mutex_;
  sequence<numbers> open_;
  std::size_t expected_ = 0;  ///< captures that are being opened, for which there is room
  capture_number last_ = 0;
};

/// Whether one of two resources, or a layer below it, accepts a call.
template <class First, class Second, class Call>
concept either_reaches = reachable<First, Call> || reachable<Second, Call>;

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
  /// Waits for captures in scopes, up to 10 s, if a block was freed whose uses a capture forbade to wait for. If one is open still,
  /// that block is never given back.
  ~fallback_layer() {
    if (late_count_.load(std::memory_order_relaxed) != 0)
      give_back_late(detail::wait_past_captures<typename base::driver_type>);
  }

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
    // Waits for the device if record_stream() named a block that no pool holds back. If a capture forbids that, the block is freed later.
    if (used_.erase(p) && detail::is_of_capture(detail::wait_for_all_work(driver()))) [[unlikely]]
      return keep_late(r, p);
    if (late_count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      give_back_late(detail::wait_for_all_work<typename base::driver_type>);
    give_back(r, p, next);
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
  /// Puts each resource to sleep that can; if the second one fails, the first one is woken. @throws as they do
  std::size_t sleep(contents where)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::sleep>
  {
    auto const ask = [where](auto& l) -> decltype(static_cast<std::size_t>(l.sleep(where))) {
      return l.sleep(where);
    };
    try {
      return of_each(ask, [](std::size_t a, std::size_t b) { return a + b; });
    } catch (...) {
      try {
        (void)wake(after_waking::free_host_memory);
      } catch (...) {  // is_asleep() reports it
      }
      throw;
    }
  }
  /// Wakes both. If one fails, it is still asleep; call again.
  std::size_t wake(after_waking then)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::wake>
  {
    auto const ask = [then](auto& l) -> decltype(static_cast<std::size_t>(l.wake(then))) {
      return l.wake(then);
    };
    return of_each(ask, [](std::size_t a, std::size_t b) { return a + b; });
  }
  /// Compacts each that can be; the sums of both.
  compaction compact()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::compact>
  {
    auto const ask = [](auto& l) -> decltype(compaction(l.compact())) { return l.compact(); };
    return of_each(ask, [](compaction const& a, compaction const& b) {
      return compaction{a.released + b.released, a.live + b.live, a.stretches + b.stretches,
                        a.reserved + b.reserved};
    });
  }
  /// Whether either sleeps.
  [[nodiscard]] bool is_asleep()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::is_asleep>
  {
    auto const ask = [](auto& l) -> decltype(static_cast<bool>(l.is_asleep())) { return l.is_asleep(); };
    return of_each(ask, [](bool a, bool b) { return a || b; });
  }
  // Segments and pins: of the resource whose pool reserved the memory.

  /// @throws as pool::each_segment()
  template <class F>
  void each_segment(void const* p, std::size_t bytes, F const& f)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::each_segment>
  {
    to_owner(p, [&](auto& l) -> decltype(l.each_segment(p, bytes, f)) { l.each_segment(p, bytes, f); });
  }
  void pin(void const* p, std::size_t bytes)
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::pin>
  {
    to_owner(p, [&](auto& l) -> decltype(l.pin(p, bytes)) { l.pin(p, bytes); });
  }
  void unpin(void const* p, std::size_t bytes) noexcept
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::unpin>
  {
    to_owner(p, [&](auto& l) -> decltype(l.unpin(p, bytes)) { l.unpin(p, bytes); });
  }
  /// That of the first resource, or of the other one if only that has a pool.
  [[nodiscard]] char const* allocator_backend()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::allocator_backend>
  {
    return of_each(detail::routed_calls::allocator_backend{},
                   [](char const* first, char const*) { return first; });
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

  /// Makes an owner for the memory of captured graphs in both. @throws cuda_error, std::bad_alloc
  [[nodiscard]] detail::owned<detail::graph_owner> new_graph_memory()
    requires detail::either_reaches<Upstream, Other, detail::routed_calls::new_graph_memory>
  {
    return of_each(detail::routed_calls::new_graph_memory{}, [](auto first, auto second) {
      return detail::owned<detail::graph_owner>(
          new detail::two_graph_owners(std::move(first), std::move(second)));
    });
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
  /// Calls the resource with the address; the one with a pool over pages if neither has it, which then refuses it.
  template <class Call>
  void to_owner(void const* p, Call const& call) {
    if constexpr (!reachable<Upstream, Call>) {
      nearest(other_, call);
    } else if constexpr (!reachable<Other, Call>) {
      nearest(this->upstream(), call);
    } else {
      bool const of_other =
          nearest(other_, [p](auto& l) -> decltype(static_cast<bool>(l.owns(p))) { return l.owns(p); });
      if (of_other) return static_cast<void>(nearest(other_, call));
      nearest(this->upstream(), call);
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

  /// A block whose uses on other streams could not be waited for when it was freed.
  struct late_block {
    request freed;
    void* p = nullptr;
  };
  void give_back(request const& r, void* p, next_layer<Upstream> const& next) noexcept {
    if (blocks_.erase(p)) {
      next_layer(other_).deallocate(r, p);
    } else {
      next.deallocate(r, p);
    }
  }
  /// Without host memory to note it, the block is never given back.
  TARN_NOINLINE void keep_late(request const& r, void* p) noexcept {
    std::lock_guard const guard(late_mutex_);
    try {
      late_.push_back({{stream_ref{}, r.bytes, r.alignment, call_kind::synchronous}, p});
      late_count_.fetch_add(1, std::memory_order_relaxed);
    } catch (...) {
    }
  }
  /// Gives back what waited for a capture, after the device's work.
  template <class Wait>
  TARN_NOINLINE void give_back_late(Wait const& wait) noexcept {
    detail::sequence<late_block> blocks;
    {
      std::lock_guard const guard(late_mutex_);
      blocks.swap(late_);
      late_count_.store(0, std::memory_order_relaxed);
    }
    bool const may_not = detail::is_of_capture(wait(driver()));
    for (late_block const& b : blocks) {
      if (may_not) {
        keep_late(b.freed, b.p);
      } else {
        give_back(b.freed, b.p, next_layer<Upstream>(this->upstream()));
      }
    }
  }

  Other other_;
  detail::fork_mutex late_mutex_;
  detail::sequence<late_block> late_;
  std::atomic<std::size_t> late_count_{0};
  detail::block_set blocks_;  ///< live blocks of the fallback
  detail::block_set used_;    ///< blocks that no pool holds back, with uses on other streams
};

}  // namespace tarn
