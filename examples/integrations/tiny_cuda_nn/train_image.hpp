// SPDX-License-Identifier: Apache-2.0
#pragma once
// A network of tiny-cuda-nn learns an image, with its workspace from its own arenas or from tarn: the work,
// and what is measured. C++17, as tiny-cuda-nn is.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tarn_tcnn {

enum class workspace {
  per_stream,  ///< tiny-cuda-nn's arenas, one for each stream
  tarn         ///< one device_pool
};

/// The work: batches of 2^first_log2 samples that double up to 2^last_log2, `steps` training steps with each,
/// and `steps` more with the last, which are timed. Then the image is inferred on each of `streams` streams,
/// `rounds` times in turn.
struct work {
  std::string image;
  int first_log2 = 12;
  int last_log2 = 20;
  int steps = 40;
  int streams = 1;
  int rounds = 10;
};

struct figures {
  std::vector<float> losses;        ///< of every tenth step
  double step_ms = 0;               ///< at the largest batch
  double growing_ms = 0;            ///< all steps before that
  std::uint64_t syncs_growing = 0;  ///< calls of cudaDeviceSynchronize meanwhile
  double inference_ms = 0;          ///< of one image, over all streams and rounds
  std::uint64_t syncs_inferring = 0;
  std::size_t held_training = 0;   ///< on the device once trained, beyond what was held before the first step
  std::size_t held_inferring = 0;  ///< on the device by the inference alone, on all streams
  std::size_t live = 0;            ///< tarn: peak of the bytes of live workspace
  std::uint64_t checksum = 0;      ///< of the last inferred image
};

/// Runs the work. Throws what CUDA, tiny-cuda-nn and the pool throw.
[[nodiscard]] figures measure(workspace from, work const& what);

/// tarn_pool.cpp, which is C++20: takes workspace from a new device_pool; peak of live bytes; gives cached
/// memory back.
void use_tarn();
[[nodiscard]] std::size_t peak_of_tarn();
void empty_tarn();

}  // namespace tarn_tcnn
