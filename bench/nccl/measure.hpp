// SPDX-License-Identifier: Apache-2.0
#pragma once
// The measurements of tarn_nccl.

#include <cstddef>

#include "figure.hpp"

namespace tarn::bench {

struct nccl_effort {
  std::size_t smallest = std::size_t{1} << 20;  ///< bytes of a collective, as NCCL's own tests count them
  std::size_t largest = std::size_t{1} << 30;
  unsigned repetitions = 9;  ///< timed, alternately with the reference
};

/// Bus bandwidth of collectives on all GPUs of this process, on a pool's memory and on ncclMemAlloc's.
///
/// @throws std::exception  CUDA or NCCL failed, or there is only one GPU
void measure_nccl(nccl_effort const& e, figure_handler const& on_figure);

}  // namespace tarn::bench
