// SPDX-License-Identifier: Apache-2.0
// Weights stored in every precision: their size, and their distance from the original numbers. The pool's own
// figures show when both copies exist. On CUDA it is compiled by nvcc, since it converts in a kernel.

#include <tarn/tarn.hpp>
#include <tarn/transfer.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>
#include <vector>

/// Resembles the weights of a trained layer: most are small, few are large. Identical on every machine.
static std::vector<float> weights_like(std::size_t count) {
  std::vector<float> weights(count);
  unsigned state = 1;
  for (float& w : weights) {
    double sum = -3;
    for (int i = 0; i < 6; ++i) {
      state = state * 1664525 + 1013904223;
      sum += static_cast<double>(state) / 4294967296.0;
    }
    w = static_cast<float>(sum * 0.05);
  }
  return weights;
}

int main() {
  tarn::device_pool pool;
  tarn::stream const stream;
  std::size_t const n = 1 << 20;
  std::vector<float> const original = weights_like(n);
  auto const weights = tarn::make_device_buffer<float>(pool, std::span<float const>(original), stream);
  std::printf("%-12s %9s %12s %12s %12s\n", "stored as", "bytes", "mean error", "worst error", "pool's peak");
  for (std::size_t i = 0; i < tarn::element_type_count; ++i) {
    auto const type = static_cast<tarn::element_type>(i);
    tarn::with_element(type, [&](auto element) {
      using stored_type = decltype(element);
      tarn::peak_scope const peak{pool};
      auto const stored = tarn::converted<stored_type>(pool, weights, stream);
      auto const back = tarn::converted<float>(stored);
      std::vector<float> seen(n);
      back.copy_to_sync(seen);
      double sum = 0;
      double worst = 0;
      for (std::size_t k = 0; k < n; ++k) {
        double const error = std::fabs(static_cast<double>(seen[k]) - static_cast<double>(original[k]));
        sum += error;
        worst = std::fmax(worst, error);
      }
      std::printf("%-12s %9zu %12.3g %12.3g %8zu KiB\n", tarn::name_of(type), stored.bytes(),
                  sum / static_cast<double>(n), worst, peak.peak_bytes() >> 10);
    });
  }
  // The benefit of half the bytes: once the wide copy is freed, its memory returns to the pool.
  std::optional<tarn::device_buffer<tarn::bfloat16, decltype(pool)>> kept;
  {
    auto const wide = tarn::make_device_buffer<float>(pool, n, stream);
    kept = tarn::converted<tarn::bfloat16>(pool, wide, stream);
  }
  std::printf(
      "8 GiB hold %zu million of them as float32, %zu as bfloat16, %zu as float8_e4m3; kept: %zu bytes\n",
      tarn::items_in(std::size_t{8} << 30, tarn::element_type::f32) / 1'000'000,
      tarn::items_in(std::size_t{8} << 30, tarn::element_type::bf16) / 1'000'000,
      tarn::items_in(std::size_t{8} << 30, tarn::element_type::f8_e4m3) / 1'000'000, kept->bytes());
}
