// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes a large GPU a small one: takes all of its memory but so much. No allocator can be told a limit in the same way, but
// each of them can be left no more.

#include <cstdint>
#include <vector>

namespace tarn::bench {

/// Memory of the current device that nobody else gets while this lives.
class ballast {
 public:
  /// @param leave  bytes to leave free; 0: takes nothing
  /// @throws std::runtime_error  the device has not so much free, or the rest cannot be taken
  explicit ballast(std::uint64_t leave);
  ~ballast();
  ballast(ballast const&) = delete;
  ballast& operator=(ballast const&) = delete;

  /// What the device says is free, bytes.
  [[nodiscard]] std::uint64_t left_free() const noexcept { return left_; }

 private:
  std::vector<void*> blocks_;
  std::uint64_t left_ = 0;
};

}  // namespace tarn::bench
