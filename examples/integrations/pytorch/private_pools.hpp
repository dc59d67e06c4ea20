// SPDX-License-Identifier: Apache-2.0
#pragma once
// PyTorch's private pools on one device: of CUDAGraph, of graph_pool_handle() and of MemPool. Each is a
// tarn::graph_memory. A route says which requests belong to which of them, while a capture or a
// use_mem_pool() is open.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tarn/tarn.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "device_memory.hpp"

namespace tarn_torch {

namespace native = c10::cuda::CUDACachingAllocator;
using c10::MempoolId_t;

/// The driver of one MemPool with an allocator of its own. It equals only its copies, so that the MemPool's
/// pool counts as alone on its device: what it caches is given to no pool that lacks memory. It serves others
/// only with use_on_oom, and NCCL may have registered its memory.
class mempool_driver : public tarn::cuda_driver {
 public:
  explicit mempool_driver(tarn::device_id device) : tarn::cuda_driver(device), number_(next_++) {}
  friend bool operator==(mempool_driver a, mempool_driver b) noexcept { return a.number_ == b.number_; }

 private:
  inline static std::atomic<std::uint64_t> next_{0};
  std::uint64_t number_;
};

/// What a MemPool with an allocator of its own takes and gives back: whole blocks of that allocator.
struct foreign_calls {
  using properties = tarn::property_set<tarn::device_accessible>;
  static constexpr char const* backend = "another allocator of PyTorch";
  struct state {
    std::shared_ptr<native::CUDAAllocator> allocator;
    int device = 0;
    std::function<bool(std::int64_t)> count;  ///< adds bytes to those of the device; false: over its limit
  };
  std::shared_ptr<state> options;

  tarn::status take(mempool_driver const&, std::size_t bytes, std::size_t, void*& p) const noexcept {
    constexpr tarn::status refused{tarn::failure::out_of_memory, cudaErrorMemoryAllocation,
                                   "cudaErrorMemoryAllocation", "the allocator of this MemPool"};
    auto const amount = static_cast<std::int64_t>(bytes);
    if (!options->count(amount)) return refused;
    try {
      c10::cuda::CUDAGuard const on(static_cast<c10::DeviceIndex>(options->device));
      c10::cuda::CUDAStreamCaptureModeGuard const beside_capture(cudaStreamCaptureModeRelaxed);
      p = options->allocator->raw_alloc(bytes);
    } catch (std::exception const&) {
      (void)cudaGetLastError();
    }
    if (p != nullptr) return {};
    (void)options->count(-amount);
    return refused;
  }
  tarn::status give(mempool_driver const&, void* p, std::size_t bytes, std::size_t) const noexcept {
    try {
      c10::cuda::CUDAGuard const on(static_cast<c10::DeviceIndex>(options->device));
      c10::cuda::CUDAStreamCaptureModeGuard const beside_capture(cudaStreamCaptureModeRelaxed);
      options->allocator->raw_delete(p);
    } catch (std::exception const&) {
      return {tarn::failure::other, cudaErrorUnknown, "cudaErrorUnknown", "the allocator of this MemPool"};
    }
    (void)options->count(-static_cast<std::int64_t>(bytes));
    return {};
  }
};
using foreign_source = tarn::block_source<mempool_driver, foreign_calls>;
using foreign_memory = tarn::stack<foreign_source, tarn::pooled, tarn::tracked>;

/// Whether a graph is being captured from a stream.
inline bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) return status != cudaStreamCaptureStatusNone;
  (void)cudaGetLastError();  // the legacy stream beside another capture; it is never captured itself
  return false;
}

/// The capture of a graph whose memory a private pool is, from the call before it begins to its end. Its
/// route may be closed and opened again meanwhile: the graph still uses what it has received.
struct open_capture {
  template <class Memory>
  open_capture(tarn::graph_memory<Memory>& owner, tarn::stream_ref named, cudaStream_t begins_on)
      : scope(owner, named), stream(begins_on), joined{begins_on} {}
  /// Makes a stream known that is part of the capture. @throws tarn's errors
  void join(cudaStream_t handle, tarn::stream_ref named) {
    if (joined.contains(handle) || !is_captured(handle)) return;
    scope.join(named);
    joined.insert(handle);
  }

  tarn::capture_scope scope;
  cudaStream_t const stream;
  std::set<cudaStream_t> joined;
  bool has_allocated = false;
};

/// One private pool. The mutex guards all members but `id`, `foreign` and `number`.
class private_pool {
 public:
  private_pool(MempoolId_t its_id, memory_type const& memory) : id(its_id), graph(std::in_place, memory) {
    number = graph->state().number;
  }
  private_pool(MempoolId_t its_id, foreign_memory const& memory)
      : id(its_id), foreign(memory), foreign_graph(std::in_place, memory) {
    number = foreign_graph->state().number;
  }
  private_pool(private_pool const&) = delete;
  private_pool& operator=(private_pool const&) = delete;

  /// @throws tarn's errors. The caller holds the mutex.
  [[nodiscard]] void* allocate(tarn::stream_ref stream, std::size_t bytes) {
    return foreign.has_value() ? foreign_graph->allocate(stream, bytes) : graph->allocate(stream, bytes);
  }
  [[nodiscard]] bool is_released() const noexcept { return !graph.has_value() && !foreign_graph.has_value(); }
  void release() noexcept {
    capture.reset();
    graph.reset();
    foreign_graph.reset();
  }
  /// @throws tarn's errors. The caller holds the mutex.
  void begin_capture(tarn::stream_ref named, cudaStream_t stream) {
    TORCH_CHECK(!capture.has_value(), "beginAllocateToPool: a capture uses the memory pool (", id.first, ", ",
                id.second, ")");
    if (foreign.has_value()) {
      capture.emplace(*foreign_graph, named, stream);
    } else {
      capture.emplace(*graph, named, stream);
    }
  }
  /// Ends the capture unless its stream is still captured. The caller holds the mutex.
  void end_capture() {
    if (capture.has_value() && !is_captured(capture->stream)) capture.reset();
  }

  MempoolId_t const id;
  std::optional<foreign_memory> foreign;  ///< where its memory comes from, if not from the device's pool
  std::uint64_t number = 0;               ///< of its segments in tarn's snapshots
  std::mutex mutex;
  std::optional<tarn::graph_memory<memory_type>> graph;  ///< empty once the last user has released the pool
  std::optional<tarn::graph_memory<foreign_memory>> foreign_graph;  ///< likewise
  std::optional<open_capture> capture;                              ///< ends before its owner
  int users = 0;
  bool serves_others_on_oom = false;
  std::unordered_set<void*> live;
  /// Free blocks that checkpoints list, after their rounded bytes and stream.
  std::set<std::pair<std::pair<std::size_t, void*>, void*>> parked;
};

/// While it is open, requests whose stream passes the filter belong to the pool.
struct route {
  route(std::shared_ptr<private_pool> to, std::function<bool(cudaStream_t)> accepts)
      : pool(std::move(to)), filter(std::move(accepts)) {}

  std::shared_ptr<private_pool> const pool;
  std::function<bool(cudaStream_t)> const filter;
};

/// All private pools of one device. Thread-safe.
class private_pools {
 public:
  using routes_type = std::vector<std::shared_ptr<route>>;

  /// The pool, with one user more; made if there is none. @throws tarn's errors
  template <class Memory>
  std::shared_ptr<private_pool> use(Memory const& memory, MempoolId_t id) {
    std::lock_guard const guard(mutex_);
    std::shared_ptr<private_pool>& pool = pools_[id];
    if (pool == nullptr) {
      try {
        pool = std::make_shared<private_pool>(id, memory);
      } catch (...) {
        pools_.erase(id);
        throw;
      }
      if (pool->foreign.has_value()) {
        foreign_.push_back(pool);
      } else {
        ids_[pool->number] = id;
      }
    }
    std::lock_guard const its(pool->mutex);
    ++pool->users;
    return pool;
  }
  /// One user less. Returns the pool if that was the last one: it is no longer found here.
  std::shared_ptr<private_pool> release(MempoolId_t id) {
    std::lock_guard const guard(mutex_);
    auto const it = pools_.find(id);
    TORCH_CHECK(it != pools_.end(), "releasePool: no such memory pool (", id.first, ", ", id.second, ")");
    std::shared_ptr<private_pool> const pool = it->second;
    std::lock_guard const its(pool->mutex);
    if (--pool->users > 0) return nullptr;
    pools_.erase(it);
    return pool;
  }
  /// Keeps a pool over another allocator's memory that was released, until its last block is freed and no
  /// graph is captured: in a capture, the pool could not wait for the work on what it gives back.
  void retire(std::shared_ptr<private_pool> pool) {
    std::lock_guard const guard(mutex_);
    retired_.push_back(std::move(pool));
  }
  /// Ends the pools that were kept and need not be any more.
  void end_retired() {
    std::vector<std::shared_ptr<private_pool>> over;
    {
      std::lock_guard const guard(mutex_);
      if (retired_.empty() || tarn::detail::capture_gate::has_captures()) return;
      auto const first_over = std::partition(retired_.begin(), retired_.end(),
                                             [](auto const& pool) { return pool.use_count() != 1; });
      std::move(first_over, retired_.end(), std::back_inserter(over));
      retired_.erase(first_over, retired_.end());
    }
    for (auto& pool : over) {
      pool->foreign->trim(0);  // a capture that begins now makes it keep the rest
      if (pool_state_of(*pool->foreign).reserved != 0) retire(std::move(pool));
    }
  }
  /// The pools with memory of other allocators, also those that were released and have live blocks.
  [[nodiscard]] std::vector<std::shared_ptr<private_pool>> with_foreign_memory() {
    std::vector<std::shared_ptr<private_pool>> found;
    std::lock_guard const guard(mutex_);
    std::erase_if(foreign_, [](auto const& pool) { return pool.expired(); });
    for (auto const& pool : foreign_) {
      if (std::shared_ptr<private_pool> its = pool.lock(); its != nullptr) found.push_back(std::move(its));
    }
    return found;
  }
  /// Null if there is none.
  [[nodiscard]] std::shared_ptr<private_pool> find(MempoolId_t id) {
    std::lock_guard const guard(mutex_);
    auto const it = pools_.find(id);
    return it == pools_.end() ? nullptr : it->second;
  }
  /// The pools that may serve a request that the device refuses.
  [[nodiscard]] std::vector<std::shared_ptr<private_pool>> serving_others() {
    std::vector<std::shared_ptr<private_pool>> found;
    std::lock_guard const guard(mutex_);
    for (auto const& [id, pool] : pools_) {
      std::lock_guard const its(pool->mutex);
      if (pool->serves_others_on_oom) found.push_back(pool);
    }
    return found;
  }
  /// PyTorch's id of a segment of tarn's snapshot; also of a pool that was released and still has live
  /// blocks.
  [[nodiscard]] MempoolId_t id_of(std::uint64_t number) {
    std::lock_guard const guard(mutex_);
    auto const it = ids_.find(number);
    return it == ids_.end() ? MempoolId_t{0, 0} : it->second;
  }

  void open(std::shared_ptr<route> r) {
    std::lock_guard const guard(mutex_);
    auto more = std::make_shared<routes_type>(*routes_);
    more->insert(more->begin(), std::move(r));
    routes_ = std::move(more);
    has_routes_.store(true);
  }
  /// Takes the route of a pool out; null if there is none.
  std::shared_ptr<route> close(MempoolId_t id) {
    std::lock_guard const guard(mutex_);
    auto less = std::make_shared<routes_type>(*routes_);
    auto const it =
        std::find_if(less->begin(), less->end(), [&](auto const& r) { return r->pool->id == id; });
    if (it == less->end()) return nullptr;
    std::shared_ptr<route> const closed = *it;
    less->erase(it);
    has_routes_.store(!less->empty());
    routes_ = std::move(less);
    return closed;
  }
  /// PyTorch does not report the end of a capture that failed: ends those whose stream is captured no more.
  /// One that has not allocated yet may be about to begin, unless the next one begins on its stream.
  void end_failed_captures(cudaStream_t next) {
    std::vector<std::shared_ptr<private_pool>> all;
    {
      std::lock_guard const guard(mutex_);
      for (auto const& known : pools_) all.push_back(known.second);
      for (auto const& r : *routes_) all.push_back(r->pool);  // also of a pool that was released
    }
    for (auto const& pool : all) {
      std::lock_guard const its(pool->mutex);
      std::optional<open_capture> const& capture = pool->capture;
      if (capture.has_value() && (capture->has_allocated || capture->stream == next)) pool->end_capture();
    }
  }
  [[nodiscard]] bool has_routes() const noexcept { return has_routes_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_open(MempoolId_t id) {
    std::lock_guard const guard(mutex_);
    return std::any_of(routes_->begin(), routes_->end(), [&](auto const& r) { return r->pool->id == id; });
  }
  /// The route of a request, the one that was opened last first; null: the device's own memory. Calls the
  /// filters without a lock.
  [[nodiscard]] std::shared_ptr<route> route_of(cudaStream_t stream) {
    std::shared_ptr<routes_type const> routes;
    {
      std::lock_guard const guard(mutex_);
      routes = routes_;
    }
    for (auto const& r : *routes) {
      if (r->filter(stream)) return r;
    }
    return nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<MempoolId_t, std::shared_ptr<private_pool>> pools_;
  std::map<std::uint64_t, MempoolId_t> ids_;
  std::vector<std::weak_ptr<private_pool>> foreign_;
  std::vector<std::shared_ptr<private_pool>> retired_;
  std::shared_ptr<routes_type const> routes_ = std::make_shared<routes_type>();
  std::atomic<bool> has_routes_{false};
};

}  // namespace tarn_torch
