// SPDX-License-Identifier: Apache-2.0
#pragma once
// A ring of the latest growth records: which handle or segment a pool created or gave back, and when. Off by
// default.

#include <cstddef>
#include <cstdint>

#include "tarn/core/sequence.hpp"
#include "tarn/pool/pages/growth_lock.hpp"

namespace TARN_NAMESPACE::detail {

enum class growth_change : std::uint8_t { made, given_back };

struct growth_note {
  std::uint64_t time = 0;  ///< from the clock
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  growth_change what = growth_change::made;
};

/// Until open(), a record costs one null pointer check, next to driver calls of microseconds.
class growth_notes {
 public:
  using clock_type = std::uint64_t (*)() noexcept;

  /// Keeps the latest `most` records from now on, 32 bytes each, all allocated now; drops earlier records. 0
  /// stops recording.
  /// @throws std::bad_alloc  nothing has changed
  void open(growth_lock const&, std::size_t most, clock_type of_records) {
    sequence<growth_note> ring;
    ring.resize(most);
    ring_.swap(ring);
    clock_ = most != 0 ? of_records : nullptr;
    count_ = 0;
  }
  [[nodiscard]] bool is_open() const noexcept { return clock_ != nullptr; }
  /// What open() was called with.
  [[nodiscard]] std::size_t most() const noexcept { return ring_.size(); }
  [[nodiscard]] clock_type clock() const noexcept { return clock_; }

  void add(growth_lock const&, growth_change what, std::uintptr_t address, std::size_t bytes) noexcept {
    if (clock_ == nullptr) return;
    ring_[count_++ % ring_.size()] = {clock_(), address, bytes, what};
  }

  /// The number of records kept, and one of them, the oldest first.
  [[nodiscard]] std::size_t size() const noexcept { return count_ < ring_.size() ? count_ : ring_.size(); }
  [[nodiscard]] growth_note const& operator[](std::size_t i) const noexcept {
    return ring_[(count_ - size() + i) % ring_.size()];
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return ring_.capacity() * sizeof(growth_note); }

 private:
  sequence<growth_note> ring_;
  std::size_t count_ = 0;  ///< added since open()
  clock_type clock_ = nullptr;
};

}  // namespace TARN_NAMESPACE::detail
