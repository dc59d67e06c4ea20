// SPDX-License-Identifier: Apache-2.0
#pragma once
// The live blocks of graph memories by address, so that a deallocation in the pool finds the part that a block belongs to. Blocks
// of the pool that record_stream() named for a captured stream are here, too, and blocks that a capture_cache keeps recorded while
// they are free (capture_cache.hpp).

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/pool/graph/graph_part.hpp"
#include "tarn/pool/order/block_table.hpp"
#include "tarn/pool/order/slot_table.hpp"

namespace tarn::detail {

/// What a block is recorded for: while it is live, or also while the cache of a capture has it.
enum class recorded_for : std::uint8_t { live_block, capture_cache };

/// A recorded block holds a reference to its part. Thread-safe; all calls are O(1) amortised.
template <class Part>
class graph_blocks {
 public:
  /// Returns false if `p` is no recorded block. Takes no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept { return table_.may_hold(p); }

  /// Records a block that was handed out. Returns false if it was recorded before: a capture_cache had kept it so, and gives it up.
  /// @param what  capture_cache: a capture keeps the block recorded when it is freed
  /// @throws std::bad_alloc, nothing has changed
  bool record(void* p, Part& owner, recorded_for what) {
    std::lock_guard const guard(mutex_);
    blocks_.make_room();
    table_.make_room();
    slot_number b = table_.find(p);
    bool const is_new = b == 0;
    if (is_new) {
      b = blocks_.take();
      blocks_[b].p = p;
      blocks_[b].of.owner = &owner;
      table_.insert(b);
      ++owner.references;
    } else {
      ++owner.cache.changes;
    }
    blocks_[b].is_cached = what == recorded_for::capture_cache;
    return is_new;
  }
  /// Forgets the blocks that a capture_cache kept recorded, except those that it has given up meanwhile. Returns how many.
  std::size_t forget(void* const* free, std::size_t count, Part& owner) noexcept {
    std::lock_guard const guard(mutex_);
    std::size_t forgotten = 0;
    for (std::size_t i = 0; i < count; ++i) {
      slot_number const b = table_.find(free[i]);
      if (b == 0 || !blocks_[b].is_cached) continue;
      (void)table_.take(free[i]);
      blocks_.give(b);
      ++forgotten;
    }
    owner.references -= forgotten;
    return forgotten;
  }
  /// Records that graphs of `user` use a block, of a part or of the pool. Returns true if the block was not recorded before.
  /// @throws std::bad_alloc, nothing has changed
  bool record_use(void* p, Part& user) {
    std::lock_guard const guard(mutex_);
    slot_number b = table_.find(p);
    bool const is_new = b == 0;
    if (is_new) {
      blocks_.make_room();
      table_.make_room();
      b = blocks_.take();
      blocks_[b].p = p;
      table_.insert(b);
    }
    if (blocks_[b].of.owner != &user) {
      blocks_[b].of.users.add(user);
      give_up(b);
    }
    return is_new;
  }
  /// The parts of a block: whose it is, and whose graphs use it.
  struct parts_of_block {
    Part* owner = nullptr;  ///< null: the pool's
    graph_users<Part> users;
    [[nodiscard]] bool is_there() const noexcept { return owner != nullptr || !users.empty(); }
  };
  /// Forgets a block and returns its parts, with the block's references; empty if it is not recorded.
  parts_of_block take(void* p) noexcept {
    std::lock_guard const guard(mutex_);
    slot_number const b = table_.take(p);
    if (b == 0) return {};
    parts_of_block const of = blocks_[b].of;
    give_up(b);
    blocks_.give(b);
    return of;
  }
  /// The part that a block belongs to, with one reference more; null if it belongs to none.
  Part* owner_of(void const* p) noexcept {
    std::lock_guard const guard(mutex_);
    slot_number const b = table_.find(p);
    if (b == 0 || blocks_[b].of.owner == nullptr) return nullptr;
    ++blocks_[b].of.owner->references;
    return blocks_[b].of.owner;
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::lock_guard const guard(mutex_);
    return table_.host_bytes() + blocks_.host_bytes();
  }

 private:
  struct block {
    void* p = nullptr;
    slot_number next = 0;
    parts_of_block of;
    bool is_cached = false;  ///< a capture_cache counts on finding it recorded
  };

  /// Makes the capture_cache that counts on a block start anew.
  void give_up(slot_number b) noexcept {
    if (std::exchange(blocks_[b].is_cached, false)) ++blocks_[b].of.owner->cache.changes;
  }
  mutable fork_mutex mutex_;
  slot_table<block> blocks_;
  block_table<block> table_{blocks_};
};

}  // namespace tarn::detail
