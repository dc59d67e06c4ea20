// SPDX-License-Identifier: Apache-2.0
#pragma once
// copy_stream: a separate stream for copies, and the events that order it with the user's stream.

#include <cstddef>
#include <utility>
#include <vector>

#include "tarn/core/error.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE::detail {

/// Copies on its own stream and orders the copies with the user's stream by numbered events. Waits on the
/// host only where documented. Destruction waits for the running copies, so the memory that they use may be
/// freed. One thread at a time.
template <stream_driver Driver>
class copy_stream {
 public:
  /// @param user  the stream of the other work, of any device; must not be capturing
  /// @param where  the user's call, which errors name
  /// @throws misuse  `user` is being captured; cuda_error
  copy_stream(Driver const& driver, stream_ref user, source_location where)
      : driver_(driver),
        user_(user),
        stream_(called_from(where, [&] { return basic_stream<Driver>(driver); })),
        where_(where) {
    require_no_capture();
  }
  copy_stream& operator=(copy_stream&&) = delete;
  ~copy_stream() {
    finish();
    for (event_handle const event : events_) {
      if (event != nullptr) (void)driver_.destroy_event(event);  // null: it could not be created
    }
  }

  [[nodiscard]] stream_ref user() const noexcept { return user_; }

  /// Before the two streams are ordered: the event would draw this stream, and its copies, into the capture.
  /// @throws misuse  the user's stream is being captured; cuda_error
  void require_no_capture() const {
    refuse_capture(driver_, user_,
                   "batches cannot be copied on a stream that is being captured; copy before or after the "
                   "capture",
                   where_);
  }

  /// Creates the events with numbers below `count`.
  void make_events(std::size_t count) {
    while (events_.size() < count) must_succeed(driver_.create_event(events_.emplace_back(nullptr)));
  }

  void copy(void* to, void const* from, std::size_t bytes) {
    must_succeed(driver_.copy(stream_, to, from, bytes));
  }
  /// Records an event behind the copies so far.
  void mark(std::size_t event) { must_succeed(driver_.record_event(events_[event], stream_)); }
  /// Records an event behind the user's work so far. @throws as require_no_capture()
  void mark_user(std::size_t event) {
    require_no_capture();
    must_succeed(record_in_order(driver_, events_[event], user_));
  }
  /// Makes later copies wait for an event recorded on the user's stream.
  void wait_for(std::size_t event) { must_succeed(driver_.wait_event(stream_, events_[event])); }
  /// Makes the user's later work wait for an event.
  void let_user_wait(std::size_t event) { must_succeed(driver_.wait_event(user_, events_[event])); }
  /// Whether the device has passed an event.
  [[nodiscard]] bool is_past(std::size_t event) {
    status const s = driver_.query_event(events_[event]);
    if (s.kind == failure::not_ready) return false;
    must_succeed(s);
    return true;
  }
  /// Waits on the host until the device has passed an event.
  void synchronize(std::size_t event) { must_succeed(driver_.synchronize_event(events_[event])); }

  /// Waits on the host for all copies.
  void finish() noexcept { (void)wait_for_stream(driver_, stream_); }

 private:
  void must_succeed(status const& s) const {
    if (!s.ok()) throw cuda_error(s, driver_.device().value, where_);
  }

  Driver driver_;
  stream_ref user_;
  basic_stream<Driver> stream_;
  source_location where_;  ///< where the batches were made
  std::vector<event_handle> events_;
};

}  // namespace TARN_NAMESPACE::detail
