// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs: ranges divided into equal small blocks, each with a bitmap on the host. A block's run is found by the
// 64 KiB frame that contains it, so runs start on a frame and consist of whole frames.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tarn/core/address_map.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/promised_room.hpp"
#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/arena/size_class.hpp"

namespace TARN_NAMESPACE::detail {

inline constexpr std::size_t frame_bytes = 64_KiB;

/// Bytes of a run: one frame if that holds 16 blocks or more, otherwise four. A partly filled run wastes at
/// most that.
[[nodiscard]] constexpr std::size_t run_bytes(unsigned size_class) noexcept {
  return class_bytes(size_class) <= 4_KiB ? frame_bytes : 4 * frame_bytes;
}

/// Blocks in a run; at most 256.
[[nodiscard]] constexpr std::uint32_t run_blocks(unsigned size_class) noexcept {
  return static_cast<std::uint32_t>(run_bytes(size_class) / class_bytes(size_class));
}

using run_ref = std::uint32_t;  ///< index of a run; 0 is none

struct run {
  static constexpr std::size_t none = ~std::size_t{0};

  std::uintptr_t address = 0;
  std::uint64_t free_bits[4]{};  ///< one bit per block, set if it is free
  std::uint32_t free_count = 0;
  run_ref previous = 0;  ///< neighbours in the list of partly free runs of the same class and domain
  run_ref next = 0;
  range_ref body = 0;
  domain_ref domain = neutral;
  std::uint32_t generation = 0;  ///< of its domain; if the domain's differs now, the run is neutral
  std::uint16_t size_class = 0;

  /// Takes a free block. Requires that there is one.
  [[nodiscard]] void* take() noexcept {
    unsigned word = 0;
    while (free_bits[word] == 0) ++word;
    auto const bit = static_cast<unsigned>(std::countr_zero(free_bits[word]));
    free_bits[word] &= free_bits[word] - 1;
    --free_count;
    return reinterpret_cast<void*>(address + (word * 64 + bit) * class_bytes(size_class));
  }

  /// The number of the block that starts at an address of this run; `none` if none does.
  [[nodiscard]] std::size_t find(void const* p) const noexcept {
    std::size_t const offset = reinterpret_cast<std::uintptr_t>(p) - address;
    std::size_t const bytes = class_bytes(size_class);
    std::size_t const n = offset / bytes;
    return offset % bytes == 0 && n < run_blocks(size_class) ? n : none;
  }
  [[nodiscard]] bool is_free(std::size_t n) const noexcept {
    return (free_bits[n / 64] >> (n % 64) & 1) != 0;
  }
  /// Puts a block back that is not free.
  void put_back(std::size_t n) noexcept {
    free_bits[n / 64] |= std::uint64_t{1} << (n % 64);
    ++free_count;
  }
};

/// All runs of a pool, and the lookup from a block to its run.
class run_table {
 public:
  run_table() { runs_.resize(1); }

  /// Makes room for one more run of the largest kind. @throws std::bad_alloc, nothing has changed
  void make_room() {
    frames_.make_room(4);
    if (first_spare_ == 0) {
      std::size_t const first = runs_.size();
      runs_.resize(first * 2);
      for (std::size_t i = runs_.size(); i-- > first;) {
        runs_[i].next = first_spare_;
        first_spare_ = static_cast<run_ref>(i);
      }
    }
    room_.promise(1);
  }
  /// A promise of make_room() ends with the hold of a lock.
  void end_room_with(std::uint64_t const& hold) noexcept { room_.ends_with(hold); }

  /// Adds a run over a range; all its blocks are free. Requires make_room().
  [[nodiscard]] run_ref add(range_ref body, std::uintptr_t address, unsigned size_class,
                            domain_ref domain) noexcept {
    room_.take();
    run_ref const r = first_spare_;
    first_spare_ = runs_[r].next;
    run& made = runs_[r] = run{};
    made.address = address;
    made.body = body;
    made.domain = domain;
    made.size_class = static_cast<std::uint16_t>(size_class);
    made.free_count = run_blocks(size_class);
    for (std::uint32_t n = 0; n < made.free_count; ++n)
      made.free_bits[n / 64] |= std::uint64_t{1} << (n % 64);
    for (std::size_t at = 0; at < run_bytes(size_class); at += frame_bytes) frames_.insert(address + at, r);
    return r;
  }

  void remove(run_ref r) noexcept {
    for (std::size_t at = 0; at < run_bytes(runs_[r].size_class); at += frame_bytes) {
      (void)frames_.erase(runs_[r].address + at);
    }
    runs_[r] = run{};
    runs_[r].next = first_spare_;
    first_spare_ = r;
  }

  /// The run that holds `p`, 0 if none.
  [[nodiscard]] run_ref find(void const* p) const noexcept {
    return frames_.find(align_down(reinterpret_cast<std::uintptr_t>(p), frame_bytes));
  }

  [[nodiscard]] run& operator[](run_ref r) noexcept { return TARN_VISIT(), runs_[r]; }
  [[nodiscard]] run const& operator[](run_ref r) const noexcept { return TARN_VISIT(), runs_[r]; }
  [[nodiscard]] std::size_t size() const noexcept { return runs_.size(); }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    return runs_.capacity() * sizeof(run) + frames_.host_bytes();
  }

 private:
  sequence<run> runs_;
  address_map<std::uint32_t> frames_;
  run_ref first_spare_ = 0;
  [[no_unique_address]] promised_room<check_locks> room_;
};

/// The partly free runs of one class and domain; the most recently used one first.
struct run_list {
  run_ref head = 0;

  void push(run_table& runs, run_ref r) noexcept {
    runs[r].previous = 0;
    runs[r].next = head;
    if (head != 0) runs[head].previous = r;
    head = r;
  }
  void erase(run_table& runs, run_ref r) noexcept {
    if (runs[r].previous != 0) {
      runs[runs[r].previous].next = runs[r].next;
    } else {
      head = runs[r].next;
    }
    if (runs[r].next != 0) runs[runs[r].next].previous = runs[r].previous;
    runs[r].previous = runs[r].next = 0;
  }
};

}  // namespace TARN_NAMESPACE::detail
