// SPDX-License-Identifier: Apache-2.0
#pragma once
// Another user of a device whose pools all leave headroom: a library that calls cudaMalloc. It takes at most
// the headroom, and gets it at every moment, also while other threads are inside calls of the pools. Included
// by user.hpp.

#include "user.hpp"

namespace simulation {

/// What the pools of a device may still take from it, bytes.
inline std::size_t user::free_for_pools(int device) const {
  std::size_t const free = world_.machine().usage(device).free_bytes();
  std::size_t const headroom = world_.chosen().headroom;
  return free > headroom ? free - headroom : 0;
}

/// What others have not taken of the headroom, bytes.
inline std::size_t user::headroom_left() const {
  std::size_t taken = 0;
  for (outside_block const& b : outside_) taken += b.bytes;
  return world_.chosen().headroom - taken;
}

inline void user::take_headroom(operation const& o) {
  std::size_t const pieces = headroom_left() / 2_MiB;
  if (pieces == 0) return;
  outside_block b;
  b.bytes = 2_MiB * (o.how % 2 == 0 ? pieces : 1 + o.how % pieces);
  tarn::sim_driver const device = world_.driver(0);
  if (!device.malloc_device(b.bytes, b.p).ok()) {
    world_.found().push_back(
        text("the headroom is gone: an allocation of %zu bytes outside of the pools failed, %zu are free",
             b.bytes, world_.machine().usage(0).free_bytes()));
    return;
  }
  outside_.push_back(b);
}

inline void user::return_headroom(std::size_t which) {
  if (outside_.empty()) return;
  auto const it = outside_.begin() + static_cast<std::ptrdiff_t>(which % outside_.size());
  world_.expect(world_.driver(0).free_device(it->p), "free_device");
  outside_.erase(it);
}

/// The pool gives back what it caches while the headroom is lacking.
inline void user::keep_headroom(unsigned pool) {
  pool_state_of_user const& p = pools_[pool];
  if (p.quiet) return;
  ++counted_.other_calls;
  moment const now;
  p.memory->keep_headroom();
  if (!now.undisturbed() || p.quiet || world_.machine().usage(0).free_bytes() >= world_.chosen().headroom)
    return;
  without_interruption const still;
  std::size_t const cached = p.memory->trim(0);
  if (cached != 0)
    world_.found().push_back(text(
        "keep_headroom() left %zu cached bytes in pool %u although headroom is lacking", cached, p.number));
}

/// Growth leaves the headroom: only others have taken of it.
inline void user::check_headroom() {
  if (world_.chosen().headroom == 0) return;
  std::size_t const free = world_.machine().usage(0).free_bytes();
  if (free < headroom_left())
    world_.found().push_back(
        text("%zu bytes are free on the device, less than the headroom of %zu bytes that no one has taken",
             free, headroom_left()));
}

}  // namespace simulation
