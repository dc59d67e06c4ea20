// SPDX-License-Identifier: Apache-2.0
#pragma once
// The network of train.cpp and data_parallel.cpp: digits that the program draws, kernels, and layers whose
// memory is a pool's. On CUDA it is compiled by nvcc; on the simulated device the same kernels are plain
// loops.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer.hpp"

namespace training {

// The data: seven-segment digits, 8 x 8 pixels, shifted, dimmed and with noise.

constexpr std::size_t side = 8;
struct sample {
  float pixels[side * side];
  int digit;
};
constexpr std::size_t words = sizeof(sample) / sizeof(float);

/// The same numbers on every platform: the distributions of std differ between libraries.
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : state_(seed) {}
  /// Returns a number in [0, 1).
  float next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<float>(state_ >> 40) / 16777216.0F;
  }

 private:
  std::uint64_t state_;
};

inline std::vector<sample> draw_digits(std::size_t count, std::uint64_t seed) {
  // Segments: top, upper left, upper right, middle, lower left, lower right, bottom.
  constexpr std::array<unsigned, 10> segments = {0b1110111, 0b0100100, 0b1011101, 0b1101101, 0b0101110,
                                                 0b1101011, 0b1111011, 0b0100101, 0b1111111, 0b1101111};
  random_numbers random(seed);
  std::vector<sample> out(count);
  for (sample& s : out) {
    s.digit = static_cast<int>(random.next() * 10);
    auto const right = static_cast<std::size_t>(random.next() * 3);
    auto const down = static_cast<std::size_t>(random.next() * 2);
    float const ink = 0.6F + 0.4F * random.next();
    for (float& p : s.pixels) p = 0.8F * (random.next() - 0.5F);
    auto const dot = [&](std::size_t row, std::size_t column) {
      s.pixels[(row + down) * side + column + right] += ink;
    };
    unsigned const lit = segments[static_cast<std::size_t>(s.digit)];
    for (std::size_t i = 0; i < 3; ++i) {
      if ((lit & 1U) != 0) dot(0, i + 1);
      if ((lit & 2U) != 0) dot(i, 0);
      if ((lit & 4U) != 0) dot(i, 4);
      if ((lit & 8U) != 0) dot(3, i + 1);
      if ((lit & 16U) != 0) dot(i + 3, 0);
      if ((lit & 32U) != 0) dot(i + 3, 4);
      if ((lit & 64U) != 0) dot(6, i + 1);
    }
  }
  return out;
}

// The kernels: each computes one element, in float, whatever type is stored.

template <class T>
struct rows {
  T const* first;
  std::size_t stride;
  TARN_HOST_DEVICE float operator()(std::size_t row, std::size_t column) const {
    return static_cast<float>(first[row * stride + column]);
  }
};

enum class activation { relu, none };

/// One output of one sample. Weights are stored by output, followed by the biases.
template <class In, class Out>
struct forward {
  rows<In> in;
  float const* weights;
  std::size_t inputs, outputs;
  activation then;
  Out* out;
  TARN_HOST_DEVICE void operator()(std::size_t i) const {
    std::size_t const s = i / outputs, o = i % outputs;
    float sum = weights[outputs * inputs + o];
    for (std::size_t k = 0; k < inputs; ++k) sum += weights[o * inputs + k] * in(s, k);
    if (then == activation::relu && sum < 0) sum = 0;
    out[i] = static_cast<Out>(sum);
  }
};

/// The gradient of softmax and cross-entropy for one sample; overwrites its outputs.
struct loss_gradient {
  float* out;
  sample const* samples;
  std::size_t classes;
  float scale;
  TARN_HOST_DEVICE void operator()(std::size_t s) const {
    float* const row = out + s * classes;
    float largest = row[0];
    for (std::size_t c = 1; c < classes; ++c) largest = row[c] > largest ? row[c] : largest;
    float sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += row[c] = expf(row[c] - largest);
    for (std::size_t c = 0; c < classes; ++c) {
      float const wanted = static_cast<int>(c) == samples[s].digit ? 1.0F : 0.0F;
      row[c] = scale * (row[c] / sum - wanted);
    }
  }
};

/// Adds the part's gradient of one weight or bias.
template <class In>
struct add_weight_gradient {
  rows<In> in;
  float const* out_gradient;
  std::size_t samples, inputs, outputs;
  float* gradient;
  TARN_HOST_DEVICE void operator()(std::size_t i) const {
    bool const is_bias = i >= outputs * inputs;
    std::size_t const o = is_bias ? i - outputs * inputs : i / inputs;
    float sum = 0;
    for (std::size_t s = 0; s < samples; ++s) {
      sum += out_gradient[s * outputs + o] * (is_bias ? 1.0F : in(s, i % inputs));
    }
    gradient[i] += sum;
  }
};

/// The gradient of one input of one sample, the output of a ReLU.
template <class In>
struct input_gradient {
  rows<In> in;
  float const* weights;
  float const* out_gradient;
  std::size_t inputs, outputs;
  float* gradient;
  TARN_HOST_DEVICE void operator()(std::size_t i) const {
    std::size_t const s = i / inputs, k = i % inputs;
    float sum = 0;
    if (in(s, k) > 0) {
      for (std::size_t o = 0; o < outputs; ++o)
        sum += weights[o * inputs + k] * out_gradient[s * outputs + o];
    }
    gradient[i] = sum;
  }
};

struct update {
  float* weights;
  float* velocity;
  float* gradient;
  TARN_HOST_DEVICE void operator()(std::size_t i) const {
    velocity[i] = 0.9F * velocity[i] - 0.1F * gradient[i];
    weights[i] += velocity[i];
    gradient[i] = 0;
  }
};

#if TARN_HAS_CUDA
#if !defined(__CUDACC__)
#error "these are kernels: compile with nvcc, or define TARN_NO_CUDA for the simulated device"
#endif
template <class Kernel>
__global__ void each_element(std::size_t n, Kernel kernel) {
  std::size_t const i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < n) kernel(i);
}
#endif

/// Runs kernels in the order of one stream.
template <class Driver>
struct processor {
  Driver driver;
  tarn::stream_ref stream;

  /// Runs a kernel for 0 .. n-1. `touched` lists what it reads and writes: the simulated device checks these
  /// accesses.
  template <class Kernel>
  void each(std::size_t n, std::initializer_list<tarn::sim_access> touched, Kernel kernel) const {
    if constexpr (std::is_same_v<Driver, tarn::sim_driver>) {
      tarn::status const s = driver.launch(stream, 1000 + n, touched, [=] {
        for (std::size_t i = 0; i < n; ++i) kernel(i);
      });
      if (!s.ok()) throw tarn::cuda_error(s, driver.device().value);
    } else {
#if TARN_HAS_CUDA
      (void)touched;
      constexpr unsigned threads = 128;
      auto const blocks = static_cast<unsigned>((n + threads - 1) / threads);
      each_element<<<blocks, threads, 0, stream.get()>>>(n, kernel);
      if (cudaError_t const code = cudaGetLastError(); code != cudaSuccess)
        throw std::runtime_error(cudaGetErrorString(code));
#endif
    }
  }
};

template <class Buffer>
tarn::sim_access reads(Buffer const& b) {
  return tarn::sim_reads(b.data(), b.bytes());
}
template <class Buffer>
tarn::sim_access writes(Buffer const& b) {
  return tarn::sim_writes(b.data(), b.bytes());
}

// The techniques, and the network that uses them.

constexpr std::array<std::size_t, 6> widths = {side * side, 32, 32, 32, 32, 10};
constexpr std::size_t last =
    widths.size() - 1;  ///< the output layer; layer l maps widths[l - 1] to widths[l]
constexpr std::size_t batch_size = 256;

enum class loading { whole, streamed };
enum class between_passes { keep_activations, keep_every_second };
using layers_on_host = std::vector<std::vector<float>>;  ///< weights by layer, from 1 on
struct techniques {
  std::size_t budget = ~std::size_t{0};  ///< bytes for the activations and gradients of one part of a batch
  layers_on_host frozen{1};              ///< the first layers, trained earlier and not changed
  loading data = loading::whole;
  between_passes remember = between_passes::keep_activations;
};

/// What a network makes of samples that it has not seen.
struct score {
  double loss = 0;
  double accuracy = 0;  ///< per cent
};

/// @tparam Stored  type of the stored activations
template <class Stored, class Pool>
class network {
 public:
  using driver_type = typename Pool::driver_type;
  template <class T>
  using buffer = tarn::device_buffer<T, Pool>;

  network(Pool pool, processor<driver_type> gpu, techniques how)
      : pool_(std::move(pool)), gpu_(gpu), how_(std::move(how)), frozen_(how_.frozen.size() - 1) {
    random_numbers random(7);
    for (std::size_t l = 0; l <= last; ++l) {
      kept_.emplace_back(pool_, gpu_.stream);
      weights_.emplace_back(pool_, gpu_.stream);
      gradients_.emplace_back(pool_, gpu_.stream);
      velocities_.emplace_back(pool_, gpu_.stream);
      if (l == 0) continue;
      std::size_t const count = widths[l] * (widths[l - 1] + 1);
      std::vector<float> host(count);
      float const range = std::sqrt(6.0F / static_cast<float>(widths[l - 1]));
      for (std::size_t i = 0; i < widths[l] * widths[l - 1]; ++i) host[i] = range * (2 * random.next() - 1);
      if (l <= frozen_) host = how_.frozen[l];
      weights_[l] = tarn::make_device_buffer<float>(pool_, std::span<float const>(host), gpu_.stream);
      if (l <= frozen_) continue;  // frozen: neither gradients nor velocities
      for (auto* state : {&gradients_[l], &velocities_[l]}) {
        *state = tarn::make_device_buffer<float>(pool_, count, gpu_.stream);
        state->zero();
      }
    }
  }

  /// One step: learns from the batch and updates the weights.
  void step(std::span<sample const> batch) {
    add_gradients(batch, batch.size());
    update_weights();
  }
  /// Adds the gradients of samples that are a part of a batch of `whole` samples; in as many parts as the
  /// budget requires.
  void add_gradients(std::span<sample const> samples, std::size_t whole) {
    for (tarn::micro_batch const part :
         tarn::micro_batches(samples.size(), bytes_per_sample(), how_.budget)) {
      learn(samples.subspan(part.first, part.count), 1.0F / static_cast<float>(whole));
    }
  }
  /// The gradients of each layer that learns, for a sum over several devices before update_weights().
  [[nodiscard]] std::vector<std::span<float>> gradients() {
    std::vector<std::span<float>> all;
    for (std::size_t l = frozen_ + 1; l <= last; ++l) all.push_back(gradients_[l].span());
    return all;
  }
  void update_weights() {
    for (std::size_t l = frozen_ + 1; l <= last; ++l) {
      gpu_.each(weights_[l].size(), {writes(weights_[l]), writes(velocities_[l]), writes(gradients_[l])},
                update{weights_[l].data(), velocities_[l].data(), gradients_[l].data()});
    }
  }

  [[nodiscard]] layers_on_host weights() const {
    layers_on_host host(last + 1);
    for (std::size_t l = 1; l <= last; ++l) {
      host[l].resize(weights_[l].size());
      weights_[l].copy_to_sync(host[l]);
    }
    return host;
  }
  /// Compares the output layer with the digits of these samples.
  [[nodiscard]] score outputs_for(std::span<sample const> samples) {
    auto const x = tarn::make_device_buffer<sample>(pool_, samples, gpu_.stream);
    std::vector<float> said(samples.size() * widths[last]);
    pass_forward(x.span()).copy_to_sync(said);
    drop_all();
    score r;
    for (std::size_t s = 0; s < samples.size(); ++s) {
      std::span<float const> const row(said.data() + s * widths[last], widths[last]);
      auto const right = static_cast<std::size_t>(samples[s].digit);
      std::size_t best = 0;
      double sum = 0;
      for (std::size_t c = 0; c < row.size(); ++c) {
        if (row[c] > row[best]) best = c;
        sum += std::exp(static_cast<double>(row[c]) - static_cast<double>(row[right]));
      }
      r.loss += std::log(sum) / static_cast<double>(samples.size());
      r.accuracy += best == right ? 100.0 / static_cast<double>(samples.size()) : 0;
    }
    return r;
  }

 private:
  /// The peak of live bytes per sample: at the end of the forward pass, with the first gradients.
  static std::size_t bytes_per_sample() {
    std::size_t hidden = 0;
    for (std::size_t l = 1; l < last; ++l) hidden += widths[l];
    return tarn::bytes_of<Stored, float>(hidden, widths[last] + widths[last - 1]);
  }

  /// Whether layer l's output is kept until the backward pass.
  [[nodiscard]] bool is_remembered(std::size_t l) const {
    return l >= frozen_ && (how_.remember == between_passes::keep_activations || l % 2 == 0);
  }

  template <class In, class Out>
  void run(std::size_t l, rows<In> in, tarn::sim_access touched, std::size_t samples, buffer<Out>& out) {
    out = tarn::make_device_buffer<Out>(pool_, samples * widths[l], gpu_.stream);
    auto const then = l == last ? activation::none : activation::relu;
    gpu_.each(out.size(), {touched, reads(weights_[l]), writes(out)},
              forward<In, Out>{in, weights_[l].data(), widths[l - 1], widths[l], then, out.data()});
  }
  /// Computes layer l from the output of layer l - 1, or from the samples.
  template <class Out>
  void run(std::size_t l, std::span<sample const> x, buffer<Out>& out) {
    if (l == 1) {
      run(l, pixels(x), tarn::sim_reads(x.data(), x.size_bytes()), x.size(), out);
    } else {
      recall(l - 1, x);
      run(l, left_by(l - 1), reads(kept_[l - 1]), x.size(), out);
    }
  }
  /// Makes layer l's output available: recomputes it if it was not kept.
  void recall(std::size_t l, std::span<sample const> x) {
    if (l != 0 && kept_[l].empty()) run(l, x, kept_[l]);
  }
  buffer<float> pass_forward(std::span<sample const> x) {
    for (std::size_t l = 1; l < last; ++l) {
      run(l, x, kept_[l]);
      if (!is_remembered(l - 1)) kept_[l - 1].reset();
    }
    buffer<float> out(pool_, gpu_.stream);
    run(last, x, out);
    if (!is_remembered(last - 1)) kept_[last - 1].reset();
    return out;
  }

  void learn(std::span<sample const> x, float scale) {
    buffer<float> gradient = pass_forward(x);
    gpu_.each(x.size(), {writes(gradient), tarn::sim_reads(x.data(), x.size_bytes())},
              loss_gradient{gradient.data(), x.data(), widths[last], scale});
    for (std::size_t l = last; l > frozen_; --l) {
      recall(l - 1, x);
      if (l == 1) {
        add_gradient(l, pixels(x), tarn::sim_reads(x.data(), x.size_bytes()), x.size(), gradient);
      } else {
        add_gradient(l, left_by(l - 1), reads(kept_[l - 1]), x.size(), gradient);
      }
      if (l == frozen_ + 1) break;  // no lower layer learns
      auto below = tarn::make_device_buffer<float>(pool_, x.size() * widths[l - 1], gpu_.stream);
      gpu_.each(below.size(), {reads(kept_[l - 1]), reads(weights_[l]), reads(gradient), writes(below)},
                input_gradient<Stored>{left_by(l - 1), weights_[l].data(), gradient.data(), widths[l - 1],
                                       widths[l], below.data()});
      gradient = std::move(below);
      kept_[l - 1].reset();
    }
    drop_all();
  }
  template <class In>
  void add_gradient(std::size_t l, rows<In> in, tarn::sim_access touched, std::size_t samples,
                    buffer<float> const& gradient) {
    gpu_.each(gradients_[l].size(), {touched, reads(gradient), writes(gradients_[l])},
              add_weight_gradient<In>{in, gradient.data(), samples, widths[l - 1], widths[l],
                                      gradients_[l].data()});
  }

  static rows<float> pixels(std::span<sample const> x) {
    return {reinterpret_cast<float const*>(x.data()), words};
  }
  [[nodiscard]] rows<Stored> left_by(std::size_t l) const { return {kept_[l].data(), widths[l]}; }
  void drop_all() {
    for (auto& k : kept_) k.reset();
  }

  Pool pool_;
  processor<driver_type> gpu_;
  techniques how_;
  std::size_t frozen_;
  std::vector<buffer<float>> weights_, gradients_, velocities_;  ///< by layer, from 1 on
  std::vector<buffer<Stored>> kept_;                             ///< live outputs of hidden layers
};

}  // namespace training
