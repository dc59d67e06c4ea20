// SPDX-License-Identifier: Apache-2.0
#include "graphs/measure.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tarn/tarn.hpp"

namespace tarn::bench {

namespace {

void require(cudaError_t code, char const* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorName(code));
}

__global__ void touch(float* p, std::size_t n) {
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] += 1;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The temporary buffers of a step: `batch` scales them.
std::size_t bytes_of(unsigned node, std::size_t batch) {
  return batch * (512 + 96 * (node * 7 % 41));
}

/// Allocates and launches; `memory` gives each temporary.
template <class Memory>
void step(Memory& memory, tarn::stream const& s, float* data, unsigned nodes, std::size_t batch) {
  for (unsigned i = 0; i < nodes; ++i) {
    if (i % 2 == 0) {
      std::size_t const bytes = bytes_of(i, batch);
      void* const p = memory.allocate(s, bytes);
      touch<<<1, 32, 0, s.get()>>>(static_cast<float*>(p), 32);
      memory.deallocate(s, p, bytes);
    } else {
      touch<<<1, 32, 0, s.get()>>>(data, 32);
    }
  }
}
/// The same for the layers of a network, four temporaries each: a layer repeats the sizes of the one before,
/// and its output lives until the next one has its own.
template <class Memory>
void layers(Memory& memory, tarn::stream const& s, float* data, unsigned nodes, std::size_t batch) {
  std::size_t const width = batch * 1024;
  auto const kernels_on = [&](void* p) {
    touch<<<1, 32, 0, s.get()>>>(static_cast<float*>(p), 32);
    touch<<<1, 32, 0, s.get()>>>(data, 32);
  };
  auto const make = [&](std::size_t bytes) {
    void* const p = memory.allocate(s, bytes);
    kernels_on(p);
    return p;
  };
  void* input = nullptr;
  for (unsigned layer = 0; layer < nodes / 8; ++layer) {
    void* const projected = make(3 * width);
    void* const attended = make(width);
    memory.deallocate(s, projected, 3 * width);
    void* const widened = make(4 * width);
    void* const output = make(width);
    memory.deallocate(s, widened, 4 * width);
    memory.deallocate(s, attended, width);
    if (input != nullptr) memory.deallocate(s, input, width);
    input = output;
  }
  if (input != nullptr) memory.deallocate(s, input, width);
}
/// What is captured, as a function object.
struct sizes_that_vary {
  static constexpr char const* name = "temporary buffers";
  template <class... A>
  void operator()(A&&... a) const {
    step(a...);
  }
};
struct sizes_by_layer {
  static constexpr char const* name = "temporary buffers of repeated layers";
  template <class... A>
  void operator()(A&&... a) const {
    layers(a...);
  }
};
/// Memory that was allocated before the capture.
struct prepared {
  void* p;
  void* allocate(tarn::stream const&, std::size_t) const { return p; }
  void deallocate(tarn::stream const&, void*, std::size_t) const {}
};

/// Captures, ends and discards; returns the seconds from before the scope to after it.
template <class Captured, class Work>
double capture(tarn::stream const& s, Captured const& captured, Work const& work) {
  cudaGraph_t graph = nullptr;
  double const begin = now();
  work([&](auto& memory, float* data, unsigned nodes, std::size_t batch) {
    require(cudaStreamBeginCapture(s.get(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    captured(memory, s, data, nodes, batch);
    require(cudaStreamEndCapture(s.get(), &graph), "cudaStreamEndCapture");
  });
  double const seconds = now() - begin;
  require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return seconds;
}

/// Nanoseconds of an allocation and its deallocation, warm.
template <class Pool>
double pair_ns(Pool& pool, tarn::stream_ref s, unsigned pairs) {
  for (unsigned i = 0; i < 1000; ++i) pool.deallocate(s, pool.allocate(s, 4096), 4096);
  std::vector<double> runs;
  for (int r = 0; r < 9; ++r) {
    double const begin = now();
    for (unsigned i = 0; i < pairs; ++i) pool.deallocate(s, pool.allocate(s, 4096), 4096);
    runs.push_back((now() - begin) / pairs * 1e9);
  }
  return median(runs);
}

/// The same on each of 16 threads, on a stream of its own; the median of the threads.
template <class Pool>
double pair_ns_of_16(Pool& pool, unsigned pairs) {
  std::vector<double> of_thread(16);
  std::vector<std::thread> threads;
  for (double& result : of_thread) {
    threads.emplace_back([&] {
      tarn::stream const own;
      result = pair_ns(pool, own, pairs);
    });
  }
  for (auto& t : threads) t.join();
  return median(of_thread);
}

template <class Call>
double call_ns(unsigned times, Call const& call) {
  std::vector<double> runs;
  for (int r = 0; r < 9; ++r) {
    double const begin = now();
    for (unsigned i = 0; i < times; ++i) call();
    runs.push_back((now() - begin) / times * 1e9);
  }
  return median(runs);
}

}  // namespace

void measure_graphs(graph_effort const& e, figure_handler const& on_figure) {
  device_pool pool;
  tarn::stream s;
  auto data = make_device_buffer<float>(pool, 1024, s);
  auto scratch = make_device_buffer<char>(pool, 8 << 20, s);
  prepared before{scratch.data()};
  touch<<<1, 32, 0, s.get()>>>(data.data(), 32);
  s.synchronize();

  auto const compare = [&](auto& from, auto const& captured, char const* way) {
    graph_memory memory{from};
    std::vector<double> with, without;
    for (unsigned i = 0; i < e.captures + 10; ++i) {
      double const a = capture(s, captured, [&](auto const& run) {
        capture_scope const scope(memory, s);
        run(from, data.data(), e.nodes, 512);
      });
      double const b = capture(s, captured, [&](auto const& run) { run(before, data.data(), e.nodes, 512); });
      if (i >= 10) with.push_back(a), without.push_back(b);
    }
    on_figure({"capture of " + std::to_string(e.nodes) + " kernels with " + std::to_string(e.nodes / 2) +
                   " " + captured.name,
               way, "us", median(with) * 1e6, median(without) * 1e6, "memory allocated before"});
  };
  compare(pool, sizes_that_vary{}, "device_pool, one thread");
  compare(pool, sizes_by_layer{}, "device_pool, one thread");
  {
    auto without_statistics = cuda_pages{} | pooled{};
    compare(without_statistics, sizes_that_vary{}, "a pool without statistics, one thread");
  }
  // The threads allocate and free one block each. Their peak stops rising after a while.
  auto const beside_threads = [&](auto& from, char const* way) {
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 15; ++t) {
      threads.emplace_back([&] {
        tarn::stream const own;
        while (!over) from.deallocate(own, from.allocate(own, 4096), 4096);
      });
    }
    compare(from, sizes_that_vary{}, way);
    over = true;
    for (auto& t : threads) t.join();
  };
  beside_threads(pool, "device_pool, beside 15 threads that allocate and free");
  {
    auto exact_peaks = cuda_pages{} | pooled{} | tracked{.peak_error = 0};
    beside_threads(exact_peaks, "tracked{.peak_error = 0}, beside 15 threads");
    auto without_statistics = cuda_pages{} | pooled{};
    beside_threads(without_statistics, "a pool without statistics, beside 15 threads");
  }
  {
    graph_memory memory{pool};
    std::vector<double> scopes;
    for (unsigned i = 0; i < e.captures; ++i) {
      double const begin = now();
      { capture_scope const scope(memory, s); }
      scopes.push_back(now() - begin);
    }
    on_figure({"capture_scope, opened and closed", "device_pool", "us", median(scopes) * 1e6, 0, ""});
  }

  // 32 batch sizes; the largest first, and last.
  auto const held_by = [&](graph_memory<device_pool>& memory, std::size_t batch) {
    tarn::stream const own;
    (void)capture(own, sizes_that_vary{}, [&](auto const& run) {
      capture_scope const scope(memory, own);
      std::vector<std::pair<void*, std::size_t>> live;
      run(pool, data.data(), 40, batch);
    });
    return memory.state().reserved;
  };
  for (bool const rising : {false, true}) {
    graph_memory alone{pool};
    double const largest = static_cast<double>(held_by(alone, 32 * 4096));
    graph_memory shared{pool};
    std::size_t held = 0;
    for (std::size_t n = 1; n <= 32; ++n) held = held_by(shared, (rising ? n : 33 - n) * 4096);
    on_figure({"32 graphs of different batch sizes with one owner, held",
               rising ? "the smallest first" : "the largest first", "MiB",
               static_cast<double>(held) / (1 << 20), largest / (1 << 20), "the largest alone"});
  }

  double const usual = pair_ns(pool, s, e.pairs);
  auto in_scopes = cuda_pages{} | pooled{.captures = capture_watch::in_scopes} | tracked{};
  auto always = cuda_pages{} | pooled{.captures = capture_watch::always} | tracked{};
  double const without = pair_ns(in_scopes, s, e.pairs);
  on_figure({"pair of 4 KiB", "capture_watch::at_frees", "ns", usual, without, "capture_watch::in_scopes"});
  on_figure({"pair of 4 KiB", "capture_watch::always", "ns", pair_ns(always, s, e.pairs), without,
             "capture_watch::in_scopes"});
  on_figure({"pair of 4 KiB on each of 16 threads", "capture_watch::at_frees", "ns",
             pair_ns_of_16(pool, e.pairs), pair_ns_of_16(in_scopes, e.pairs), "capture_watch::in_scopes"});
  {
    graph_memory memory{pool};
    tarn::stream const other;
    capture_scope const scope(memory, other);
    on_figure({"pair of 4 KiB while a scope is open", "device_pool", "ns", pair_ns(pool, s, e.pairs), usual,
               "the same without a scope"});
  }
  cuda_driver const driver;
  bool captured = false;
  stream_id id = 0;
  tarn::stream_ref const bare(s.get());
  on_figure({"is_capturing of a stream", "cuda_driver", "ns",
             call_ns(e.pairs, [&] { (void)driver.is_capturing(bare, captured); }),
             call_ns(e.pairs, [&] { (void)driver.identify(bare, id); }), "identify"});
  {
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 14; ++t) {
      threads.emplace_back([&] {
        tarn::stream const own;
        tarn::stream_ref const its(own.get());
        bool answer = false;
        while (!over) (void)driver.is_capturing(its, answer);
      });
    }
    on_figure({"is_capturing of a stream while 14 threads ask of theirs", "cuda_driver", "ns",
               call_ns(e.pairs, [&] { (void)driver.is_capturing(bare, captured); }), 0, ""});
    over = true;
    for (auto& t : threads) t.join();
  }
}

}  // namespace tarn::bench
