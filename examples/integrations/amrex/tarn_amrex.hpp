// SPDX-License-Identifier: Apache-2.0
#pragma once
// AMReX on tarn: an amrex::Arena over a pool. Written for the arenas of AMReX 25.01.

#include <AMReX_Arena.H>
#include <AMReX_Gpu.H>
#include <AMReX_MFIter.H>

#include <cstddef>
#include <list>
#include <mutex>
#include <tarn/tarn.hpp>
#include <tarn/transfer/available_memory.hpp>
#include <thread>
#include <unordered_map>
#include <utility>

#ifdef AMREX_USE_OMP
#error \
    "tarn_amrex: frees by other threads are taken for those of host functions; AMReX must be built without OpenMP"
#endif

namespace tarn_amrex {

/// The stream on which AMReX enqueues what comes next.
[[nodiscard]] inline tarn::stream_ref current_stream() noexcept {
#ifdef AMREX_USE_GPU
  return tarn::stream_ref::from(amrex::Gpu::gpuStream());
#else
  return {};
#endif
}

/// An arena over a pool or a stack of tarn. It serves as The_Arena() and as The_Async_Arena() at once, from
/// one pool.
///
/// - A block is freed in the order of the current stream, so it may be freed while its kernels run.
/// - Blocks allocated outside of MFIter loops may be used on all of AMReX's streams at once, as those of
/// amrex::CArena. So, after a free
///   inside a loop, the next allocation outside of one waits for all streams; MFIter has usually done that.
/// - Blocks allocated inside a loop are for that iteration's stream.
/// - amrex::Gpu::Elixir frees in a host function, in which CUDA cannot be called. Such a block is given to
/// the pool at the next call
///   of another function.
///
/// Allocations throw tarn::out_of_memory. Destroy it after amrex::Finalize(). One thread, and host functions
/// at the same time.
template <class Memory>
class arena final : public amrex::Arena {
 public:
  explicit arena(Memory memory) : memory_(std::move(memory)) { arena_info.SetDeviceMemory(); }
  ~arena() override { collect(); }

  [[nodiscard]] void* alloc(std::size_t bytes) override {
    prepare();
    if (bytes == 0) bytes = 1;  // the pool returns null for none
    std::list<block> one(1);
    tarn::stream_ref const stream = current_stream();
    void* const p = memory_.allocate(stream, bytes);
    one.front() = {p, bytes};
    try {
      std::lock_guard const guard(mutex_);
      live_.emplace(p, one.begin());
      blocks_.splice(blocks_.end(), one);
    } catch (...) {
      memory_.deallocate(stream, p, bytes);
      throw;
    }
    return p;
  }
  /// Makes the block longer where it is, to `most` bytes, or to `least`, if the pool has that memory behind
  /// it; otherwise a new block of `most`. The caller copies and frees the old one then.
  [[nodiscard]] std::pair<void*, std::size_t> alloc_in_place(void* p, std::size_t least,
                                                             std::size_t most) override {
    if (p == nullptr) return {alloc(most), most};
    prepare();
    std::size_t const bytes = bytes_of(p);
    for (std::size_t const wanted : {most, least}) {
      if (bytes >= wanted) return {p, bytes};
      if (!memory_.extend(current_stream(), p, bytes, wanted - bytes)) continue;
      std::lock_guard const guard(mutex_);
      live_.find(p)->second->bytes = wanted;
      return {p, wanted};
    }
    return {alloc(most), most};
  }
  /// Aborts for a pointer that is not of this arena, as amrex::CArena does.
  void free(void* p) override {
    if (p == nullptr) return;
    std::list<block> one;
    {
      std::lock_guard const guard(mutex_);
      auto const found = live_.find(p);
      if (found == live_.end()) {
        amrex::Abort("tarn_amrex::arena::free: unknown pointer");
        return;
      }
      bool const in_host_function = std::this_thread::get_id() != owner_;
      std::list<block>& to = in_host_function ? finished_ : one;
      to.splice(to.end(), blocks_, found->second);  // allocates nothing
      live_.erase(found);
      if (in_host_function) return;
    }
    if (amrex::MFIter::currentDepth() > 0) freed_in_loop_ = true;
    memory_.deallocate(current_stream(), p, one.front().bytes);
  }
  std::size_t freeUnused() override {
    collect();
    return memory_.trim(0);
  }
  [[nodiscard]] bool hasFreeDeviceMemory(std::size_t bytes) override {
    collect();
    return tarn::available_memory(memory_).bytes > bytes;
  }
#ifdef AMREX_USE_GPU
  [[nodiscard]] bool isStreamOrderedArena() const override { return true; }
#endif
  [[nodiscard]] Memory const& memory() const noexcept { return memory_; }

 private:
  struct block {
    void* p = nullptr;
    std::size_t bytes = 0;
  };

  /// Before the pool is asked for memory.
  void prepare() {
    collect();
    if (freed_in_loop_ && amrex::MFIter::currentDepth() == 0) {
      amrex::Gpu::streamSynchronizeAll();
      freed_in_loop_ = false;
    }
  }
  [[nodiscard]] std::size_t bytes_of(void* p) {
    std::lock_guard const guard(mutex_);
    auto const found = live_.find(p);
    if (found != live_.end()) return found->second->bytes;
    amrex::Abort("tarn_amrex::arena::alloc_in_place: unknown pointer");
    return 0;
  }
  /// Gives the pool what host functions freed: the device has finished with it.
  void collect() noexcept {
    std::list<block> some;
    {
      std::lock_guard const guard(mutex_);
      some.swap(finished_);
    }
    for (block const& b : some) memory_.deallocate_sync(b.p, b.bytes);
  }

  Memory memory_;
  std::thread::id owner_ = std::this_thread::get_id();
  bool freed_in_loop_ = false;  ///< since the last wait for all streams; of the owner's thread

  std::mutex mutex_;  ///< of the following; no call of CUDA is made under it: a host function may wait for it
  std::list<block> blocks_;
  std::list<block> finished_;  ///< freed by host functions
  std::unordered_map<void*, typename std::list<block>::iterator> live_;
};

}  // namespace tarn_amrex
