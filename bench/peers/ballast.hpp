// SPDX-License-Identifier: Apache-2.0
#pragma once
// ballast: makes a large GPU small by allocating all but a given amount of its memory. Allocators have no
// common way to set a limit, but this one works for all of them.

#include <cstdint>
#include <vector>

namespace tarn::bench {

/// Holds memory of the current device while alive, so that no allocator can get it.
class ballast {
 public:
  /// @param leave  bytes to leave free; 0: allocates nothing
  /// @throws std::runtime_error  the device does not have that much free memory, or the rest cannot be
  /// allocated
  explicit ballast(std::uint64_t leave);
  ~ballast();
  ballast(ballast const&) = delete;
  ballast& operator=(ballast const&) = delete;

  /// Returns the bytes that the device reports as free.
  [[nodiscard]] std::uint64_t left_free() const noexcept { return left_; }

 private:
  std::vector<void*> blocks_;
  std::uint64_t left_ = 0;
};

}  // namespace tarn::bench
