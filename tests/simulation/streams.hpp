// SPDX-License-Identifier: Apache-2.0
#pragma once
// The user's streams, and the user's duties: work on a second stream is ordered after the first by an event
// or by the host, or is not done.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "world.hpp"

namespace simulation {

using stream_number = std::size_t;

class streams_of_user {
 public:
  streams_of_user(world& w, unsigned devices, unsigned per_device) : world_(w), slots_(devices) {
    for (unsigned d = 0; d < devices; ++d) {
      stream_state legacy;
      legacy.device = static_cast<int>(d);
      legacy.legacy = legacy.blocking = true;
      tarn::stream_id id = 0;
      world_.expect(driver(legacy).identify({}, id), "identify");
      legacy.named = tarn::stream_ref::from(nullptr, id);
      slots_[d].push_back(add(legacy));
      slots_[d].push_back(0);  // the calling thread's own default stream, found by in()
      for (unsigned i = 0; i < per_device; ++i) slots_[d].push_back(create(static_cast<int>(d), i % 4 == 3));
    }
  }

  /// Sets the number of the thread that calls from now on.
  static void set_thread(unsigned number) noexcept { thread_ = number; }
  [[nodiscard]] static unsigned thread() noexcept { return thread_; }
  /// Streams that the calling thread names in its step, until it begins another one.
  void begin_step() { named_[thread_].clear(); }
  void names(stream_number s) { named_[thread_].push_back(s); }
  /// True if another thread is inside a step that names the stream.
  [[nodiscard]] bool is_named_elsewhere(stream_number s) const {
    for (auto const& [thread, streams] : named_) {
      if (thread != thread_ && std::find(streams.begin(), streams.end(), s) != streams.end()) return true;
    }
    return false;
  }

  [[nodiscard]] stream_state& operator[](stream_number s) noexcept { return all_[s]; }
  [[nodiscard]] stream_state const& operator[](stream_number s) const noexcept { return all_[s]; }
  [[nodiscard]] std::size_t size() const noexcept { return all_.size(); }
  [[nodiscard]] tarn::sim_driver driver(stream_state const& s) const { return world_.driver(s.device); }

  /// The stream in a device's slot, for the calling thread.
  stream_number in(int device, unsigned slot) {
    auto& here = slots_[static_cast<std::size_t>(device)];
    slot %= static_cast<unsigned>(here.size());
    return slot == 1 ? own_default(device) : here[slot];
  }

  /// How a call names a stream: with its identity, or by the handle alone where that means the same.
  [[nodiscard]] tarn::stream_ref name(stream_number s, unsigned how) {
    names(s);
    stream_state const& state = all_[s];
    // A default handle alone may mean another device's.
    bool const is_default = reinterpret_cast<std::uintptr_t>(state.named.handle()) <= per_thread_handle;
    bool const bare =
        (how & 0x40) != 0 && state.alive && is_reachable(state) && !(world_.chosen().across && is_default);
    return bare ? tarn::stream_ref::from(state.named.handle()) : state.named;
  }

  /// True if the calling thread may put work on it.
  [[nodiscard]] bool is_usable(stream_number s) const {
    stream_state const& state = all_[s];
    return state.alive && is_reachable(state) && !(state.legacy && is_legacy_blocked(state.device));
  }
  /// The same, and the work runs instead of being captured.
  [[nodiscard]] bool runs(stream_number s) const { return is_usable(s) && all_[s].graph < 0; }
  [[nodiscard]] bool is_capturing(int device) const {
    for (stream_state const& s : all_) {
      if (s.device == device && s.graph >= 0) return true;
    }
    return false;
  }

  /// True if the user can order later work on `after` behind all work so far on `before`.
  [[nodiscard]] bool can_order(stream_number before, stream_number after) const {
    if (before == after) return true;
    stream_state const& b = all_[before];
    if (!runs(after) || (b.device != all_[after].device && !world_.chosen().across) || b.graph >= 0)
      return false;
    if (!b.alive) return b.farewell != nullptr;
    if (b.legacy || !is_reachable(b)) return !is_legacy_blocked(b.device);
    return true;
  }
  /// Orders it.
  void order(stream_number before, stream_number after) {
    if (before == after) return;
    stream_state const& b = all_[before];
    stream_state const& a = all_[after];
    auto const d = driver(b);
    if (!b.alive) {
      world_.expect(d.wait_event(a.named, b.farewell), "wait_event");
      return;
    }
    // Another thread's default stream cannot be named here; the legacy stream is ordered after it.
    tarn::stream_ref const record_on = is_reachable(b) ? b.named : tarn::stream_ref{};
    tarn::event_handle event = nullptr;
    if (!world_.expect(d.create_event(event), "create_event")) return;
    world_.expect(d.record_event(event, record_on), "record_event");
    world_.expect(d.wait_event(a.named, event), "wait_event");
    world_.expect(d.destroy_event(event), "destroy_event");
  }
  /// True if the host can wait for all work so far on `s`.
  [[nodiscard]] bool can_wait_for(stream_number s) const {
    stream_state const& state = all_[s];
    if (!state.alive) return state.farewell != nullptr;
    if (state.graph >= 0) return false;
    return !(state.legacy || !is_reachable(state)) || !is_legacy_blocked(state.device);
  }
  void wait_for(stream_number s) {
    stream_state const& state = all_[s];
    if (!state.alive) {
      world_.expect(driver(state).synchronize_event(state.farewell), "synchronize_event");
    } else {
      world_.expect(driver(state).synchronize_stream(is_reachable(state) ? state.named : tarn::stream_ref{}),
                    "synchronize_stream");
    }
  }

  /// Displaces what is known of the streams' devices, as 2,048 other streams do.
  void displace_devices() {
    constexpr tarn::stream_id others = tarn::stream_id{2048} << 20;
    for (stream_state const& s : all_)
      driver(s).devices_of_streams().note(s.named.id() + others, tarn::device_id{s.device});
  }

  /// Destroys the stream in a slot, with pending work, and creates another; mostly with the same handle.
  void replace(int device, unsigned slot, unsigned how) {
    auto& here = slots_[static_cast<std::size_t>(device)];
    if (here.size() <= 2) return;
    slot = 2 + slot % static_cast<unsigned>(here.size() - 2);
    stream_state& old = all_[here[slot]];
    if (old.graph >= 0 || is_named_elsewhere(here[slot])) return;
    auto const d = driver(old);
    world_.expect(d.create_event(old.farewell), "create_event");
    world_.expect(d.record_event(old.farewell, old.named), "record_event");
    bool const other_handle = how % 4 == 0;
    stream_number made = 0;
    if (other_handle) made = create(device, how % 8 >= 4);
    world_.expect(d.destroy_stream(all_[here[slot]].named), "destroy_stream");
    all_[here[slot]].alive = false;
    here[slot] = other_handle ? made : create(device, how % 8 >= 4);
  }

  /// Destroys every stream and event that the user created.
  void close() {
    for (stream_state& s : all_) {
      if (s.farewell != nullptr) world_.expect(driver(s).destroy_event(s.farewell), "destroy_event");
      bool const made = reinterpret_cast<std::uintptr_t>(s.named.handle()) > 2;
      if (made && s.alive) world_.expect(driver(s).destroy_stream(s.named), "destroy_stream");
      s.alive = false;
    }
  }

 private:
  static constexpr std::uintptr_t per_thread_handle = 2;

  [[nodiscard]] bool is_reachable(stream_state const& s) const noexcept {
    return s.thread == 0 || s.thread == thread_;
  }
  /// Work on the legacy stream would invalidate a capture from a stream that is ordered with it.
  [[nodiscard]] bool is_legacy_blocked(int device) const {
    for (stream_state const& s : all_) {
      if (s.device == device && s.graph >= 0 && s.blocking) return true;
    }
    return false;
  }
  stream_number add(stream_state const& s) {
    all_.push_back(s);
    return all_.size() - 1;
  }
  stream_number create(int device, bool blocking) {
    stream_state s;
    s.device = device;
    s.blocking = blocking;
    auto const d = driver(s);
    world_.expect(
        blocking ? world_.machine().create_blocking_stream(device, s.named) : d.create_stream(s.named),
        "create_stream");
    return add(s);
  }
  stream_number own_default(int device) {
    for (stream_number s = 0; s < all_.size(); ++s) {
      if (all_[s].thread == thread_ && all_[s].device == device) return s;
    }
    stream_state s;
    s.device = device;
    s.blocking = true;
    s.thread = thread_;
    tarn::stream_id id = 0;
    void* const handle = reinterpret_cast<void*>(per_thread_handle);
    world_.expect(driver(s).identify(tarn::stream_ref::from(handle), id), "identify");
    s.named = tarn::stream_ref::from(handle, id);
    return add(s);
  }

  world& world_;
  std::vector<stream_state> all_;
  std::vector<std::vector<stream_number>> slots_;         ///< by device
  std::map<unsigned, std::vector<stream_number>> named_;  ///< by thread
  static inline thread_local unsigned thread_ = 0;
};

}  // namespace simulation
