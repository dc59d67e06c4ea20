// SPDX-License-Identifier: Apache-2.0
#pragma once
// cub::CachingDeviceAllocator, with its defaults and with bins for large blocks.

#include <cub/util_allocator.cuh>

#include "peers/cuda_calls.hpp"
#include "peers/cuda_streams.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// Either configuration of CUB's allocator; both free through the same calls.
class cub_allocator {
 public:
  static constexpr place_of_memory where = place_of_memory::cuda;

  void* allocate(std::size_t stream, std::size_t bytes) noexcept {
    void* block = nullptr;
    if (bytes != 0 && allocator_.DeviceAllocate(&block, bytes, streams_[stream]) != cudaSuccess) {
      (void)cudaGetLastError();
      return nullptr;
    }
    return block;
  }
  void deallocate(std::size_t /*stream*/, void* block, std::size_t /*bytes*/) noexcept {
    if (block != nullptr) (void)allocator_.DeviceFree(block);
  }
  [[nodiscard]] usage used() const noexcept { return {cuda_calls::peak_bytes(), cuda_calls::made(), 0}; }

 protected:
  template <class... Bins>
  explicit cub_allocator(setup const& s, Bins... bins) : streams_(s.streams), allocator_(bins...) {
    cuda_calls::reset_peak();
  }

 private:
  cuda_streams streams_;  // must outlive the allocator, whose blocks refer to their streams
  cub::CachingDeviceAllocator allocator_;
};

struct cub_peer : cub_allocator {
  static constexpr std::string_view name = "cub";
  static constexpr std::string_view about = "cub::CachingDeviceAllocator: growth 2, bins 2^9 to 2^30, no cap";
  explicit cub_peer(setup const& s) : cub_allocator(s, 2U, 9U, 30U) {}
};
static_assert(peer<cub_peer>);

struct cub_default_peer : cub_allocator {
  static constexpr std::string_view name = "cub_default";
  static constexpr std::string_view about =
      "cub::CachingDeviceAllocator with its defaults: nothing above 2 MiB cached";
  static constexpr bool pools = false;  // at most 6 MB stay cached
  explicit cub_default_peer(setup const& s) : cub_allocator(s) {}
};
static_assert(peer<cub_default_peer>);

}  // namespace tarn::bench
