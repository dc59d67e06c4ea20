// SPDX-License-Identifier: Apache-2.0
// tarn's device pool behind plain C functions, for CuPy, Numba and whatever else loads a shared library:
//
//   nvcc -std=c++20 -O2 -shared -Xcompiler -fPIC -I ../../include -o libtarn_c.so tarn_c.cpp
//
// There is one pool per device and process, made at its first use and never destroyed: Python frees arrays
// until the very end of a process. It is a device_pool with a limit under it. All functions may be called by
// any number of threads at once.
//
// No exception leaves a function. One that fails returns null, and tarn_c_error() on the same thread returns
// the reason. Without CUDA's headers, or with -DTARN_NO_CUDA, the same functions stand on the simulated
// device, for tests.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "block_table.hpp"
#include "tarn/tarn.hpp"
#if !TARN_HAS_CUDA
#include "tarn/sim.hpp"
#endif

namespace {

#if TARN_HAS_CUDA
using pages = tarn::cuda_pages;
#else
using pages = tarn::sim_pages;
#endif
using pool_type = tarn::stack<pages, tarn::limited, tarn::pooled, tarn::tracked>;
using recorded_type = tarn::stack<pages, tarn::limited, tarn::pooled, tarn::tracked, tarn::traced>;

enum error_kind : int { no_error = 0, out_of_memory = 1, other_error = 2 };

struct last_error {
  error_kind kind = no_error;
  char text[1024] = "";
};
thread_local last_error last;

void set_error(error_kind kind, char const* text) noexcept {
  last.kind = kind;
  std::snprintf(last.text, sizeof last.text, "%s", text);
}

/// Runs `call`; returns what it returns, or null after an exception.
template <class Call>
auto guarded(Call const& call) noexcept -> decltype(call()) {
  last_error& of_thread = last;
  of_thread.kind = no_error;
  of_thread.text[0] = '\0';
  try {
    return call();
  } catch (tarn::out_of_memory const& error) {
    set_error(out_of_memory, error.what());
  } catch (std::exception const& error) {
    set_error(other_error, error.what());
  } catch (...) {
    set_error(other_error, "an exception of an unknown type");
  }
  return {};
}

constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

}  // namespace

/// The pool of one device, and what a C caller does not repeat at the free: the size of each live block and
/// its stream.
struct tarn_c_pool {
  struct block {
    std::size_t bytes;
    tarn::stream_ref stream;  ///< with its identity: the stream may be destroyed before the block is freed
  };

  tarn_c_pool(int device, char const* trace)
#if TARN_HAS_CUDA
      : memory(tarn::cuda_pages{tarn::device_id{device}}, tarn::limited{no_limit}, tarn::pooled{},
               tarn::tracked{}) {
#else
      : memory(tarn::sim_pages{}, tarn::limited{no_limit}, tarn::pooled{}, tarn::tracked{}) {
    (void)device;
#endif
    legacy = tarn::identified(memory, tarn::stream_ref{});
    if (trace != nullptr) recorder.emplace(memory | tarn::traced{trace});
  }

  void* allocate(std::size_t bytes, tarn::stream_ref stream) {
    if (is_captured(stream)) {
      throw std::runtime_error(
          "tarn: the stream is captured into a graph, and a pool behind C functions does not see where the "
          "capture ends. Allocate before the capture");
    }
    tarn::stream_ref const known = stream.handle() == nullptr ? legacy : tarn::identified(memory, stream);
    void* const p = recorder ? recorder->allocate(known, bytes, tarn::default_alignment, tarn::attribution{})
                             : memory.allocate(known, bytes, tarn::default_alignment, tarn::attribution{});
    return remember(p, {bytes, known});
  }
  void* allocate_for_every_stream(std::size_t bytes) {
    void* const p = recorder ? recorder->allocate_sync(bytes, tarn::default_alignment, tarn::attribution{})
                             : memory.allocate_sync(bytes, tarn::default_alignment, tarn::attribution{});
    return remember(p, {bytes, legacy});
  }
  /// @param user  a stream that exists and may have used the block; null: none besides the block's own. While
  /// it is captured, nothing can wait for its work: a block of another stream then stays allocated
  void free(void* p, tarn::stream_ref const* user) noexcept {
    block b{};
    if (p == nullptr || !blocks.take(p, b)) return;  // not a block of this pool
    if (user != nullptr && !wait_for(*user, p, b)) return;
    give_back(p, b);
  }

  pool_type memory;
  std::optional<recorded_type> recorder;  ///< the same pool, with a trace of its calls
  tarn_c::block_table<block> blocks;
  tarn::stream_ref legacy;  ///< the default stream, with its identity, which never changes

 private:
  void* remember(void* p, block const& b) {
    if (p == nullptr) return p;
    try {
      blocks.add(p, b);
    } catch (...) {
      give_back(p, b);
      throw;
    }
    return p;
  }
  void give_back(void* p, block const& b) noexcept {
    if (recorder) {
      recorder->deallocate(b.stream, p, b.bytes);
    } else {
      memory.deallocate(b.stream, p, b.bytes);
    }
  }
  /// Has the block wait for the work that `user` has now, if that is another stream than the block's own.
  /// Equal handles are not enough: the block's stream may have been destroyed, and its handle be another
  /// stream's. Default streams are identified without CUDA. Returns false if that is not possible.
  bool wait_for(tarn::stream_ref user, void* p, block const& b) noexcept {
    if (user.handle() == nullptr && b.stream.id() == legacy.id()) return true;
    if (is_captured(user)) return user.handle() == b.stream.handle();
    try {
      tarn::stream_ref const known = tarn::identified(memory, user);
      if (known.id() != b.stream.id()) memory.record_stream(p, b.bytes, known);
      return true;
    } catch (...) {
      return memory.driver().synchronize_stream(user).ok();
    }
  }
  /// A captured stream must not be identified: that ends the capture with an error.
  [[nodiscard]] bool is_captured(tarn::stream_ref stream) const noexcept {
    bool captured = false;
    return stream.handle() != nullptr && memory.driver().is_capturing(stream, captured).ok() && captured;
  }
};

namespace {

constexpr int most_devices = 64;
std::mutex pools_mutex;                         // held while one is made
std::atomic<tarn_c_pool*> pools[most_devices];  // never destroyed

tarn_c_pool* pool_of(int device, char const* trace) {
  if (device < 0 || device >= most_devices) {
    set_error(other_error, "there is no device of that number");
    return nullptr;
  }
  std::atomic<tarn_c_pool*>& here = pools[device];
  tarn_c_pool* pool = here.load(std::memory_order_acquire);
  if (pool != nullptr && trace == nullptr) return pool;
  std::lock_guard const guard(pools_mutex);
  pool = here.load(std::memory_order_relaxed);
  if (pool != nullptr && trace != nullptr) {
    set_error(other_error, "the pool of this device is in use already: record from its first call");
    return nullptr;
  }
  if (pool == nullptr) {
    pool = new tarn_c_pool(device, trace);
    here.store(pool, std::memory_order_release);
  }
  return pool;
}

/// The pool of a device, if it was made already.
tarn_c_pool* made_pool_of(int device) noexcept {
  return device >= 0 && device < most_devices ? pools[device].load(std::memory_order_acquire) : nullptr;
}

tarn::stream_ref stream_of(void* handle) noexcept {
  return tarn::stream_ref::from(handle);
}

}  // namespace

extern "C" {

/// All in bytes but the last six.
struct tarn_c_numbers {
  std::size_t allocated;       ///< in live blocks, as the pool rounds them
  std::size_t requested;       ///< in live blocks, as requested
  std::size_t reserved;        ///< held from the driver
  std::size_t peak_allocated;  ///< since the start or the last tarn_c_reset_peaks()
  std::size_t peak_reserved;
  std::size_t limit;        ///< on reserved; the greatest number: none
  std::size_t device_free;  ///< of the whole device, as the driver reports
  std::size_t device_total;
  std::size_t blocks;        ///< live
  std::size_t free_blocks;   ///< free ranges of the pool
  std::size_t refusals;      ///< requests that ended with out_of_memory
  std::size_t driver_calls;  ///< handles created and destroyed, mappings made and removed
  std::size_t host_waits;    ///< times the host waited for a stream
  std::size_t device_waits;  ///< times a stream was made to wait for another
};

/// Returns the pool of a device.
tarn_c_pool* tarn_c_pool_of(int device) {
  return guarded([&] { return pool_of(device, nullptr); });
}
/// Returns the pool of a device, with a trace of all its calls in a new file, for tarn_replay. Fails if the
/// pool exists.
tarn_c_pool* tarn_c_record(int device, char const* path) {
  return guarded([&] { return pool_of(device, path); });
}
/// Writes what the recorder has buffered. Returns 0 if that failed, or if there is none.
int tarn_c_flush(tarn_c_pool* pool) {
  return guarded([&] { return pool->recorder && pool->recorder->layer().flush() ? 1 : 0; });
}

/// Allocates for work on `stream` (a cudaStream_t, null: the legacy default stream), aligned to 256 bytes.
/// Null for 0 bytes.
void* tarn_c_allocate(tarn_c_pool* pool, std::size_t bytes, void* stream) {
  return guarded([&] { return pool->allocate(bytes, stream_of(stream)); });
}
/// Allocates memory that every stream may use at once, for callers that do not know their stream. It is freed
/// in the order of the legacy default stream: after the work that all blocking streams had then. Non-blocking
/// streams must be synchronised before the free.
void* tarn_c_allocate_for_every_stream(tarn_c_pool* pool, std::size_t bytes) {
  return guarded([&] { return pool->allocate_for_every_stream(bytes); });
}
/// Frees a block in the order of the stream that it was allocated for. Does nothing for null and for other
/// pointers.
void tarn_c_free(tarn_c_pool* pool, void* p) {
  pool->free(p, nullptr);
}
/// The same, and the memory also waits for the work that `user` has now.
void tarn_c_free_after(tarn_c_pool* pool, void* p, void* user) {
  tarn::stream_ref const stream = stream_of(user);
  pool->free(p, &stream);
}

/// Returns cached memory to the driver until at most `keep` bytes are reserved; returns the bytes released.
std::size_t tarn_c_trim(tarn_c_pool* pool, std::size_t keep) {
  return guarded([&] { return pool->memory.trim(keep); });
}
/// Bounds the bytes that the pool reserves.
void tarn_c_set_limit(tarn_c_pool* pool, std::size_t bytes) {
  auto const set = [bytes](auto& layer) -> decltype(layer.set_limit(bytes)) {
    return layer.set_limit(bytes);
  };
  tarn::nearest(pool->memory, set);
}
void tarn_c_read(tarn_c_pool* pool, tarn_c_numbers* out) {
  guarded([&] {
    auto const statistics = [](auto& layer) -> decltype(layer.statistics()) { return layer.statistics(); };
    auto const limit = [](auto& layer) -> decltype(layer.limit()) { return layer.limit(); };
    auto const state = [](auto& layer) -> decltype(layer.state()) { return layer.state(); };
    auto const counted = tarn::nearest(pool->memory, statistics);
    tarn::pool_state const now = tarn::nearest(pool->memory, state);
    tarn_c_numbers n{};
    n.allocated = tarn::memory_allocated(pool->memory);
    n.requested = static_cast<std::size_t>(counted.requested_bytes[0].current);
    n.reserved = now.reserved;
    n.peak_allocated = tarn::max_memory_allocated(pool->memory);
    n.peak_reserved = now.reserved_peak;
    n.limit = tarn::nearest(pool->memory, limit);
    (void)pool->memory.driver().memory_info(n.device_free, n.device_total);
    n.blocks = static_cast<std::size_t>(counted.allocations[0].current);
    n.free_blocks = now.free_blocks;
    n.refusals = static_cast<std::size_t>(now.ooms);
    n.driver_calls = static_cast<std::size_t>(now.creates + now.destroys + now.maps + now.unmaps);
    n.host_waits = static_cast<std::size_t>(now.host_waits);
    n.device_waits = static_cast<std::size_t>(now.device_waits);
    *out = n;
    return 0;
  });
}
void tarn_c_reset_peaks(tarn_c_pool* pool) {
  guarded([&] {
    tarn::reset_peak_memory_stats(pool->memory);
    return 0;
  });
}

/// Returns why the last function that can fail did, on this thread; empty if it did not. Valid until the next
/// call.
char const* tarn_c_error() {
  return last.text;
}
/// 0: it did not fail; 1: out of memory; 2: another error.
int tarn_c_error_kind() {
  return last.kind;
}

// CuPy: the two functions of cupy.cuda.memory.CFunctionAllocator, which calls them with the interpreter's
// lock held. Nothing of Python is linked: the caller fills this in.
struct tarn_c_cupy {
  /// CuPy's own: the current stream of the calling thread on a device. -1 with a Python exception set: it
  /// failed.
  std::intptr_t (*current_stream)(int device);
  void (*set_exception)(void* type, void* arguments);  ///< PyErr_SetObject
  void (*clear_exception)();                           ///< PyErr_Clear
  void* (*build_value)(char const* format, ...);       ///< Py_BuildValue
  void (*release)(void* object);                       ///< Py_DecRef
  void* out_of_memory_type;                            ///< called with (size, total, limit, report)
  void* other_error_type;                              ///< called with (text)
  void* (*save_thread)();                              ///< PyEval_SaveThread
  void (*restore_thread)(void* state);                 ///< PyEval_RestoreThread
  int is_ending;  ///< set before the interpreter ends: CuPy's stream cannot be asked any more
};

}  // extern "C"

namespace {
/// Lets other threads of Python run. The pool may wait for work of the device, or for a thread that does; and
/// that work may be a function of Python.
class without_interpreter {
 public:
  explicit without_interpreter(tarn_c_cupy const& cupy) : cupy_(cupy), state_(cupy.save_thread()) {}
  without_interpreter(without_interpreter const&) = delete;
  without_interpreter& operator=(without_interpreter const&) = delete;
  ~without_interpreter() { cupy_.restore_thread(state_); }

 private:
  tarn_c_cupy const& cupy_;
  void* state_;
};
}  // namespace

extern "C" {

/// Allocates on CuPy's current stream. On failure sets the Python exception and returns the address -1, on
/// which CuPy's function, compiled by Cython 3, looks for an exception. tarn_cupy.py tests at install() that
/// it does.
void* tarn_c_cupy_malloc(void* self, std::size_t bytes, int device) {
  auto const failed = reinterpret_cast<void*>(std::intptr_t{-1});
  auto const& cupy = *static_cast<tarn_c_cupy const*>(self);
  std::intptr_t const stream = cupy.current_stream(device);
  if (stream == -1) return failed;
  tarn_c_pool* pool = made_pool_of(device);
  if (pool == nullptr) pool = tarn_c_pool_of(device);
  void* const p = pool == nullptr ? nullptr : guarded([&] {
    without_interpreter const other_threads_run(cupy);
    return pool->allocate(bytes, stream_of(reinterpret_cast<void*>(stream)));
  });
  if (p != nullptr) return p;

  void* arguments = nullptr;
  void* type = cupy.other_error_type;
  if (pool != nullptr && last.kind == out_of_memory) {
    last_error const why = last;  // tarn_c_read() clears it
    tarn_c_numbers n{};
    tarn_c_read(pool, &n);
    type = cupy.out_of_memory_type;
    arguments = cupy.build_value(
        "(KKKs)", static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(n.reserved),
        static_cast<unsigned long long>(n.limit == no_limit ? 0 : n.limit), why.text);
  } else {
    arguments = cupy.build_value("(s)", last.text);
  }
  if (arguments == nullptr) return failed;  // Python has no memory, and its exception is set
  cupy.set_exception(type, arguments);
  cupy.release(arguments);
  return failed;
}

/// Frees in the order of the stream that was current at the allocation, and of the one that is current now.
void tarn_c_cupy_free(void* self, void* p, int device) {
  auto const& cupy = *static_cast<tarn_c_cupy const*>(self);
  tarn_c_pool* const pool = made_pool_of(device);
  if (pool == nullptr) return;  // it has allocated nothing
  if (cupy.is_ending != 0) return pool->free(p, nullptr);
  std::intptr_t const handle = cupy.current_stream(device);
  if (handle == -1) {
    cupy.clear_exception();
    return pool->free(p, nullptr);
  }
  tarn::stream_ref const stream = stream_of(reinterpret_cast<void*>(handle));
  without_interpreter const other_threads_run(cupy);
  pool->free(p, &stream);
}

}  // extern "C"
