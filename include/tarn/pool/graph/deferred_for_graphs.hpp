// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks that graphs use which are not of their own part. If they are freed meanwhile, nothing reuses them
// until the owners of all these graphs have ended.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/graph/graph_parts.hpp"
#include "tarn/pool/order/block_table.hpp"
#include "tarn/pool/order/slot_table.hpp"

namespace TARN_NAMESPACE::detail {

// The blocks that record_stream() named for the stream of a capture: graphs of another owner than the block's
// use them.

/// Thread-safe; all calls are O(1) amortised, and O(owners whose graphs use the block).
class graph_uses {
 public:
  /// Returns false if no graph is recorded for `p`. Takes no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept { return table_.may_hold(p); }

  /// Records that graphs of `user` use a block. Returns true if the block was not recorded before.
  /// @throws std::bad_alloc, nothing has changed
  bool record(void* p, graph_parts& user) {
    scoped_lock const guard(mutex_);
    if (slot_number const known = table_.find(p); known != 0) {
      graph_users& users = blocks_[known].users;
      users.drop_over();  // a block that lives long may be used by one graph after another
      users.add(user);
      return false;
    }
    blocks_.make_room();
    table_.make_room();
    slot_number const b = blocks_.take();
    blocks_[b].p = p;
    blocks_[b].users.add(user);  // the first one needs no memory
    table_.insert(b);
    return true;
  }
  /// Forgets a block. Returns the owners whose graphs use it, with their references; none if it is not
  /// recorded.
  graph_users take(void const* p) noexcept {
    scoped_lock const guard(mutex_);
    slot_number const b = table_.take(p);
    if (b == 0) return {};
    graph_users users = std::move(blocks_[b].users);
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

/// The lists of these blocks, which the owners' records hold, and the state of the owners. Thread-safe.
template <class Deferred>
class deferred_for_graphs {
 public:
  /// @param pool  counts the blocks with the others that are deferred
  explicit deferred_for_graphs(Deferred& pool) noexcept : pool_(pool) {}
  deferred_for_graphs& operator=(deferred_for_graphs&&) = delete;

  /// Defers a block until none of its users is left, and `by`, if a capture freed it. Returns false if there
  /// is none. Without host memory to record it, the block is deferred until the pool ends. So is one of an
  /// unknown capture.
  bool defer(block_of_graphs& b, bool freed_in_capture, graph_parts* by) noexcept {
    if (!freed_in_capture && b.users.empty()) return false;
    scoped_lock const guard(mutex_);
    b.users.drop_over();
    bool const until_end = freed_in_capture && !add_capture(b, by);
    if (b.users.empty() && !until_end) return false;
    pool_.count_for_graphs(b.bytes, b.alignment, 1);
    if (!until_end) {
      pass_on(b);
    } else {
      b.users.clear();
      defer_until_end(b);
    }
    return true;
  }
  /// Whether there is a block that is deferred until the pool ends. Graphs may use it, and no stream's work
  /// covers that.
  [[nodiscard]] bool any_until_end() const noexcept { return any_until_end_.load(std::memory_order_relaxed); }

  /// Makes room for as many blocks more of an owner. @throws std::bad_alloc
  void reserve(graph_parts& owner, std::size_t count) {
    scoped_lock const guard(mutex_);
    owner.deferred.reserve(owner.deferred.size() + count);
  }
  [[nodiscard]] std::size_t bytes_of(graph_parts const& owner) const noexcept {
    scoped_lock const guard(mutex_);
    return owner.deferred_bytes;
  }
  // ---- under the growth lock

  /// The owner has ended, and a mark of all work begins, or not.
  void set_state(graph_parts& owner, graph_parts::life state) noexcept {
    scoped_lock const guard(mutex_);
    owner.state = state;
    owner.is_mark_old = false;
  }
  /// Ends the mark of an owner, which is complete. Returns false if it had none, or a block was deferred for
  /// it since: then it waits for the next one. Otherwise calls f(pointer, bytes, alignment) for each block
  /// that was deferred for it and for no other: the block is deferred no more.
  template <class F>
  [[nodiscard]] bool take_mark(graph_parts& owner, F const& f) noexcept {
    sequence<block_of_graphs> blocks;
    {
      scoped_lock const guard(mutex_);
      if (owner.state != graph_parts::life::marked) return false;
      owner.state = graph_parts::life::ended;
      if (owner.is_mark_old) return false;
      blocks.swap(owner.deferred);
      owner.deferred_bytes = 0;
    }
    for (auto& b : blocks) {
      if (is_passed_on(b)) continue;
      pool_.count_for_graphs(b.bytes, b.alignment, -1);
      f(b.p, b.bytes, b.alignment);
    }
    return true;
  }
  /// From now on nothing is deferred for an owner. Returns false if a block was meanwhile: then it waits for
  /// another mark.
  [[nodiscard]] bool is_over(graph_parts& owner) noexcept {
    scoped_lock const guard(mutex_);
    if (!owner.deferred.empty()) return false;
    owner.state = graph_parts::life::over;
    return true;
  }

  /// Calls f(address, bytes, number of the owner) for each block of an owner.
  template <class F>
  void for_each(graph_parts const& owner, F const& f) const {
    scoped_lock const guard(mutex_);
    for (auto const& b : owner.deferred) f(b.p, b.bytes, owner.number);
  }
  /// The same for those that are deferred until the pool ends; the number is 0.
  template <class F>
  void for_each_until_end(F const& f) const {
    scoped_lock const guard(mutex_);
    for (auto const& b : until_end_) f(b.p, b.bytes, std::uint64_t{0});
  }

 private:
  /// Adds the owner of the capture that freed a block. Returns false if that is not known, or there is no
  /// host memory.
  [[nodiscard]] static bool add_capture(block_of_graphs& b, graph_parts* by) noexcept {
    try {
      if (by != nullptr) b.users.add(*by);
    } catch (...) {
      by = nullptr;
    }
    return by != nullptr;
  }
  /// Defers a block until the pool ends. One for which there is no host memory is not listed in snapshots.
  /// Under the mutex.
  void defer_until_end(block_of_graphs& b) noexcept {
    any_until_end_.store(true, std::memory_order_relaxed);
    try {
      until_end_.push_back(std::move(b));
    } catch (...) {  // it is deferred all the same
    }
  }
  /// Defers a block for its next user. Under the mutex.
  void pass_on(block_of_graphs& b) noexcept {
    graph_parts& next = b.users.take();
    std::size_t const bytes = rounded_bytes(b.bytes, b.alignment);
    try {
      next.deferred.push_back(std::move(b));
      if (next.state == graph_parts::life::marked) next.is_mark_old = true;
      next.deferred_bytes += bytes;
    } catch (...) {
      b.users.clear();
      defer_until_end(b);
    }
    --next.references;
  }
  /// Returns false if a block has no user that is not over.
  bool is_passed_on(block_of_graphs& b) noexcept {
    scoped_lock const guard(mutex_);
    b.users.drop_over();
    if (b.users.empty()) return false;
    pass_on(b);
    return true;
  }

  Deferred& pool_;
  mutable fork_mutex mutex_;
  std::atomic<bool> any_until_end_{false};
  sequence<block_of_graphs> until_end_;
};

}  // namespace TARN_NAMESPACE::detail
