// SPDX-License-Identifier: Apache-2.0
#pragma once
// A hash table from address to block, with a filter that any thread reads without the lock. Freeing a block
// that is not in the table costs two loads.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/sequence.hpp"
#include "tarn/pool/order/slot_table.hpp"

namespace TARN_NAMESPACE::detail {

/// `Block` has the members `p`, its key, and `next`, which links the blocks of a bucket. All functions but
/// may_hold() are called under the owner's lock.
template <class Block>
class block_table {
 public:
  explicit block_table(slot_table<Block>& blocks) noexcept : blocks_(blocks) {}

  /// Returns false if `p` is not in the table. May return true for a block that is not there: for one in 64
  /// when the table is full. Needs no lock: a thread that frees a block has been ordered after the recording
  /// of its uses, so it reads the table that the block was added to, or a newer one, which contains the
  /// block, too.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept {
    table const* const t = current_.load(std::memory_order_acquire);
    if (t == nullptr) return false;
    std::uint64_t const h = hash(p);
    return (t->buckets[h >> t->shift].marks.load(std::memory_order_relaxed) & mark_of(h, *t)) != 0;
  }

  /// Makes room to add one more block. Amortised O(1). @throws std::bad_alloc, nothing has changed
  void make_room() {
    std::size_t const buckets = tables_.empty() ? 0 : tables_.back()->count;
    if (size_ < buckets) return;
    tables_.reserve(tables_.size() + 1);
    owned<table> larger(new table(buckets == 0 ? first_buckets : buckets * 2));
    for (std::size_t i = 0; i < buckets; ++i) {
      for (slot_number b = tables_.back()->buckets[i].first; b != 0;) {
        slot_number const next = blocks_[b].next;
        link(*larger, b);
        b = next;
      }
    }
    tables_.push_back(static_cast<owned<table>&&>(larger));
    current_.store(tables_.back().get(), std::memory_order_release);
  }
  /// Adds a block that is not there. Requires make_room().
  void insert(slot_number b) noexcept {
    link(*tables_.back(), b);
    ++size_;
  }
  [[nodiscard]] slot_number find(void const* p) const noexcept {
    if (size_ == 0) return 0;
    std::uint64_t const h = hash(p);
    slot_number b = tables_.back()->buckets[h >> tables_.back()->shift].first;
    while (b != 0 && blocks_[b].p != p) b = blocks_[b].next;
    return b;
  }
  /// Removes a block and returns it; 0 if it is not there.
  slot_number take(void const* p) noexcept {
    if (size_ == 0) return 0;
    table& t = *tables_.back();
    bucket& in = t.buckets[hash(p) >> t.shift];
    slot_number* at = &in.first;
    while (*at != 0 && blocks_[*at].p != p) at = &blocks_[*at].next;
    slot_number const taken = *at;
    if (taken == 0) return 0;
    *at = blocks_[taken].next;
    blocks_[taken].next = 0;
    --size_;
    std::uint64_t marks = 0;
    for (slot_number b = in.first; b != 0; b = blocks_[b].next) marks |= mark_of(hash(blocks_[b].p), t);
    in.marks.store(marks, std::memory_order_relaxed);
    return taken;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept {
    std::size_t sum = 0;
    for (auto const& t : tables_) sum += sizeof(table) + t->count * sizeof(bucket);
    return sum;
  }

 private:
  struct bucket {
    std::atomic<std::uint64_t> marks{0};  ///< one bit per block of the bucket
    slot_number first = 0;
  };
  struct table {
    explicit table(std::size_t buckets_wanted) : count(buckets_wanted), buckets(new bucket[buckets_wanted]) {
      for (std::size_t c = count; c != 1; c /= 2) --shift;
    }
    table& operator=(table&&) = delete;
    ~table() { delete[] buckets; }

    std::size_t count;
    unsigned shift = 64;  ///< 64 minus log2 of the count
    bucket* buckets;
  };
  static constexpr std::size_t first_buckets = 64;

  /// As in address_map: the upper bits of a product with 2^64 over the golden ratio.
  [[nodiscard]] static std::uint64_t hash(void const* p) noexcept {
    return std::uint64_t{reinterpret_cast<std::uintptr_t>(p)} * 0x9E3779B97F4A7C15U;
  }
  /// The six bits of the hash after those of the bucket.
  [[nodiscard]] static std::uint64_t mark_of(std::uint64_t h, table const& t) noexcept {
    return std::uint64_t{1} << ((h >> (t.shift - 6)) & 63);
  }
  void link(table& t, slot_number b) noexcept {
    std::uint64_t const h = hash(blocks_[b].p);
    bucket& in = t.buckets[h >> t.shift];
    blocks_[b].next = in.first;
    in.first = b;
    in.marks.store(in.marks.load(std::memory_order_relaxed) | mark_of(h, t), std::memory_order_relaxed);
  }

  slot_table<Block>& blocks_;
  std::size_t size_ = 0;
  std::atomic<table const*> current_{nullptr};
  sequence<owned<table>> tables_;  ///< the last one is current; a thread may still be reading an earlier one
};

}  // namespace TARN_NAMESPACE::detail
