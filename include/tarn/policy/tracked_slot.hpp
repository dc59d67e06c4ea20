// SPDX-License-Identifier: Apache-2.0
#pragma once
// What one thread counts for `tracked`, and what `tracked` reports. The thread writes with plain stores, and
// any thread may read. Its totals only grow, so two equal reads prove that nothing was counted between them.
// The thread may count small blocks without the common lock as long as no peak can be passed, if peaks are
// exact, and as long as its counts differ from what was published by at most a bound.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/counter.hpp"
#include "tarn/core/min_max.hpp"

namespace TARN_NAMESPACE {

/// PyTorch's three groups; a block is small up to tracked_layer::small_limit.
enum class block_group : std::uint8_t { all, smaller, larger };

/// Statistics of the blocks that were handed out; each array is indexed by block_group.
struct tracked_statistics {
  std::array<counter, 3> allocations;      ///< blocks
  std::array<counter, 3> allocated_bytes;  ///< as the pool rounds them
  std::array<counter, 3> requested_bytes;  ///< as requested
  std::uint64_t ooms = 0;                  ///< requests refused
  /// The same, including freed blocks that the pool holds back for the work of other streams. Such a block
  /// counts with the bytes requested from the pool.
  std::array<counter, 3> active;
  std::array<counter, 3> active_bytes;
  std::array<counter, 3> active_requested_bytes;
};

/// Which threads' calls a high-water mark counts.
enum class peak_of { all_threads, this_thread };

/// A high-water mark over a scope; linked into its tracked_layer while it lives.
struct high_water_mark {
  std::int64_t start = 0;        ///< allocated bytes when it began (0 for one thread's)
  std::int64_t current = 0;      ///< current value
  std::int64_t peak = 0;         ///< the maximum since it began
  std::int64_t allocations = 0;  ///< blocks handed out since it began
  peak_of whose = peak_of::all_threads;
  std::uint64_t thread =
      0;  ///< number of the thread that began it, whose calls count for peak_of::this_thread
  high_water_mark* next = nullptr;
};

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE::detail {

/// Blocks, rounded bytes, requested bytes.
using tracked_kinds = std::array<std::int64_t, 3>;
/// One amount for each group and kind.
using tracked_amounts = std::array<tracked_kinds, 3>;

/// The change that one call makes.
struct tracked_update {
  tracked_kinds by{};        ///< not negative
  bool is_free = false;      ///< whether the amounts are freed
  unsigned place = 0;        ///< of the thread; thread_places if it has none
  std::uint64_t thread = 0;  ///< number of the thread; 0 if it has none
  block_group group = block_group::smaller;
};

/// All that was allocated and freed.
struct tracked_totals {
  tracked_kinds came{};
  tracked_kinds left{};

  void add(tracked_update const& u) noexcept {
    for (std::size_t k = 0; k < 3; ++k) (u.is_free ? left : came)[k] += u.by[k];
  }
  /// Adds what `now` has more than `before`.
  void add(tracked_totals const& now, tracked_totals const& before) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      came[k] += now.came[k] - before.came[k];
      left[k] += now.left[k] - before.left[k];
    }
  }
  [[nodiscard]] std::int64_t live(std::size_t k) const noexcept { return came[k] - left[k]; }
  [[nodiscard]] bool operator==(tracked_totals const&) const noexcept = default;
};

class alignas(256) tracked_slot {  // an element of an array is addressed by a shift
 public:
  // ---- the thread, without the lock

  /// Counts a small block if the slot is open and has room.
  [[nodiscard]] TARN_ALWAYS_INLINE bool allocate(std::uint64_t generation, std::int64_t rounded,
                                                 std::int64_t requested) noexcept {
    // written out: compilers keep these in registers only without loops
    auto& [blocks, bytes, asked] = small_;
    std::int64_t const came0 = get(blocks.came) + 1;
    std::int64_t const came1 = get(bytes.came) + rounded;
    std::int64_t const came2 = get(asked.came) + requested;
    if (!is_open(generation) || came0 > blocks.limit || came1 > bytes.limit || came2 > asked.limit)
        [[unlikely]]
      return false;
    set(blocks.came, came0);
    set(bytes.came, came1);
    set(asked.came, came2);
    return true;
  }
  [[nodiscard]] TARN_ALWAYS_INLINE bool deallocate(std::uint64_t generation, std::int64_t rounded,
                                                   std::int64_t requested) noexcept {
    auto& [blocks, bytes, asked] = small_;
    std::int64_t const left0 = get(blocks.left) + 1;
    std::int64_t const left1 = get(bytes.left) + rounded;
    if (!is_open(generation) || left0 > cap_[0] || left1 > cap_[1]) [[unlikely]]
      return false;
    set(blocks.left, left0);
    blocks.limit += 1;
    set(bytes.left, left1);
    bytes.limit += rounded;
    set(asked.left, get(asked.left) + requested);
    asked.limit += requested;
    return true;
  }
  /// Lets the thread free as much as the bound allows. A block's requested bytes are at most its rounded
  /// bytes, so one amount suffices for both.
  void renew() noexcept {
    cap_[0] = get(small_[0].left) + live(0) - floor_[0];
    cap_[1] = get(small_[1].left) + min_of(live(1) - floor_[1], live(2) - floor_[2]);
  }

  // ---- the holder of the lock, while the thread waits for it or is the holder

  void count(tracked_update const& u) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      std::atomic<std::int64_t>& n = u.is_free ? small_[k].left : small_[k].came;
      set(n, get(n) + u.by[k]);
    }
  }
  /// Takes room for a large block, which is counted elsewhere, or gives it back. Returns false if a peak may
  /// be passed.
  [[nodiscard]] bool fits(tracked_update const& large) noexcept {
    for (std::size_t k = 0; k < 3; ++k) {
      if (!large.is_free && large.by[k] > min_of(room_of_large_[k], top_of_all_[k] - live(k))) return false;
    }
    for (std::size_t k = 0; k < 3; ++k) {
      std::int64_t const by = large.is_free ? -large.by[k] : large.by[k];
      room_of_large_[k] -= by;
      top_of_all_[k] -= by;
      set_limit(k);
    }
    return true;
  }
  /// Lets the thread count on its own in a generation, after its counts were published: as far as there is
  /// room for each group, and within the bound.
  void open(std::uint64_t generation, tracked_kinds const& bound, tracked_amounts const& room) noexcept {
    generation_ = generation;
    room_of_large_ = room[2];
    cap_[0] = cap_[1] = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      top_of_all_[k] = live(k) + room[0][k];
      top_[k] = live(k) + min_of(room[1][k], bound[k]);
      floor_[k] = live(k) - bound[k];
      set_limit(k);
    }
  }
  /// Sends each call of the thread to the lock. Also called by the thread itself.
  void close() noexcept { generation_ = 0; }
  [[nodiscard]] TARN_ALWAYS_INLINE bool is_open(std::uint64_t generation) const noexcept {
    return generation == generation_;
  }

  // ---- the holder of the lock, whatever the thread does

  /// All that was counted. Of each kind, both totals are of one moment.
  [[nodiscard]] tracked_totals read() const noexcept {
    tracked_totals now;
    for (std::size_t k = 0; k < 3; ++k) {
      do {  // again if blocks were freed meanwhile: a reader that was interrupted would see their allocation
            // alone
        now.left[k] = small_[k].left.load(std::memory_order_acquire);
        now.came[k] = small_[k].came.load(std::memory_order_acquire);
      } while (get(small_[k].left) != now.left[k]);
    }
    return now;
  }
  [[nodiscard]] tracked_totals const& published() const noexcept { return published_; }
  /// Adds what was not published yet to the sums. Returns whether there was anything.
  bool publish(tracked_totals& sums) noexcept {
    tracked_totals const now = read();
    if (now == published_) return false;
    sums.add(now, published_);
    published_ = now;
    return true;
  }

 private:
  struct counters {
    std::atomic<std::int64_t> came{0};
    std::atomic<std::int64_t> left{0};
    std::int64_t limit = 0;  ///< of `came`
  };

  TARN_ALWAYS_INLINE static std::int64_t get(std::atomic<std::int64_t> const& n) noexcept {
    return n.load(std::memory_order_relaxed);
  }
  TARN_ALWAYS_INLINE static void set(std::atomic<std::int64_t>& n, std::int64_t value) noexcept {
    n.store(value, std::memory_order_release);
  }
  [[nodiscard]] TARN_ALWAYS_INLINE std::int64_t live(std::size_t k) const noexcept {
    return get(small_[k].came) - get(small_[k].left);
  }
  TARN_ALWAYS_INLINE void set_limit(std::size_t k) noexcept {
    small_[k].limit = get(small_[k].left) + min_of(top_[k], top_of_all_[k]);
  }

  counters small_[3];
  std::int64_t cap_[2]{};         ///< of the blocks and the rounded bytes that left
  std::uint64_t generation_ = 0;  ///< in which the thread may count on its own; 0: none
  // Not read by a call that has room.
  tracked_kinds top_{};         ///< up to which what is live here may rise, for its own sake
  tracked_kinds top_of_all_{};  ///< likewise, for the sake of all blocks
  tracked_kinds room_of_large_{};
  tracked_kinds floor_{};       ///< down to which it may fall
  tracked_totals published_{};  ///< by the holder of the lock
};

}  // namespace TARN_NAMESPACE::detail
