// SPDX-License-Identifier: Apache-2.0
// A CUDA graph with a pool: an inference step is captured once and replayed 1,000 times between eager work that allocates at random.
// The results are those of the eager step, bit for bit. On CUDA it is compiled by nvcc; on the simulated device the same kernels are
// plain loops.

#include <cstdint>
#include <initializer_list>
#include <iostream>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu_or_simulated.hpp"
#include "tarn/tarn.hpp"

namespace {

/// One output of one sample of a dense layer with ReLU.
struct dense {
  float const* in;
  float const* weights;
  std::size_t inputs, outputs;
  float* out;
  TARN_HOST_DEVICE void operator()(std::size_t i) const {
    float sum = 0;
    for (std::size_t k = 0; k < inputs; ++k)
      sum += weights[i % outputs * inputs + k] * in[i / outputs * inputs + k];
    out[i] = sum > 0 ? sum : 0;
  }
};
struct fill_with {
  float* out;
  std::uint32_t seed;
  TARN_HOST_DEVICE void operator()(std::size_t i) const {
    std::uint32_t x = (static_cast<std::uint32_t>(i) + seed) * 2654435761U;
    x ^= x >> 15;
    out[i] = static_cast<float>(x % 2001) / 1000.0F - 1.0F;
  }
};

#if TARN_HAS_CUDA
template <class Kernel>
__global__ void each_element(std::size_t n, Kernel kernel) {
  std::size_t const i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < n) kernel(i);
}
void require(cudaError_t code, char const* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
}
#endif
[[maybe_unused]] void require(tarn::status const& s) {
  if (!s.ok()) throw tarn::cuda_error(s);
}

/// Runs a kernel for 0 .. n-1. `touched` lists what it reads and writes: the simulated device checks these accesses.
template <class Driver, class Kernel>
void launch(Driver const& driver, tarn::stream_ref stream, std::size_t n,
            std::initializer_list<tarn::sim_access> touched, Kernel kernel) {
  if constexpr (std::is_same_v<Driver, tarn::sim_driver>) {
    require(driver.launch(stream, 1000 + n, touched, [=] {
      for (std::size_t i = 0; i < n; ++i) kernel(i);
    }));
  } else {
#if TARN_HAS_CUDA
    each_element<<<static_cast<unsigned>((n + 127) / 128), 128, 0, stream.get()>>>(n, kernel);
    require(cudaGetLastError(), "launch");
#endif
  }
}

/// Captures what `work` launches on a stream, and replays it.
template <class Driver>
class captured;
template <>
class captured<tarn::sim_driver> {
 public:
  template <class Work>
  captured(tarn::sim_driver const& driver, tarn::stream_ref stream, Work const& work)
      : machine_(driver.machine()) {
    require(machine_.begin_capture(stream));
    work();
    require(machine_.end_capture(stream, graph_));
  }
  void replay(tarn::stream_ref stream) const { require(machine_.launch(stream, graph_)); }

 private:
  tarn::sim_machine machine_;
  tarn::sim_graph graph_;
};
#if TARN_HAS_CUDA
template <>
class captured<tarn::cuda_driver> {
 public:
  template <class Work>
  captured(tarn::cuda_driver const&, tarn::stream_ref stream, Work const& work) {
    cudaGraph_t graph = nullptr;
    require(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    work();
    require(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
    require(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate");
    require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  captured(captured const&) = delete;
  captured& operator=(captured const&) = delete;
  ~captured() { (void)cudaGraphExecDestroy(exec_); }
  void replay(tarn::stream_ref stream) const {
    require(cudaGraphLaunch(exec_, stream.get()), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};
#endif

constexpr std::size_t batch = 32;
constexpr std::size_t width = 64;
constexpr std::size_t layers = 4;

/// The step: each layer's activations are a buffer of the pool, freed as soon as the next layer has been launched.
template <class Pool>
void infer(Pool const& pool, tarn::stream_ref stream, tarn::device_buffer<float, Pool> const& weights,
           tarn::device_buffer<float, Pool> const& in, tarn::device_buffer<float, Pool>& out) {
  tarn::device_buffer<float, Pool> before(pool, stream);
  for (std::size_t l = 0; l < layers; ++l) {
    tarn::device_buffer<float, Pool> after(pool, stream);
    if (l + 1 < layers) after = tarn::make_device_buffer<float>(pool, batch * width, stream);
    auto const& from = l == 0 ? in : before;
    auto& to = l + 1 < layers ? after : out;
    float const* const w = weights.data() + l * width * width;
    launch(pool.driver(), stream, batch * width,
           {tarn::sim_reads(from.data(), from.bytes()), tarn::sim_reads(w, width * width * sizeof(float)),
            tarn::sim_writes(to.data(), to.bytes())},
           dense{from.data(), w, width, width, to.data()});
    before = std::move(after);
  }
}

/// Allocates, writes and frees at random.
template <class Pool>
class eager_work {
 public:
  eager_work(Pool pool, tarn::stream_ref stream) : pool_(std::move(pool)), stream_(stream) {}
  void act() {
    std::size_t const n = 64 + next() % 20000;
    live_.push_back(tarn::make_device_buffer<float>(pool_, n, stream_));
    auto& made = live_.back();
    launch(pool_.driver(), stream_, n, {tarn::sim_writes(made.data(), made.bytes())},
           fill_with{made.data(), 99});
    if (live_.size() > 12) {
      std::swap(live_[next() % live_.size()], live_.back());
      live_.pop_back();
    }
  }

 private:
  std::uint32_t next() { return (random_ = random_ * 1664525U + 1013904223U) >> 8; }
  Pool pool_;
  tarn::stream_ref stream_;
  std::vector<tarn::device_buffer<float, Pool>> live_;
  std::uint32_t random_ = 1;
};

template <class Gpu>
void run(Gpu const& gpu) {
  using driver_type = typename Gpu::driver_type;
  auto const pool = gpu.device_pool();
  using pool_type = std::remove_const_t<decltype(pool)>;
  auto const stream = gpu.stream();
  auto weights = tarn::make_device_buffer<float>(pool, layers * width * width, stream);
  auto in = tarn::make_device_buffer<float>(pool, batch * width, stream);
  auto out = tarn::make_device_buffer<float>(pool, batch * width, stream);
  auto const fill = [&](tarn::device_buffer<float, pool_type>& b, std::uint32_t seed) {
    launch(pool.driver(), stream, b.size(), {tarn::sim_writes(b.data(), b.bytes())},
           fill_with{b.data(), seed});
  };
  auto const result = [&] {
    std::vector<float> host(out.size());
    out.copy_to_sync(host);
    return host;
  };
  fill(weights, 1);

  // The graph reads `in` and writes `out`; what it needs in between belongs to `memory`.
  tarn::graph_memory memory{pool};
  auto const step = [&] {
    tarn::capture_scope const scope(memory, stream);
    return captured<driver_type>(pool.driver(), stream, [&] { infer(pool, stream, weights, in, out); });
  }();

  eager_work same_stream(pool, stream);
  auto const other = gpu.stream();
  eager_work other_stream(pool, other);
  int replays = 0;
  int identical = 0;
  for (std::uint32_t input = 0; input < 1000; ++input) {
    fill(in, input);
    infer(pool, stream, weights, in, out);
    auto const eager = result();
    fill(out, 7);
    same_stream.act();
    other_stream.act();
    step.replay(stream);
    other_stream.act();
    ++replays;
    identical += result() == eager ? 1 : 0;
  }
  auto const held = memory.state();
  std::cout << replays << " replays, " << identical << " bit-identical to the eager step\n";
  std::cout << "the graph's memory: " << held.allocated << " bytes live, "
            << (held.reserved >= 2 * batch * width * sizeof(float) ? "kept for its replays" : "none") << "\n";
}

}  // namespace

int main() {
  with_gpu_or_simulated([](auto const& gpu) { run(gpu); });
}
