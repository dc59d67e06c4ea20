// SPDX-License-Identifier: Apache-2.0
#pragma once
// The C library's malloc and free.

#include <malloc.h>

#include <algorithm>
#include <cstdlib>

#include "peers/peer.hpp"

namespace tarn::bench {

/// malloc and free. Its peak is sampled from glibc's mallinfo2; its system calls cannot be counted.
class host_malloc {
 public:
  static constexpr std::string_view name = "host_malloc";
  static constexpr std::string_view about = "malloc and free of the C library, memory never touched";
  static constexpr place_of_memory where = place_of_memory::host;

  explicit host_malloc(setup const& s)
      : limited_(s.capacity != 0), room_(s.capacity == 0 ? max_room : s.capacity) {
    malloc_trim(0);  // releases memory of earlier work, which is not this pool's
    struct mallinfo2 const info = mallinfo2();
    before_ = info.uordblks + info.hblkhd;
  }

  void* allocate(std::size_t /*stream*/, std::size_t bytes) noexcept {
    if (bytes > room_) return nullptr;
    void* const block = std::malloc(bytes);
    if (limited_ && block != nullptr) room_ -= bytes;
    return block;
  }
  void deallocate(std::size_t /*stream*/, void* block, std::size_t bytes) noexcept {
    if (limited_ && block != nullptr) room_ += bytes;
    std::free(block);
  }
  [[nodiscard]] usage used() const noexcept { return {peak_, std::nullopt, 0}; }

  void sample() noexcept { peak_ = std::max(peak_, held() - std::min(held(), before_)); }

 private:
  static constexpr std::uint64_t max_room = ~std::uint64_t{0};

  static std::uint64_t held() noexcept {
    struct mallinfo2 const info = mallinfo2();
    return info.arena + info.hblkhd;
  }
  bool limited_;              // if set, calls write room_, so one thread at a time
  std::uint64_t room_;        // remaining bytes of the capacity
  std::uint64_t before_ = 0;  // bytes in use by the rest of the process
  std::uint64_t peak_ = 0;
};
static_assert(sampled_peer<host_malloc>);

}  // namespace tarn::bench
