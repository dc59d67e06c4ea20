// SPDX-License-Identifier: Apache-2.0
// What tiny-cuda-nn 2.0 does not define where it is compiled without run-time compilation (TCNN_RTC),
// although its headers call it.
#include <tiny-cuda-nn/rtc_kernel.h>

#include <stdexcept>

namespace tcnn {

void CudaRtcKernel::set(CUfunction_attribute, int) {
  throw std::logic_error("tiny-cuda-nn is compiled without run-time compilation");
}

}  // namespace tcnn
