// SPDX-License-Identifier: Apache-2.0
#include "train_image.hpp"

#include <stbi/stbi_wrapper.h>
#include <tiny-cuda-nn/config.h>
#include <tiny-cuda-nn/random.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "../measure/counted_syncs.hpp"
#include "../measure/device_memory.hpp"

namespace tarn_tcnn {

namespace {

using clock = std::chrono::steady_clock;
using matrix = tcnn::GPUMatrix<float>;

double ms_since(clock::time_point start) {
  return std::chrono::duration<double, std::milli>(clock::now() - start).count();
}

/// Samples the image, which has 4 channels, at places in [0, 1), bilinearly, into 3 channels.
__global__ void sample(std::uint32_t count, float const* image, int width, int height, float const* places,
                       float* colours) {
  std::uint32_t const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float const x = places[2 * i] * static_cast<float>(width - 1);
  float const y = places[2 * i + 1] * static_cast<float>(height - 1);
  int const left = min(static_cast<int>(x), width - 2);
  int const top = min(static_cast<int>(y), height - 2);
  float const a = x - static_cast<float>(left);
  float const b = y - static_cast<float>(top);
  for (int c = 0; c < 3; ++c) {
    auto const at = [&](int column, int row) { return image[4 * ((top + row) * width + left + column) + c]; };
    colours[3 * i + c] =
        (1 - b) * ((1 - a) * at(0, 0) + a * at(1, 0)) + b * ((1 - a) * at(0, 1) + a * at(1, 1));
  }
}

/// The centres of the image's pixels; those beyond it repeat the last.
__global__ void place_pixels(std::uint32_t count, int width, int height, float* places) {
  std::uint32_t const i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  std::uint32_t const pixel = min(i, static_cast<std::uint32_t>(width * height - 1));
  places[2 * i] = (static_cast<float>(pixel % width) + 0.5F) / static_cast<float>(width);
  places[2 * i + 1] = (static_cast<float>(pixel / width) + 0.5F) / static_cast<float>(height);
}

struct image_on_device {
  explicit image_on_device(std::string const& path) {
    std::unique_ptr<float, decltype(&std::free)> const pixels(load_stbi(&width, &height, path.c_str()),
                                                              &std::free);
    if (pixels == nullptr) throw std::runtime_error("cannot read " + path);
    data.resize(static_cast<std::size_t>(width) * height * 4);
    data.copy_from_host(pixels.get());
  }
  int width = 0;
  int height = 0;
  tcnn::GPUMemory<float> data;
};

std::uint64_t checksum_of(matrix const& m) {
  std::vector<std::uint32_t> words(m.n_elements());
  CUDA_CHECK_THROW(cudaMemcpy(words.data(), m.data(), m.n_bytes(), cudaMemcpyDeviceToHost));
  std::uint64_t sum = 0;
  for (std::uint32_t const w : words) sum = sum * 1099511628211U + w;
  return sum;
}

class training {
 public:
  training(image_on_device const& image, cudaStream_t stream, int last_log2)
      : image_(image), stream_(stream), places_(2, 1U << last_log2), colours_(3, 1U << last_log2) {
    tcnn::json const config = {
        {"loss", {{"otype", "RelativeL2"}}},
        {"optimizer",
         {{"otype", "Adam"}, {"learning_rate", 1e-2}, {"beta1", 0.9F}, {"beta2", 0.99F}, {"l2_reg", 0.0F}}},
        {"encoding", {{"otype", "OneBlob"}, {"n_bins", 32}}},
        {"network",
         {{"otype", "FullyFusedMLP"},
          {"n_neurons", 64},
          {"n_hidden_layers", 4},
          {"activation", "ReLU"},
          {"output_activation", "None"}}},
    };
    model_ = tcnn::create_from_config(2, 3, config);
  }
  /// Returns the loss if `wanted`, which waits for the stream.
  float step(int log2, bool wanted) {
    std::uint32_t const count = 1U << log2;
    tcnn::generate_random_uniform<float>(stream_, random_, std::size_t{2} * count, places_.data());
    sample<<<count / 256, 256, 0, stream_>>>(count, image_.data.data(), image_.width, image_.height,
                                             places_.data(), colours_.data());
    matrix const places(places_.data(), 2, count);
    matrix const colours(colours_.data(), 3, count);
    auto const context = model_.trainer->training_step(stream_, places, colours);
    return wanted ? model_.trainer->loss(stream_, *context) : 0;
  }
  void infer(cudaStream_t stream, matrix const& places, matrix& colours) {
    model_.network->inference(stream, places, colours);
  }

 private:
  image_on_device const& image_;
  cudaStream_t stream_;
  matrix places_;
  matrix colours_;
  tcnn::TrainableModel model_;
  tcnn::default_rng_t random_{1337};
};

}  // namespace

figures measure(workspace from, work const& what) {
  if (from == workspace::tarn) use_tarn();
  figures f;
  image_on_device const image(what.image);
  std::vector<cudaStream_t> streams(static_cast<std::size_t>(what.streams));
  for (cudaStream_t& s : streams) CUDA_CHECK_THROW(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  training model(image, streams[0], what.last_log2);
  std::uint32_t const pixels = tcnn::next_multiple(static_cast<std::uint32_t>(image.width * image.height),
                                                   tcnn::BATCH_SIZE_GRANULARITY);
  matrix places(2, pixels);
  place_pixels<<<pixels / 256 + 1, 256>>>(pixels, image.width, image.height, places.data());
  std::vector<matrix> inferred;
  for (int i = 0; i < what.streams; ++i) inferred.emplace_back(3, pixels);
  {  // loads the kernels
    matrix const few(places.data(), 2, tcnn::BATCH_SIZE_GRANULARITY);
    matrix out(inferred[0].data(), 3, tcnn::BATCH_SIZE_GRANULARITY);
    model.infer(streams[0], few, out);
    CUDA_CHECK_THROW(cudaDeviceSynchronize());
    tcnn::free_all_gpu_memory_arenas();
  }

  std::size_t before = tarn_clients::free_on_device();
  std::uint64_t syncs = tarn_clients::device_synchronisations();
  int n = 0;
  auto start = clock::now();
  auto const train = [&](int log2) {
    for (int i = 0; i < what.steps; ++i, ++n) {
      bool const wanted = n % 10 == 0;
      float const loss = model.step(log2, wanted);
      if (wanted) f.losses.push_back(loss);
    }
    CUDA_CHECK_THROW(cudaStreamSynchronize(streams[0]));
  };
  for (int log2 = what.first_log2; log2 <= what.last_log2; ++log2) train(log2);
  f.growing_ms = ms_since(start);
  f.syncs_growing = tarn_clients::device_synchronisations() - syncs;
  start = clock::now();
  train(what.last_log2);
  f.step_ms = ms_since(start) / what.steps;
  f.held_training = before - std::min(before, tarn_clients::free_on_device());

  CUDA_CHECK_THROW(cudaDeviceSynchronize());
  tcnn::free_all_gpu_memory_arenas();
  before = tarn_clients::free_on_device();
  syncs = tarn_clients::device_synchronisations();
  auto const infer_all = [&] {
    for (std::size_t i = 0; i < streams.size(); ++i) model.infer(streams[i], places, inferred[i]);
  };
  infer_all();  // gets the memory
  for (cudaStream_t const s : streams) CUDA_CHECK_THROW(cudaStreamSynchronize(s));
  start = clock::now();
  for (int round = 0; round < what.rounds; ++round) infer_all();
  for (cudaStream_t const s : streams) CUDA_CHECK_THROW(cudaStreamSynchronize(s));
  f.inference_ms = ms_since(start) / what.rounds / what.streams;
  f.syncs_inferring = tarn_clients::device_synchronisations() - syncs;
  f.held_inferring = before - std::min(before, tarn_clients::free_on_device());
  f.live = peak_of_tarn();
  f.checksum = checksum_of(inferred[0]);
  for (matrix const& m : inferred)
    if (checksum_of(m) != f.checksum) throw std::runtime_error("the streams inferred different images");
  tcnn::free_all_gpu_memory_arenas();
  return f;
}

}  // namespace tarn_tcnn
