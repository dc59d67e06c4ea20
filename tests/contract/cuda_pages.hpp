// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a pool over cuda_pages has pages here.

#include "contract/cuda_device.hpp"
#include "tarn/source/cuda_pages.hpp"

namespace tarn_test {

/// Whether there are so many devices, whose pools consist of pages. Under a memory tool they consist of plain
/// blocks.
inline bool has_cuda_pages(int devices = 1) {
  return has_cuda_devices(devices) && tarn::cuda_pages{}.has_pages() && !tarn::cuda_driver{}.memory_tool();
}

}  // namespace tarn_test
