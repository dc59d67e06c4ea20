// SPDX-License-Identifier: Apache-2.0
#pragma once
// The streams that used a resource, and which of them have unfinished work. For `checked`.

#include <cstddef>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"

namespace TARN_NAMESPACE::detail {

/// Remembers the latest 64 streams. Thread-safe.
template <stream_driver Driver>
class used_streams {
 public:
  /// Remembers a stream; not if the driver does not know it or the host has no memory. Returns its identity.
  stream_id note(Driver const& driver, stream_ref stream) noexcept {
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id && !identify_beside_captures(driver, stream, id).ok()) return id;
    scoped_lock const guard(mutex_);
    for (stream_ref const known : streams_) {
      if (known.id() == id) return id;
    }
    stream_ref const latest = stream_ref::from(stream.handle(), id);
    if (streams_.size() == most) {
      streams_[next_++ % most] = latest;  // in place of the earliest one
      return id;
    }
    try {
      streams_.push_back(latest);
    } catch (...) {
    }
    return id;
  }

  /// Reports each stream, if it is known to exist, that has work left.
  /// @param call     what needs it finished
  /// @param matters  asked with the identity of a stream: whether it is reported
  template <class Matters>
  void report_unfinished(Driver const& driver, char const* call, Matters const& matters) const noexcept {
    stream_ref streams[most];
    std::size_t count = 0;
    {
      scoped_lock const guard(mutex_);
      for (stream_ref const s : streams_) streams[count++] = s;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (life_of(driver, streams[i]) != stream_life::alive || !matters(streams[i].id())) continue;
      if (is_finished(driver, streams[i])) continue;
      message<256> const text(
          call, "() was called while stream ", streams[i].id(),
          ", which uses live blocks of this resource, has unfinished work; synchronise it first");
      report_misuse(misuse(misuse_kind::in_use, nullptr, text.view()));
    }
  }

 private:
  static constexpr std::size_t most = 64;

  /// Whether a stream has no work left. An event on an idle stream may be reached some microseconds after it
  /// was recorded, so this asks for a while, about 300 us.
  [[nodiscard]] static bool is_finished(Driver const& driver, stream_ref stream) noexcept {
    if (is_capturing(driver, stream)) return true;
    Driver const there = driver_of(driver, stream);
    event_handle event = nullptr;
    if (!there.create_event(event).ok()) return true;
    bool finished = !there.record_event(event, stream).ok();
    for (int tries = 0; tries < 1000 && !finished; ++tries)
      finished = there.query_event(event).kind != failure::not_ready;
    (void)there.destroy_event(event);
    return finished;
  }

  mutable fork_mutex mutex_;
  sequence<stream_ref> streams_;
  std::size_t next_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
