// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks whether a stream still exists. An owner may outlive its stream, and CUDA may crash when it is called
// with the handle of a destroyed one.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/driver.hpp"

namespace TARN_NAMESPACE::detail {

/// What is known of a stream when a call names it.
enum class stream_life : std::uint8_t {
  alive,
  gone,    ///< destroyed; the handle may belong to another stream
  unknown  ///< the driver cannot be queried without the risk of a crash
};

/// The identities of streams that create_stream() created and that still exist. Lock-free and without
/// allocation, so that it can be used at process exit and after fork(). A stream that finds no free place is
/// unknown, which only costs time.
class made_streams {
 public:
  void add(stream_id id, void* handle = nullptr) noexcept {
    bucket& b = bucket_of(id);
    for (std::size_t i = 0; i < places_in_bucket; ++i) {
      stream_id vacant = 0;
      if (!b.places[i].compare_exchange_strong(vacant, being_added, std::memory_order_acquire)) continue;
      b.handles[i].store(handle, std::memory_order_relaxed);
      b.places[i].store(id, std::memory_order_release);
      return;
    }
  }
  /// The identity of the stream with a handle that names an existing stream; 0 if it is not there. Reads
  /// every place: 2 us.
  [[nodiscard]] stream_id identity_of(void const* handle) const noexcept {
    for (bucket const& b : all_) {
      for (std::size_t i = 0; i < places_in_bucket; ++i) {
        stream_id const id = b.places[i].load(std::memory_order_acquire);
        if (id != 0 && id != being_added && b.handles[i].load(std::memory_order_relaxed) == handle) return id;
      }
    }
    return 0;
  }
  void remove(stream_id id) noexcept {
    for (std::atomic<stream_id>& place : bucket_of(id).places) {
      stream_id known = id;
      if (place.compare_exchange_strong(known, 0, std::memory_order_relaxed)) return;
    }
  }
  [[nodiscard]] bool has(stream_id id) noexcept {
    for (std::atomic<stream_id> const& place : bucket_of(id).places) {
      if (place.load(std::memory_order_relaxed) == id) return true;
    }
    return false;
  }

 private:
  static constexpr stream_id being_added = ~stream_id{0};  ///< no stream has this identity
  static constexpr std::size_t places_in_bucket = 8;       // a cache line
  static constexpr std::size_t buckets = 512;              // 4096 streams, 64 KiB, committed only where used
  struct bucket {
    std::atomic<stream_id> places[places_in_bucket];
    std::atomic<void*> handles[places_in_bucket];
  };
  /// Identities are assigned consecutively, so the remainder spreads them.
  bucket& bucket_of(stream_id id) noexcept { return all_[id % buckets]; }

  bucket all_[buckets]{};
};

/// Returns true for the null, the legacy and the per-thread default stream: CUDA's handles 0, 1 and 2, never
/// destroyed.
[[nodiscard]] inline bool is_default_stream(stream_ref stream) noexcept {
  return reinterpret_cast<std::uintptr_t>(stream.handle()) <= 2;
}

/// Whether a handle denotes the legacy default stream, which is never captured itself.
template <class Driver>
[[nodiscard]] bool is_legacy_stream(stream_ref stream) noexcept {
  bool null_is_legacy = true;
  if constexpr (requires { Driver::null_is_legacy; }) null_is_legacy = Driver::null_is_legacy;
  auto const handle = reinterpret_cast<std::uintptr_t>(stream.handle());
  return handle == 1 || (handle == 0 && null_is_legacy);
}

/// True if the driver can mark the whole device's work without naming a stream.
template <class Driver>
inline constexpr bool marks_all_work =
    requires(Driver const& driver, event_handle event) { driver.record_all(event); };

/// Returns true while the work of a stream is captured into a graph; false if the driver cannot report it.
template <class Driver>
[[nodiscard]] bool is_capturing(Driver const& driver, stream_ref stream) noexcept {
  bool capturing = false;
  return driver.is_capturing(stream, capturing).ok() && capturing;
}

/// As driver.identify(), of a stream that exists. Fails for one that is captured without a scope, whose
/// capture the question would invalidate. At most two driver calls.
template <stream_driver Driver>
status identify_beside_captures(Driver const& driver, stream_ref stream, stream_id& id) noexcept {
  bool const may_be_captured =
      stream.id() == stream_ref::unknown_id && !is_default_stream(stream) && !capture_gate::has_captures();
  if (may_be_captured && is_capturing(driver, stream)) return refused_for_capture("identify");
  return driver.identify(stream, id);
}

/// Trusts the caller that a bare handle names an existing stream, unless the driver reports otherwise. At
/// most one driver call.
template <stream_driver Driver>
[[nodiscard]] stream_life life_of(Driver const& driver, stream_ref stream) noexcept {
  if (is_default_stream(stream)) return stream_life::alive;
  // A captured stream must not be identified: that invalidates the capture.
  bool captured = false;
  if (stream.id() == stream_ref::unknown_id) {
    return driver.is_capturing(stream, captured).ok() ? stream_life::alive : stream_life::gone;
  }
  if constexpr (requires { driver.has_made(stream); }) {
    return driver.has_made(stream) ? stream_life::alive : stream_life::unknown;
  } else if constexpr (marks_all_work<Driver>) {
    return stream_life::unknown;
  } else {
    status const asked = driver.is_capturing(stream_ref::from(stream.handle()), captured);
    if (!asked.ok() || captured) {
      if constexpr (requires { driver.made_identity(stream.handle()); })
        return driver.made_identity(stream.handle()) == stream.id() ? stream_life::alive : stream_life::gone;
      return asked.ok() ? stream_life::alive : stream_life::gone;
    }
    stream_id now = stream_ref::unknown_id;
    bool const same = driver.identify(stream_ref::from(stream.handle()), now).ok() && now == stream.id();
    return same ? stream_life::alive : stream_life::gone;
  }
}

/// A temporary stream that waits for no other stream; the default stream if none can be created.
template <stream_driver Driver>
class own_stream {
 public:
  explicit own_stream(Driver const& driver) noexcept : driver_(driver), made_(driver.create_stream(stream_)) {
    if (!made_.ok()) stream_ = {};
  }
  own_stream& operator=(own_stream&&) = delete;
  ~own_stream() {
    if (made_.ok()) (void)driver_.destroy_stream(stream_);
  }
  [[nodiscard]] stream_ref get() const noexcept { return stream_; }
  [[nodiscard]] status const& made() const noexcept { return made_; }

 private:
  Driver const& driver_;
  stream_ref stream_;
  status made_;
};

}  // namespace TARN_NAMESPACE::detail
