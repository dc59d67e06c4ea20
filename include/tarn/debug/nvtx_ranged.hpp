// SPDX-License-Identifier: Apache-2.0
#pragma once
// nvtx_ranged: a profiler range around each call, so that Nsight Systems shows a pool's calls next to the
// kernels. The ranges and names are also for a program's own code.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

#if TARN_HAS_CUDA && defined(__has_include)
#if __has_include(<nvtx3/nvToolsExtCudaRt.h>)
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#define TARN_HAS_NVTX_RANGES 1
#endif
#endif
#ifndef TARN_HAS_NVTX_RANGES
#define TARN_HAS_NVTX_RANGES 0
#endif

namespace TARN_NAMESPACE {

// Ranges and names for profilers such as Nsight Systems, through NVTX. Empty without CUDA's headers; without
// a profiler, each call costs one pointer test.

namespace detail {
#if TARN_HAS_NVTX_RANGES
inline constinit std::atomic<nvtxDomainHandle_t> made_nvtx_domain{nullptr};

/// Returns tarn's domain, created at first use and kept; null without a profiler.
[[nodiscard]] inline nvtxDomainHandle_t nvtx_domain() noexcept {
  nvtxDomainHandle_t made = made_nvtx_domain.load(std::memory_order_acquire);
  if (made != nullptr) return made;
  nvtxDomainHandle_t const fresh = nvtxDomainCreateA("tarn");
  if (fresh == nullptr || made_nvtx_domain.compare_exchange_strong(made, fresh)) return fresh;
  nvtxDomainDestroy(fresh);  // another thread was faster
  return made;
}
#endif
}  // namespace detail

// A program may have translation units with CUDA's headers and others without, so the types are the same in
// both, and what one function began is ended by that function's own choice.

/// The text of a range, registered with the profiler once; null without one. Copy freely; never throws.
class nvtx_text {
 public:
#if TARN_HAS_NVTX_RANGES
  explicit nvtx_text(char const* text) noexcept
      : handle_(nvtxDomainRegisterStringA(detail::nvtx_domain(), text)) {}
#else
  explicit nvtx_text(char const*) noexcept {}
#endif
  [[nodiscard]] void* handle() const noexcept { return handle_; }

 private:
  void* handle_ = nullptr;
};

/// A range on this thread in the domain "tarn", from construction to destruction, with a number that the
/// profiler displays. Ranges of a thread nest.
class [[nodiscard]] nvtx_range {
 public:
  /// @param bytes     the payload
  /// @param category  from new_nvtx_category(); 0: none
  nvtx_range([[maybe_unused]] nvtx_text text, [[maybe_unused]] std::uint64_t bytes,
             [[maybe_unused]] std::uint32_t category = 0) noexcept {
#if TARN_HAS_NVTX_RANGES
    nvtxEventAttributes_t const a = attributes(text, bytes, category);
    nvtxDomainRangePushEx(detail::nvtx_domain(), &a);
    end_ = []() noexcept { nvtxDomainRangePop(detail::nvtx_domain()); };
#endif
  }
  ~nvtx_range() {
    if (end_ != nullptr) end_();
  }
  nvtx_range& operator=(nvtx_range&&) = delete;

  /// Marks a moment instead of a range.
  static void mark([[maybe_unused]] nvtx_text text, [[maybe_unused]] std::uint64_t bytes,
                   [[maybe_unused]] std::uint32_t category = 0) noexcept {
#if TARN_HAS_NVTX_RANGES
    nvtxEventAttributes_t const a = attributes(text, bytes, category);
    nvtxDomainMarkEx(detail::nvtx_domain(), &a);
#endif
  }

 private:
#if TARN_HAS_NVTX_RANGES
  [[nodiscard]] static nvtxEventAttributes_t attributes(nvtx_text text, std::uint64_t bytes,
                                                        std::uint32_t category) noexcept {
    nvtxEventAttributes_t a{};
    a.version = NVTX_VERSION;
    a.size = static_cast<std::uint16_t>(sizeof a);
    a.category = category;
    a.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    a.payload.ullValue = bytes;  // NOLINT(cppcoreguidelines-pro-type-union-access): NVTX's own type
    a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = static_cast<nvtxStringHandle_t>(text.handle());
    return a;
  }
#endif
  void (*end_)() noexcept = nullptr;
};

namespace detail {
inline constinit std::atomic<std::uint32_t> nvtx_categories{0};
}

/// Creates a named category in the domain "tarn"; returns its unique number, from 1.
[[nodiscard]] inline std::uint32_t new_nvtx_category([[maybe_unused]] char const* name) noexcept {
  std::uint32_t const made = detail::nvtx_categories.fetch_add(1, std::memory_order_relaxed) + 1;
#if TARN_HAS_NVTX_RANGES
  nvtxDomainNameCategoryA(detail::nvtx_domain(), made, name);
#endif
  return made;
}

/// Names a CUDA stream's row in the profiler. For CUDA streams only: a profiler does not know simulated
/// streams.
inline void name_stream([[maybe_unused]] stream_ref stream, [[maybe_unused]] char const* name) noexcept {
#if TARN_HAS_NVTX_RANGES
  nvtxNameCudaStreamA(stream.get(), name);
#endif
}

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
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    return next.extend(r, p, more);
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
