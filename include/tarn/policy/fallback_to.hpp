// SPDX-License-Identifier: Apache-2.0
#pragma once
// fallback_to: a second resource for what the first one cannot serve, such as managed or host memory.

#include <atomic>
#include <cstddef>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/captured_handles.hpp"
#include "tarn/policy/block_set.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream, class Other>
class fallback_layer;

/// Allocates from `other` when the upstream throws out_of_memory; other errors, such as pool_asleep, are
/// passed on. Its memory must be usable wherever the upstream's is.
///
/// The calls of a pool reach both resources, or the one that a block belongs to, as core/pool_call.hpp says
/// of each. The features of other layers (limits, exact statistics, records) work only over this layer, where
/// they cover the blocks of both.
template <class Other>
struct fallback_to {
  Other other;

  explicit fallback_to(Other resource) : other(std::move(resource)) {}

  template <class Upstream>
  using layer = fallback_layer<Upstream, Other>;
};

/// Each block returns to the resource that it came from: the addresses of fallback blocks are kept out of
/// band. While none is live, a deallocation costs three more relaxed loads. A default stream is the one that
/// the upstream takes it for, also in the fallback. A block of a resource without a pool that was allocated,
/// recorded or freed while its stream was captured is freed when the layer ends: a graph may use it until
/// then. Frees on some streams are not noticed outside scopes; see capture_watch. Thread-safe.
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
  /// Waits for captures in scopes, up to 10 s, if a block is deferred or kept for a graph. If one is open
  /// still, or the wait for the device fails, that block is never given back.
  ~fallback_layer() {
    if (deferred_.empty() && kept_.empty()) return;
    if (detail::may_run(detail::wait_past_captures(driver()))) return;
    free_blocks(deferred_);
    free_blocks(kept_);
  }

  /// @throws out_of_memory  both refused; the error is the fallback's
  void* around_allocate(request const& r, auto const& next) {
    try {
      return note(r, next.allocate(r), next, false);
    } catch (out_of_memory const&) {
    }
    if (deferred_count_.load(std::memory_order_relaxed) != 0) free_deferred();
    next_layer const other(other_);
    request const named = r.on(named_stream(r.stream));
    return note(named, other.allocate(named), other, true);
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    bool const in_graph = !has_pools && may_be_in_graph(r, p);
    // Waits for the device if record_stream() named a block that no pool defers. If that fails, as while a
    // capture forbids it, the block is deferred here.
    if (used_.erase(p) && !in_graph && detail::may_run(detail::wait_for_all_work(driver()))) [[unlikely]]
      return put_aside(deferred_, r, p);
    if (!in_graph && deferred_count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      free_deferred();
    if (in_graph) [[unlikely]]
      return put_aside(kept_, r, p);
    free_block(r, p, next);
  }

  // Pool calls reach both resources, as each call of core/pool_call.hpp says.

  void allocate_at() = delete;  // the blocks of a growing_buffer are of one resource
  /// Calls f with both resources, in the order in which they are asked.
  template <class F>
  decltype(auto) with_routes(F const& f) {
    return f(this->upstream(), other_);
  }
  /// Returns which of them a block, or an address in one, belongs to. May take the growth lock of the other's
  /// pool.
  [[nodiscard]] std::size_t route_of(void const* p) noexcept {
    return blocks_.contains(p) || detail::nearest_or(other_, pool_call::owns{p}, false) ? 1 : 0;
  }
  /// Reaches the resource that the block belongs to. If that one has no pool, the block's deallocation waits
  /// for the whole device.
  /// @throws std::bad_alloc, cuda_error: nothing has changed
  void record_stream(void* p, std::size_t bytes, stream_ref stream)
    requires(detail::records_streams<Upstream> || detail::records_streams<Other>)
  {
    if (p == nullptr) return;
    if (blocks_.contains(p)) {
      record_in(other_, {p, bytes, named_stream(stream)});
    } else {
      record_in(this->upstream(), {p, bytes, stream});
    }
  }
  /// Number of live blocks that came from the fallback.
  [[nodiscard]] std::size_t fallback_blocks() const noexcept { return blocks_.size(); }

 private:
  static constexpr bool has_pools = detail::records_streams<Upstream> && detail::records_streams<Other>;

  /// The other resource could take a default stream for that of the current device, or of its own.
  [[nodiscard]] stream_ref named_stream(stream_ref stream) const noexcept {
    stream_id id = stream.id();
    if (id != stream_ref::unknown_id || !detail::is_default_stream(stream)) return stream;
    return detail::identify_named<detail::default_streams_of<Upstream>()>(driver(), stream, id).ok()
               ? stream_ref::from(stream.handle(), id)
               : stream;
  }
  /// Of an allocation: its stream exists, so the driver may be asked about the handle.
  [[nodiscard]] bool is_captured(request const& r) const noexcept {
    stream_ref const on = named_stream(r.stream);
    return !r.is_synchronous() &&
           detail::is_freed_in_capture(driver(), stream_ref::from(on.handle()), on.id());
  }
  [[nodiscard]] bool is_named_in_capture(request const& r) const noexcept {
    stream_ref const on = named_stream(r.stream);
    return (!r.is_synchronous() && detail::is_freed_in_capture(driver(), on, on.id())) ||
           (on.id() != stream_ref::unknown_id && detail::captured_handles::find(on.handle()) == on.id());
  }
  [[nodiscard]] bool may_be_in_graph(request const& r, void const* p) noexcept {
    bool const has_pool =
        blocks_.contains(p) ? detail::records_streams<Other> : detail::records_streams<Upstream>;
    return !has_pool && (in_graphs_.erase(p) || is_named_in_capture(r));
  }
  /// Notes that a new block is of the fallback, or for a graph that no pool knows of.
  template <class Resource>
  void* note(request const& r, void* p, next_layer<Resource> const& next, bool is_fallback) {
    if (p == nullptr) return p;
    try {
      if constexpr (!detail::records_streams<Resource>) {
        if (is_captured(r)) in_graphs_.insert(p);
      }
      if (is_fallback) blocks_.insert(p);
    } catch (...) {
      (void)in_graphs_.erase(p);
      next.deallocate(r, p);
      throw;
    }
    return p;
  }
  template <class Resource>
  void record_in(Resource& resource, pool_call::record_stream const& use) {
    if constexpr (detail::records_streams<Resource>) {
      nearest(resource, use);
    } else {
      (is_named_in_capture({use.stream, use.bytes}) ? in_graphs_ : used_).insert(use.p);
    }
  }

  /// A block that was freed while it might still be used.
  struct deferred_block {
    request freed;
    void* p = nullptr;
  };
  using deferred_blocks = detail::sequence<deferred_block>;

  void free_block(request const& r, void* p, next_layer<Upstream> const& next) noexcept {
    if (blocks_.erase(p)) {
      next_layer(other_).deallocate(r.on(named_stream(r.stream)), p);
    } else {
      next.deallocate(r, p);
    }
  }
  void free_blocks(deferred_blocks const& blocks) noexcept {
    for (deferred_block const& b : blocks) free_block(b.freed, b.p, next_layer<Upstream>(this->upstream()));
  }
  /// Without host memory to record it, the block is never freed.
  TARN_NOINLINE void put_aside(deferred_blocks& blocks, request const& r, void* p) noexcept {
    detail::scoped_lock const guard(deferred_mutex_);
    try {
      blocks.push_back({{stream_ref{}, r.bytes, r.alignment, call_kind::synchronous}, p});
      deferred_count_.store(deferred_.size(), std::memory_order_relaxed);
    } catch (...) {
    }
  }
  /// Frees the deferred blocks, after the device's work.
  TARN_NOINLINE void free_deferred() noexcept {
    deferred_blocks blocks;
    {
      detail::scoped_lock const guard(deferred_mutex_);
      blocks.swap(deferred_);
      deferred_count_.store(0, std::memory_order_relaxed);
    }
    if (!detail::may_run(detail::wait_for_all_work(driver()))) return free_blocks(blocks);
    for (deferred_block const& b : blocks) put_aside(deferred_, b.freed, b.p);
  }

  Other other_;
  detail::fork_mutex deferred_mutex_;
  deferred_blocks deferred_;
  deferred_blocks kept_;  ///< for graphs
  std::atomic<std::size_t> deferred_count_{0};
  detail::block_set blocks_;     ///< live blocks of the fallback
  detail::block_set used_;       ///< blocks that no pool defers, with uses on other streams
  detail::block_set in_graphs_;  ///< blocks that no pool keeps for the graph that captured them
};

}  // namespace TARN_NAMESPACE
