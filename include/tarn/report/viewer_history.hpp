// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which events of a history fit the final state: the rule of all writers that start from it. And a history
// that PyTorch's viewer can undo. The viewer draws the memory at an earlier moment by undoing events from the
// last one backwards, and fails if an event does not fit: each block must lie in a segment for its whole
// lifetime, and a segment that is removed must exist. So the history is first undone here, and the segment
// changes that the viewer needs are recorded:
//
//   handles created and released  the parts of them at their original addresses at that moment
//   a view's block                its segment is added with it; meanwhile its pieces leave their original addresses
//   a block without a segment     gets one for its lifetime (a view that has ended, memory released without a record);
//                                 its bytes count twice if they are also at their original address
//   events that contradict the    omitted, also from the page and from the Perfetto trace: a free of a block that is
//   final state                   live, an allocation of one that is not
//   events after the snapshot     omitted; the page and the Perfetto trace continue with them

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "tarn/report/snapshot.hpp"

namespace TARN_NAMESPACE::detail {

/// How an event is written.
enum class reported_as : std::uint8_t {
  nothing,    ///< omitted, or written as segment changes
  itself,     ///< an allocation, a refused request, a completed free
  requested,  ///< a free that still waits for another stream's work
};

/// A segment that is added or removed next to an event.
struct segment_change {
  std::size_t event = 0;  ///< index of the event
  bool after = false;     ///< false: before the event
  bool comes = false;     ///< true: added; false: removed
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
};

class viewer_history {
 public:
  /// O((events + segments) log blocks); one byte per event, and a map of the live blocks.
  explicit viewer_history(snapshot const& s)
      : snapshot_(s), reported_(s.events.size(), reported_as::nothing) {
    for (snapshot_segment const& segment : s.segments) begin_with(segment);
    std::uint64_t latest = 0;  // threads read the clock before their calls are ordered
    while (known_ < s.events.size() && (latest = (std::max)(latest, s.events[known_].time_ns)) <= s.now_ns)
      ++known_;
    for (std::size_t i = known_; i-- > 0;) undo(i);
    std::reverse(changes_.begin(), changes_.end());
  }

  [[nodiscard]] reported_as reported(std::size_t event) const noexcept { return reported_[event]; }
  /// Number of events up to the snapshot's moment.
  [[nodiscard]] std::size_t known() const noexcept { return known_; }
  /// Whether the event is an allocation or a free that contradicts the final state.
  [[nodiscard]] bool contradicts(std::size_t event) const noexcept {
    return event < known_ && snapshot_.events[event].kind <= snapshot_event_kind::free &&
           reported_[event] == reported_as::nothing;
  }
  /// Returns the segment changes in the order of the events.
  [[nodiscard]] std::vector<segment_change> const& changes() const noexcept { return changes_; }
  /// Whether segments consist of pages, which join with adjacent ones and may be split (PyTorch: expandable
  /// segments); otherwise each is added and removed as a whole.
  [[nodiscard]] bool is_expandable() const noexcept { return expandable_; }

 private:
  struct block {
    std::size_t bytes = 0;
    /// the segment of which it is the only block, and that is added with it
    snapshot_segment const* own = nullptr;
    bool has_own = false;   ///< a segment was created for it
    bool deferred = false;  ///< and its free is not undone yet
  };

  /// Number of handles that are rechecked after each allocation; further ones appear as present from the
  /// start.
  static constexpr std::size_t most_late = 64;

  void begin_with(snapshot_segment const& segment) {
    segments_.emplace(segment.address, segment.address + segment.bytes);
    expandable_ = expandable_ || segment.kind != segment_kind::upstream;
    bool const alone = segment.blocks.size() == 1 && segment.kind != segment_kind::pages;
    for (snapshot_block const& b : segment.blocks) {
      if (b.use == block_use::cached) continue;
      live_.emplace(b.address,
                    block{b.bytes, alone ? &segment : nullptr, false, b.use == block_use::deferred});
    }
  }

  void undo(std::size_t i) {
    snapshot_event const& e = snapshot_.events[i];
    switch (e.kind) {
      case snapshot_event_kind::allocate:
        return undo_allocation(i, e);
      case snapshot_event_kind::free:
        return undo_free(i, e);
      case snapshot_event_kind::reserve:
        if (has_live(e.address, e.bytes)) {  // recorded late: it precedes the first block in it
          if (late_.size() < most_late) late_.emplace_back(e.address, e.bytes);
        } else {
          take_away(i, false, e.address, e.bytes);
        }
        return;
      case snapshot_event_kind::release:
        return put_back(i, false, e.address, e.bytes);
      default:
        reported_[i] = reported_as::itself;
    }
  }

  void undo_allocation(std::size_t i, snapshot_event const& e) {
    auto const found = live_.find(e.address);
    if (found == live_.end() || found->second.deferred) return;  // neither live at the end nor freed since
    reported_[i] = reported_as::itself;
    block const b = found->second;
    live_.erase(found);
    if (b.has_own && !has_live(e.address, b.bytes)) take_away(i, false, e.address, b.bytes);
    if (b.own != nullptr && !has_live(b.own->address, b.own->bytes)) {
      take_away(i, false, b.own->address, b.own->bytes);
      for (std::size_t k = b.own->pieces.size(); k-- > 0;)
        put_back(i, false, b.own->pieces[k].address, b.own->pieces[k].bytes);
    }
    for (std::size_t k = late_.size(); k-- > 0;) {
      if (has_live(late_[k].first, late_[k].second)) continue;
      take_away(i, false, late_[k].first, late_[k].second);
      late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }

  void undo_free(std::size_t i, snapshot_event const& e) {
    if (auto const found = live_.find(e.address); found != live_.end()) {
      if (found->second.deferred) reported_[i] = reported_as::requested;
      found->second.deferred = false;
      return;
    }
    if (e.bytes == 0) return;
    block b{e.bytes, nullptr, false, false};
    if (!is_covered(e.address)) {
      b.has_own = true;
      put_back(i, true, e.address, e.bytes);
    }
    reported_[i] = reported_as::itself;
    live_.emplace(e.address, b);
  }

  [[nodiscard]] bool is_covered(std::uintptr_t address) const {
    auto const after = segments_.upper_bound(address);
    return after != segments_.begin() && std::prev(after)->second > address;
  }
  /// Whether a live block overlaps a range.
  [[nodiscard]] bool has_live(std::uintptr_t address, std::size_t bytes) const {
    auto const behind = live_.lower_bound(address + bytes);
    if (behind == live_.begin()) return false;
    auto const& [first, found] = *std::prev(behind);
    return first >= address || address - first < found.bytes;
  }

  /// Undoes the addition of a range: removes those parts of it that are present.
  void take_away(std::size_t i, bool after, std::uintptr_t address, std::size_t bytes) {
    std::uintptr_t const end = address + bytes;
    if (!expandable_) {
      auto const whole = segments_.find(address);
      if (whole == segments_.end() || whole->second != end) return;
      segments_.erase(whole);
      changes_.push_back({i, after, true, address, bytes});
      return;
    }
    auto at = segments_.upper_bound(address);
    if (at != segments_.begin()) --at;
    while (at != segments_.end() && at->first < end) {
      auto const [first, last] = *at;
      if (last <= address) {
        ++at;
        continue;
      }
      std::uintptr_t const from = (std::max)(first, address);
      std::uintptr_t const to = (std::min)(last, end);
      at = segments_.erase(at);
      if (first < from) segments_.emplace(first, from);
      if (to < last) segments_.emplace(to, last);
      changes_.push_back({i, after, true, from, to - from});
    }
  }

  /// Undoes the removal of a range: adds those parts of it that are missing.
  void put_back(std::size_t i, bool after, std::uintptr_t address, std::size_t bytes) {
    std::uintptr_t const end = address + bytes;
    std::vector<std::pair<std::uintptr_t, std::uintptr_t>> gaps;
    auto next = segments_.upper_bound(address);
    std::uintptr_t at = address;
    if (next != segments_.begin()) at = (std::max)(at, std::prev(next)->second);
    for (; at < end; ++next) {
      std::uintptr_t const to = next == segments_.end() ? end : (std::min)(end, next->first);
      if (at < to) gaps.emplace_back(at, to);
      if (next == segments_.end()) break;
      at = (std::max)(at, next->second);
    }
    for (auto const& [first, last] : gaps) {
      segments_.emplace(first, last);
      changes_.push_back({i, after, false, first, last - first});
    }
  }

  snapshot const& snapshot_;
  std::size_t known_ = 0;
  std::vector<reported_as> reported_;
  std::vector<segment_change> changes_;
  std::map<std::uintptr_t, std::uintptr_t> segments_;  ///< begin to end; adjacent ones are not joined
  std::map<std::uintptr_t, block> live_;
  std::vector<std::pair<std::uintptr_t, std::size_t>> late_;
  bool expandable_ = false;
};

}  // namespace TARN_NAMESPACE::detail
