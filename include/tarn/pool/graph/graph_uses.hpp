// SPDX-License-Identifier: Apache-2.0
#pragma once
// The blocks that record_stream() named for the stream of a capture: graphs of another owner than the block's
// use them.

#include <cstddef>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/pool/graph/graph_parts.hpp"
#include "tarn/pool/order/block_table.hpp"
#include "tarn/pool/order/slot_table.hpp"

namespace TARN_NAMESPACE::detail {

/// Thread-safe; all calls are O(1) amortised.
class graph_uses {
 public:
  /// Returns false if no graph is recorded for `p`. Takes no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept { return table_.may_hold(p); }

  /// Records that graphs of `user` use a block. Returns true if the block was not recorded before.
  /// @throws std::bad_alloc, nothing has changed
  bool record(void* p, graph_parts& user) {
    scoped_lock const guard(mutex_);
    slot_number b = table_.find(p);
    bool const is_new = b == 0;
    if (is_new) {
      blocks_.make_room();
      table_.make_room();
      b = blocks_.take();
      blocks_[b].p = p;
      table_.insert(b);
    }
    blocks_[b].users.add(user);
    return is_new;
  }
  /// Forgets a block. Returns the owners whose graphs use it, with their references; none if it is not
  /// recorded.
  graph_users take(void const* p) noexcept {
    scoped_lock const guard(mutex_);
    slot_number const b = table_.take(p);
    if (b == 0) return {};
    graph_users const users = blocks_[b].users;
    blocks_.give(b);
    return users;
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    scoped_lock const guard(mutex_);
    return table_.host_bytes() + blocks_.host_bytes();
  }

 private:
  struct block {
    void* p = nullptr;
    slot_number next = 0;
    graph_users users;
  };

  mutable fork_mutex mutex_;
  slot_table<block> blocks_;
  block_table<block> table_{blocks_};
};

}  // namespace TARN_NAMESPACE::detail
