// SPDX-License-Identifier: Apache-2.0
#pragma once
// PyTorch's caching allocator, called from C++. Its headers take long to compile, so only torch.cpp includes
// them.

#include <cstddef>
#include <string_view>

#include "peers/cuda_streams.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// c10::cuda::CUDACachingAllocator. It reads its settings from the environment when the library is loaded, so
/// each configuration needs a separate process. Driver calls are those that it counts itself: cudaMalloc,
/// cudaFree, map and unmap, no events.
class torch_allocator {
 public:
  static constexpr place_of_memory where = place_of_memory::cuda;

  void* allocate(std::size_t stream, std::size_t bytes) noexcept {
    return allocate_on(streams_[stream], bytes);
  }
  void deallocate(std::size_t /*stream*/, void* block, std::size_t /*bytes*/) noexcept {
    if (block != nullptr) release(block);
  }
  [[nodiscard]] usage used() const;
  void reset_peak();

  /// Whether the environment of this process requests expandable segments.
  [[nodiscard]] static bool expandable_asked() noexcept;

 protected:
  enum class segments : std::uint8_t { fixed, expandable };

  /// @throws std::runtime_error  the environment requests the other kind
  torch_allocator(setup const& s, segments kind);
  ~torch_allocator();

 private:
  static void* allocate_on(cudaStream_t stream, std::size_t bytes) noexcept;
  static void release(void* block) noexcept;
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
