// SPDX-License-Identifier: Apache-2.0
#pragma once
// RAPIDS RMM's pools, of release 26.06 and later.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <new>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "peers/cuda_calls.hpp"
#include "peers/cuda_streams.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// cudaMalloc with the interface of an RMM upstream: the calls come from this program, so that held bytes are
/// counted.
struct rmm_upstream {
  void* allocate_sync(std::size_t bytes, std::size_t = 256) {
    void* block = nullptr;
    if (cudaMalloc(&block, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      throw std::bad_alloc();
    }
    return block;
  }
  void deallocate_sync(void* block, std::size_t, std::size_t = 256) noexcept { (void)cudaFree(block); }
  void* allocate(cuda::stream_ref, std::size_t bytes, std::size_t = 256) { return allocate_sync(bytes); }
  void deallocate(cuda::stream_ref, void* block, std::size_t bytes, std::size_t = 256) noexcept {
    deallocate_sync(block, bytes);
  }
  friend bool operator==(rmm_upstream const&, rmm_upstream const&) noexcept { return true; }
  friend bool operator!=(rmm_upstream const&, rmm_upstream const&) noexcept { return false; }
  friend void get_property(rmm_upstream const&, cuda::mr::device_accessible) noexcept {}
};

/// Any of RMM's pools. The events that they record are inside librmm and cannot be counted.
template <class Pool>
class rmm_allocator {
 public:
  static constexpr place_of_memory where = place_of_memory::cuda;

  void* allocate(std::size_t stream, std::size_t bytes) {
    return bytes == 0 ? nullptr : pool_.allocate(cuda::stream_ref(streams_[stream]), bytes, alignment);
  }
  void deallocate(std::size_t stream, void* block, std::size_t bytes) noexcept {
    if (block != nullptr) pool_.deallocate(cuda::stream_ref(streams_[stream]), block, bytes, alignment);
  }
  [[nodiscard]] usage used() const noexcept { return {cuda_calls::peak_bytes(), std::nullopt, 0}; }

 protected:
  template <class... Arguments>
  explicit rmm_allocator(setup const& s, Arguments&&... arguments)
      : streams_(s.streams), pool_((cuda_calls::reset_peak(), std::forward<Arguments>(arguments))...) {}

 private:
  static constexpr std::size_t alignment = 256;
  cuda_streams streams_;
  Pool pool_;
};

/// Initial size of the pool. It has no maximum: with one, it takes half of what is left below it at its first
/// growth; without, it doubles.
inline constexpr std::size_t rmm_initial_bytes = std::size_t{256} << 20;

/// Memory that the arena takes at the start and never exceeds; the default would be half of the free memory.
inline constexpr std::size_t rmm_arena_bytes = std::size_t{48} << 30;

/// Exponents of the bins. Each bin allocates 128 of its blocks at once: a bin of 2^30 would request 128 GiB.
inline constexpr std::int8_t rmm_smallest_bin = 8;
inline constexpr std::int8_t rmm_largest_bin = 22;

struct rmm_pool : rmm_allocator<rmm::mr::pool_memory_resource> {
  static constexpr std::string_view name = "rmm_pool";
  static constexpr std::string_view about = "rmm::mr::pool_memory_resource, starting at 256 MiB";
  explicit rmm_pool(setup const& s) : rmm_allocator(s, rmm_upstream{}, rmm_initial_bytes) {}
};
static_assert(peer<rmm_pool>);

struct rmm_arena : rmm_allocator<rmm::mr::arena_memory_resource> {
  static constexpr std::string_view name = "rmm_arena";
  static constexpr std::string_view about = "rmm::mr::arena_memory_resource: takes 48 GiB at the start";
  explicit rmm_arena(setup const& s)
      : rmm_allocator(s, rmm_upstream{}, s.capacity != 0 ? std::size_t{s.capacity} : rmm_arena_bytes) {}
};
static_assert(peer<rmm_arena>);

struct rmm_binning : rmm_allocator<rmm::mr::binning_memory_resource> {
  static constexpr std::string_view name = "rmm_binning";
  static constexpr std::string_view about =
      "rmm::mr::binning_memory_resource: bins 2^8 to 2^22 over rmm_pool";
  explicit rmm_binning(setup const& s)
      : rmm_allocator(s, rmm::mr::pool_memory_resource(rmm_upstream{}, rmm_initial_bytes), rmm_smallest_bin,
                      rmm_largest_bin) {}
};
static_assert(peer<rmm_binning>);

}  // namespace tarn::bench
