// SPDX-License-Identifier: Apache-2.0
#include <chrono>

#include "moving/loops.hpp"
#include "tarn/driver/cuda_driver.hpp"

namespace tarn::bench {

namespace {

struct cuda_place {
  using driver_type = cuda_driver;
  static constexpr char const* name = "cuda";
  [[nodiscard]] cuda_driver driver() const { return cuda_driver{device_id{0}}; }
  [[nodiscard]] double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

}  // namespace

void measure_cuda(extent const& e, figure_handler const& on_figure) {
  loops<cuda_place>(cuda_place{}, e, on_figure).run();
}

}  // namespace tarn::bench
