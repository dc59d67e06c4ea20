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
/// band. While none is live, a deallocation costs three more relaxed loads. Thread-safe.
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
  /// Waits for captures in scopes, up to 10 s, if a block is deferred. If one is open still, or the wait for
  /// the device fails, that block is never given back.
  ~fallback_layer() {
    if (deferred_count_.load(std::memory_order_relaxed) != 0)
      free_deferred(detail::wait_past_captures<typename base::driver_type>);
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
    // Waits for the device if record_stream() named a block that no pool defers. If that fails, as while a
    // capture forbids it, the block is deferred here.
    if (used_.erase(p) && detail::may_run(detail::wait_for_all_work(driver()))) [[unlikely]]
      return defer(r, p);
    if (deferred_count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      free_deferred(detail::wait_for_all_work<typename base::driver_type>);
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
    pool_call::record_stream const use{p, bytes, stream};
    if (blocks_.contains(p)) {
      record_in(other_, use);
    } else {
      record_in(this->upstream(), use);
    }
  }
  /// Number of live blocks that came from the fallback.
  [[nodiscard]] std::size_t fallback_blocks() const noexcept { return blocks_.size(); }

 private:
  template <class Resource>
  void record_in(Resource& resource, pool_call::record_stream const& use) {
    if constexpr (detail::records_streams<Resource>) {
      nearest(resource, use);
    } else {
      used_.insert(use.p);
    }
  }

  /// A block whose uses on other streams could not be waited for when it was freed.
  struct deferred_block {
    request freed;
    void* p = nullptr;
  };
  void free_block(request const& r, void* p, next_layer<Upstream> const& next) noexcept {
    if (blocks_.erase(p)) {
      next_layer(other_).deallocate(r, p);
    } else {
      next.deallocate(r, p);
    }
  }
  /// Without host memory to record it, the block is never freed.
  TARN_NOINLINE void defer(request const& r, void* p) noexcept {
    detail::scoped_lock const guard(deferred_mutex_);
    try {
      deferred_.push_back({{stream_ref{}, r.bytes, r.alignment, call_kind::synchronous}, p});
      deferred_count_.fetch_add(1, std::memory_order_relaxed);
    } catch (...) {
    }
  }
  /// Frees the deferred blocks, after the device's work.
  template <class Wait>
  TARN_NOINLINE void free_deferred(Wait const& wait) noexcept {
    detail::sequence<deferred_block> blocks;
    {
      detail::scoped_lock const guard(deferred_mutex_);
      blocks.swap(deferred_);
      deferred_count_.store(0, std::memory_order_relaxed);
    }
    bool const may_not = detail::may_run(wait(driver()));
    for (deferred_block const& b : blocks) {
      if (may_not) {
        defer(b.freed, b.p);
      } else {
        free_block(b.freed, b.p, next_layer<Upstream>(this->upstream()));
      }
    }
  }

  Other other_;
  detail::fork_mutex deferred_mutex_;
  detail::sequence<deferred_block> deferred_;
  std::atomic<std::size_t> deferred_count_{0};
  detail::block_set blocks_;  ///< live blocks of the fallback
  detail::block_set used_;    ///< blocks that no pool defers, with uses on other streams
};

}  // namespace TARN_NAMESPACE
