// SPDX-License-Identifier: Apache-2.0
#pragma once
// Thrust's memory pool.

#include <thrust/mr/disjoint_sync_pool.h>
#include <thrust/mr/new.h>
#include <thrust/system/cuda/memory_resource.h>

#include "peers/cuda_calls.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// disjoint_synchronized_pool_resource over cudaMalloc. Not stream-ordered: it may give memory to another
/// stream before the first has finished with it, so its times are not those of a safe pool.
class thrust_peer {
 public:
  static constexpr std::string_view name = "thrust_mr";
  static constexpr std::string_view about =
      "thrust::mr::disjoint_synchronized_pool_resource (not stream-ordered)";
  static constexpr place_of_memory where = place_of_memory::cuda;

  explicit thrust_peer(setup const&) { cuda_calls::reset_peak(); }

  void* allocate(std::size_t /*stream*/, std::size_t bytes) {
    return bytes == 0 ? nullptr : pool_.do_allocate(bytes, alignment).get();
  }
  void deallocate(std::size_t /*stream*/, void* block, std::size_t bytes) noexcept {
    if (block != nullptr) pool_.do_deallocate(upstream::pointer(block), bytes, alignment);
  }
  [[nodiscard]] usage used() const noexcept { return {cuda_calls::peak_bytes(), cuda_calls::made(), 0}; }

 private:
  using upstream = thrust::system::cuda::memory_resource;
  using bookkeeper = thrust::mr::new_delete_resource;
  static constexpr std::size_t alignment = 256;

  upstream memory_;
  bookkeeper books_;
  thrust::mr::disjoint_synchronized_pool_resource<upstream, bookkeeper> pool_{&memory_, &books_};
};
static_assert(peer<thrust_peer>);

}  // namespace tarn::bench
