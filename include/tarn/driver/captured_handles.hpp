// SPDX-License-Identifier: Apache-2.0
#pragma once
// The identities of captured streams by their handles. CUDA refuses to identify a stream that is captured
// (cudaStreamGetId returns cudaErrorStreamCaptureUnsupported), and the call invalidates the capture. While a
// capture_scope is open, identities are therefore found here: its streams are noted when they are named,
// before they are captured; the driver knows the streams that it created; and any other captured stream gets
// an identity that holds until the last scope is closed.

#include <cstddef>
#include <cstdint>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/spin_lock.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/stream_life.hpp"

namespace TARN_NAMESPACE::detail {

/// A captured stream.
struct captured_handle {
  void* handle = nullptr;
  stream_id id = stream_ref::unknown_id;
};

/// The captured streams of the process. Thread-safe, also across fork(), never allocates; O(captured
/// streams).
class captured_handles {
 public:
  /// Notes a stream of a capture; its handle and identity are known. Does nothing for default streams, which
  /// need no query.
  static void add(stream_ref stream) noexcept {
    if (is_default_stream(stream)) return;
    scoped_lock const guard(lock);
    for (entry& e : entries) {
      if (e.handle == stream.handle() && e.id != stream.id()) e = entry{};  // of a destroyed stream
    }
    (void)put(stream.handle(), stream.id());
  }
  /// Forgets it; another pool may have noted it as well.
  static void remove(stream_id id) noexcept {
    scoped_lock const guard(lock);
    for (entry& e : entries) {
      if (e.id != id) continue;
      e = entry{};
      return;
    }
  }
  /// The identity of a captured stream that was noted; unknown_id if it was not.
  [[nodiscard]] static stream_id find(void* handle) noexcept {
    scoped_lock const guard(lock);
    forget_assigned();
    for (entry const& e : entries) {
      if (e.handle == handle && e.id != stream_ref::unknown_id) return e.id;
    }
    return stream_ref::unknown_id;
  }
  /// Notes a captured stream under a new identity. unknown_id if too many are noted.
  [[nodiscard]] static stream_id add_unknown(void* handle) noexcept {
    scoped_lock const guard(lock);
    return put(handle, assigned | ++last);
  }

 private:
  using entry = captured_handle;
  static constexpr std::size_t most = 128;  ///< twice what one pool's captures may have
  /// No stream's identity has this bit: a driver counts streams from 1, and default streams have higher bits.
  static constexpr stream_id assigned = stream_id{1} << 60;

  /// Forgets the assigned identities if the last open capture has ended since, whichever version of tarn
  /// closed it.
  static void forget_assigned() noexcept {
    std::uint64_t const now = capture_gate::ends();
    if (now == ends) return;
    ends = now;
    for (entry& e : entries) {
      if ((e.id & assigned) != 0) e = entry{};
    }
  }
  static stream_id put(void* handle, stream_id id) noexcept {
    forget_assigned();
    for (entry& e : entries) {
      if (e.id != stream_ref::unknown_id) continue;
      e = {handle, id};
      return id;
    }
    return stream_ref::unknown_id;
  }

  inline static constinit static_spin_lock<captured_handles> lock;
  inline static constinit entry entries[most];
  inline static constinit std::uint64_t last = 0;
  inline static constinit std::uint64_t ends = 0;  ///< capture_gate::ends() at the last call
};

/// Finds the identity of a stream that is captured, for a driver's identify(). Returns false if it is not
/// captured, and the driver can be asked. At most one driver call; none unless a capture_scope is open.
template <class Driver>
[[nodiscard]] bool identify_captured(Driver const& driver, stream_ref stream, stream_id& id,
                                     status& result) noexcept {
  if (!capture_gate::has_captures()) return false;
  // Also for a stream that was noted: it may have been destroyed since, and its handle may be another
  // stream's.
  bool captured = false;
  result = driver.is_capturing(stream, captured);
  if (!result.ok()) return true;
  if (!captured) return false;
  id = captured_handles::find(stream.handle());
  if (id != stream_ref::unknown_id) return true;
  if constexpr (requires { driver.made_identity(stream.handle()); })
    id = driver.made_identity(stream.handle());
  if (id == stream_ref::unknown_id) id = captured_handles::add_unknown(stream.handle());
  if (id == stream_ref::unknown_id) result = refused_for_capture("identify");
  return true;
}

}  // namespace TARN_NAMESPACE::detail
