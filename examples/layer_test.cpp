// SPDX-License-Identifier: Apache-2.0
// Unit tests of a class that owns device memory, on the simulated device: no GPU is needed. With Catch2 3,
// include <catch2/catch_all.hpp> and link Catch2Main.
//   g++ -std=c++20 -DTARN_NO_CUDA -I include -include tarn/sim.hpp examples/layer_test.cpp -o layer_test -ldl -pthread

#define CATCH_CONFIG_MAIN
#include "layer.hpp"

#include <catch2/catch.hpp>
#include <tarn/testing.hpp>

#include <cstdint>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

using namespace tarn::literals;

static_assert(std::is_nothrow_move_constructible_v<layer>);  // std::vector moves it when it grows

TEST_CASE("a layer frees its memory") {
  tarn::device_pool pool;
  tarn::stream stream;
  tarn::peak_scope const peak{pool};
  { layer const l(pool, 16, 32, stream); }
  CHECK(peak.peak_bytes() == 16 * 32 * 4 + 256);
  CHECK(tarn::live_blocks_summary(pool) == "");  // otherwise "2 blocks with 2.1 KiB are live"
}

TEST_CASE("a layer keeps its first rows when it is resized") {
  tarn::device_pool pool;
  tarn::stream stream;
  layer l(pool, 4, 2, stream);
  std::vector<float> weights(8);
  std::iota(weights.begin(), weights.end(), 1.0F);
  l.copy_weights_from(weights);
  l.resize(3);
  std::vector<float> const larger = l.weights_on_host();
  CHECK(l.outputs() == 3);
  CHECK(std::vector<float>(larger.begin(), larger.begin() + 8) == weights);
}

TEST_CASE("a layer that was moved from holds nothing") {
  tarn::device_pool pool;
  tarn::stream stream;
  layer l(pool, 4, 2, stream);
  layer const moved = std::move(l);
  CHECK(l.outputs() == 0);
  CHECK(moved.outputs() == 2);
}

TEST_CASE("a layer that does not fit leaves nothing behind") {
  tarn::sim_machine const machine{{.capacity = 66_MiB, .taken = 0}};  // a device of this test's own
  tarn::device_pool pool{tarn::sim_pages{machine.driver()}};
  tarn::sim_stream const stream{machine.driver()};
  CHECK_THROWS_AS(layer(pool, 8, 2'000'000, stream), tarn::out_of_memory);  // the biases do not fit
  CHECK(tarn::memory_allocated(pool) == 0);
  layer l(pool, 8, 1'000'000, stream);
  CHECK_THROWS_AS(l.resize(2'000'000), tarn::out_of_memory);
  CHECK(l.outputs() == 1'000'000);
}

TEST_CASE("a layer is unchanged and leaks nothing, whichever allocation fails") {
  tarn::device_pool pool;
  tarn::stream stream;
  std::uint64_t call = 0;
  bool failed = true;
  while (failed) {
    auto const memory = pool | tarn::failing{.call = ++call};
    try {
      layer l(memory, 8, 16, stream);
      try {
        l.resize(32);
      } catch (tarn::out_of_memory const&) {
        CHECK(l.outputs() == 16);
      }
    } catch (tarn::out_of_memory const&) {
    }
    CHECK(tarn::live_blocks_summary(pool) == "");
    failed = memory->has_failed();
  }
  CHECK(call == 5);  // the layer allocates four times: twice when it is made, twice when it is resized
}
