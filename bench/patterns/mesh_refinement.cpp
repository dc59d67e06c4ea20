// SPDX-License-Identifier: Apache-2.0
// mesh_refinement: levels of boxes whose sides grow by a few cells at each regrid. A level is rebuilt as a
// whole: all new boxes are allocated before the old ones are freed. Between regrids each box needs the fluxes
// through its faces.

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "patterns/generators.hpp"
#include "patterns/random_source.hpp"

namespace tarn::bench {

namespace {

constexpr unsigned regrids = 90;
constexpr std::array<std::size_t, 4> boxes_at_start{8, 16, 32, 64};
constexpr std::uint64_t bytes_of_cell = 5 * 8;  ///< five variables of eight bytes

// Cells.
constexpr std::uint64_t ghost_cells = 2;  ///< on each side
constexpr std::uint64_t shortest_side = 24, longest_at_start = 40, longest_side = 64;
constexpr std::uint64_t most_growth = 2;  ///< of a side at one regrid

class mesh {
 public:
  explicit mesh(std::uint64_t seed) : random_(seed) {
    trace_.add_stream(0);
    for (std::size_t const count : boxes_at_start) {
      level boxes(count);
      for (box& b : boxes) {
        for (std::uint64_t& side : b.sides) side = random_.between(shortest_side, longest_at_start);
        b.cells = allocate_cells(b);
      }
      levels_.push_back(std::move(boxes));
    }
  }

  trace_builder run() && {
    for (unsigned i = 0; i < regrids; ++i) {
      for (std::size_t l = 0; l < levels_.size(); ++l) {
        regrid(levels_[l], boxes_at_start[l]);
        advance(levels_[l]);
      }
    }
    for (level const& boxes : levels_) {
      for (box const& b : boxes) trace_.release(b.cells);
    }
    return std::move(trace_);
  }

 private:
  struct box {
    std::array<std::uint64_t, 3> sides{};
    trace_block cells;
  };
  using level = std::vector<box>;

  trace_block allocate_cells(box const& b) {
    std::uint64_t cells = 1;
    for (std::uint64_t const side : b.sides) cells *= side + 2 * ghost_cells;
    return trace_.allocate(cells * bytes_of_cell, 0);
  }

  /// Grows every box, splits those that are too long, and coarsens random ones while there are half as many
  /// again as at the start.
  void regrid(level& old, std::size_t at_start) {
    level grown;
    for (box b : old) {
      for (std::uint64_t& side : b.sides) side += random_.between(0, most_growth);
      box other = b;
      bool split = false;
      for (std::size_t d = 0; d < b.sides.size() && !split; ++d) {
        if (b.sides[d] <= longest_side) continue;
        other.sides[d] = b.sides[d] / 2;
        b.sides[d] -= other.sides[d];
        split = true;
      }
      grown.push_back(b);
      if (split) grown.push_back(other);
    }
    while (grown.size() > at_start + at_start / 2) {
      std::swap(grown[random_.between(0, grown.size() - 1)], grown.back());
      grown.pop_back();
    }
    for (box& b : grown) b.cells = allocate_cells(b);
    for (box const& b : old) trace_.release(b.cells);
    old = std::move(grown);
  }

  /// One time step: the fluxes of one box at a time.
  void advance(level const& boxes) {
    for (box const& b : boxes) {
      std::array<trace_block, 3> fluxes;
      for (std::size_t d = 0; d < fluxes.size(); ++d) {
        std::uint64_t faces = b.sides[d] + 1;
        for (std::size_t other = 0; other < fluxes.size(); ++other) faces *= other == d ? 1 : b.sides[other];
        fluxes[d] = trace_.allocate(faces * bytes_of_cell, 0);
      }
      for (trace_block const& f : fluxes) trace_.release(f);
    }
  }

  random_source random_;
  trace_builder trace_;
  std::vector<level> levels_;
};

}  // namespace

trace_builder mesh_refinement(std::uint64_t seed) {
  return mesh(seed).run();
}

}  // namespace tarn::bench
