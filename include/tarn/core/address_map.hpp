// SPDX-License-Identifier: Apache-2.0
#pragma once
// A hash map from addresses to values: open addressing, linear probing, no tombstones. A value equal to
// Value{} marks an empty slot.

#include <cstddef>
#include <cstdint>
#include <new>

#include "tarn/core/config.hpp"
#include "tarn/core/promised_room.hpp"
#include "tarn/core/sequence.hpp"

namespace TARN_NAMESPACE::detail {

template <class Value>
class address_map {
 public:
  /// Reserves room so that `count` entries can be added without allocating. @throws std::bad_alloc, nothing
  /// has changed
  void make_room(std::size_t count) {
    if (count > ~std::size_t{0} / 8 - size_) throw std::bad_alloc();
    if ((size_ + count) * 2 > entries_.size()) grow(count);
    room_.promise(count);
  }
  /// A promise of make_room() ends with the hold of a lock.
  void end_room_with(std::uint64_t const& hold) noexcept { room_.ends_with(hold); }

  /// Inserts a key or replaces its value, which must not be Value{}. make_room() must have been called. O(1).
  void insert(std::uintptr_t key, Value value) noexcept {
    if (put(key, value)) room_.take();
  }

  /// Returns the value of the key, or Value{} if it is absent. O(1).
  [[nodiscard]] Value find(std::uintptr_t key) const noexcept {
    if (size_ == 0) return Value{};
    for (std::size_t i = home(key); !is_vacant(i); i = after(i)) {
      if (entries_[i].key == key) return entries_[i].value;
    }
    return Value{};
  }

  /// Removes the key and returns its value, or Value{} if it is absent. Leaves room for one key. O(1).
  Value erase(std::uintptr_t key) noexcept {
    if (size_ == 0) return Value{};
    std::size_t i = home(key);
    while (entries_[i].key != key || is_vacant(i)) {
      if (is_vacant(i)) return Value{};
      i = after(i);
    }
    Value const value = entries_[i].value;
    // Move later entries of the probe sequence back, so that no lookup stops too early.
    for (std::size_t j = after(i); !is_vacant(j); j = after(j)) {
      std::size_t const wanted = home(entries_[j].key);
      bool const may_move = i <= j ? (wanted <= i || wanted > j) : (wanted <= i && wanted > j);
      if (may_move) {
        entries_[i] = entries_[j];
        i = j;
      }
    }
    entries_[i] = {};
    --size_;
    room_.promise(1);
    return value;
  }

  /// Calls `call(key, value)` for each entry, in unspecified order; `call` must not change the map.
  /// O(capacity).
  template <class Call>
  void for_each(Call const& call) const {
    for (entry const& e : entries_) {
      if (!(e.value == Value{})) call(e.key, e.value);
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return entries_.capacity() * sizeof(entry); }

 private:
  struct entry {
    std::uintptr_t key = 0;
    Value value{};
  };
  [[nodiscard]] bool is_vacant(std::size_t i) const noexcept { return entries_[i].value == Value{}; }
  /// The first slot of a key's probe sequence: the upper bits of its product with 2^64 / golden ratio, which
  /// spreads close and distant keys equally well (Knuth, The Art of Computer Programming, volume 3, 6.4).
  [[nodiscard]] std::size_t home(std::uintptr_t key) const noexcept {
    return static_cast<std::size_t>((std::uint64_t{key} * 0x9E3779B97F4A7C15U) >> shift_);
  }
  [[nodiscard]] std::size_t after(std::size_t i) const noexcept { return (i + 1) & (entries_.size() - 1); }

  void grow(std::size_t count) {
    address_map larger;
    std::size_t capacity = entries_.empty() ? 64 : entries_.size();
    while ((size_ + count) * 2 > capacity) capacity *= 2;
    for (std::size_t c = capacity; c != 1; c /= 2) --larger.shift_;
    larger.entries_.resize(capacity);
    for (entry const& e : entries_) {
      if (!(e.value == Value{})) larger.put(e.key, e.value);
    }
    entries_.swap(larger.entries_);
    shift_ = larger.shift_;
  }
  /// Returns true if the key is new.
  bool put(std::uintptr_t key, Value value) noexcept {
    std::size_t i = home(key);
    while (!is_vacant(i) && entries_[i].key != key) i = after(i);
    bool const is_new = is_vacant(i);
    if (is_new) ++size_;
    entries_[i] = {key, value};
    return is_new;
  }

  sequence<entry> entries_;
  std::size_t size_ = 0;
  unsigned shift_ = 64;  ///< 64 minus log2(capacity)
  [[no_unique_address]] promised_room<check_locks> room_;
};

}  // namespace TARN_NAMESPACE::detail
