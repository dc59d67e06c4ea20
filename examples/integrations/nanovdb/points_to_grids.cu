// SPDX-License-Identifier: Apache-2.0
#include "points_to_grids.hpp"

#include <nanovdb/NanoVDB.h>
#include <nanovdb/cuda/DeviceBuffer.h>
#include <nanovdb/cuda/GridHandle.cuh>
#include <nanovdb/tools/cuda/PointsToGrid.cuh>

#include <chrono>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>

#include "../measure/device_memory.hpp"
#include "../measure/second_program.hpp"
#include "tarn_nanovdb.hpp"

namespace tarn_nanovdb {

namespace {

using clock = std::chrono::steady_clock;

__device__ std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

__device__ unsigned long long sum_of_words;

/// Adds a mix of each word and its place: a sum that does not depend on the order of the threads.
__global__ void add_words(std::uint64_t const* words, std::size_t count, std::uint64_t seed) {
  std::size_t const step = std::size_t{gridDim.x} * blockDim.x;
  unsigned long long sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    sum += mixed(words[i] ^ mixed(i + seed));
  atomicAdd(&sum_of_words, sum);
}

/// Points on a shell of two voxels around a sphere, which grows with their number: about two points in a
/// voxel.
__global__ void place_points(nanovdb::Vec3f* points, std::size_t count, float radius, std::uint64_t seed) {
  std::size_t const i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  auto const uniform = [&](std::uint64_t which) {
    return static_cast<float>(mixed(mixed(3 * i + which) ^ seed) >> 40) * 0x1p-24F;
  };
  float const z = 2 * uniform(0) - 1;
  float const angle = 6.2831853F * uniform(1);
  float const r = radius + 2 * uniform(2);
  float const across = sqrtf(fmaxf(0.0F, 1 - z * z)) * r;
  points[i] = nanovdb::Vec3f(across * cosf(angle), across * sinf(angle), z * r);
}

void set_threshold(std::uint64_t bytes) {
  cudaMemPool_t pool{};
  cudaCheck(cudaDeviceGetDefaultMemPool(&pool, 0));
  cudaCheck(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &bytes));
}
std::size_t of_driver(cudaMemPoolAttr which) {
  cudaMemPool_t pool{};
  std::uint64_t value = 0;
  cudaCheck(cudaDeviceGetDefaultMemPool(&pool, 0));
  cudaCheck(cudaMemPoolGetAttribute(pool, which, &value));
  return value;
}
/// Gives cached memory back, and begins the peaks anew.
void empty_driver_pool() {
  cudaMemPool_t pool{};
  std::uint64_t zero = 0;
  cudaCheck(cudaDeviceSynchronize());
  cudaCheck(cudaDeviceGetDefaultMemPool(&pool, 0));
  cudaCheck(cudaMemPoolTrimTo(pool, 0));
  cudaCheck(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &zero));
  cudaCheck(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
}

/// The rounds on one kind of resource and buffer.
template <class Resource, class Buffer>
class rounds {
 public:
  using handle = nanovdb::GridHandle<Buffer>;

  rounds(work const& what, Resource& temporaries, Buffer const& grids)
      : what_(what), temporaries_(temporaries), grids_(grids) {
    cudaCheck(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    double count = static_cast<double>(what.first);
    for (int i = 0; i < what.rounds; ++i, count *= what.growth)
      counts_.push_back(static_cast<std::size_t>(count));
    cudaCheck(cudaMalloc(&points_, counts_.back() * sizeof(nanovdb::Vec3f)));
  }
  rounds(rounds const&) = delete;
  rounds& operator=(rounds const&) = delete;
  ~rounds() {
    alive_.clear();
    (void)cudaStreamSynchronize(stream_);
    (void)cudaFree(points_);
    (void)cudaStreamDestroy(stream_);
  }

  /// Loads all kernels, by a small grid.
  void warm_up() {
    place(1000, 1);
    alive_.push_back(build(1000));
    (void)sum(alive_.back());
    alive_.clear();
    cudaCheck(cudaStreamSynchronize(stream_));
  }
  /// Builds all grids. Returns the milliseconds of the builds, without the making of points.
  double pass(std::uint64_t* checksum = nullptr) {
    clock::duration spent{};
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      place(counts_[i], i);
      auto const start = clock::now();
      if (alive_.size() == static_cast<std::size_t>(what_.kept)) alive_.pop_front();
      alive_.push_back(build(counts_[i]));
      cudaCheck(cudaStreamSynchronize(stream_));
      spent += clock::now() - start;
      if (checksum != nullptr) *checksum = *checksum * 31 + sum(alive_.back());
    }
    alive_.clear();
    cudaCheck(cudaStreamSynchronize(stream_));
    return std::chrono::duration<double, std::milli>(spent).count();
  }
  /// Builds the last grid, downloads it and checks what NanoVDB reads in it.
  void check() {
    place(counts_.back(), 0);
    auto grid = build(counts_.back());
    grid.deviceDownload(static_cast<void*>(stream_), true);
    auto const* const on_host = grid.template grid<nanovdb::Point>();
    if (on_host == nullptr || !on_host->isValid() || on_host->pointCount() != counts_.back())
      throw std::runtime_error("the downloaded grid is not that of the points");
  }
  [[nodiscard]] std::size_t points() const {
    std::size_t all = 0;
    for (std::size_t const n : counts_) all += n;
    return all;
  }

 private:
  void place(std::size_t count, std::uint64_t seed) {
    auto const radius = static_cast<float>(std::sqrt(static_cast<double>(count) / (4 * 3.14159 * 4)));
    place_points<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream_>>>(points_, count, radius,
                                                                                  seed);
    cudaCheckError();
    cudaCheck(cudaStreamSynchronize(stream_));
  }
  handle build(std::size_t count) {
    nanovdb::tools::cuda::PointsToGrid<nanovdb::Point, Resource> converter(1.0, nanovdb::Vec3d(0.0), stream_,
                                                                           temporaries_);
    return converter.getHandle(points_, count, grids_);
  }
  std::uint64_t sum(handle const& grid) {
    unsigned long long total = 0;
    cudaCheck(
        cudaMemcpyToSymbolAsync(sum_of_words, &total, sizeof(total), 0, cudaMemcpyHostToDevice, stream_));
    add_words<<<1024, 256, 0, stream_>>>(static_cast<std::uint64_t const*>(grid.deviceData()),
                                         grid.bufferSize() / 8, grid.bufferSize());
    cudaCheckError();
    cudaCheck(
        cudaMemcpyFromSymbolAsync(&total, sum_of_words, sizeof(total), 0, cudaMemcpyDeviceToHost, stream_));
    cudaCheck(cudaStreamSynchronize(stream_));
    return total;
  }

  work what_;
  Resource& temporaries_;
  Buffer const& grids_;
  cudaStream_t stream_ = nullptr;
  std::vector<std::size_t> counts_;
  nanovdb::Vec3f* points_ = nullptr;
  std::deque<handle> alive_;
};

template <class Resource, class Buffer>
figures measured(work const& what, Resource& temporaries, Buffer const& grids, tarn::device_pool* pool,
                 tarn_clients::second_program* other) {
  figures f;
  rounds<Resource, Buffer> all(what, temporaries, grids);
  all.warm_up();
  auto const empty = [&] {
    empty_driver_pool();
    if (pool == nullptr) return;
    pool->empty_cache();
    tarn::reset_peak_memory_stats(*pool);
  };
  auto const live = [&] {
    return of_driver(cudaMemPoolAttrUsedMemHigh) + (pool != nullptr ? tarn::max_memory_allocated(*pool) : 0);
  };
  empty();
  if (other != nullptr) {
    (void)all.pass();
    constexpr std::size_t taken = std::size_t{512} << 20;
    auto const left = static_cast<std::size_t>(what.beside * static_cast<double>(live())) + taken;
    empty();
    other->leave(left, taken);
  }
  std::size_t const before = tarn_clients::free_on_device();
  f.first_ms = all.pass();
  for (int i = 0; i < what.passes; ++i) f.later_ms.push_back(all.pass());
  f.live = live();
  f.held =
      of_driver(cudaMemPoolAttrReservedMemHigh) + (pool != nullptr ? tarn::max_memory_reserved(*pool) : 0);
  f.points = all.points();
  if (other != nullptr) {  // what cudaMemGetInfo shows is not of this process alone
    f.asked = other->asked();
    f.refused = other->refused();
    (void)all.pass(&f.checksum);
    return f;
  }
  tarn_clients::memory_watch watch;
  (void)all.pass(&f.checksum);
  f.held_on_device = before - std::min(before, watch.stop());
  f.held_after = before - std::min(before, tarn_clients::free_on_device());
  all.check();
  return f;
}

}  // namespace

char const* name_of(way w) noexcept {
  switch (w) {
    case way::async:
      return "cudaMallocAsync";
    case way::kept:
      return "cudaMallocAsync, release threshold raised";
    case way::temporaries:
      return "tarn for temporaries, cudaMallocAsync for grids";
    case way::one_pool:
      return "tarn for both";
  }
  return "";
}

figures measure(way w, work const& what) {
  std::optional<tarn_clients::second_program> second;  // before the first call of CUDA
  if (what.beside > 0) second.emplace();
  auto* const other = second ? &*second : nullptr;
  cudaCheck(cudaFree(nullptr));
  if (w == way::kept || w == way::temporaries) set_threshold(UINT64_MAX);
  if (w == way::async || w == way::kept) {
    nanovdb::cuda::DeviceResource temporaries;
    nanovdb::cuda::DeviceBuffer const grids;
    return measured(what, temporaries, grids, nullptr, other);
  }
  tarn::device_pool pool;
  resource<> temporaries{pool};
  if (w == way::one_pool) {
    buffer<> const grids{pool};
    return measured(what, temporaries, grids, &pool, other);
  }
  nanovdb::cuda::DeviceBuffer const grids;
  return measured(what, temporaries, grids, &pool, other);
}

std::string nanovdb_version() {
  return std::to_string(NANOVDB_MAJOR_VERSION_NUMBER) + '.' + std::to_string(NANOVDB_MINOR_VERSION_NUMBER) +
         '.' + std::to_string(NANOVDB_PATCH_VERSION_NUMBER);
}

}  // namespace tarn_nanovdb
