// SPDX-License-Identifier: Apache-2.0
#pragma once
// PyTorch's caching allocator, called from C++. Above it: the lists of pools. Below it: libc10_cuda.

#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "peers/cuda_streams.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// c10::cuda::CUDACachingAllocator. It reads its settings from the environment when the library is loaded, so
/// each configuration needs a process of its own. Calls of the driver are those that it counts itself:
/// cudaMalloc, cudaFree, map and unmap, no events.
class torch_allocator {
 public:
  static constexpr place_of_memory where = place_of_memory::cuda;

  void* allocate(std::size_t stream, std::size_t bytes) noexcept {
    try {
      return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, streams_[stream]);
    } catch (c10::Error const&) {
      return nullptr;  // c10::OutOfMemoryError
    }
  }
  void deallocate(std::size_t /*stream*/, void* block, std::size_t /*bytes*/) noexcept {
    if (block != nullptr) c10::cuda::CUDACachingAllocator::raw_delete(block);
  }
  [[nodiscard]] usage used() const {
    auto const stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
    return {static_cast<std::uint64_t>(stats.reserved_bytes[0].peak),
            static_cast<std::uint64_t>(stats.num_device_alloc + stats.num_device_free), 0};
  }

  /// True where the environment of this process asks for expandable segments.
  [[nodiscard]] static bool expandable_asked() noexcept {
    char const* const settings = std::getenv(variable);
    return settings != nullptr && std::string_view(settings).find(expandable_on) != std::string_view::npos;
  }

 protected:
  enum class segments : std::uint8_t { fixed, expandable };

  torch_allocator(setup const& s, segments kind) : streams_(s.streams) {
    if (expandable_asked() != (kind == segments::expandable)) {
      throw std::runtime_error(
          kind == segments::expandable
              ? std::string("this pool needs the environment ") + variable + "=" + std::string(expandable_on)
              : std::string("this pool needs ") + variable + " without " + std::string(expandable_on));
    }
    c10::cuda::CUDACachingAllocator::init(1);
    c10::cuda::CUDACachingAllocator::emptyCache();
    c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  }
  ~torch_allocator() { c10::cuda::CUDACachingAllocator::emptyCache(); }

 private:
  static constexpr char const* variable = "PYTORCH_CUDA_ALLOC_CONF";
  static constexpr std::string_view expandable_on = "expandable_segments:True";
  cuda_streams streams_;
};

struct torch_peer : torch_allocator {
  static constexpr std::string_view name = "torch";
  static constexpr std::string_view about = "PyTorch's CUDACachingAllocator, default settings";
  explicit torch_peer(setup const& s) : torch_allocator(s, segments::fixed) {}
};
static_assert(peer<torch_peer>);

struct torch_expandable_peer : torch_allocator {
  static constexpr std::string_view name = "torch_expandable";
  static constexpr std::string_view about = "PyTorch's CUDACachingAllocator, expandable_segments:True";
  explicit torch_expandable_peer(setup const& s) : torch_allocator(s, segments::expandable) {}
};
static_assert(peer<torch_expandable_peer>);

}  // namespace tarn::bench
