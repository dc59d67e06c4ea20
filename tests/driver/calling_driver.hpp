// SPDX-License-Identifier: Apache-2.0
#pragma once
// A driver that calls a function of a test: what another thread does at that moment, while the pool has
// released its lock.

#include <functional>
#include <utility>

#include "driver/wrapped_driver.hpp"

namespace tarn_test {

/// Calls `next` once, after the next call of a kind.
template <class Driver>
class calling_driver : public wrapped_driver<Driver, calling_driver<Driver>> {
 public:
  calling_driver(Driver driver, tarn::driver_call after, std::function<void()>& next)
      : wrapped_driver<Driver, calling_driver>(std::move(driver)), after_(after), next_(&next) {}

  template <class F>
  tarn::status through(tarn::driver_call call, F const& f) const noexcept {
    tarn::status const s = f();
    if (call == after_) {
      if (auto const once = std::exchange(*next_, nullptr)) once();
    }
    return s;
  }

 private:
  tarn::driver_call after_;
  std::function<void()>* next_;
};

}  // namespace tarn_test
