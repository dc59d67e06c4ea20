// SPDX-License-Identifier: Apache-2.0
#pragma once
// A class that owns device memory. It can be moved, resized and kept in a std::vector; layers.cpp uses it,
// layer_test.cpp tests it. It takes any pool, so that a test can pass one whose allocations fail.

#include <tarn/tarn.hpp>

#include <cstddef>
#include <span>
#include <vector>

/// A dense layer: a row of weights and a bias for each output. Freed in the order of its stream. Moves take
/// the memory over and never throw. It cannot be copied, since device_buffer makes copies of device memory
/// explicit.
class layer {
 public:
  /// All weights are 0. @throws tarn::out_of_memory  nothing is held
  layer(tarn::any_resource const& pool, std::size_t inputs, std::size_t outputs, tarn::stream_ref stream)
      : inputs_(inputs), weights_(pool, inputs * outputs, stream), biases_(pool, outputs, stream) {
    weights_.zero();
    biases_.zero();
  }

  [[nodiscard]] std::size_t inputs() const noexcept { return inputs_; }
  [[nodiscard]] std::size_t outputs() const noexcept { return biases_.size(); }
  /// For kernels.
  [[nodiscard]] float* weights() noexcept { return weights_.data(); }
  [[nodiscard]] float* biases() noexcept { return biases_.data(); }

  /// Changes the number of outputs and keeps the first rows. New rows are uninitialised.
  /// @throws tarn::out_of_memory  the size has not changed
  void resize(std::size_t outputs) {
    weights_.reserve(inputs_ * outputs);
    biases_.reserve(outputs);
    weights_.resize(inputs_ * outputs);  // within the capacity: allocates nothing
    biases_.resize(outputs);
  }

  void copy_weights_from(std::span<float const> host) { weights_.copy_from(host); }
  /// Waits for the stream.
  [[nodiscard]] std::vector<float> weights_on_host() const {
    std::vector<float> host(weights_.size());
    weights_.copy_to_sync(host);
    return host;
  }

 private:
  std::size_t inputs_;
  tarn::device_buffer<float, tarn::any_resource> weights_;
  tarn::device_buffer<float, tarn::any_resource> biases_;
};
