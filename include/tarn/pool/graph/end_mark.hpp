// SPDX-License-Identifier: Apache-2.0
#pragma once
// The event after which nothing on the device uses the memory of ended graph owners.

#include "tarn/driver/all_work.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_life.hpp"

namespace TARN_NAMESPACE::detail {

/// Finds out when the device has completed the work that was submitted before the mark, without waiting for
/// it.
template <stream_driver Driver>
class end_mark {
 public:
  explicit end_mark(Driver const& driver) noexcept : driver_(driver) {}
  end_mark& operator=(end_mark&&) = delete;
  ~end_mark() {
    if (event_ != nullptr) (void)driver_.destroy_event(event_);
  }

  /// Returns true once that work is complete. `wait` makes the host wait for it. Without a driver that marks
  /// the work of the whole device, and while a capture is open, later work may be waited for, too.
  bool is_complete(bool const wait) noexcept {
    if (is_complete_) return true;
    if constexpr (marks_all_work<Driver>) {
      if (!is_marked_) {
        status s = event_ != nullptr ? status{} : driver_.create_event(event_);
        if (s.ok()) s = record_all_work_in_use(driver_, event_);
        waits_for_capture_ = is_capture_error(s);
        if (s.kind == failure::unloading || s.kind == failure::unsupported)
          return is_complete_ = host_waits();
        is_marked_ = s.ok();
      }
      if (!is_marked_) return false;
      status s = driver_.query_event(event_);
      if (!s.ok() && wait) s = driver_.synchronize_event(event_);
      return is_complete_ = s.ok() || s.kind == failure::unloading;
    } else {
      return is_complete_ = host_waits();
    }
  }

  /// Whether a capture prevented the last call of is_complete() from finding out.
  [[nodiscard]] bool waits_for_capture() const noexcept { return !is_complete_ && waits_for_capture_; }

  /// Something uses the memory that was submitted after the mark.
  void renew() noexcept { is_marked_ = is_complete_ = false; }

  /// In a forked child that must not use the driver.
  void abandon() noexcept {
    event_ = nullptr;
    is_complete_ = true;
  }

 private:
  bool host_waits() noexcept {
    status const s = wait_for_all_work(driver_);
    waits_for_capture_ = is_capture_error(s);
    return s.ok() || s.kind == failure::unloading;
  }

  Driver const& driver_;
  event_handle event_ = nullptr;
  bool is_marked_ = false;
  bool is_complete_ = false;
  bool waits_for_capture_ = false;
};

}  // namespace TARN_NAMESPACE::detail
