// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two parts of the heap that one graph_memory owns, and the blocks that are deferred until it has ended.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/range.hpp"

namespace TARN_NAMESPACE::detail {

struct graph_parts;

/// The owners whose graphs use a block, each with a reference.
class graph_users {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0 && more_.empty(); }
  /// Adds one, unless it is there. O(users) @throws std::bad_alloc (from the fifth one on), nothing has
  /// changed
  void add(graph_parts& user);
  /// Removes one; the caller takes over its reference.
  [[nodiscard]] graph_parts& take() noexcept {
    if (more_.empty()) return *first_[--count_];
    graph_parts& last = *more_.back();
    more_.pop_back();
    return last;
  }
  void clear() noexcept;
  /// Removes those whose graphs are known to be complete. O(users)
  void drop_over() noexcept;

 private:
  static constexpr std::size_t usual = 4;  // for these no free can fail because there is no host memory
  graph_parts* first_[usual] = {};
  std::size_t count_ = 0;  ///< of first_
  sequence<graph_parts*> more_;
};

/// A block that was freed while graphs use it that are not of its own part.
struct block_of_graphs {
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  graph_users users;  ///< that it is deferred for afterwards
};

/// What one owner has. `captured` has all that its captures ever received, and serves its captures alone,
/// whoever frees it: graphs hold the addresses. `plain` is what the owner hands out elsewhere, in the order
/// of streams.
struct graph_parts {
  enum class life : std::uint8_t {
    alive,
    ended,   ///< its graph_memory was destroyed, and no mark covers its graphs
    marked,  ///< a mark does
    over     ///< its graphs are complete, and its parts are gone
  };

  explicit graph_parts(std::uint64_t of_owner) noexcept : number(of_owner) {}

  std::uint64_t const number;           ///< of the graph_memory, counted from 1, as PyTorch's segment_pool_id
  part_ref captured = common;           ///< set once, before the owner is used
  std::atomic<part_ref> plain{common};  ///< common until it is needed
  /// Bytes that callers hold, rounded to block sizes. Deferred blocks are not counted.
  std::atomic<std::int64_t> handed_out{0};
  /// Open captures and blocks that its graphs use: while there is one, the record stays.
  std::atomic<std::size_t> references{0};
  std::atomic<life> state{life::alive};  ///< changed under the mutex of deferred_for_graphs
  // Under that mutex:
  sequence<block_of_graphs> deferred;
  std::size_t deferred_bytes = 0;
  bool is_mark_old = false;  ///< a block was deferred for it after the mark
  std::size_t place = 0;     ///< in the list of owners that are alive; under the growth lock
};

inline void graph_users::add(graph_parts& user) {
  for (std::size_t i = 0; i < count_; ++i) {
    if (first_[i] == &user) return;
  }
  for (graph_parts const* const known : more_) {
    if (known == &user) return;
  }
  if (count_ < usual) {
    first_[count_++] = &user;
  } else {
    more_.push_back(&user);
  }
  ++user.references;
}
inline void graph_users::clear() noexcept {
  while (!empty()) --take().references;
}
inline void graph_users::drop_over() noexcept {
  auto const is_over = [](graph_parts& p) {
    bool const over = p.state == graph_parts::life::over;
    if (over) --p.references;
    return over;
  };
  for (std::size_t i = count_; i-- > 0;) {
    if (is_over(*first_[i])) first_[i] = first_[--count_];
  }
  for (std::size_t i = more_.size(); i-- > 0;) {
    if (is_over(*more_[i])) more_.erase_unordered(i);
  }
}

}  // namespace TARN_NAMESPACE::detail
