// SPDX-License-Identifier: Apache-2.0
#pragma once
// device_guard: sets the current device for a scope.

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/scope_chain.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"

#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE {

/// Makes a device the calling thread's current one and restores the previous one at the end. For the caller's
/// own kernel launches: tarn itself works with any current device. If the device is already current, the cost
/// is one query, and the end restores nothing: code in the scope that sets another device must restore it.
/// Guards of a thread may end in any order: while any is alive, the device of the innermost one is current;
/// after the last, the device from before the first. Each guard must end on the thread that created it.
template <stream_driver Driver>
class basic_device_guard {
 public:
  /// @throws cuda_error  the device does not exist; nothing has changed
  explicit basic_device_guard(device_id device, source_location where = source_location::current())
      : device_(device) {
    if (status const s = Driver::current_device(before_); !s.ok()) throw cuda_error(s, device.value, where);
    if (device != before_) {
      if (status const s = Driver::set_current_device(device); !s.ok())
        throw cuda_error(s, device.value, where);
    }
    chain::begin(*this);
  }
  basic_device_guard& operator=(basic_device_guard&&) = delete;
  ~basic_device_guard() {
    bool const innermost = chain::innermost() == this;
    basic_device_guard* const inner = chain::end(*this, "device_guard");
    if (innermost) {
      if (device_ != before_) (void)Driver::set_current_device(before_);
    } else if (inner != nullptr) {
      inner->before_ = before_;  // this guard's device is not to be restored any more
    }
  }

  /// Returns the device that will be restored.
  [[nodiscard]] device_id before() const noexcept { return before_; }

 private:
  using chain = detail::scope_chain<basic_device_guard>;
  friend chain;

  device_id device_;
  device_id before_;
  basic_device_guard* outer_ = nullptr;
};

#if TARN_HAS_CUDA
using device_guard = basic_device_guard<cuda_driver>;
#endif

}  // namespace TARN_NAMESPACE
