// SPDX-License-Identifier: Apache-2.0
#pragma once
// tracked: counts the blocks that were handed out, as PyTorch's memory_stats does, with independent
// high-water scopes. `traced` writes the calls to a file, `logged` passes them to a hook, `tagged` names
// them.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/deferred_count.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/tracked_numbers.hpp"
#include "tarn/pool/arena/size_class.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class tracked_layer;

/// Counts allocations, allocated (rounded) and requested bytes, for all blocks and separately for small and
/// large ones.
///
/// A read contains each call that ended before it began, and may contain calls in progress, also in part. It
/// is never negative, and exact while no call is in progress.
struct tracked {
  /// By how many bytes a peak may be off for each thread: at most n * peak_error bytes above or below the
  /// exact one, and n * max(1, peak_error / 1024) blocks, for the n threads, at most 32, that have counted
  /// since the peak was reset or the high_water_mark began. It is exact if no call was in progress then and
  /// no two calls have overlapped since: with one thread, and with threads that take turns.
  ///
  /// 0: always exact. Each call is counted under one lock, which 16 threads that do nothing but allocate wait
  /// for.
  std::size_t peak_error = 1_MiB;

  template <class Upstream>
  using layer = tracked_layer<Upstream>;
};

/// A block is counted before its address is returned and uncounted before it is freed, so an address that
/// another thread gets at once is never counted twice. No call waits for another thread's, except for a lock
/// that is held for less than a microsecond. To count a call is O(1), and O(peak scopes) where a peak rises.
/// Of several layers over one pool, each counts as active all deferred blocks of the pool. A block that is
/// deferred first stops being allocated, within its deallocation: for that moment, another thread may see it
/// as neither.
template <class Upstream>
class tracked_layer {
 public:
  static_assert(resource<Upstream>,
                "tarn: tracked counts blocks; put it over the pool: pages | pooled{} | tracked{}");
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  /// Blocks up to this size are small, bytes (PyTorch: kSmallSize). That of the pool, which counts deferred
  /// blocks in the same two groups.
  static constexpr std::size_t small_limit = detail::class_limit;

  tracked_layer()
    requires std::default_initializable<Upstream>
      : tracked_layer(Upstream{}) {}
  explicit tracked_layer(Upstream upstream, tracked const& options = {})
      : upstream_(std::move(upstream)), numbers_(options.peak_error) {
    if constexpr (reachable<Upstream, pool_call::observe_deferred>)
      nearest(upstream_, pool_call::observe_deferred{observer_});
  }
  ~tracked_layer() {
    if constexpr (reachable<Upstream, pool_call::observe_deferred>)
      nearest(upstream_, pool_call::end_observation{observer_});
  }

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    if constexpr (on_pool) {
      if (bytes == 0) return nullptr;
      detail::block_size const size(bytes, alignment);
      return count(size.bytes, bytes, [=, this]() TARN_ALWAYS_INLINE_LAMBDA {
        return upstream_.layer().allocate_sized(size, stream, bytes, alignment);
      });
    } else {
      return count(rounded(bytes, alignment), bytes,
                   [&] { return upstream_.allocate(stream, bytes, alignment); });
    }
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    if constexpr (on_pool) {
      detail::block_size const size(bytes, alignment);
      numbers_.count_deallocation(size.bytes, bytes, group_of(bytes));
      upstream_.layer().deallocate_sized(size, stream, p, bytes, alignment);
    } else {
      numbers_.count_deallocation(rounded(bytes, alignment), bytes, group_of(bytes));
      upstream_.deallocate(stream, p, bytes, alignment);
    }
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return count(rounded(bytes, alignment), bytes, [&] { return upstream_.allocate_sync(bytes, alignment); });
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    numbers_.count_deallocation(rounded(bytes, alignment), bytes, group_of(bytes));
    upstream_.deallocate_sync(p, bytes, alignment);
  }

  /// Counts a block of a growing_buffer as any other.
  [[nodiscard]] void* allocate_at(stream_ref stream, void* at, std::size_t bytes, std::size_t alignment)
    requires has_allocate_at<Upstream>
  {
    return count(rounded(bytes, alignment), bytes,
                 [&] { return upstream_.allocate_at(stream, at, bytes, alignment); });
  }
  void deallocate_at(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept
    requires has_allocate_at<Upstream>
  {
    numbers_.count_deallocation(rounded(bytes, alignment), bytes, group_of(bytes));
    upstream_.deallocate_at(stream, p, bytes, alignment);
  }

  /// Counts what a block becomes longer by. It stays one block, and is no other allocation.
  [[nodiscard]] bool extend(stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                            std::size_t alignment)
    requires has_extend<Upstream>
  {
    if (!upstream_.extend(stream, p, bytes, more, alignment)) return false;
    numbers_.count_extension(rounded(bytes + more, alignment) - rounded(bytes, alignment), more,
                             group_of(bytes + more));
    return true;
  }

  /// Counts a block that belongs to the owner of a graph's memory as any other; see graph_memory::allocate().
  [[nodiscard]] void* allocate_for(detail::graph_owner& owner, stream_ref stream, std::size_t bytes,
                                   std::size_t alignment)
    requires detail::allocates_for_owners<Upstream>
  {
    return count(rounded(bytes, alignment), bytes,
                 [&] { return detail::layer_of(upstream_).allocate_for(owner, stream, bytes, alignment); });
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

  /// All counters.
  [[nodiscard]] tracked_statistics statistics() const noexcept { return numbers_.statistics(); }
  /// Restarts every peak from the current values; high-water marks of scopes are unaffected.
  void reset_peak_statistics() noexcept { numbers_.reset_peaks(); }
  /// Sets the totals (allocated, freed) and the count of refusals to zero.
  void reset_accumulated_statistics() noexcept { numbers_.reset_totals(); }

  /// Starts a high-water mark; it must stay in place until remove(). O(threads that have counted).
  void add(high_water_mark& mark, peak_of whose) noexcept { numbers_.add(mark, whose); }
  /// Ends a high-water mark. O(marks, and threads that have counted).
  void remove(high_water_mark& mark) noexcept { numbers_.remove(mark); }
  /// The current values of the mark.
  [[nodiscard]] high_water_mark read(high_water_mark const& mark) const noexcept {
    return numbers_.read(mark);
  }

 private:
  /// Counts the blocks that the pool below holds back for the work of other streams.
  class observer final : public detail::deferred_observer {
   public:
    explicit observer(detail::tracked_numbers& counted) noexcept : numbers_(counted) {}
    void deferred_changed(detail::deferred_amount const& smaller,
                          detail::deferred_amount const& larger) noexcept override {
      numbers_.count_deferred(smaller, larger);
    }

   private:
    detail::tracked_numbers& numbers_;
  };
  /// Directly on a pool, a block's size is computed once, here, and passed down.
  static constexpr bool on_pool = [] {
    if constexpr (detail::is_shared<Upstream>) {
      return requires(typename Upstream::layer_type& pool, detail::block_size size) {
        pool.allocate_sized(size, stream_ref{}, std::size_t{}, std::size_t{});
      };
    }
    return false;
  }();

  template <class Allocate>
  TARN_ALWAYS_INLINE void* count(std::size_t rounded, std::size_t bytes, Allocate const& allocate) {
    void* p = nullptr;
    try {
      p = allocate();
    } catch (out_of_memory const&) {
      numbers_.count_refusal();
      throw;
    }
    if (p != nullptr) numbers_.count_allocation(rounded, bytes, group_of(bytes));
    return p;
  }
  [[nodiscard]] std::size_t rounded(std::size_t bytes, std::size_t alignment) noexcept {
    return detail::block_bytes_of(upstream_, bytes, alignment);
  }
  static block_group group_of(std::size_t bytes) noexcept {
    return bytes <= small_limit ? block_group::smaller : block_group::larger;
  }

  Upstream upstream_;
  mutable detail::tracked_numbers numbers_;
  observer observer_{numbers_};
};

}  // namespace TARN_NAMESPACE
