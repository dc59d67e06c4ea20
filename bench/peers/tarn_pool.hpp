// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn's own pool, on any device.

#include "peers/peer.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/any_resource.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"

namespace tarn::bench {

/// The default pool.
struct with_defaults {
  static constexpr std::string_view name = "tarn";
  static constexpr std::string_view about = "pages | pooled: the default pool";
  template <class Pages>
  static auto over(Pages pages, pooled const& options) {
    return pages | options;
  }
};

/// The pool that never remaps pages: a warm pass makes no driver call.
struct without_remap {
  static constexpr std::string_view name = "tarn_no_remap";
  static constexpr std::string_view about = "pages | pooled, pages never moved";
  template <class Pages>
  static auto over(Pages pages, pooled const& options) {
    pooled fixed = options;
    fixed.remap = remapping::off;
    return pages | fixed;
  }
};

/// The default pool over cudaMalloc, as on a device without virtual memory management.
struct with_segments {
  static constexpr std::string_view name = "tarn_segments";
  static constexpr std::string_view about = "cudaMalloc | pooled: segments that are never joined or moved";
  template <class Pages>
  static auto over(Pages pages, pooled const& options) {
    return basic_malloc<typename Pages::driver_type>(pages.driver()) | options;
  }
};

/// The default pool with statistics, as device_pool.
struct with_tracking {
  static constexpr std::string_view name = "tarn_tracked";
  static constexpr std::string_view about = "pages | pooled | tracked: as device_pool";
  template <class Pages>
  static auto over(Pages pages, pooled const& options) {
    return pages | options | tracked{};
  }
};

/// The default pool with statistics, called through any_resource.
struct with_any_handle {
  static constexpr std::string_view name = "tarn_any";
  static constexpr std::string_view about = "tarn_tracked, called through any_resource";
  template <class Pages>
  static auto over(Pages pages, pooled const& options) {
    return basic_any_resource<typename Pages::driver_type, device_accessible>(pages | options | tracked{});
  }
};

/// The default pool with statistics whose peaks are exact with any number of threads.
struct with_exact_peaks {
  static constexpr std::string_view name = "tarn_exact_peaks";
  static constexpr std::string_view about = "pages | pooled | tracked, exact peaks";
  template <class Pages>
  static auto over(Pages pages, pooled const& options) {
    return pages | options | tracked{.peak_error = 0};
  }
};

/// The default pool with a `with_history` layer: each block with its line, tag and time, and a ring of the
/// latest calls.
struct with_watching {
  static constexpr std::string_view name = "tarn_watched";
  static constexpr std::string_view about = "pages | pooled | with_history, 100,000 events kept";
  template <class Pages>
  static auto over(Pages pages, pooled const& options) {
    return pages | options | with_history{.history = 100'000};
  }
};

/// The default pool, given the identity of each stream: for with_known_streams.
struct with_identity : with_defaults {
  static constexpr std::string_view name = "tarn_identified";
  static constexpr std::string_view about = "tarn, whose caller keeps the identity of each stream";
};

/// The default pool with statistics, given the identity of each stream: for with_known_streams.
struct with_tracking_and_identity : with_tracking {
  static constexpr std::string_view name = "tarn_tracked_identified";
  static constexpr std::string_view about = "tarn_tracked, whose caller keeps the identity of each stream";
};

/// with_exact_peaks, given the identity of each stream: for with_known_streams.
struct with_exact_peaks_and_identity : with_exact_peaks {
  static constexpr std::string_view name = "tarn_exact_peaks_identified";
  static constexpr std::string_view about =
      "tarn_exact_peaks, whose caller keeps the identity of each stream";
};

/// `Recipe` on `Device`.
template <class Device, class Recipe>
class tarn_pool {
 public:
  static constexpr std::string_view name = Recipe::name;
  static constexpr std::string_view about = Recipe::about;
  static constexpr place_of_memory where = Device::where;

  explicit tarn_pool(setup const& s)
      : device_(s), memory_(Recipe::over(pages(device_.driver()), s.options)) {}

  void* allocate(std::size_t stream, std::size_t bytes) {
    return memory_.allocate(device_.stream(stream), bytes);
  }
  void deallocate(std::size_t stream, void* block, std::size_t bytes) noexcept {
    memory_.deallocate(device_.stream(stream), block, bytes);
  }
  void record_stream(std::size_t stream, void* block, std::size_t bytes) {
    memory_.record_stream(block, bytes, device_.stream(stream));
  }
  [[nodiscard]] usage used() const {
    return {state().reserved_peak, device_.driver_calls(), device_.driver_ns()};
  }
  void reset_peak() {
    nearest(memory_, [](auto& layer) -> decltype(layer.reset_peaks()) { return layer.reset_peaks(); });
  }
  /// Returns the memory that snapshots are taken of.
  [[nodiscard]] auto const& memory() const noexcept { return memory_; }
  /// Returns the pool's current state.
  [[nodiscard]] pool_state state() const {
    return nearest(memory_, [](auto& layer) -> decltype(layer.state()) { return layer.state(); });
  }
  /// Returns the bytes that a request occupies.
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes) const {
    auto const ask = [&](auto& layer) -> decltype(layer.block_bytes(bytes, default_alignment)) {
      return layer.block_bytes(bytes, default_alignment);
    };
    return nearest(memory_, ask);
  }

 private:
  using pages = basic_pages<typename Device::driver_type>;
  using memory_type = decltype(Recipe::over(std::declval<pages>(), pooled{}));
  Device device_;  // must outlive the pool, which uses it
  memory_type memory_;
};

}  // namespace tarn::bench
