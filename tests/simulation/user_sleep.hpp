// SPDX-License-Identifier: Apache-2.0
#pragma once
// The user's pools that sleep and are compacted. A correct user waits for all work that uses the pool's
// memory and starts none until the pool is awake. Allocations throw meanwhile, frees do not. Included by
// user.hpp.

#include "user.hpp"

namespace simulation {

/// sleep(), wake() and compact() refuse while a capture_scope is open in any pool.
inline bool is_refused_for_capture(tarn::cuda_error const& error) noexcept {
  constexpr int unsupported = 900;  // cudaErrorStreamCaptureUnsupported
  return error.code() == unsupported;
}

/// Waits for all work of the pool's device. Until the pool is not quiet any more, no step uses its memory.
inline bool user::make_quiet(unsigned pool) {
  pool_state_of_user& p = pools_[pool];
  if (!p.memory->can_sleep() || p.quiet || streams_.is_capturing(p.device)) return false;
  p.quiet = p.changing = true;
  world_.expect(world_.driver(p.device).synchronize_device(), "synchronize_device");
  return true;
}

inline void user::put_to_sleep(operation const& o, unsigned pool) {
  if (!make_quiet(pool)) return;
  pool_state_of_user& p = pools_[pool];
  ++counted_.sleeps;
  ++counted_.other_calls;
  constexpr unsigned discarded = 2;
  // On a device with 64 GiB the host would copy for minutes.
  unsigned const how = p.memory->state().reserved > 4_GiB ? discarded : o.how;
  p.may_stay = pinned_in(p.number);
  moment const now;
  try {
    world::copies const copying(world_);
    (void)p.memory->sleep(how);
    if (without_pages) world_.found().push_back("a pool without pages fell asleep");
  } catch (tarn::cuda_error const& error) {
    p.quiet = p.changing = false;
    if (!is_refused_for_capture(error) && !(without_pages && error.kind() == tarn::failure::unsupported))
      throw;
    if (now.undisturbed() && p.memory->is_asleep())
      world_.found().push_back("a pool fell asleep although it refused");
    return;
  } catch (...) {
    p.quiet = p.changing = false;
    throw;
  }
  p.asleep = true;
  p.changing = false;
  if (now.undisturbed() && !p.memory->is_asleep()) world_.found().push_back("a pool did not fall asleep");
  for (block_slot const& b : blocks_) {
    bool const is_lost = how % 3 == discarded && b != nullptr && b->pool == pool;
    if (is_lost && !is_wholly_pinned(*b)) b->written = false;
  }
  if (reads_contents() && how % 3 == discarded) {
    for (auto const& g : captured_) {
      if (g->memory->pool == pool && g->reads_freed) g->has_lost_contents = true;
    }
  }
  check_pins();
}

inline void user::wake(operation const& o, unsigned pool) {
  pool_state_of_user& p = pools_[pool];
  if (!p.asleep || p.changing) return;
  check_pins();
  p.changing = true;
  ++counted_.other_calls;
  moment const now;
  try {
    world::copies const copying(world_);
    (void)p.memory->wake(o.how);
  } catch (tarn::out_of_memory const&) {
    p.changing = false;
    if (now.undisturbed() && !p.memory->is_asleep())
      world_.found().push_back("a pool that could not be woken is awake");
    throw;
  } catch (tarn::cuda_error const& error) {
    p.changing = false;
    if (!is_refused_for_capture(error)) throw;
    if (now.undisturbed() && !p.memory->is_asleep())
      world_.found().push_back("a pool that could not be woken is awake");
    return;
  }
  world_.hold_again();
  p.asleep = p.quiet = p.changing = false;
  if (now.undisturbed() && p.memory->is_asleep()) world_.found().push_back("a pool did not wake");
  read_all(pool);
}

inline void user::compact(unsigned pool) {
  if (!make_quiet(pool)) return;
  pool_state_of_user& p = pools_[pool];
  ++counted_.compactions;
  ++counted_.other_calls;
  try {
    world::copies const copying(world_);
    (void)p.memory->compact();
  } catch (tarn::cuda_error const& error) {
    p.quiet = p.changing = false;
    if (!is_refused_for_capture(error)) throw;
    return;
  } catch (...) {
    p.quiet = p.changing = false;
    throw;
  }
  world_.hold_again();
  p.quiet = p.changing = false;
  read_all(pool);
}

/// Contents that were kept are the same.
inline void user::read_all(unsigned pool) {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i] == nullptr || blocks_claimed_[i]) continue;
    block& b = *blocks_[i];
    if (b.pool == pool && b.written && !b.unordered && b.in == nullptr && streams_.runs(b.last))
      launch(b, b.last, 1000, tarn::sim_use::reads);
  }
}

/// At the end of the program some pools end asleep.
inline void user::wake_some() {
  for (unsigned i = 0; i < pools_.size(); ++i) {
    if (!pools_[i].asleep || (numbers_ + i) % 3 == 0) continue;
    world_.machine().take_memory(pools_[i].device, 0);
    pools_[i].memory->set_limit(world_.chosen().machine.capacity * 4);
    try {
      wake({}, i);
    } catch (tarn::out_of_memory const&) {  // other pools have the memory
    }
  }
}

}  // namespace simulation
