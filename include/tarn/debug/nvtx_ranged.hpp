// SPDX-License-Identifier: Apache-2.0
#pragma once
// nvtx_ranged: a profiler range around each call, so that Nsight Systems shows a pool's calls next to the
// kernels.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/driver/nvtx_ranges.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class nvtx_ranged_layer;

/// `cuda_pages{} | pooled{} | nvtx_ranged{"weights"}`: ranges "weights: allocate" and "weights: deallocate"
/// in the domain "tarn", with the bytes as payload and "weights" as category. Over the pool they show the
/// program's calls, under it the calls that reach the driver. Without a profiler the cost is one pointer test
/// per call; without CUDA there is none.
struct nvtx_ranged {
  /// Read when the layer is made; long names are cut to the first 63 bytes. Null: "pool", as without a name.
  char const* name = "pool";

  nvtx_ranged() noexcept = default;
  explicit nvtx_ranged(char const* n) noexcept : name(n) {}

  template <class Upstream>
  using layer = nvtx_ranged_layer<Upstream>;
};

template <class Upstream>
class nvtx_ranged_layer : public resource_adaptor<nvtx_ranged_layer<Upstream>, Upstream> {
  using base = resource_adaptor<nvtx_ranged_layer<Upstream>, Upstream>;

 public:
  explicit nvtx_ranged_layer(Upstream upstream, nvtx_ranged const& options = {})
      : base(std::move(upstream)),
        allocate_(text(options.name, ": allocate")),
        deallocate_(text(options.name, ": deallocate")),
        refused_(text(options.name, ": refused")),
        category_(new_nvtx_category(named(options.name).c_str())) {}

  void* around_allocate(request const& r, auto const& next) {
    nvtx_range const range(allocate_, r.bytes, category_);
    try {
      return next.allocate(r);
    } catch (out_of_memory const&) {
      nvtx_range::mark(refused_, r.bytes, category_);
      throw;
    }
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    nvtx_range const range(deallocate_, r.bytes, category_);
    next.deallocate(r, p);
  }

 private:
  [[nodiscard]] static message<64> named(char const* name) noexcept {
    return message<64>(name != nullptr ? name : nvtx_ranged{}.name);
  }
  [[nodiscard]] static nvtx_text text(char const* name, char const* what) noexcept {
    return nvtx_text(message<96>(named(name).view(), what).c_str());
  }

  nvtx_text allocate_;
  nvtx_text deallocate_;
  nvtx_text refused_;
  std::uint32_t category_;
};

}  // namespace TARN_NAMESPACE
