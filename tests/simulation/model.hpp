// SPDX-License-Identifier: Apache-2.0
#pragma once
// The reference: a correct allocator without regard to speed. One set of intervals for all pools, and the
// sums that their counters must show. It is notified of every block that a pool allocates or takes back, for
// any caller.

#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "in_library.hpp"
#include "tarn/core/bytes.hpp"

namespace simulation {

/// The findings, in order; empty: none.
using findings = std::vector<std::string>;

/// A line of text, as printf makes it.
template <class... Arguments>
[[nodiscard]] std::string text(char const* format, Arguments... arguments) {
  char line[512];
  std::snprintf(line, sizeof line, format, arguments...);
  return line;
}

/// Bytes that a request occupies, computed independently from the documentation: 256-byte steps up to 2 KiB,
/// eighths of a power of two up to 32 KiB, sixteenths up to 1 MiB, and 512-byte steps beyond or where the
/// alignment is above 256.
[[nodiscard]] inline std::size_t expected_block(std::size_t bytes, std::size_t alignment) noexcept {
  if (bytes == 0) return 0;
  std::size_t step = 512;
  if (alignment <= 256 && bytes <= std::size_t{1} << 20) {
    std::size_t const power = std::bit_floor(bytes - 1);
    step = bytes <= 2048 ? 256 : power / (bytes <= 32768 ? 8 : 16);
  }
  return (bytes + step - 1) / step * step;
}

/// One counter with its history, as PyTorch defines it.
struct expected_stat {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(std::int64_t n) noexcept {
    current += n;
    peak = std::max(peak, current);
    (n > 0 ? allocated : freed) += n > 0 ? n : -n;
  }
};

/// The expected counters of a pool.
struct expected_numbers {
  std::array<expected_stat, 3> allocations, allocated_bytes, requested_bytes;  ///< all, small, large
  std::uint64_t ooms = 0;

  void count(std::size_t bytes, std::size_t rounded, int sign) noexcept {
    std::size_t const group = bytes <= std::size_t{1} << 20 ? 1 : 2;
    for (std::size_t const g : {std::size_t{0}, group}) {
      allocations[g].add(sign);
      allocated_bytes[g].add(sign * static_cast<std::int64_t>(rounded));
      requested_bytes[g].add(sign * static_cast<std::int64_t>(bytes));
    }
  }
  /// @param rounded, requested  by how much a block has become longer, which has `bytes` now
  void extend(std::size_t bytes, std::size_t rounded, std::size_t requested) noexcept {
    std::size_t const group = bytes <= std::size_t{1} << 20 ? 1 : 2;
    for (std::size_t const g : {std::size_t{0}, group}) {
      allocated_bytes[g].add(static_cast<std::int64_t>(rounded));
      requested_bytes[g].add(static_cast<std::int64_t>(requested));
    }
  }
  template <class F>
  void each(F const& f) {
    for (auto* kind : {&allocations, &allocated_bytes, &requested_bytes}) {
      for (auto& s : *kind) f(s);
    }
  }
  void reset_peaks() {
    each([](expected_stat& s) { s.peak = s.current; });
  }
  void reset_totals() {
    each([](expected_stat& s) { s.allocated = s.freed = 0; });
    ooms = 0;
  }
};

/// The expected peak_scope. While several threads run, its peak lies between two values.
struct expected_scope {
  std::int64_t start = 0, current = 0, peak = 0, blocks = 0;
  std::int64_t most_current = 0, most_peak = 0;
};

/// The addresses that graph memories hold, each with the numbers of those memories. A block that a capture
/// frees although it belongs to another graph memory is held by both.
class held_addresses {
 public:
  void hold(unsigned memory, std::uintptr_t begin, std::size_t bytes) {
    each(begin, begin + bytes, true, [&](piece& at) {
      if (std::find(at.by.begin(), at.by.end(), memory) == at.by.end()) at.by.push_back(memory);
    });
  }
  /// Calls f(begin, bytes) for what no memory holds any more.
  template <class F>
  void release(unsigned memory, F const& f) {
    for (auto it = pieces_.begin(); it != pieces_.end();) {
      bool const was_held = std::erase(it->second.by, memory) != 0;
      if (!it->second.by.empty()) {
        ++it;
        continue;
      }
      if (was_held) f(it->first, it->second.end - it->first);
      it = pieces_.erase(it);
    }
  }
  [[nodiscard]] bool is_empty() const noexcept { return pieces_.empty(); }
  /// Calls f(begin, bytes) for what is held.
  template <class F>
  void each_held(F const& f) const {
    for (auto const& [begin, held] : pieces_) f(begin, held.end - begin);
  }
  /// True if a memory other than this one holds any of these bytes; 0: any memory.
  [[nodiscard]] bool is_held_by_another(unsigned memory, std::uintptr_t begin, std::size_t bytes) {
    bool held = false;
    each(begin, begin + bytes, false, [&](piece const& at) {
      for (unsigned const by : at.by) held = held || by != memory;
    });
    return held;
  }

 private:
  struct piece {
    std::uintptr_t end = 0;
    std::vector<unsigned> by;
  };
  void split(std::uintptr_t at) {
    auto it = pieces_.lower_bound(at);
    if (it == pieces_.begin() || (it != pieces_.end() && it->first == at)) return;
    --it;
    if (it->second.end <= at) return;
    piece rest = it->second;
    it->second.end = at;
    pieces_.emplace(at, std::move(rest));
  }
  template <class F>
  void each(std::uintptr_t at, std::uintptr_t end, bool create, F const& f) {
    if (create) {
      split(at);
      split(end);
    }
    auto it = pieces_.lower_bound(at);
    if (!create && it != pieces_.begin() && std::prev(it)->second.end > at) --it;
    while (at < end) {
      if (create && (it == pieces_.end() || it->first > at)) {
        std::uintptr_t const until = it == pieces_.end() || it->first > end ? end : it->first;
        it = pieces_.emplace_hint(it, at, piece{until, {}});
      }
      if (it == pieces_.end() || it->first >= end) return;
      f(it->second);
      at = it->second.end;
      ++it;
    }
  }
  std::map<std::uintptr_t, piece> pieces_;
};

class model {
 public:
  /// The properties of a live block.
  struct block {
    std::size_t bytes, alignment, rounded;
    unsigned pool;
    std::uint64_t number;
  };

  explicit model(findings& found) : found_(found) {}

  unsigned add_pool() {
    numbers_.emplace_back();
    most_.emplace_back();
    scopes_.emplace_back();
    live_.push_back(0);
    return static_cast<unsigned>(numbers_.size() - 1);
  }

  /// @param of_capture  the graph memory for which the calling thread captures; 0: none
  void given(unsigned pool, void* p, std::size_t bytes, std::size_t alignment, unsigned of_capture = 0) {
    ++given_;
    if (bytes == 0) {
      if (p != nullptr) found_.push_back("an allocation of zero bytes returned a block");
      return;
    }
    auto const begin = reinterpret_cast<std::uintptr_t>(p);
    if (p == nullptr) return found_.push_back(text("an allocation of %zu bytes returned null", bytes));
    if (begin % alignment != 0 || begin % 256 != 0)
      found_.push_back(text("a block at %p is not aligned to %zu", p, std::max<std::size_t>(alignment, 256)));
    std::size_t const rounded = expected_block(bytes, alignment);
    if (held_.is_held_by_another(of_capture, begin, rounded))
      found_.push_back(text("a block of %zu bytes at %p is in the memory of another graph", bytes, p));
    auto const next = blocks_.lower_bound(begin);
    if (next != blocks_.end() && next->first < begin + rounded) overlap(p, bytes, *next);
    if (next != blocks_.begin()) {
      auto const before = std::prev(next);
      if (before->first + before->second.rounded > begin) overlap(p, bytes, *before);
    }
    blocks_.insert_or_assign(next, begin, block{bytes, alignment, rounded, pool, given_});
    live_[pool] += rounded;
    numbers_[pool].count(bytes, rounded, 1);
    if (!several_threads) count_most(pool, bytes, rounded, 1);
    for (expected_scope* s : scopes_[pool]) {
      s->current += static_cast<std::int64_t>(rounded);
      s->peak = std::max(s->peak, s->current);
      ++s->blocks;
    }
  }
  void returned(unsigned pool, void* p, std::size_t bytes, std::size_t alignment) {
    if (p == nullptr) return;
    ++returned_;
    auto const it = blocks_.find(reinterpret_cast<std::uintptr_t>(p));
    if (it == blocks_.end() || it->second.pool != pool || it->second.bytes != bytes ||
        it->second.alignment != alignment) {
      return found_.push_back(
          text("%p (%zu bytes) was returned, but was not allocated with this size", p, bytes));
    }
    std::size_t const rounded = it->second.rounded;
    live_[pool] -= rounded;
    numbers_[pool].count(bytes, rounded, -1);
    if (!several_threads) count_most(pool, bytes, rounded, -1);
    for (expected_scope* s : scopes_[pool]) s->current -= static_cast<std::int64_t>(rounded);
    blocks_.erase(it);
  }
  /// It stays one block, and is no other allocation.
  void extended(unsigned pool, void* p, std::size_t bytes, std::size_t more, std::size_t alignment) {
    auto const it = blocks_.find(reinterpret_cast<std::uintptr_t>(p));
    if (it == blocks_.end() || it->second.pool != pool || it->second.bytes != bytes)
      return found_.push_back(text("%p (%zu bytes) was extended, but is no such block", p, bytes));
    std::size_t const rounded = expected_block(bytes + more, alignment);
    std::size_t const added = rounded - it->second.rounded;
    if (auto const next = std::next(it); next != blocks_.end() && next->first < it->first + rounded)
      overlap(p, bytes + more, *next);
    it->second.bytes += more;
    it->second.rounded = rounded;
    live_[pool] += added;
    numbers_[pool].extend(bytes + more, added, more);
    most_[pool].extend(bytes + more, added, more);
    for (expected_scope* s : scopes_[pool]) {
      s->current += static_cast<std::int64_t>(added);
      s->peak = std::max(s->peak, s->current);
      s->most_current += static_cast<std::int64_t>(added);
      s->most_peak = std::max(s->most_peak, s->most_current);
    }
  }
  void refused(unsigned pool) noexcept { ++numbers_[pool].ooms; }
  [[nodiscard]] held_addresses& held() noexcept { return held_; }
  /// While several threads run: a block may be counted from the start of its allocation until the call that
  /// frees it ends.
  void count_early(unsigned pool, std::size_t bytes, std::size_t alignment, int sign) {
    if (several_threads && bytes != 0 && bytes <= tarn::max_request_bytes)
      count_most(pool, bytes, expected_block(bytes, alignment), sign);
  }

  void add_scope(unsigned pool, expected_scope& scope) {
    scope.start = scope.current = scope.peak = numbers_[pool].allocated_bytes[0].current;
    scope.most_current = scope.most_peak = scope.peak;
    scopes_[pool].push_back(&scope);
  }
  void remove_scope(unsigned pool, expected_scope& scope) { std::erase(scopes_[pool], &scope); }

  [[nodiscard]] expected_numbers& numbers(unsigned pool) noexcept { return numbers_[pool]; }
  /// The peaks restart.
  void reset_peaks(unsigned pool) {
    numbers_[pool].reset_peaks();
    most_[pool].reset_peaks();
  }
  /// Bytes of the pool's live blocks, as it rounds them.
  [[nodiscard]] std::size_t live(unsigned pool) const noexcept { return live_[pool]; }
  [[nodiscard]] std::map<std::uintptr_t, block> const& blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::uint64_t given() const noexcept { return given_; }
  [[nodiscard]] std::uint64_t came_back() const noexcept { return returned_; }

  /// Compares the counters of `tracked` with the expected ones.
  template <class Statistics>
  void compare(unsigned pool, Statistics const& s) {
    expected_numbers& e = numbers_[pool];
    expected_numbers& m = most_[pool];
    static constexpr char const* groups[] = {"all", "small", "large"};
    for (std::size_t g = 0; g < 3; ++g) {
      compare(pool, "allocations", groups[g], e.allocations[g], m.allocations[g], s.allocations[g]);
      compare(pool, "allocated_bytes", groups[g], e.allocated_bytes[g], m.allocated_bytes[g],
              s.allocated_bytes[g]);
      compare(pool, "requested_bytes", groups[g], e.requested_bytes[g], m.requested_bytes[g],
              s.requested_bytes[g]);
    }
    if (e.ooms != s.ooms)
      found_.push_back(text("pool %u counts %" PRIu64 " refusals, there were %" PRIu64, pool,
                            static_cast<std::uint64_t>(s.ooms), e.ooms));
  }

 private:
  void overlap(void* p, std::size_t bytes, std::pair<std::uintptr_t const, block> const& with) {
    found_.push_back(text("a block of %zu bytes at %p overlaps the live block %" PRIu64
                          " of pool %u (%zu bytes at 0x%" PRIxPTR ")",
                          bytes, p, with.second.number, with.second.pool, with.second.bytes, with.first));
  }
  void count_most(unsigned pool, std::size_t bytes, std::size_t rounded, int sign) {
    most_[pool].count(bytes, rounded, sign);
    for (expected_scope* s : scopes_[pool]) {
      s->most_current += sign * static_cast<std::int64_t>(rounded);
      s->most_peak = std::max(s->most_peak, s->most_current);
    }
  }
  template <class Stat>
  void compare(unsigned pool, char const* name, char const* group, expected_stat& e, expected_stat& most,
               Stat const& s) {
    if (s.current == e.current && s.peak >= e.peak && s.peak <= most.peak && s.allocated == e.allocated &&
        s.freed == e.freed) {
      e.peak = most.peak = s.peak;  // only the pool knew which one it is
      return;
    }
    found_.push_back(text("pool %u: %s.%s is current %" PRId64 " peak %" PRId64 " allocated %" PRId64
                          " freed %" PRId64 "; it must be %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64,
                          pool, name, group, static_cast<std::int64_t>(s.current),
                          static_cast<std::int64_t>(s.peak), static_cast<std::int64_t>(s.allocated),
                          static_cast<std::int64_t>(s.freed), e.current, e.peak, e.allocated, e.freed));
  }

  findings& found_;
  std::map<std::uintptr_t, block> blocks_;
  held_addresses held_;
  std::vector<expected_numbers> numbers_;
  std::vector<expected_numbers> most_;  /// < the same, with each block counted as long as it may be
  std::vector<std::vector<expected_scope*>> scopes_;
  std::vector<std::size_t> live_;
  std::uint64_t given_ = 0, returned_ = 0;
};

}  // namespace simulation
