// SPDX-License-Identifier: Apache-2.0
// Thrust on CUDA, on the default stream and on another stream.

#include "interop/thrust.hpp"

#include "contract/cuda_device.hpp"
#include "tarn/tarn.hpp"

TEST_CASE("thrust_allocator and par work with a pool of the device", "[interop][thrust][cuda]") {
  if (!tarn_test::has_cuda_devices()) return;
  tarn_test::thrust_contract(tarn::device_pool{}, tarn::stream_ref{});
}
TEST_CASE("thrust_allocator and par work with a pool of the device on a stream", "[interop][thrust][cuda]") {
  if (!tarn_test::has_cuda_devices()) return;
  tarn::basic_stream<tarn::cuda_driver> stream{tarn::cuda_driver{}};
  tarn_test::thrust_contract(tarn::device_pool{}, stream);
}
