// SPDX-License-Identifier: Apache-2.0
// How a conversion on CUDA divides a range into words; transfer/cuda_convert.cu tests the converted values.

#include "tarn/driver/cuda_convert.hpp"

#include <cstdint>

#include "catch.hpp"
#include "contract/cuda_device.hpp"

using namespace tarn;
using tarn_test::has_cuda_devices;

namespace {

/// Ranges at all offsets: words are aligned on both sides, as many as fit; none if no position aligns both.
template <class To, class From>
unsigned wrong_splits() {
  constexpr std::size_t n = static_cast<std::size_t>(detail::cuda_conversion<To, From>::together);
  unsigned wrong = 0;
  for (std::size_t a = 0; a < 20; ++a) {
    for (std::size_t b = 0; b < 20; ++b) {
      for (std::size_t count : {1U, 3U, 15U, 16U, 17U, 1000U}) {
        auto const* const to = reinterpret_cast<To const*>(std::uintptr_t{4096}) + a;
        auto const* const from = reinterpret_cast<From const*>(std::uintptr_t{8192}) + b;
        auto const split = detail::cuda_split_of(to, from, count);
        bool const possible = a % n == b % n && (n - a % n) % n + n <= count;
        bool sound = split.count == count && split.head + split.words * n <= count;
        if (possible) {
          sound = sound && split.words == (count - (n - a % n) % n) / n &&
                  is_aligned(to + split.head, n * sizeof(To)) &&
                  is_aligned(from + split.head, n * sizeof(From));
        } else {
          sound = sound && split.words == 0;
        }
        if (!sound) ++wrong;
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("cuda convert moves words where both sides are aligned, and single elements elsewhere",
          "[driver][cuda_driver]") {
  CHECK(wrong_splits<float16, float>() == 0);
  CHECK(wrong_splits<float, float8_e4m3>() == 0);
  CHECK(wrong_splits<float8_e5m2, bfloat16>() == 0);
  CHECK(wrong_splits<float8_e4m3, float8_e5m2>() == 0);
  CHECK(wrong_splits<double, float16>() == 0);
}

TEST_CASE("cuda convert returns a refused launch as a status", "[driver][cuda_driver][cuda]") {
  if (!has_cuda_devices()) return;
  cuda_driver const driver;
  float* from = nullptr;
  REQUIRE(cudaMalloc(&from, 1024) == cudaSuccess);
  auto* const to = reinterpret_cast<float16*>(from + 128);
  CHECK(driver.convert(stream_ref{}, to, from, 100).ok());
  CHECK(driver.convert(stream_ref{}, to, from, 0).ok());
  CHECK(driver.synchronize_device().ok());
  CHECK(cuda_driver{device_id{126}}.convert(stream_ref{}, to, from, 100).kind == failure::no_device);
  CHECK(cudaFree(from) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaSuccess);
}
