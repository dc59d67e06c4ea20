// SPDX-License-Identifier: Apache-2.0
#pragma once
// Address to node: an open-addressing hash table with linear probing and no tombstones. Ranges are found by
// their start, runs by the 64 KiB frame that a block lies in. Above it: arena, run. Below it: nothing.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tarn::detail {

class block_table {
 public:
  /// Makes sure that `count` entries can be added without allocating. @throws std::bad_alloc, nothing has
  /// changed
  void make_room(std::size_t count) {
    if ((size_ + count) * 2 <= entries_.size()) return;
    std::size_t capacity = entries_.empty() ? 64 : entries_.size();
    while ((size_ + count) * 2 > capacity) capacity *= 2;
    block_table larger;
    larger.entries_.resize(capacity);
    for (entry const& e : entries_) {
      if (e.value != 0) larger.insert(e.key, e.value);
    }
    entries_.swap(larger.entries_);
  }

  /// Adds a key that is not there; the value is not 0. Room has been made. O(1).
  void insert(std::uintptr_t key, std::uint32_t value) noexcept {
    std::size_t i = home(key);
    while (entries_[i].value != 0) i = after(i);
    entries_[i] = {key, value};
    ++size_;
  }

  /// The value, 0 if the key is not there. O(1).
  [[nodiscard]] std::uint32_t find(std::uintptr_t key) const noexcept {
    if (size_ == 0) return 0;
    for (std::size_t i = home(key); entries_[i].value != 0; i = after(i)) {
      if (entries_[i].key == key) return entries_[i].value;
    }
    return 0;
  }

  /// Removes the key and returns its value, 0 if it is not there. O(1).
  std::uint32_t erase(std::uintptr_t key) noexcept {
    if (size_ == 0) return 0;
    std::size_t i = home(key);
    while (entries_[i].key != key || entries_[i].value == 0) {
      if (entries_[i].value == 0) return 0;
      i = after(i);
    }
    std::uint32_t const value = entries_[i].value;
    // Pull later entries of the probe sequence back, so that no search stops too early.
    for (std::size_t j = after(i); entries_[j].value != 0; j = after(j)) {
      std::size_t const wanted = home(entries_[j].key);
      bool const may_move = i <= j ? (wanted <= i || wanted > j) : (wanted <= i && wanted > j);
      if (may_move) {
        entries_[i] = entries_[j];
        i = j;
      }
    }
    entries_[i] = {};
    --size_;
    return value;
  }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return entries_.capacity() * sizeof(entry); }

 private:
  struct entry {
    std::uintptr_t key = 0;
    std::uint32_t value = 0;
  };
  [[nodiscard]] std::size_t home(std::uintptr_t key) const noexcept {
    return static_cast<std::size_t>((static_cast<std::uint64_t>(key >> 8) * 0x9E3779B97F4A7C15U) >> 20) &
           (entries_.size() - 1);
  }
  [[nodiscard]] std::size_t after(std::size_t i) const noexcept { return (i + 1) & (entries_.size() - 1); }

  std::vector<entry> entries_;
  std::size_t size_ = 0;
};

}  // namespace tarn::detail
