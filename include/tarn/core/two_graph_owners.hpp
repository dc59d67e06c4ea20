// SPDX-License-Identifier: Apache-2.0
#pragma once
// The memory of captured graphs in two pools, for a layer that routes to both.

#include <cstddef>
#include <mutex>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"

namespace TARN_NAMESPACE::detail {

/// The memory of captured graphs in two pools.
class two_graph_owners final : public graph_owner {
 public:
  two_graph_owners(owned<graph_owner> first, owned<graph_owner> second) noexcept
      : first_(std::move(first)), second_(std::move(second)) {}

  [[nodiscard]] capture_number begin_capture(stream_ref stream) override {
    {
      std::lock_guard const guard(mutex_);
      open_.reserve(open_.size() + ++expected_);
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
      std::lock_guard const guard(mutex_);
      --expected_;
      throw;
    }
    std::lock_guard const guard(mutex_);
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
    std::lock_guard const guard(mutex_);
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
    std::lock_guard const guard(mutex_);
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
