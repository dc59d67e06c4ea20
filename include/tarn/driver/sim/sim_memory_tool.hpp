// SPDX-License-Identifier: Apache-2.0
#pragma once
// A simulated memory tool, which plays the role of compute-sanitizer. It is notified of heaps and of the
// regions allocated from them, and reports work that accesses other bytes of a heap. Under AddressSanitizer
// it poisons those bytes if they are host memory, so that accesses by the host are reported, too.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tarn/core/config.hpp"
#include "tarn/core/message.hpp"
#if TARN_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace TARN_NAMESPACE {

/// Whether a tool tracks a simulated machine's memory.
enum class sim_tool : std::uint8_t { absent, attached };

/// The notifications that the tool has received.
struct sim_tool_counts {
  std::uint64_t calls = 0;
  std::size_t heaps = 0;         ///< currently registered
  std::size_t regions = 0;       ///< currently registered
  std::size_t region_bytes = 0;  ///< in the registered regions
};

namespace detail {

/// Callers hold the machine's lock. Unregistering a heap removes its regions.
class sim_memory_tool {
 public:
  enum class bytes_are : std::uint8_t { invented, of_the_host };

  explicit sim_memory_tool(bytes_are kind) noexcept : kind_(kind) {}
  sim_memory_tool& operator=(sim_memory_tool&&) = delete;
  /// Unpoisons all heaps: their addresses may be reused for anything.
  ~sim_memory_tool() {
    for (auto const& [begin, bytes] : heaps_) allow(begin, bytes);
  }

  /// The memory that a heap lies in; compute-sanitizer 2025.3.1 accepts only cudaMalloc blocks and parts of
  /// them.
  enum class heap_in : std::uint8_t { device_block, other_memory };

  /// Registers a heap, identified by its start address. Returns null if it is rejected.
  void* register_heap(void const* p, std::size_t bytes, heap_in where) {
    ++calls_;
    if (where == heap_in::other_memory) {
      wrong_notification("a heap over memory that is not cudaMalloc's", address(p));
      return nullptr;
    }
    if (auto const other = first_in(heaps_, address(p), bytes); other != heaps_.end())
      wrong_notification("a heap over another", address(p));
    heaps_[address(p)] = bytes;
    forbid(address(p), bytes);
    return reinterpret_cast<void*>(address(p));
  }
  void unregister_heap(void* heap) {
    ++calls_;
    auto const it = heaps_.find(address(heap));
    if (it == heaps_.end()) return wrong_notification("the end of an unknown heap", address(heap));
    regions_.erase(regions_.lower_bound(it->first), regions_.lower_bound(it->first + it->second));
    allow(it->first, it->second);
    heaps_.erase(it);
  }
  void register_region(void* heap, void const* p, std::size_t bytes) {
    ++calls_;
    auto const it = heaps_.find(address(heap));
    std::uintptr_t const at = address(p);
    if (it == heaps_.end() || at < it->first || at + bytes > it->first + it->second)
      return wrong_notification("a region outside its heap", at);
    if (first_in(regions_, at, bytes) != regions_.end())
      return wrong_notification("a region over another", at);
    regions_[at] = bytes;
    allow(at, bytes);
  }
  void unregister_region(void const* p) {
    ++calls_;
    auto const it = regions_.find(address(p));
    if (it == regions_.end()) return wrong_notification("the end of an unknown region", address(p));
    forbid(it->first, it->second);
    regions_.erase(it);
  }

  /// Reports the first byte of an access that lies in a heap but in no region.
  void check_access(void const* p, std::size_t bytes, char const* what) {
    std::uintptr_t at = address(p);
    std::uintptr_t const end = at + bytes;
    while (at < end) {
      auto const heap = first_in(heaps_, at, end - at);
      if (heap == heaps_.end()) return;
      if (at < heap->first) at = heap->first;
      auto const region = first_in(regions_, at, 1);
      if (region == regions_.end()) {
        message<160> const text("invalid ", what, " at ", reinterpret_cast<void*>(at),
                                ": no allocated block contains this byte; ", at - address(p),
                                " bytes into an access of ", bytes, " bytes");
        findings_.emplace_back(text.view());
        return;
      }
      at = region->first + region->second;
    }
  }

  [[nodiscard]] std::vector<std::string> const& findings() const noexcept { return findings_; }
  [[nodiscard]] std::size_t heaps() const noexcept { return heaps_.size(); }
  [[nodiscard]] std::size_t regions() const noexcept { return regions_.size(); }
  /// Bytes in heaps that may be accessed.
  [[nodiscard]] std::size_t region_bytes() const noexcept {
    std::size_t sum = 0;
    for (auto const& [begin, bytes] : regions_) sum += bytes;
    return sum;
  }
  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_; }

 private:
  using stretches = std::map<std::uintptr_t, std::size_t>;

  static std::uintptr_t address(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  /// Returns the first range that overlaps [begin, begin + bytes).
  static stretches::iterator first_in(stretches& all, std::uintptr_t begin, std::size_t bytes) {
    auto it = all.upper_bound(begin);
    if (it != all.begin()) {
      auto const before = std::prev(it);
      if (before->first + before->second > begin) return before;
    }
    return it != all.end() && it->first < begin + bytes ? it : all.end();
  }
  void wrong_notification(char const* what, std::uintptr_t at) {
    message<96> const text("wrong notification: ", what, " at ", reinterpret_cast<void*>(at));
    findings_.emplace_back(text.view());
  }

  [[nodiscard]] bool watched_by_asan() const noexcept { return kind_ == bytes_are::of_the_host; }
  void forbid([[maybe_unused]] std::uintptr_t begin, [[maybe_unused]] std::size_t bytes) const noexcept {
#if TARN_ASAN
    if (watched_by_asan()) __asan_poison_memory_region(reinterpret_cast<void*>(begin), bytes);
#endif
  }
  void allow([[maybe_unused]] std::uintptr_t begin, [[maybe_unused]] std::size_t bytes) const noexcept {
#if TARN_ASAN
    if (watched_by_asan()) __asan_unpoison_memory_region(reinterpret_cast<void*>(begin), bytes);
#endif
  }

  bytes_are kind_;
  stretches heaps_;
  stretches regions_;
  std::vector<std::string> findings_;
  std::uint64_t calls_ = 0;
};

}  // namespace detail

}  // namespace TARN_NAMESPACE
