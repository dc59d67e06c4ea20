// SPDX-License-Identifier: Apache-2.0
#pragma once
// tracked: exact numbers of what was handed out, as PyTorch defines them, and high-water scopes that do not
// disturb each other. Above it: peak_scope, report. Below it: counter, compose.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/combining_lock.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/extremes.hpp"
#include "tarn/policy/block_bytes.hpp"
#include "tarn/policy/compose.hpp"

namespace tarn {

template <class Upstream>
class tracked_layer;

/// Counts allocations, allocated (rounded) and requested bytes, for all blocks and apart for small and large
/// ones.
struct tracked {
  template <class Upstream>
  using layer = tracked_layer<Upstream>;
};

/// PyTorch's three groups; a block is small up to 1 MiB.
enum class block_group : std::uint8_t { all, small, large };

/// Statistics of what was handed out; each indexed by block_group.
struct tracked_statistics {
  std::array<stat, 3> allocations;      ///< blocks
  std::array<stat, 3> allocated_bytes;  ///< as the pool rounds them
  std::array<stat, 3> requested_bytes;  ///< as asked
  std::uint64_t ooms = 0;               ///< requests refused
};

/// Whose calls a high-water mark sees.
enum class peak_of { all_threads, this_thread };

/// A high-water mark over a scope; linked into its tracked_layer while it lives.
struct high_water_mark {
  std::int64_t start = 0;        ///< allocated bytes when it began (0 for one thread's)
  std::int64_t current = 0;      ///< now
  std::int64_t peak = 0;         ///< the most since it began
  std::int64_t allocations = 0;  ///< blocks handed out since it began
  peak_of whose = peak_of::all_threads;
  void const* thread = nullptr;  ///< whose calls count, for peak_of::this_thread
  high_water_mark* next = nullptr;
};

namespace detail {

/// An address that differs between threads.
inline void const* this_thread_tag() noexcept {
  static thread_local char tag = 0;
  return &tag;
}

/// What one call changes.
struct tracked_update {
  std::int64_t rounded = 0;  ///< bytes; negative for a free
  std::int64_t requested = 0;
  void const* thread = nullptr;
  block_group group = block_group::all;
};
using tracked_lock = combining_lock<tracked_update>;

}  // namespace detail

/// Exact under any number of threads: every call updates its counters under one small lock (about 5 ns
/// uncontended), so current and peak are those of one order of events. A block is counted from before it is
/// handed out until it is given back, so an address that another thread gets at once is never counted twice.
template <class Upstream>
class tracked_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  /// Blocks up to here are small, bytes (PyTorch: kSmallSize).
  static constexpr std::size_t small_limit = 1_MiB;

  tracked_layer() requires std::default_initializable<Upstream> : tracked_layer(Upstream{}) {}
  explicit tracked_layer(Upstream upstream, tracked const& = {}) : upstream_(std::move(upstream)) {}
  tracked_layer(tracked_layer const&) = delete;
  tracked_layer& operator=(tracked_layer const&) = delete;

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return count([&] { return upstream_.allocate(stream, bytes, alignment); }, bytes, alignment);
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p != nullptr) uncount(bytes, alignment);
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return count([&] { return upstream_.allocate_sync(bytes, alignment); }, bytes, alignment);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p != nullptr) uncount(bytes, alignment);
    upstream_.deallocate_sync(p, bytes, alignment);
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

  /// All counters at one moment.
  [[nodiscard]] tracked_statistics statistics() const noexcept {
    std::lock_guard const guard(lock_);
    return statistics_;
  }
  /// Lets every peak start again from now; high-water marks of scopes are not touched.
  void reset_peak_statistics() noexcept {
    std::lock_guard const guard(lock_);
    for_each_stat([](stat& s) { s.reset_peak(); });
  }
  /// Sets the totals (allocated, freed) and the count of refusals to zero.
  void reset_accumulated_statistics() noexcept {
    std::lock_guard const guard(lock_);
    for_each_stat([](stat& s) { s.reset_totals(); });
    statistics_.ooms = 0;
  }

  /// Starts a high-water mark; it must stay where it is until remove(). O(1).
  void add(high_water_mark& mark, peak_of whose) noexcept {
    std::lock_guard const guard(lock_);
    mark.whose = whose;
    mark.thread = detail::this_thread_tag();
    mark.start = whose == peak_of::all_threads ? statistics_.allocated_bytes[0].current : 0;
    mark.current = mark.peak = mark.start;
    mark.next = marks_;
    marks_ = &mark;
  }
  /// Ends a high-water mark. O(marks).
  void remove(high_water_mark& mark) noexcept {
    std::lock_guard const guard(lock_);
    for (high_water_mark** at = &marks_; *at != nullptr; at = &(*at)->next) {
      if (*at == &mark) {
        *at = mark.next;
        return;
      }
    }
  }
  /// The mark as it stands.
  [[nodiscard]] high_water_mark read(high_water_mark const& mark) const noexcept {
    std::lock_guard const guard(lock_);
    return mark;
  }

 private:
  template <class Allocate>
  void* count(Allocate const& allocate, std::size_t bytes, std::size_t alignment) {
    void* p = nullptr;
    try {
      p = allocate();
    } catch (out_of_memory const&) {
      std::lock_guard const guard(lock_);
      ++statistics_.ooms;
      throw;
    }
    if (p != nullptr) change(bytes, alignment, 1);
    return p;
  }
  void uncount(std::size_t bytes, std::size_t alignment) noexcept { change(bytes, alignment, -1); }

  void change(std::size_t bytes, std::size_t alignment, std::int64_t sign) noexcept {
    auto const rounded = static_cast<std::int64_t>(detail::block_bytes_of(upstream_, bytes, alignment));
    lock_.run(
        {sign * rounded, sign * static_cast<std::int64_t>(bytes), detail::this_thread_tag(), group_of(bytes)},
        [this](detail::tracked_update const& u) noexcept { apply(u); });
  }

  /// The lock is held.
  void apply(detail::tracked_update const& u) noexcept {
    for (std::size_t const g : {std::size_t{0}, static_cast<std::size_t>(u.group)}) {
      if (u.rounded > 0) {
        statistics_.allocations[g].increase(1);
        statistics_.allocated_bytes[g].increase(u.rounded);
        statistics_.requested_bytes[g].increase(u.requested);
      } else {
        statistics_.allocations[g].decrease(1);
        statistics_.allocated_bytes[g].decrease(-u.rounded);
        statistics_.requested_bytes[g].decrease(-u.requested);
      }
    }
    if (marks_ != nullptr) [[unlikely]]
      change_marks(u);
  }

  void change_marks(detail::tracked_update const& u) noexcept {
    for (high_water_mark* m = marks_; m != nullptr; m = m->next) {
      if (m->whose != peak_of::all_threads && m->thread != u.thread) continue;
      m->current += u.rounded;
      if (u.rounded < 0) continue;
      m->peak = detail::larger_of(m->peak, m->current);
      ++m->allocations;
    }
  }
  static block_group group_of(std::size_t bytes) noexcept {
    return bytes <= small_limit ? block_group::small : block_group::large;
  }
  template <class F>
  void for_each_stat(F const& f) noexcept {
    for (auto* group :
         {&statistics_.allocations, &statistics_.allocated_bytes, &statistics_.requested_bytes}) {
      for (stat& s : *group) f(s);
    }
  }

  Upstream upstream_;
  mutable detail::tracked_lock lock_;
  tracked_statistics statistics_;
  high_water_mark* marks_ = nullptr;
};

}  // namespace tarn
