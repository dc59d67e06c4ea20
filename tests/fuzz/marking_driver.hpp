// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated driver with the call that CUDA has since 12.5: one event after all work that the device has
// received, on destroyed streams too, without using their handles. As in CUDA, it is refused while any stream
// is captured.

#include <memory>
#include <vector>

#include "tarn/driver/sim/sim_driver.hpp"

namespace tarn_fuzz {

/// The streams of one device. The program reports which ones it creates and destroys; an internal stream
/// keeps the work of destroyed ones.
class stream_roll {
 public:
  explicit stream_roll(tarn::sim_driver driver) : driver_(std::move(driver)) {
    (void)driver_.create_stream(all_);
    add({});
  }
  stream_roll(stream_roll const&) = delete;
  stream_roll& operator=(stream_roll const&) = delete;
  ~stream_roll() { (void)driver_.destroy_stream(all_); }

  void add(tarn::stream_ref s) { streams_.push_back(s); }
  /// To be called before the stream is destroyed. It is not captured.
  void remove(tarn::stream_ref s) {
    wait_for(s);
    std::erase(streams_, s);
  }
  tarn::status record_all(tarn::event_handle event) {
    for (tarn::stream_ref const s : streams_) {
      bool capturing = false;
      (void)driver_.is_capturing(s, capturing);
      if (capturing) return {tarn::failure::other, 900, "cudaErrorStreamCaptureUnsupported", "record_all"};
    }
    for (tarn::stream_ref const s : streams_) wait_for(s);
    return driver_.record_event(event, all_);
  }

 private:
  void wait_for(tarn::stream_ref s) {
    tarn::event_handle event = nullptr;
    (void)driver_.create_event(event);
    (void)driver_.record_event(event, s);
    (void)driver_.wait_event(all_, event);
    (void)driver_.destroy_event(event);
  }

  tarn::sim_driver driver_;
  tarn::stream_ref all_;
  std::vector<tarn::stream_ref> streams_;
};

class marking_driver : public tarn::sim_driver {
 public:
  explicit marking_driver(tarn::sim_driver const& driver)
      : sim_driver(driver), roll_(std::make_shared<stream_roll>(driver)) {}

  [[nodiscard]] stream_roll& roll() const noexcept { return *roll_; }
  tarn::status record_all(tarn::event_handle event) const noexcept { return roll_->record_all(event); }
  /// As cuda_driver's. Asks the machine.
  [[nodiscard]] bool has_made(tarn::stream_ref stream) const noexcept {
    return made_identity(stream.handle()) == stream.id();
  }

 private:
  std::shared_ptr<stream_roll> roll_;
};

}  // namespace tarn_fuzz
