// SPDX-License-Identifier: Apache-2.0
#pragma once
// graph_owner: what a pool gives to graph_memory (raii/graph_memory.hpp): the ownership of the memory that
// captured graphs use. For a layer that routes to two pools, one owner of the memory in both.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/core/stream.hpp"

namespace TARN_NAMESPACE {

/// The memory of one graph_memory at one moment, bytes.
struct graph_state {
  std::size_t reserved = 0;   ///< held from the driver for its graphs alone; 0 asleep
  std::size_t allocated = 0;  ///< handed out inside captures and not freed since, rounded to block sizes
  std::size_t kept = 0;       ///< blocks of the pool itself that were freed inside a capture, rounded
  std::uint64_t number = 0;   ///< of the owner, as in snapshot_segment::graph_memory
};

namespace detail {

/// Identifies one open capture of an owner.
using capture_number = std::uint64_t;

/// Destruction ends the ownership: the memory is given back when the device has completed all work submitted
/// before.
class graph_owner {
 public:
  graph_owner& operator=(graph_owner&&) = delete;
  virtual ~graph_owner() = default;

  /// What is allocated on `stream` from now on is the owner's. The identity of `stream` is known.
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  [[nodiscard]] virtual capture_number begin_capture(stream_ref stream) = 0;
  /// The same for another stream of that capture. @throws as above
  virtual void join_capture(capture_number capture, stream_ref stream) = 0;
  virtual void end_capture(capture_number capture) noexcept = 0;
  [[nodiscard]] virtual graph_state state() const = 0;
};

}  // namespace detail
}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE::detail {

/// The memory of captured graphs in two pools.
class two_graph_owners final : public graph_owner {
 public:
  two_graph_owners(owned<graph_owner> first, owned<graph_owner> second) noexcept
      : first_(std::move(first)), second_(std::move(second)) {}

  [[nodiscard]] capture_number begin_capture(stream_ref stream) override {
    {
      scoped_lock const guard(mutex_);
      open_.reserve(open_.size() + expected_ + 1);
      ++expected_;
    }
    numbers made{};
    try {
      made.in_first = first_->begin_capture(stream);
      try {
        made.in_second = second_->begin_capture(stream);
      } catch (...) {
        first_->end_capture(made.in_first);
        throw;
      }
    } catch (...) {
      scoped_lock const guard(mutex_);
      --expected_;
      throw;
    }
    scoped_lock const guard(mutex_);
    --expected_;
    made.own = ++last_;
    open_.push_back(made);
    return made.own;
  }
  /// If it throws, the stream may have joined in the first pool.
  void join_capture(capture_number capture, stream_ref stream) override {
    numbers const of = find(capture);
    first_->join_capture(of.in_first, stream);
    second_->join_capture(of.in_second, stream);
  }
  void end_capture(capture_number capture) noexcept override {
    numbers const of = find(capture);
    second_->end_capture(of.in_second);
    first_->end_capture(of.in_first);
    scoped_lock const guard(mutex_);
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (open_[i].own == capture) return open_.erase_unordered(i);
    }
  }
  [[nodiscard]] graph_state state() const override {
    graph_state const a = first_->state();
    graph_state const b = second_->state();
    return {a.reserved + b.reserved, a.allocated + b.allocated, a.kept + b.kept};
  }

 private:
  struct numbers {
    capture_number own = 0, in_first = 0, in_second = 0;
  };
  [[nodiscard]] numbers find(capture_number capture) const noexcept {
    scoped_lock const guard(mutex_);
    for (numbers const& n : open_) {
      if (n.own == capture) return n;
    }
    return {};
  }
  owned<graph_owner> first_;
  owned<graph_owner> second_;
  mutable fork_mutex mutex_;
  sequence<numbers> open_;
  std::size_t expected_ = 0;  ///< captures that are being opened, for which there is room
  capture_number last_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
