// SPDX-License-Identifier: Apache-2.0
// PyTorch's CUDA allocator on tarn: a class derived from PyTorch's own interface, and the call that installs
// it. A plain shared library without Python: it serves every Python version of the PyTorch that it was
// compiled for.

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "block_server.hpp"
#include "blocks.hpp"
#include "device_memory.hpp"
#include "history.hpp"
#include "private_pools.hpp"
#include "standard_library.hpp"

namespace tarn_torch {
namespace {

using c10::DeviceIndex;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::SegmentInfo;

constexpr std::size_t exabyte = std::size_t{1} << 60;

void delete_block(void* p);
void delete_uncached(void* p) {
  C10_CUDA_CHECK_WARN(cudaFree(p));
}

/// Runs `call` and turns tarn's errors into PyTorch's. Out of memory is not among them: see
/// allocator::refuse().
template <class Call>
decltype(auto) with_torch_errors(Call const& call) {
  try {
    return call();
  } catch (tarn::cuda_error const& e) {
    (void)cudaGetLastError();
    TORCH_CHECK(false, "CUDA error: ", e.what());
  } catch (tarn::sharing_error const& e) {
    TORCH_CHECK(false, e.what());
  } catch (tarn::misuse const& e) {
    TORCH_CHECK(false, e.what());
  }
}

/// What one device has. Never destroyed.
struct device_memory {
  explicit device_memory(DeviceIndex its_index)
      : index(its_index), memory(make_memory(its_index)), any_stream(memory.driver()) {}

  DeviceIndex const index;
  memory_type memory;
  /// No work runs on it and no block is freed on it. A block with a use on it waits, once it is freed, for
  /// all work of the device: so does every use on a stream other than a default one.
  tarn::stream const any_stream;
  private_pools pools;
  block_server<memory_type> server;
  std::atomic<std::int64_t> ooms{0};
  std::atomic<std::int64_t> foreign_bytes{0};  ///< held by MemPools with allocators of their own
  std::atomic<std::size_t> limit{no_limit};    ///< of all that is held
  std::mutex parked_mutex;
  parked_amount parked;
  std::mutex streams_mutex;
  /// PyTorch's own, of any device: those of two devices have the same numbers.
  std::map<std::pair<DeviceIndex, c10::StreamId>, tarn::stream_ref> streams;
  std::once_flag streams_identified;
};

class allocator;

/// The live blocks of a private pool at one moment, for PyTorch's trees of CUDA graphs. While it lives, those
/// blocks keep their addresses and sizes, whether they are allocated or not.
struct checkpoint final : native::AllocatorState {
  explicit checkpoint(allocator& made_by) : owner(made_by) {}
  ~checkpoint() override;
  struct saved {
    void* p;
    std::size_t asked;
  };
  allocator& owner;
  DeviceIndex device = 0;
  std::shared_ptr<private_pool> pool;
  std::vector<saved> blocks;
};

/// Calls f with the memory that a block is of.
template <class F>
decltype(auto) with_memory_of(device_memory& its, block const& b, F const& f) {
  return b.pool != nullptr && b.pool->foreign.has_value() ? f(*b.pool->foreign) : f(its.memory);
}

class allocator final : public native::CUDAAllocator {
 public:
  allocator() {
    for (auto& fraction : fractions_) fraction.store(1);
  }

  // ---- c10::Allocator

  c10::DataPtr allocate(std::size_t bytes) override {
    DeviceIndex const device = c10::cuda::current_device();
    if (bytes == 0) return {nullptr, nullptr, &delete_block, c10::Device(c10::kCUDA, device)};
    if (!is_enabled_.load(std::memory_order_relaxed)) [[unlikely]] {
      void* const p = take_uncached(bytes);
      return {p, p, &delete_uncached, c10::Device(c10::kCUDA, device)};
    }
    void* const p = take(device, bytes, c10::cuda::getCurrentCUDAStream(device));
    return {p, p, &delete_block, c10::Device(c10::kCUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return is_enabled_.load(std::memory_order_relaxed) ? &delete_block : &delete_uncached;
  }
  void copy_data(void* to, void const* from, std::size_t bytes) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
  }

  // ---- blocks without an owner

  void* raw_alloc(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    if (!isEnabled()) return take_uncached(bytes);
    DeviceIndex const device = c10::cuda::current_device();
    return take(device, bytes, c10::cuda::getCurrentCUDAStream(device));
  }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    if (bytes == 0) return nullptr;
    if (!isEnabled()) return take_uncached(bytes);
    device_memory& its = memory_of(c10::cuda::current_device());
    return with_torch_errors([&] { return take_for(its, bytes, stream, identified(its, stream)); });
  }
  void raw_delete(void* p) override {
    if (p == nullptr) return;
    block b;
    if (blocks_.take_if_common(p, b)) return give_back(p, b);
    TORCH_CHECK(!isEnabled(), "invalid device pointer: ", p);
    delete_uncached(p);
  }

  // ---- start

  void init(int device_count) override {
    double const fraction = native::CUDAAllocatorConfig::per_process_memory_fraction();
    for (auto& of_device : fractions_) of_device.store(fraction);
    device_count_.store(device_count);
    is_initialized_.store(true);
  }
  bool initialized() override { return is_initialized_.load(); }
  void enable(bool value) override { is_enabled_.store(value); }
  bool isEnabled() const override { return is_enabled_.load(); }
  std::string name() override { return "tarn"; }

  // ---- limits and the cache

  /// As PyTorch's: of the whole bytes that the fraction allows.
  double getMemoryFraction(DeviceIndex device) override {
    double const fraction = fractions_[valid(device)].load();
    if (fraction >= 1) return 1;
    auto const total = static_cast<double>(total_of(device));
    return std::floor(fraction * total) / total;
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
    fractions_[valid(device)].store(fraction);
    device_memory& its = memory_of(device);  // sets it if it is new
    its.limit.store(limit_of(device));
    apply_limit(its);
  }
  std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override { return {}; }
  void emptyCache(MempoolId_t id) override {
    context_ptr const context = history_.is_enabled() ? history_.gather(RecordContext::ALL) : nullptr;
    for_each_made([&](device_memory& its) {
      history::cause const why(history_, its.index, context);
      // A MemPool with an allocator of its own keeps its memory until it is released.
      its.pools.end_retired();
      with_torch_errors([&] {
        its.memory.trim(id == MempoolId_t{0, 0} ? 0 : no_limit);
        for (auto const& pool : its.pools.with_foreign_memory()) {
          std::lock_guard const guard(pool->mutex);
          if (pool->is_released()) pool->foreign->trim(0);
        }
      });
    });
  }
  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    device_memory& its = memory_of(device);
    if (*largest == 0) {
      std::size_t total = 0;
      c10::cuda::CUDAGuard const on(device);
      C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
    }
    *largest = std::max(*largest, its.memory.largest_free_range());
  }
  void* getBaseAllocation(void* p, std::size_t* size) override {
    bool const is_there = blocks_.with(p, [&](block& b) {
      if (size != nullptr) *size = rounded_of(memory_of(b.device), b);
    });
    TORCH_CHECK(is_there, "invalid device pointer: ", p);
    return p;
  }

  // ---- streams

  void recordStream(c10::DataPtr const& data, c10::cuda::CUDAStream stream) override {
    void* const p = data.get();
    if (p == nullptr || data.get_deleter() != &delete_block) return;  // imported, or of cudaMalloc
    block copy;
    bool const is_there = blocks_.with(p, [&](block& b) {
      if (b.stream.get() == stream.stream()) return;
      b.has_uses = true;
      copy = b;
    });
    TORCH_CHECK(is_there, "invalid device pointer: ", p);
    if (copy.bytes == 0) return;
    device_memory& its = memory_of(copy.device);
    with_torch_errors([&] {
      with_memory_of(its, copy,
                     [&](auto& memory) { memory.record_stream(p, copy.bytes, reference(its, stream)); });
    });
  }

  // ---- statistics

  DeviceStats getDeviceStats(DeviceIndex device) override {
    device_memory* const its = made_[valid(device)].load(std::memory_order_acquire);
    if (its == nullptr) {
      DeviceStats none;
      none.max_split_size = -1;
      return none;
    }
    DeviceStats all = statistics_of_pool(its->memory);
    {
      std::lock_guard const guard(its->parked_mutex);
      put_blocks(all, its->memory->statistics(), its->parked);
    }
    for (auto const& pool : its->pools.with_foreign_memory()) {
      DeviceStats of_pool = statistics_of_pool(*pool->foreign);
      put_blocks(of_pool, (*pool->foreign)->statistics(), {});
      add(all, of_pool);
    }
    all.num_ooms = its->ooms.load();
    return all;
  }
  /// Reads the counters of a device's pool; all are 0 before its first use.
  void read_pool_counters(DeviceIndex device, std::uint64_t (&out)[pool_counter_count]) {
    std::fill(std::begin(out), std::end(out), std::uint64_t{0});
    device_memory* const its = made_[valid(device)].load(std::memory_order_acquire);
    if (its != nullptr) read_counters(its->memory, out);
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    device_memory* const its = made_[valid(device)].load(std::memory_order_acquire);
    if (its == nullptr) return;
    its->ooms.store(0);
    tarn::reset_accumulated_memory_stats(its->memory);
    for (auto const& pool : its->pools.with_foreign_memory())
      tarn::reset_accumulated_memory_stats(*pool->foreign);
  }
  void resetPeakStats(DeviceIndex device) override {
    device_memory* const its = made_[valid(device)].load(std::memory_order_acquire);
    if (its == nullptr) return;
    {
      std::lock_guard const guard(its->parked_mutex);
      its->parked.peaks = {};
      tarn::reset_peak_memory_stats(its->memory);
    }
    for (auto const& pool : its->pools.with_foreign_memory()) tarn::reset_peak_memory_stats(*pool->foreign);
  }

  // ---- history

  native::SnapshotInfo snapshot(MempoolId_t id, bool include_traces) override;
  bool isHistoryEnabled() override { return history_.is_enabled(); }
  void recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t most, RecordContext when,
                     bool clear, std::vector<std::string> const& skipped) override {
    bool const goes_on = history_.is_enabled() && enabled && !clear;
    history_.start(enabled, recorder, most, when, clear, skipped);
    if (goes_on) return;
    for_each_made([&](device_memory& its) { tarn::remember_growth(its.memory, enabled ? growth_notes : 0); });
  }
  void recordAnnotation(std::vector<std::pair<std::string, std::string>> const& values) override {
    if (history_.is_enabled()) history_.annotate(c10::cuda::current_device(), values);
  }
  void pushCompileContext(std::string& text) override { compile_contexts().push_back(text); }
  void popCompileContext() override {
    if (!compile_contexts().empty()) compile_contexts().pop_back();
  }
  void setUserMetadata(std::string const& text) override { history_.set_user_metadata(text); }
  std::string getUserMetadata() override { return history_.user_metadata(); }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    std::lock_guard const guard(mutex_);
    observers_.push_back(std::move(observer));
  }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override {
    history_.watch(std::move(tracker));
  }

  // ---- private pools

  void beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t id) override;
  void releasePool(DeviceIndex device, MempoolId_t id) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t id) override {
    std::shared_ptr<private_pool> const pool = memory_of(device).pools.find(id);
    if (pool == nullptr) return 0;
    std::lock_guard const guard(pool->mutex);
    return pool->users;
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t id,
                          std::shared_ptr<native::CUDAAllocator> other) override {
    device_memory& its = memory_of(device);
    with_torch_errors([&] {
      if (other == nullptr || other.get() == this) {
        (void)its.pools.use(its.memory, id);
      } else {
        (void)its.pools.use(foreign_memory_of(its, std::move(other)), id);
      }
    });
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t id, bool value) override {
    std::shared_ptr<private_pool> const pool = memory_of(device).pools.find(id);
    if (pool == nullptr) return;
    std::lock_guard const guard(pool->mutex);
    pool->serves_others_on_oom = value;
  }
  void setNoSplit(DeviceIndex, MempoolId_t) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "tarn_torch: MemPool(no_split=True) has no meaning for a pool over pages, "
                                "whose blocks share handles");
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                std::unordered_set<void*> const& expected) override {
    std::shared_ptr<private_pool> const pool = memory_of(device).pools.find(id);
    TORCH_CHECK(pool != nullptr, "Could not find pool of id (", id.first, ", ", id.second, ")");
    std::lock_guard const guard(pool->mutex);
    return pool->live == expected;
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t id) override;
  native::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override;
  /// The end of a checkpoint: blocks that only it kept are free.
  void forget(checkpoint& c);

  // ---- other processes, other devices

  native::ShareableHandle shareIpcHandle(void* p) override {
    DeviceIndex device = 0;
    std::size_t bytes = 0;
    bool is_own = false;
    (void)blocks_.with(p, [&](block& b) {
      is_own = b.pool == nullptr || !b.pool->foreign.has_value();
      b.is_shared = is_own;
      device = b.device;
      bytes = b.bytes;
    });
    TORCH_CHECK(is_own, "tarn_torch: only memory that tarn allocated in this process can be shared");
    device_memory& its = memory_of(device);
    return with_torch_errors([&] {
      return native::ShareableHandle{0, its.server.share(its.memory, p, bytes)};
    });
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    int const device = c10::cuda::current_device();
    return with_torch_errors(
        [&] { return imported_.open(handle, tarn::cuda_pages{tarn::device_id{device}}); });
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex to) override {
    device_memory& its = memory_of(to);
    with_torch_errors([&] { grant_access(its.memory, device); });
    c10::cuda::CUDAGuard const on(device);  // for memory that is not tarn's
    cudaError_t const e = cudaDeviceEnablePeerAccess(to, 0);
    if (e == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(e);
    }
  }
  cudaError_t memcpyAsync(void* to, int to_device, void const* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool has_access) override {
    return has_access || to_device == from_device
               ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)
               : cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
  }

 private:
  static constexpr std::size_t most_devices = C10_COMPILE_TIME_MAX_GPUS;
  static constexpr std::size_t growth_notes = 65'536;

  [[nodiscard]] std::size_t valid(DeviceIndex device) const {
    TORCH_CHECK(device >= 0 && device < device_count_.load(), "Invalid device argument ",
                static_cast<int>(device), ": did you call init?");
    return static_cast<std::size_t>(device);
  }
  /// The memory of a device. It is made at the first use, so that devices that are not used get no context.
  device_memory& memory_of(DeviceIndex device) {
    if (device_memory* const known = made_[valid(device)].load(std::memory_order_acquire); known != nullptr)
        [[likely]]
      return *known;
    std::lock_guard const guard(mutex_);
    if (device_memory* const known = made_[valid(device)].load(); known != nullptr) return *known;
    auto made = with_torch_errors([&] { return std::make_unique<device_memory>(device); });
    made->limit.store(limit_of(device));
    apply_limit(*made);
    if (history_.is_enabled()) tarn::remember_growth(made->memory, growth_notes);
    made_[valid(device)].store(made.get(), std::memory_order_release);
    return *made.release();
  }
  /// Calls f(device_memory&) for each device in use.
  template <class F>
  void for_each_made(F const& f) {
    for (DeviceIndex d = 0; d < device_count_.load(); ++d) {
      if (device_memory* const its = made_[d].load(std::memory_order_acquire); its != nullptr) f(*its);
    }
  }
  [[nodiscard]] std::size_t limit_of(DeviceIndex device) const {
    double const fraction = fractions_[valid(device)].load();
    if (fraction >= 1) return no_limit;
    return static_cast<std::size_t>(fraction * static_cast<double>(total_of(device)));
  }
  static std::size_t total_of(DeviceIndex device) {
    std::size_t free = 0;
    std::size_t total = 0;
    c10::cuda::CUDAGuard const on(device);
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return total;
  }

  /// Leaves to the device's pool what other allocators do not hold.
  static void apply_limit(device_memory& its) {
    std::size_t const limit = its.limit.load();
    auto const foreign = static_cast<std::size_t>(std::max<std::int64_t>(its.foreign_bytes.load(), 0));
    set_limit(its.memory, limit == no_limit ? no_limit : limit > foreign ? limit - foreign : 0);
  }
  /// Counts bytes that another allocator takes, or gives back if negative. Returns false if the limit has no
  /// room for them.
  static bool count_foreign(device_memory& its, std::int64_t bytes) {
    if (std::size_t const limit = its.limit.load(); bytes > 0 && limit != no_limit) {
      auto const held =
          static_cast<std::int64_t>(pool_state_of(its.memory).reserved) + its.foreign_bytes.load();
      if (held + bytes > static_cast<std::int64_t>(limit)) return false;
    }
    its.foreign_bytes += bytes;
    apply_limit(its);
    return true;
  }
  static foreign_memory foreign_memory_of(device_memory& its, std::shared_ptr<native::CUDAAllocator> other) {
    auto state = std::make_shared<foreign_calls::state>();
    state->allocator = std::move(other);
    state->device = its.index;
    state->count = [&its](std::int64_t bytes) { return count_foreign(its, bytes); };
    return foreign_memory{
        foreign_source(mempool_driver(tarn::device_id{its.index}), foreign_calls{std::move(state)}),
        tarn::pooled{.release_threshold = no_limit}, tarn::tracked{}};
  }
  static void deallocate(device_memory& its, void* p, block const& b) {
    with_memory_of(its, b,
                   [&](auto& memory) { memory.deallocate(b.stream, p, b.bytes, tarn::default_alignment); });
  }
  /// Lists a new block of a private pool; frees it if that fails. The caller holds the pool's mutex.
  void note_live(device_memory& its, private_pool& pool, void* p, block& b) {
    try {
      pool.live.insert(p);
      b.has_uses = record_for_graph(its, pool, p, b);
      blocks_.insert(p, block(b));
    } catch (...) {
      pool.live.erase(p);
      deallocate(its, p, b);
      throw;
    }
  }
  /// If the graph of another pool is being captured, it uses the block: freed, the block stays that graph's.
  static bool record_for_graph(device_memory& its, private_pool& pool, void* p, block const& b) {
    if (pool.capture.has_value() || pool.foreign.has_value()) return false;
    if (!is_captured(static_cast<cudaStream_t>(b.stream.handle()))) return false;
    try {
      its.memory.record_stream(p, b.bytes, b.stream);
      return true;
    } catch (tarn::cuda_error const&) {  // a capture that PyTorch did not begin
      return false;
    }
  }

  /// A stream with its identity, of which the driver is asked.
  static tarn::stream_ref identified(device_memory& its, cudaStream_t stream) {
    return tarn::identified(its.memory, tarn::stream_ref(stream));
  }
  /// The same for a stream of PyTorch's own, of which the driver is asked once: those are never destroyed,
  /// and the driver must not be asked about a stream that is captured. An external stream (the last bit of
  /// its id is 0) may be destroyed, and its handle may then be another stream's.
  static tarn::stream_ref reference(device_memory& its, c10::cuda::CUDAStream stream) {
    tarn::cuda_driver const driver(tarn::device_id{stream.device_index()});
    if (stream.id() != 0 && (stream.id() & 1) == 0) return tarn::identified(driver, stream.stream());
    struct known {
      c10::StreamId id = -1;
      DeviceIndex device = -1;
      tarn::stream_ref stream;
    };
    static thread_local std::array<known, 64> notes;
    std::pair const key(stream.device_index(), stream.id());
    known& note =
        notes[(static_cast<std::size_t>(key.second) / 2 + static_cast<std::size_t>(key.first) * 37) %
              notes.size()];
    if (note.id != key.second || note.device != key.first) {
      std::lock_guard const guard(its.streams_mutex);
      auto it = its.streams.find(key);
      if (it == its.streams.end())
        it = its.streams.emplace(key, tarn::identified(driver, stream.stream())).first;
      note = {key.second, key.first, it->second};
    }
    return note.stream;
  }
  /// Identifies the streams that torch.cuda.Stream() hands out in turn, before the first capture on the
  /// device.
  static void identify_streams(device_memory& its) {
    std::call_once(its.streams_identified, [&] {
      (void)reference(its, c10::cuda::getDefaultCUDAStream(its.index));
      for (int const priority : {0, -1}) {
        auto const first = c10::cuda::getStreamFromPool(priority, its.index);
        for (auto next = first;;) {
          (void)reference(its, next);
          next = c10::cuda::getStreamFromPool(priority, its.index);
          if (next == first) break;
        }
      }
    });
  }

  static void* take_uncached(std::size_t bytes) {
    void* p = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&p, bytes));
    return p;
  }
  void* take(DeviceIndex device, std::size_t bytes, c10::cuda::CUDAStream stream) {
    device_memory& its = memory_of(device);
    return with_torch_errors([&] {
      tarn::stream_ref const known = reference(its, stream);
      return take_for(its, bytes, static_cast<cudaStream_t>(known.handle()), known);
    });
  }
  void* take_for(device_memory& its, std::size_t bytes, cudaStream_t handle, tarn::stream_ref stream);
  void* take_from_route(device_memory& its, route& r, std::size_t bytes, cudaStream_t handle,
                        tarn::stream_ref stream, block& b);
  [[nodiscard]] void* take_parked(device_memory& its, private_pool& pool, block& b);
  void* take_on_oom(device_memory& its, block& b);
  void give_back(void* p, block& b);
  void note_free(void* p, block const& b, context_ptr const& context);
  void end_pool(device_memory& its, private_pool& pool);
  void release(device_memory& its, void* p, block& b);
  [[noreturn]] void refuse(device_memory& its, std::size_t bytes, tarn::stream_ref stream, MempoolId_t id,
                           tarn::out_of_memory const& why);

  template <class IdOf>
  void add_segments(std::vector<SegmentInfo>& to, tarn::snapshot const& s, DeviceIndex device,
                    MempoolId_t wanted, IdOf const& id_of, std::unordered_set<std::size_t>& deferred);

  static int group_of(std::size_t bytes) noexcept { return bytes <= (std::size_t{1} << 20) ? 1 : 2; }
  static std::size_t rounded_of(device_memory& its, block const& b) {
    return with_memory_of(its, b, [&](auto& memory) { return rounded(memory, b.bytes); });
  }
  /// Of what a request for a parked block asks for. No request gets one with uses of other streams: nothing
  /// orders its work behind them.
  static std::pair<std::size_t, void*> parked_key(device_memory& its, block const& b) {
    return {b.has_uses ? 0 : rounded_of(its, b), b.stream.handle()};
  }
  /// Counts a block that was parked, or one that is parked no more. It keeps the peaks of before: those of
  /// tarn begin again, since how much of them was parked changes.
  static void count_parked(device_memory& its, block const& b, std::int64_t sign) {
    std::lock_guard const guard(its.parked_mutex);
    change_parked(its, b, sign);
  }
  /// Frees a block that was parked.
  static void free_parked(device_memory& its, void* p, block const& b) {
    std::lock_guard const guard(its.parked_mutex);
    deallocate(its, p, b);
    change_parked(its, b, -1);
  }
  static void change_parked(device_memory& its, block const& b, std::int64_t sign) {
    DeviceStats now;
    put_blocks(now, its.memory->statistics(), its.parked);
    its.memory->reset_peak_statistics();
    for_each_parked(now, [&](auto const& s, std::size_t place) { its.parked.peaks[place] = s.peak; });
    for (int const group : {0, group_of(b.bytes)}) {
      its.parked.blocks[group] += sign;
      its.parked.bytes[group] += sign * static_cast<std::int64_t>(rounded_of(its, b));
      its.parked.asked[group] += sign * static_cast<std::int64_t>(b.bytes);
    }
  }
  /// @param bytes  negative: the block is about to be freed, and the statistics still count it
  void report_to_profiler(device_memory& its, void* p, std::int64_t bytes) {
    DeviceStats const now = getDeviceStats(its.index);
    c10::reportMemoryUsageToProfiler(
        p, bytes, static_cast<std::size_t>(now.allocated_bytes[0].current + std::min(bytes, std::int64_t{0})),
        static_cast<std::size_t>(now.reserved_bytes[0].current), c10::Device(c10::kCUDA, its.index));
  }

  std::atomic<int> device_count_{0};
  std::atomic<bool> is_initialized_{false};
  std::atomic<bool> is_enabled_{std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == nullptr};
  std::array<std::atomic<device_memory*>, most_devices> made_{};
  std::array<std::atomic<double>, most_devices> fractions_;
  block_table blocks_;
  history history_;
  imported_blocks imported_;
  std::mutex mutex_;  ///< of made_, when one is made, and of observers_
  std::vector<native::OutOfMemoryObserver> observers_;
};

/// Never destroyed: tensors may outlive everything.
allocator& instance() {
  static allocator* const the_one = new allocator;
  return *the_one;
}

void delete_block(void* p) {
  instance().raw_delete(p);
}
checkpoint::~checkpoint() {
  owner.forget(*this);
}

// ---- allocation

void* allocator::take_for(device_memory& its, std::size_t bytes, cudaStream_t handle,
                          tarn::stream_ref stream) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < exabyte,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  bool const watched = history_.is_wanted();
  block b;
  b.asked = b.bytes = bytes;
  b.stream = stream;
  b.device = its.index;
  if (watched) b.context = history_.gather(RecordContext::STATE);
  std::shared_ptr<route> const r = its.pools.has_routes() ? its.pools.route_of(handle) : nullptr;
  auto const attempt = [&] {
    return r != nullptr ? take_from_route(its, *r, bytes, handle, stream, b)
                        : its.memory.allocate(stream, bytes, tarn::default_alignment);
  };
  void* p = nullptr;
  {
    std::optional<history::cause> growth;
    if (watched) growth.emplace(history_, its.index, b.context);
    try {
      p = attempt();
    } catch (tarn::out_of_memory const& first) {
      bool freed = false;
      for (std::string const& key : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
        freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(key)->Execute();
      try {
        if (!freed) throw;
        p = attempt();
      } catch (tarn::out_of_memory const& second) {
        p = r == nullptr ? take_on_oom(its, b) : nullptr;
        if (p == nullptr) refuse(its, bytes, stream, r != nullptr ? r->pool->id : MempoolId_t{0, 0}, second);
      }
    }
  }
  context_ptr const context = watched ? b.context : context_ptr{};
  MempoolId_t const id = watched && b.pool != nullptr ? b.pool->id : MempoolId_t{0, 0};
  std::size_t const counted = c10::memoryProfilingEnabled() ? rounded_of(its, b) : 0;
  if (b.pool == nullptr) {  // note_live() has done it
    try {
      blocks_.insert(p, std::move(b));
    } catch (...) {
      deallocate(its, p, b);  // NOLINT(bugprone-use-after-move): it is unchanged
      throw;
    }
  }
  if (watched) [[unlikely]]
    history_.note(TraceEntry::ALLOC, its.index, reinterpret_cast<std::size_t>(p), bytes, handle, id, context);
  if (counted != 0) [[unlikely]]
    report_to_profiler(its, p, static_cast<std::int64_t>(counted));
  if (auto const* const trace = c10::impl::GPUTrace::get_trace(); trace != nullptr) [[unlikely]]
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(p));
  return p;
}

/// Takes a block of a private pool.
void* allocator::take_from_route(device_memory& its, route& r, std::size_t bytes, cudaStream_t handle,
                                 tarn::stream_ref stream, block& b) {
  private_pool& pool = *r.pool;
  b.pool = r.pool;
  std::lock_guard const guard(pool.mutex);
  if (pool.capture.has_value()) {
    pool.capture->has_allocated = true;
    pool.capture->join(handle, stream);
  }
  if (void* const parked = take_parked(its, pool, b); parked != nullptr) return parked;
  TORCH_INTERNAL_ASSERT(!pool.is_released());
  void* const p = pool.allocate(stream, bytes);
  note_live(its, pool, p, b);
  return p;
}

/// A free block that a checkpoint keeps, of the same size and stream; null if there is none. The caller holds
/// the pool's mutex.
void* allocator::take_parked(device_memory& its, private_pool& pool, block& b) {
  if (pool.parked.empty()) return nullptr;
  std::pair const wanted(rounded_of(its, b), b.stream.handle());
  auto const it = pool.parked.lower_bound({wanted, nullptr});
  if (it == pool.parked.end() || it->first != wanted) return nullptr;
  void* const p = it->second;
  blocks_.with(p, [&](block const& old) {
    b.bytes = old.bytes;
    b.checkpoints = old.checkpoints;
  });
  pool.live.insert(p);
  try {
    b.has_uses = record_for_graph(its, pool, p, b);
  } catch (...) {
    pool.live.erase(p);
    throw;
  }
  blocks_.with(p, [&](block& old) { old = b; });
  pool.parked.erase(it);
  count_parked(its, b, -1);
  return p;
}

/// A block of a pool that was made with use_on_oom; null if none has it.
void* allocator::take_on_oom(device_memory& its, block& b) {
  for (std::shared_ptr<private_pool> const& pool : its.pools.serving_others()) {
    std::lock_guard const guard(pool->mutex);
    if (pool->is_released()) continue;
    try {
      void* const p = pool->allocate(b.stream, b.bytes);
      b.pool = pool;
      note_live(its, *pool, p, b);
      return p;
    } catch (tarn::out_of_memory const&) {
    }
  }
  return nullptr;
}

void allocator::refuse(device_memory& its, std::size_t bytes, tarn::stream_ref stream, MempoolId_t id,
                       tarn::out_of_memory const& why) {
  std::size_t free = 0;
  std::size_t total = 0;
  {
    c10::cuda::CUDAStreamCaptureModeGuard const relaxed(cudaStreamCaptureModeRelaxed);
    c10::cuda::CUDAGuard const on(its.index);
    C10_CUDA_CHECK_WARN(cudaMemGetInfo(&free, &total));
  }
  ++its.ooms;
  std::size_t const limit = its.limit.load();
  DeviceStats const now = getDeviceStats(its.index);
  std::size_t const allocated = static_cast<std::size_t>(now.allocated_bytes[0].current);
  std::size_t const reserved = static_cast<std::size_t>(now.reserved_bytes[0].current);
  if (history_.is_wanted())
    history_.note(TraceEntry::OOM, its.index, free, bytes, stream.handle(), id,
                  history_.gather(RecordContext::STATE));
  std::vector<native::OutOfMemoryObserver> observers;
  {
    std::lock_guard const guard(mutex_);
    observers = observers_;
  }
  for (auto const& observer : observers) observer(its.index, bytes, limit == no_limit ? total : limit, free);
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), allocated, reserved,
                                   c10::Device(c10::kCUDA, its.index));
  using c10::CachingAllocator::format_size;
  std::ostringstream allowed;
  if (limit != no_limit) allowed << format_size(limit) << " allowed; ";
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", format_size(bytes),
                   ". GPU ", static_cast<int>(its.index), " has a total capacity of ", format_size(total),
                   " of which ", format_size(free), " is free. ", allowed.str(), "Of the allocated memory ",
                   format_size(allocated), " is allocated by PyTorch, and ",
                   format_size(reserved > allocated ? reserved - allocated : 0),
                   " is reserved by PyTorch but unallocated. ", why.what());
}

// ---- deallocation

void allocator::give_back(void* p, block& b) {
  device_memory& its = *made_[b.device].load(std::memory_order_acquire);
  if (c10::memoryProfilingEnabled()) [[unlikely]]
    report_to_profiler(its, p, -static_cast<std::int64_t>(rounded_of(its, b)));
  if (auto const* const trace = c10::impl::GPUTrace::get_trace(); trace != nullptr) [[unlikely]]
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(p));
  if (history_.is_wanted()) note_free(p, b, history_.gather(RecordContext::ALL));
  if (b.pool == nullptr) {
    if (b.is_shared) its.server.forget(p);
    return deallocate(its, p, b);
  }
  std::shared_ptr<private_pool> pool = b.pool;
  bool is_foreign = false;
  {
    std::lock_guard const guard(pool->mutex);
    if (blocks_.take(p, b)) release(its, p, b);  // else a checkpoint that was restored has freed it
    is_foreign = pool->foreign.has_value();
  }
  b.pool.reset();
  pool.reset();
  if (is_foreign) its.pools.end_retired();
}

/// Notes that a block is about to be freed.
void allocator::note_free(void* p, block const& b, context_ptr const& context) {
  MempoolId_t const id = b.pool != nullptr ? b.pool->id : MempoolId_t{0, 0};
  auto const address = reinterpret_cast<std::size_t>(p);
  context_ptr const& known = context != nullptr ? context : b.context;
  history_.note(TraceEntry::FREE_REQUESTED, b.device, address, b.asked, b.stream.handle(), id, known);
  if (!b.has_uses)
    history_.note(TraceEntry::FREE_COMPLETED, b.device, address, b.asked, b.stream.handle(), id, known);
}

/// Frees a block of a private pool that the table has no more, or parks it if a checkpoint lists it. The
/// caller holds the pool's mutex.
void allocator::release(device_memory& its, void* p, block& b) {
  b.pool->live.erase(p);
  if (b.is_shared) its.server.forget(p);
  if (b.checkpoints == 0) return deallocate(its, p, b);
  b.is_parked = true;
  b.is_shared = false;
  b.context = nullptr;
  b.pool->parked.insert({parked_key(its, b), p});
  count_parked(its, b, 1);
  blocks_.insert(p, std::move(b));
}

// ---- private pools

void allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                                    std::function<bool(cudaStream_t)> filter) {
  device_memory& its = memory_of(device);
  TORCH_CHECK(!its.pools.is_open(id), "beginAllocateToPool: already recording to mempool_id");
  c10::cuda::CUDAStream const current = c10::cuda::getCurrentCUDAStream(device);
  bool has_begun = false;
  with_torch_errors([&] {
    auto const r = std::make_shared<route>(its.pools.use(its.memory, id), std::move(filter));
    try {
      // PyTorch calls this just before a capture begins, whose filter accepts no stream yet; the filter of
      // use_mem_pool() accepts this thread's, as does that of a capture whose route was closed meanwhile.
      if (!r->filter(current.stream())) {
        identify_streams(its);
        its.pools.end_failed_captures(current.stream());
        std::lock_guard const guard(r->pool->mutex);
        r->pool->begin_capture(reference(its, current), current.stream());
        has_begun = true;
      }
      its.pools.open(r);
    } catch (...) {
      if (has_begun) {  // another call's capture may be about to begin
        std::lock_guard const guard(r->pool->mutex);
        r->pool->end_capture();
      }
      releasePool(device, id);
      throw;
    }
  });
}

void allocator::endAllocateToPool(DeviceIndex device, MempoolId_t id) {
  std::shared_ptr<route> const closed = memory_of(device).pools.close(id);
  TORCH_CHECK(closed != nullptr, "endAllocatePool: not currently recording to mempool_id");
  {
    std::lock_guard const guard(closed->pool->mutex);
    closed->pool->end_capture();
  }
  for_each_made([](device_memory& its) { its.pools.end_retired(); });
}

void allocator::releasePool(DeviceIndex device, MempoolId_t id) {
  device_memory& its = memory_of(device);
  std::shared_ptr<private_pool> last = its.pools.release(id);
  if (last == nullptr) return;
  {
    std::lock_guard const guard(last->mutex);
    end_pool(its, *last);
  }
  if (!last->foreign.has_value()) return;
  its.pools.retire(std::move(last));
  its.pools.end_retired();
}

/// Gives back what no tensor holds. The caller holds the pool's mutex.
void allocator::end_pool(device_memory& its, private_pool& pool) {
  for (auto const& [key, p] : pool.parked) {
    block b;
    blocks_.with(p, [](block& of) { of.is_parked = false; });
    if (!blocks_.take(p, b)) continue;
    free_parked(its, p, b);
  }
  pool.parked.clear();
  bool are_recorded = true;
  for (void* const p : pool.live) {
    block b;
    blocks_.with(p, [&](block& of) {
      of.checkpoints = 0;
      of.has_uses = true;
      b = of;
    });
    // PyTorch reuses no memory of a pool that was released: any stream may use it until it is freed.
    try {
      with_memory_of(its, b, [&](auto& memory) { memory.record_stream(p, b.bytes, its.any_stream); });
    } catch (std::exception const&) {
      are_recorded = false;
    }
  }
  if (are_recorded) pool.release();  // else the memory is the pool's until the last of them is freed
}

std::shared_ptr<native::AllocatorState> allocator::getCheckpointState(DeviceIndex device, MempoolId_t id) {
  std::shared_ptr<private_pool> const pool = memory_of(device).pools.find(id);
  TORCH_CHECK(pool != nullptr, "Could not find pool of id (", id.first, ", ", id.second, ")");
  auto made = std::make_shared<checkpoint>(*this);
  made->device = device;
  std::lock_guard const guard(pool->mutex);
  made->blocks.reserve(pool->live.size());
  for (void* const p : pool->live) {
    blocks_.with(p, [&](block& b) {
      made->blocks.push_back({p, b.asked});
      ++b.checkpoints;
    });
  }
  made->pool = pool;
  return made;
}

native::CheckpointDelta allocator::setCheckpointPoolState(DeviceIndex device,
                                                          std::shared_ptr<native::AllocatorState> state) {
  auto const* const wanted = dynamic_cast<checkpoint const*>(state.get());
  TORCH_CHECK(wanted != nullptr && wanted->device == device, "this state is of another allocator or device");
  device_memory& its = memory_of(device);
  private_pool& pool = *wanted->pool;
  TORCH_CHECK(!its.pools.is_open(pool.id),
              "the state of a memory pool cannot be set while a graph is recorded to it");
  native::CheckpointDelta delta;
  context_ptr const context = history_.is_wanted() ? history_.gather(RecordContext::STATE) : nullptr;
  std::vector<std::pair<void*, block>> freed, made;
  std::unique_lock held(pool.mutex);
  TORCH_CHECK(!pool.is_released(), "the memory pool of this state was released");
  std::unordered_set<void*> kept;
  for (checkpoint::saved const& s : wanted->blocks) kept.insert(s.p);
  std::vector<void*> const live(pool.live.begin(), pool.live.end());
  delta.ptrs_freed = live;
  for (void* const p : live) {
    if (kept.count(p) != 0) continue;
    block b;
    if (!blocks_.take(p, b)) continue;
    freed.emplace_back(p, b);
    release(its, p, b);
  }
  for (checkpoint::saved const& s : wanted->blocks) {
    bool was_parked = false;
    block now;
    bool const is_there = blocks_.with(s.p, [&](block& b) {
      was_parked = b.is_parked;
      b.is_parked = false;
      b.asked = s.asked;
      if (was_parked) b.context = context;
      now = b;
      b.has_uses = false;  // PyTorch restores a checkpoint once they are over
    });
    TORCH_INTERNAL_ASSERT(is_there, "a block of a checkpoint is gone");
    if (was_parked) {
      pool.parked.erase({parked_key(its, now), s.p});
      pool.live.insert(s.p);
      count_parked(its, now, -1);
      made.emplace_back(s.p, now);
    }
    delta.dataptrs_allocd.emplace_back(s.p, s.p, &delete_block, c10::Device(c10::kCUDA, device));
  }
  held.unlock();
  if (history_.is_wanted()) {
    for (auto const& [p, b] : freed) note_free(p, b, context);
    for (auto const& [p, b] : made)
      history_.note(TraceEntry::ALLOC, device, reinterpret_cast<std::size_t>(p), b.asked, b.stream.handle(),
                    pool.id, context);
  }
  return delta;
}

void allocator::forget(checkpoint& c) {
  if (c.pool == nullptr) return;
  device_memory& its = *made_[c.device].load(std::memory_order_acquire);
  std::unique_lock held(c.pool->mutex);
  for (checkpoint::saved const& s : c.blocks) {
    bool is_free = false;
    block now;
    blocks_.with(s.p, [&](block& b) {
      if (b.pool != c.pool || b.checkpoints == 0) return;
      if (--b.checkpoints != 0 || !b.is_parked) return;
      b.is_parked = false;
      is_free = true;
      now = b;
    });
    if (!is_free) continue;
    c.pool->parked.erase({parked_key(its, now), s.p});
    block gone;
    if (blocks_.take(s.p, gone)) free_parked(its, s.p, gone);
  }
  held.unlock();
  c.pool.reset();
  its.pools.end_retired();
}

// ---- snapshots

/// Adds the segments of a pool's snapshot, of one private pool or of all. Notes the deferred blocks.
template <class IdOf>
void allocator::add_segments(std::vector<SegmentInfo>& to, tarn::snapshot const& s, DeviceIndex device,
                             MempoolId_t wanted, IdOf const& id_of,
                             std::unordered_set<std::size_t>& deferred) {
  for (tarn::snapshot_segment const& segment : s.segments) {
    SegmentInfo info;
    info.device = device;
    info.address = segment.address;
    info.total_size = segment.bytes;
    info.is_large = !segment.is_small;
    info.is_expandable = segment.kind != tarn::segment_kind::upstream;
    info.owner_private_pool_id = id_of(segment.graph_memory);
    for (tarn::snapshot_block const& b : segment.blocks) {
      BlockInfo block_info;
      block_info.size = b.bytes;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): it was a pointer
      auto* const p = reinterpret_cast<void*>(b.address);
      if (b.use == tarn::block_use::live) {
        (void)blocks_.with(p, [&](block& known) {
          if (known.is_parked) return;
          block_info.allocated = block_info.active = true;
          block_info.requested_size = known.asked;
          block_info.context_when_allocated = known.context;
          if (info.stream == nullptr) info.stream = known.stream.handle();
        });
      } else if (b.use == tarn::block_use::deferred) {
        block_info.active = true;
        block_info.requested_size = b.requested;
        deferred.insert(b.address);
      }
      if (block_info.allocated) info.allocated_size += b.bytes;
      if (block_info.active) {
        info.active_size += b.bytes;
        info.requested_size += block_info.requested_size;
      }
      info.blocks.push_back(std::move(block_info));
    }
    if (wanted == MempoolId_t{0, 0} || info.owner_private_pool_id == wanted) to.push_back(std::move(info));
  }
}

native::SnapshotInfo allocator::snapshot(MempoolId_t id, bool include_traces) {
  native::SnapshotInfo all;
  bool const of_one = id != MempoolId_t{0, 0};

  for (DeviceIndex d = 0; d < device_count_.load(); ++d) {
    std::vector<TraceEntry> events;
    device_memory* const its = made_[d].load(std::memory_order_acquire);
    if (its != nullptr) {
      tarn::snapshot const s = with_torch_errors([&] { return tarn::take_snapshot(its->memory, "PyTorch"); });
      std::unordered_set<std::size_t> deferred;
      auto const of_device = [&](std::uint64_t number) {
        return number == 0 ? MempoolId_t{0, 0} : its->pools.id_of(number);
      };
      add_segments(all.segments, s, d, id, of_device, deferred);
      for (auto const& pool : its->pools.with_foreign_memory()) {
        add_segments(
            all.segments, with_torch_errors([&] { return tarn::take_snapshot(*pool->foreign, "PyTorch"); }),
            d, id, [&](std::uint64_t) { return pool->id; }, deferred);
      }
      if (include_traces) {
        events = history_.events_of(d, [&](std::size_t address) { return deferred.count(address) != 0; });
        if (of_one) std::erase_if(events, [&](TraceEntry const& e) { return e.mempool_ != id; });
        if (history_.is_enabled() && !of_one) {
          std::vector<TraceEntry> growth;
          for (tarn::snapshot_event const& e : s.events) {
            bool const takes = e.kind == tarn::snapshot_event_kind::reserve;
            if (!takes && e.kind != tarn::snapshot_event_kind::release) continue;
            if (e.time_ns == 0) continue;  // held before the recording began
            growth.emplace_back(takes ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_UNMAP, d, e.address,
                                e.bytes, nullptr, MempoolId_t{0, 0}, 0);
            growth.back().time_.t_ = static_cast<c10::time_t>(s.steady_ns + e.time_ns);
          }
          history_.add_growth(d, events, std::move(growth));
        }
      }
      if (history_.is_enabled() && include_traces) {
        std::size_t active_bytes = 0;
        for (SegmentInfo const& segment : all.segments) {
          if (segment.device == d) active_bytes += segment.active_size;
        }
        history_.note(TraceEntry::SNAPSHOT, d, 0, active_bytes, nullptr, id, nullptr);
      }
    }
    all.device_traces.push_back(std::move(events));
  }
  if (include_traces) all.external_annotations = history_.annotations();
  using general = c10::CachingAllocator::AcceleratorAllocatorConfig;
  all.config_metadata.garbage_collection_threshold = general::garbage_collection_threshold();
  all.config_metadata.max_split_size = general::max_split_size();
  all.config_metadata.pinned_num_register_threads =
      native::CUDAAllocatorConfig::pinned_num_register_threads();
  all.config_metadata.expandable_segments = false;  // of PyTorch's pool
  all.config_metadata.release_lock_on_malloc = native::CUDAAllocatorConfig::release_lock_on_cudamalloc();
  all.config_metadata.pinned_use_host_register = native::CUDAAllocatorConfig::pinned_use_cuda_host_register();
  all.config_metadata.graph_capture_record_stream_reuse =
      native::CUDAAllocatorConfig::graph_capture_record_stream_reuse();
  all.config_metadata.last_allocator_settings = general::last_allocator_settings();
  all.config_metadata.roundup_power2_divisions = general::roundup_power2_divisions();
  return all;
}

void put_text(char const* text, char* to, std::size_t room) noexcept {
  if (to == nullptr || room == 0) return;
  std::strncpy(to, text, room - 1);
  to[room - 1] = '\0';
}

}  // namespace
}  // namespace tarn_torch

extern "C" {

/// Sets the options of the pools; `slack_per_mille` and `largest_handle` as in tarn::pooled, negative: its
/// default. Returns 1 if tarn is installed already, and changes nothing.
__attribute__((visibility("default"))) int tarn_torch_set_pool(int remap, std::int64_t slack_per_mille,
                                                               std::int64_t largest_handle) noexcept {
  if (c10::cuda::CUDACachingAllocator::allocator.load() == &tarn_torch::instance()) return 1;
  tarn::pooled options;
  if (remap == 0) options.remap = tarn::remapping::off;
  if (slack_per_mille >= 0) options.slack_per_mille = static_cast<unsigned>(slack_per_mille);
  if (largest_handle >= 0) options.largest_handle = static_cast<std::size_t>(largest_handle);
  tarn_torch::pool_options() = options;
  return 0;
}
/// Reads what the pool of a device did so far. Returns 1 if it cannot.
__attribute__((visibility("default"))) int tarn_torch_pool_counters(
    int device, std::uint64_t (*out)[tarn_torch::pool_counter_count]) noexcept {
  try {
    tarn_torch::instance().read_pool_counters(static_cast<c10::DeviceIndex>(device), *out);
    return 0;
  } catch (std::exception const&) {
    return 1;
  }
}

/// Puts tarn under PyTorch in this process. Returns 0; 1 if CUDA was used before; or 2 if this library was
/// linked wrongly; with the reason in `error`. Does nothing if it is installed already.
__attribute__((visibility("default"))) int tarn_torch_install(char* error, std::size_t room) noexcept {
  if (tarn_torch::has_own_standard_library(reinterpret_cast<void const*>(&tarn_torch_install))) {
    tarn_torch::put_text(
        "this library has a copy of the C++ standard library in itself, which cannot work beside PyTorch's. "
        "Link it "
        "dynamically (-l:libstdc++.so.6)",
        error, room);
    return 2;
  }
  try {
    tarn_torch::allocator& the_one = tarn_torch::instance();
    if (c10::cuda::CUDACachingAllocator::get() == &the_one) return 0;
    std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> const unowned(std::shared_ptr<void>(),
                                                                                  &the_one);
    torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(unowned);
    c10::SetAllocator(c10::kCUDA, &the_one);
    return 0;
  } catch (std::exception const& e) {
    tarn_torch::put_text(e.what(), error, room);
    return 1;
  }
}
}
