// SPDX-License-Identifier: Apache-2.0
#pragma once
// Undoes a pickled history as PyTorch's viewer does, and reports where the viewer would fail: a block outside
// every segment, the release of a segment that did not exist, a block that was never allocated.

#include <cstdint>
#include <iterator>
#include <map>
#include <string>

#include "report/unpickle.hpp"

namespace tarn_test {

class undone_history {
 public:
  explicit undone_history(pickled const& snapshot, std::size_t device) {
    for (auto const& segment : snapshot.at("segments").items) {
      std::uint64_t at = segment->at("address").number;
      segments_.emplace(at, at + segment->at("total_size").number);
      for (auto const& block : segment->at("blocks").items) {
        std::string const& state = block->at("state").text;
        if (block->at("address").number != at) fail("blocks leave a gap or overlap", at);
        if (state != "inactive") live_.emplace(at, state == "active_pending_free");
        at += block->at("size").number;
      }
      if (segments_[segment->at("address").number] != at) fail("blocks do not fill", at);
    }
    auto const& trace = snapshot.at("device_traces").at(device).items;
    for (auto e = trace.rbegin(); e != trace.rend() && mistake_.empty(); ++e) undo(**e);
  }

  /// Empty if the viewer would accept the history.
  [[nodiscard]] std::string const& mistake() const noexcept { return mistake_; }
  /// The number of live blocks before the first event.
  [[nodiscard]] std::size_t live_at_start() const noexcept { return live_.size(); }
  [[nodiscard]] std::uint64_t bytes_at_start() const noexcept {
    std::uint64_t sum = 0;
    for (auto const& [first, last] : segments_) sum += last - first;
    return sum;
  }

 private:
  void fail(std::string const& what, std::uint64_t address) {
    if (mistake_.empty()) mistake_ = what + " at " + std::to_string(address);
  }

  void undo(pickled const& e) {
    std::string const& action = e.at("action").text;
    if (action == "oom") return;
    std::uint64_t const first = e.at("addr").number;
    std::uint64_t const last = first + e.at("size").number;
    if (action == "alloc") {
      auto const found = live_.find(first);
      if (found == live_.end() || found->second) return fail("allocated, but neither freed nor live", first);
      live_.erase(found);
    } else if (action == "free_completed") {
      if (!live_.emplace(first, true).second) fail("freed twice", first);
      auto const after = segments_.upper_bound(first);
      if (after == segments_.begin() || std::prev(after)->second <= first)
        fail("a block outside every segment", first);
    } else if (action == "free_requested") {
      auto const found = live_.find(first);
      if (found == live_.end() || !found->second) return fail("a free without a waiting block", first);
      found->second = false;
    } else if (action == "segment_alloc" || action == "segment_map") {
      auto const after = segments_.upper_bound(first);
      if (after == segments_.begin() || std::prev(after)->second < last)
        return fail("no segment to undo", first);
      auto const [begin, end] = *std::prev(after);
      if (action == "segment_alloc" && (begin != first || end != last)) fail("another segment", first);
      segments_.erase(std::prev(after));
      if (begin < first) segments_.emplace(begin, first);
      if (last < end) segments_.emplace(last, end);
      if (auto const b = live_.lower_bound(first); b != live_.end() && b->first < last)
        fail("a block outlives its segment", b->first);
    } else if (action == "segment_free" || action == "segment_unmap") {
      auto const after = segments_.lower_bound(first);
      if (after != segments_.end() && after->first < last) fail("a segment overlaps another", first);
      if (after != segments_.begin() && std::prev(after)->second > first)
        fail("a segment overlaps another", first);
      segments_.emplace(first, last);
    } else {
      fail("an action " + action, first);
    }
  }

  std::map<std::uint64_t, std::uint64_t> segments_;
  std::map<std::uint64_t, bool> live_;  ///< true: the block is freed, and the free request is not undone yet
  std::string mistake_;
};

}  // namespace tarn_test
