// SPDX-License-Identifier: Apache-2.0
#pragma once
// shared_event: an event that two processes use.

#include <chrono>
#include <thread>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/sharing/sharing_error.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// Owns an event that other processes can open, or that another process has made. A forked child destroys
/// nothing.
template <sharing_driver D>
class shared_event {
 public:
  /// Creates one. @throws cuda_error
  shared_event(D driver, shared_event_token& token) : driver_(std::move(driver)) {
    must_succeed(driver_, driver_.create_shared_event(event_, token));
  }
  /// Opens another process's. @throws cuda_error
  shared_event(shared_event_token const& token, D driver) : driver_(std::move(driver)) {
    must_succeed(driver_, driver_.open_shared_event(token, event_));
  }
  shared_event& operator=(shared_event&&) = delete;
  ~shared_event() {
    if (process_.is_this()) (void)driver_.destroy_event(event_);
  }

  /// @throws cuda_error
  void record(stream_ref stream) const { must_succeed(driver_, record_in_order(driver_, event_, stream)); }
  /// Later work on the stream waits until the recorded work has ended. Asks `has_ended` about the process
  /// that recorded it, and throws `ended` instead if that work cannot end any more. Does not wait.
  /// @throws cuda_error; sharing_error (ended)
  template <class HasEnded>
  void wait(stream_ref stream, sharing_failure ended, HasEnded const& has_ended) const {
    // Queried again after the question: what the process did before its end counts.
    if (!is_reached() && has_ended() && !is_reached()) throw of_ended(ended);
    must_succeed(driver_, driver_.wait_event(stream, event_));
  }
  /// Waits on the host until the recorded work has ended. A device that waits for an event cannot stop when
  /// the process that recorded it is killed, so this queries the event, and asks `has_ended` about that
  /// process.
  /// @throws cuda_error; sharing_error (ended, timed_out)
  template <class HasEnded>
  void synchronize(std::chrono::milliseconds timeout, sharing_failure ended,
                   HasEnded const& has_ended) const {
    auto const deadline = std::chrono::steady_clock::now() + min_of(timeout, longest_wait);
    for (auto pause = shortest_pause;; pause = min_of(2 * pause, longest_pause)) {
      // Asked first: what the process did before its end counts.
      bool const is_gone = pause == longest_pause && has_ended();
      if (is_reached()) return;
      if (is_gone) throw of_ended(ended);
      if (std::chrono::steady_clock::now() >= deadline) {
        throw sharing_error(sharing_failure::timed_out,
                            "the other process's work on the block has not ended: wait longer, or give up");
      }
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  static constexpr std::chrono::microseconds shortest_pause{20};
  static constexpr std::chrono::microseconds longest_pause{5000};

  [[nodiscard]] static sharing_error of_ended(sharing_failure ended) noexcept {
    return {ended, ended == sharing_failure::exporter_ended
                       ? "the process that exported the block has ended before its work on the block"
                       : "the process that imported the block has ended before its work on the block"};
  }
  [[nodiscard]] bool is_reached() const {
    status const s = driver_.query_event(event_);
    if (s.kind == failure::not_ready) return false;
    must_succeed(driver_, s);
    return true;
  }

  D driver_;
  creating_process process_{};
  event_handle event_ = nullptr;
};

}  // namespace detail
}  // namespace TARN_NAMESPACE
