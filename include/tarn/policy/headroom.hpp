// SPDX-License-Identifier: Apache-2.0
#pragma once
// headroom: device memory that a pool leaves to others: NCCL, cuBLAS, another pool, another process.

#include <atomic>
#include <cstddef>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/core/wait.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class headroom_layer;

/// Leaves `bytes` of the device free: `cuda_pages{} | headroom{2_GiB} | pooled{} | tracked{}`. Its place is
/// under the pool. A growth that would leave less is refused; the pool then gives back what it caches and
/// tries again, and asks other pools on the device, before out_of_memory reaches the caller. While nothing
/// else has taken the headroom, an allocation of up to `bytes` by another user of the device succeeds at any
/// moment, whatever the pool does meanwhile. Once it was taken, the pool restores it at its next growth, or
/// at keep_headroom(). Several pools of a process may keep headroom on one device: they count each other's
/// growth in progress. Another process's growth at the same instant is not seen.
///
/// On CUDA 16 MiB more stay free, since cudaMalloc may need that beside its bytes.
///
/// Costs one query of the device's free memory for each handle or segment that is created: 5 to 100 us.
struct headroom {
  std::size_t bytes = 0;

  template <class Upstream>
  using layer = headroom_layer<Upstream>;
};

namespace detail {

/// What the layers over drivers of this type are about to take from a device, bytes. Thread-safe.
template <class Driver>
class planned_growth {
 public:
  /// Every caller has a user of it.
  [[nodiscard]] static_mutex& mutex() noexcept { return mutex_; }

  /// Plans to take `bytes`. Returns false if the device would then have less than `rest` free. What a growth
  /// in progress takes may be missing from the device's free memory already, or not yet: where that decides,
  /// waits for the growth, up to 10 ms.
  /// @param free  receives what the device has free, unknown if the driver cannot report it; then nothing is
  /// refused
  [[nodiscard]] bool plan(Driver const& driver, std::size_t bytes, std::size_t rest, std::size_t& free) {
    scoped_lock const guard(mutex_);  // nothing else is planned while this waits
    std::atomic<std::size_t>& planned = planned_[place_of(driver)];
    auto const has_room = [&](std::size_t left) { return bytes <= left && left - bytes >= rest; };
    for (unsigned tries = 0;;) {
      // Before the query: a growth that ends in between is counted twice, rather than not at all.
      std::size_t const in_progress = planned.load(std::memory_order_acquire);
      std::size_t total = 0;
      if (!driver.memory_info(free, total).ok()) {
        free = memory_report::unknown;
        break;
      }
      if (has_room(free > in_progress ? free - in_progress : 0)) break;
      if (in_progress == 0 || !has_room(free)) return false;
      while (planned.load(std::memory_order_relaxed) == in_progress) {
        if (tries == spins + pauses) return false;
        spin_wait(tries < spins ? tries : sleeping);
        ++tries;
      }
    }
    planned.fetch_add(bytes, std::memory_order_relaxed);
    return true;
  }
  /// The device has given the bytes, or has refused them.
  void done(Driver const& driver, std::size_t bytes) noexcept {
    planned_[place_of(driver)].fetch_sub(bytes, std::memory_order_release);
  }

 private:
  static constexpr std::size_t places = 64;  // devices that share one only see more growth than there is
  static std::size_t place_of(Driver const& driver) noexcept {
    return static_cast<std::size_t>(driver.device().value) % places;
  }

  // See spin_wait(). It sleeps rather than yields: with other threads on every core, a yield takes as long as
  // their time slices.
  static constexpr unsigned spins = 64;
  static constexpr unsigned pauses = 100;  ///< of 50 us, and about as much that the system adds: 10 ms
  static constexpr unsigned sleeping = 10'000;

  static_mutex mutex_;
  std::atomic<std::size_t> planned_[places]{};
};

/// Never destroyed: threads may still use pools while the process exits. No local static, see
/// static_spin_lock.
template <class Driver>
inline constinit planned_growth<Driver> growth_of_module{};

/// The common part for pages and for blocks.
template <class Layer, class Upstream>
class headroom_base : public resource_adaptor<Layer, Upstream> {
 public:
  headroom_base(Upstream upstream, headroom const& options)
      : resource_adaptor<Layer, Upstream>(std::move(upstream)), bytes_(options.bytes) {}

  /// What stays free while the pool grows, bytes: what others can take, and what the driver needs beside
  /// that.
  [[nodiscard]] std::size_t headroom_bytes() const noexcept {
    std::size_t const overhead = allocation_overhead(this->driver());
    return bytes_ != 0 ? min_of(bytes_, ~std::size_t{0} - overhead) + overhead : 0;
  }
  /// How much less than that the device has free now, bytes; 0 if the driver cannot report it. One driver
  /// call, 5 to 100 us.
  [[nodiscard]] std::size_t headroom_lacking() const noexcept {
    std::size_t free = 0;
    std::size_t total = 0;
    if (!this->driver().memory_info(free, total).ok()) return 0;
    std::size_t const wanted = headroom_bytes();
    return wanted > free ? wanted - free : 0;
  }
  /// Plain blocks leave the headroom, too. @throws out_of_memory, as the layer's other calls
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires has_plain_blocks<Upstream>
  {
    return beside_headroom({stream_ref{}, bytes, default_alignment},
                           [&] { return this->upstream().allocate_plain(bytes); });
  }
  void deallocate_plain(void* p, std::size_t bytes) noexcept
    requires has_plain_blocks<Upstream>
  {
    this->upstream().deallocate_plain(p, bytes);
  }

 protected:
  template <class Allocate>
  auto beside_headroom(request const& r, Allocate const& allocate) {
    std::size_t free = 0;
    if (!planned_.plan(this->driver(), r.bytes, headroom_bytes(), free)) refuse(r, free);
    struct in_progress {
      headroom_base& layer;
      std::size_t bytes;
      ~in_progress() { layer.planned_.done(layer.driver(), bytes); }
    } const growth{*this, r.bytes};
    return allocate();
  }

 private:
  [[noreturn]] TARN_NOINLINE void refuse(request const& r, std::size_t free) const {
    require_alignment(r.alignment);  // more memory would not help
    memory_report report = this->report_of(r);
    report.device_free = free;
    report.headroom = bytes_;
    report.refused_by = "headroom";
    throw out_of_memory(report);
  }

  std::size_t const bytes_;
  /// Of the constructing module; another one may destroy this.
  planned_growth<typename Upstream::driver_type>& planned_ = growth_of_module<typename Upstream::driver_type>;
  static_mutex::user const user_{planned_.mutex()};
};

}  // namespace detail

/// The headroom beside blocks: of cudaMalloc and cudaMallocAsync, whose own pool must be trimmed to leave
/// any.
template <class Upstream>
class headroom_layer : public detail::headroom_base<headroom_layer<Upstream>, Upstream> {
  using base = detail::headroom_base<headroom_layer, Upstream>;

 public:
  using base::base;
  static_assert(!detail::records_streams<Upstream>,
                "tarn: headroom bounds what a pool takes from the device; put it under the pool: "
                "cuda_pages{} | headroom{2_GiB} | pooled{}");
  static_assert(!has_property<Upstream, host_accessible>,
                "tarn: headroom is memory of a device; this source has host memory, use limited{} for it");

  /// @throws out_of_memory  the device would have less than the headroom free
  void* around_allocate(request const& r, auto const& next) {
    return this->beside_headroom(r, [&] { return next.allocate(r); });
  }
};

/// The headroom beside pages. It is a page source itself, so a pool can use it.
template <page_source Upstream>
class headroom_layer<Upstream> : public detail::headroom_base<headroom_layer<Upstream>, Upstream>,
                                 public detail::page_calls<headroom_layer<Upstream>, Upstream> {
  using base = detail::headroom_base<headroom_layer, Upstream>;

 public:
  using base::base;
  static_assert(!has_property<Upstream, host_accessible>,
                "tarn: headroom is memory of a device; this source has host memory, use limited{} for it");

  /// @throws out_of_memory  the device would have less than the headroom free
  [[nodiscard]] page_handle create(std::size_t bytes) {
    return this->beside_headroom({stream_ref{}, bytes, this->granularity()},
                                 [&] { return this->upstream().create(bytes); });
  }
};

/// Gives cached memory of a pool back to the device until its headroom is free again, or nothing is cached.
/// Waits for the streams that freed it. Returns the bytes given back. For programs in which others took the
/// headroom while the pool did not grow. Two driver calls of 5 to 100 us if the headroom is free. @throws
/// cuda_error
template <class Resource>
std::size_t keep_headroom(Resource const& memory, source_location where = source_location::current()) {
  auto const lacking = [](auto& layer) -> decltype(layer.headroom_lacking()) {
    return layer.headroom_lacking();
  };
  static_assert(reachable<Resource, decltype(lacking)> && reachable<Resource, pool_call::reserved>,
                "tarn: keep_headroom needs a pool over headroom: cuda_pages{} | headroom{2_GiB} | pooled{}");
  std::size_t const bytes = nearest(memory, lacking);
  if (bytes == 0) return 0;
  std::size_t const reserved = nearest(memory, pool_call::reserved{});
  return memory.trim(reserved > bytes ? reserved - bytes : 0, where);
}

}  // namespace TARN_NAMESPACE
