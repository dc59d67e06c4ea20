// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the part of a graph memory gets wholly free handles of the common part, and of its owner's other part,
// without a driver call.

#include <cstddef>

#include "tarn/core/min_max.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/arena/arena.hpp"
#include "tarn/pool/arena/page_map.hpp"
#include "tarn/pool/pages/growth.hpp"
#include "tarn/pool/pages/page_choice.hpp"

namespace TARN_NAMESPACE::detail {

/// How far a handle may exceed what a part lacks, bytes: as much as that, or an eighth of what the part has.
/// What is not needed now serves only the part's next requests. Without a bound a graph of 1 MiB could take a
/// handle of 96.
[[nodiscard]] inline std::size_t most_adopted(arena const& a, growth_request const& request,
                                              std::size_t bytes) noexcept {
  if (request.may_create == 0) return ~std::size_t{0};  // nothing else is left
  return bytes + max_of(bytes, a.streams.part(request.part).reserved / 8);
}

/// How many free ranges a part searches for handles, in microseconds about a hundredth of that.
inline constexpr std::size_t most_searched = 2048;
[[nodiscard]] inline std::size_t free_ranges(arena const& a, part_ref p) noexcept {
  return a.streams[a.streams.part(p).neutral_domain].range_count();
}

/// Finds handles side by side that have as many bytes as a request together, with the fewest too many. They
/// are wholly free, and come one after another in the order of their addresses.
class handles_in_a_row {
 public:
  handles_in_a_row(std::size_t bytes, std::size_t most, bool may_join) noexcept
      : bytes_(bytes), most_(most), may_join_(may_join) {}

  /// @throws std::bad_alloc
  void add(piece const& p) {
    if (!may_join_ || row_.empty() || row_.back().address + row_.back().bytes != p.address) begin();
    row_.push_back(p);
    sum_ += p.bytes;
    while (sum_ - row_[first_].bytes >= bytes_) sum_ -= row_[first_++].bytes;
    if (sum_ < bytes_ || sum_ > most_ || (best_sum_ != 0 && sum_ >= best_sum_)) return;
    best_.clear();
    for (std::size_t i = first_; i < row_.size(); ++i) best_.push_back(row_[i]);
    best_sum_ = sum_;
  }
  /// The next handle is not beside the one before.
  void begin() noexcept {
    row_.clear();
    first_ = sum_ = 0;
  }
  /// Empty if there are none.
  [[nodiscard]] sequence<piece>& best() noexcept { return best_; }

 private:
  std::size_t bytes_;
  std::size_t most_;
  bool may_join_;
  sequence<piece> row_;
  std::size_t first_ = 0;  ///< of the handles in the row that are needed
  std::size_t sum_ = 0;    ///< of these
  sequence<piece> best_;
  std::size_t best_sum_ = 0;
};

/// The handles that a part takes for `bytes`: handles side by side with the fewest bytes too many, or else,
/// if they may be mapped together, the largest ones that fit and one for the rest. Empty if there are not
/// enough. O(free ranges + handles)
/// @param several  set to whether they must be mapped together @throws std::bad_alloc
[[nodiscard]] inline sequence<piece> choose_adopted(arena const& a, page_map const& map,
                                                    growth_request const& request, std::size_t bytes,
                                                    bool& several) {
  std::size_t const most = most_adopted(a, request, bytes);
  whole_handles whole;
  handles_in_a_row row(bytes, most, a.joins_handles);
  auto const look = [&](part_ref from) {
    for (zone const where : all_zones) {
      row.begin();
      for_each_piece(a, map, a.streams.part(from).neutral_domain, where, map.granularity(),
                     [&](piece const& p, bool at_start, bool at_end) {
                       if (!at_start || !at_end) return;
                       row.add(p);
                       if (p.bytes <= most) whole.add(p);
                     });
    }
  };
  // Of many free ranges none is looked at while more can be created: that costs less than the search.
  bool const may_search = request.may_create == 0 || free_ranges(a, common) <= most_searched;
  a.streams.for_each_source(request.part, [&](part_ref from) {
    if (may_search || from != common) look(from);
  });
  sequence<piece> chosen;
  several = false;
  if (!row.best().empty()) {
    chosen.swap(row.best());
    return chosen;
  }
  if (request.where == zone::smaller || !request.may_remap) return chosen;
  whole.group(map.granularity());
  std::size_t rest = bytes;
  piece const smallest_above = whole.take(rest, 0, chosen, [](piece const&) { return false; });
  if (rest != 0 && smallest_above.bytes != 0) {
    chosen.push_back(smallest_above);
    rest = 0;
  }
  if (rest != 0) chosen.clear();
  several = chosen.size() > 1;
  return chosen;
}

/// Moves wholly free handles whose work is complete to the part of a request. Returns false if there are not
/// enough, or the part is the common one; nothing has changed then. @param several  set to whether the
/// handles must be mapped together
/// @throws std::bad_alloc, nothing has changed
inline bool adopt_handles(arena& a, page_map const& map, growth_request const& request, std::size_t bytes,
                          bool& several) {
  if (request.part == common) return false;
  sequence<piece> const chosen = choose_adopted(a, map, request, bytes, several);
  if (chosen.empty()) return false;
  a.ranges.make_room(2 * chosen.size() + 2);
  for (piece const& p : chosen) {
    range_ref const r = a.carve(a.starts.find(a.ranges, p.address), p.address, p.bytes);
    a.ranges[r].where = request.where;
    a.move_to_part(r, request.part);
    a.make_free(r, a.streams.part(request.part).neutral_domain, 0);
  }
  return true;
}

}  // namespace TARN_NAMESPACE::detail
