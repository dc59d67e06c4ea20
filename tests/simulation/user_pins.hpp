// SPDX-License-Identifier: Apache-2.0
#pragma once
// The user's page pins: of a block or a part of one, for some steps. A pin may outlive its block and its
// pool. While it lives, the handles behind its bytes stay the same, stay mapped where they are, and keep
// their contents, also while the pool sleeps: then the host reads them, as a network card would. Included by
// user.hpp.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "user.hpp"

namespace simulation {

inline void user::make_pin(operation const& o, block_slot& slot) {
  if (slot == nullptr || slot->bytes == 0 || pins_.size() >= most_pins) return;
  block const b = *slot;
  pool_state_of_user const& p = pools_[b.pool];
  if (!p.memory->can_pin()) return;
  std::size_t const offset = o.how % 2 == 0 ? 0 : o.bytes % b.bytes;
  std::size_t const bytes = o.how % 2 == 0 ? b.bytes : 1 + o.duration * 97 % (b.bytes - offset);
  auto made = std::make_unique<pin_of_user>();
  *made = {nullptr, b.pool, p.number, b.number, ++last_pin_, static_cast<char const*>(b.p) + offset, bytes};
  made->of_graph = b.of_graph;
  bool const asleep = p.asleep && !p.changing;
  bool const awake = !p.quiet;
  ++counted_.other_calls;
  moment const now;
  try {
    if (o.how % 8 == 6) {  // the list alone
      auto const pieces = p.memory->segments_of(made->p, bytes);
      if (now.undisturbed()) expect_pieces(pieces, world_.pages().behind(made->p, bytes), "segments_of()");
      expect_one_handle(b.pool, pieces.size());
      ++counted_.pin_looks;
    } else {
      made->it = p.memory->pin(made->p, bytes);
    }
  } catch (asleep_error const&) {
    if (awake && now.undisturbed()) world_.found().push_back("a pool that is awake refused a pin as asleep");
    return;
  } catch (tarn::cuda_error const& error) {
    if (!without_pages || error.kind() != tarn::failure::unsupported) throw;
    ++counted_.refused_pins;
    return;
  }
  if (without_pages) world_.found().push_back("a pool without pages made a pin");
  if (asleep && now.undisturbed() && !b.of_graph) world_.found().push_back("a sleeping pool made a pin");
  if (made->it == nullptr) return;
  ++counted_.pins;
  made->pieces = world_.pages().behind(made->p, bytes);
  expect_one_handle(b.pool, made->pieces.size());
  std::size_t mapped = 0;
  for (page_piece const& piece : made->pieces) mapped += piece.bytes;
  if (mapped != bytes)
    world_.found().push_back(text("a pin of %zu bytes at %p: only %zu are mapped", bytes, made->p, mapped));
  world_.pages().pin(made->number, made->pieces);
  // The pool may have fallen asleep since.
  if (p.quiet) add_pinned(pools_[b.pool].may_stay, *made);
  pins_.push_back(std::move(made));
}

inline void user::expect_one_handle(unsigned pool, std::size_t pieces) {
  if (pieces > 1 && has_one_handle_per_block(world_.chosen().pools[pool].options))
    world_.found().push_back(
        text("pool %u: a pinned block lies in %zu handles instead of one", pool, pieces));
}

inline void user::expect_pieces(std::vector<page_piece> const& are, std::vector<page_piece> const& expected,
                                char const* what) {
  if (are == expected) return;
  std::size_t i = 0;
  while (i < are.size() && i < expected.size() && are[i] == expected[i]) ++i;
  auto const handle = [&](std::vector<page_piece> const& list) {
    return i < list.size() ? static_cast<std::uint64_t>(list[i].handle) : 0;
  };
  world_.found().push_back(
      text("%s of pinned bytes: %zu segments instead of %zu; segment %zu is of handle %" PRIu64
           " instead of %" PRIu64,
           what, are.size(), expected.size(), i, handle(are), handle(expected)));
}

/// The pinned block, if it is live and no step of another thread uses its slot.
inline user::block const* user::pinned_block(pin_of_user const& pin) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i] != nullptr && blocks_[i]->number == pin.block)
      return blocks_claimed_[i] ? nullptr : blocks_[i].get();
  }
  for (block_slot const& b : ballast_) {
    if (b != nullptr && b->number == pin.block) return b.get();
  }
  return nullptr;
}

/// What the library reports about pinned bytes is what the driver has mapped.
inline void user::look_at_pin(operation const& o) {
  if (pins_.empty()) return;
  pin_of_user& pin = *pins_[o.slot % pins_.size()];
  if (pin.is_busy) return;
  pool_state_of_user const& p = pools_[pin.pool];
  bool const is_old = pin.pool_number != p.number;
  bool const awake = !is_old && !p.quiet;
  bool const live = pinned_block(pin) != nullptr;
  ++counted_.other_calls;
  ++counted_.pin_looks;
  pin.is_busy = true;
  moment const now;
  try {
    if (o.how % 8 == 0) pin.it->move();
    expect_pieces(pin.it->segments(), pin.pieces, "segments()");
  } catch (asleep_error const&) {
    if (awake && now.undisturbed())
      world_.found().push_back("the pool of a pin is awake but threw pool_asleep");
  } catch (tarn::misuse const&) {
    if (live && pinned_block(pin) != nullptr)
      world_.found().push_back("the segments of a pinned block are refused as of a freed one");
  }
  pin.is_busy = false;
}

/// The pages behind a pin are mapped where they were; in a sleeping pool the host reads them.
inline void user::check_pin(pin_of_user const& pin) {
  expect_pieces(world_.pages().behind(pin.p, pin.bytes), pin.pieces, "mappings");
  if (!world_.machine().is_accessible(pin.p, pin.bytes)) {
    world_.found().push_back(
        text("the device has no memory behind %zu pinned bytes at %p", pin.bytes, pin.p));
    return;
  }
  pool_state_of_user const& pool = pools_[pin.pool];
  if (!reads_contents() || pin.pool_number != pool.number || !pool.asleep || pool.changing) return;
  block const* const b = pinned_block(pin);
  if (b == nullptr || !b->written) return;
  ++counted_.pin_reads;
  std::size_t const offset = static_cast<std::size_t>(pin.p - static_cast<char const*>(b->p));
  read_stamps{b->p, b->bytes, b->number, &world_.found(), offset, offset + pin.bytes}();
}
inline void user::check_pins() {
  for (auto const& pin : pins_) {
    if (!pin->is_ending) check_pin(*pin);
  }
}

/// Of a pool that was replaced a pin may be the last owner: the pool then ends, which waits for the device.
inline bool user::can_end(pin_of_user const& pin) const {
  return !pin.is_busy && !(pin.pool_number != pools_[pin.pool].number && any_capture());
}
inline void user::end_pin(std::size_t which) {
  if (!can_end(*pins_[which])) return;
  pin_of_user& gone = *pins_[which];
  check_pin(gone);
  world_.pages().unpin(gone.number);
  gone.is_busy = gone.is_ending = true;
  ++counted_.other_calls;
  bool const may_end_pool = gone.pool_number != pools_[gone.pool].number;
  ending_pools_ += may_end_pool ? 1 : 0;
  gone.it.reset();
  ending_pools_ -= may_end_pool ? 1 : 0;
  std::erase_if(pins_, [&](auto const& pin) { return pin.get() == &gone; });
}
template <class Condition>
void user::end_pins(Condition const& ends) {
  for (std::size_t i = pins_.size(); i-- > 0;) {
    if (i < pins_.size() && ends(*pins_[i])) end_pin(i);
  }
}

inline bool user::has_pins(unsigned pool_number) const {
  return std::any_of(pins_.begin(), pins_.end(),
                     [&](auto const& pin) { return pin->pool_number == pool_number; });
}
/// Whether a pin keeps the memory of a graph_memory, which may have ended.
inline bool user::has_graph_pins(unsigned pool_number) const {
  return std::any_of(pins_.begin(), pins_.end(),
                     [&](auto const& pin) { return pin->pool_number == pool_number && pin->of_graph; });
}
inline bool user::is_wholly_pinned(block const& b) const {
  return std::any_of(pins_.begin(), pins_.end(), [&](auto const& pin) {
    return pin->block == b.number && pin->bytes == b.bytes && !pin->is_ending;
  });
}
inline void user::add_pinned(pinned_handles& to, pin_of_user const& pin) {
  for (page_piece const& piece : pin.pieces) to.insert_or_assign(piece.handle, piece.handle_bytes);
}
inline pinned_handles user::pinned_in(unsigned pool_number) const {
  pinned_handles all;
  for (auto const& pin : pins_) {
    if (pin->pool_number == pool_number) add_pinned(all, *pin);
  }
  return all;
}

}  // namespace simulation
