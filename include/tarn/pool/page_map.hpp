// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page map: which physical handle stands behind which granule of address space. A handle may be mapped at
// several places; one of them is active, the others are stale: still mapped, used by nobody. Moving a handle
// therefore costs a map (27 us) on the way of a request, and the unmap (17 us) is left for later or never.
// Above it: page_growth. Below it: range.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "tarn/core/resource.hpp"

namespace tarn::detail {

using handle_ref = std::uint32_t;  ///< index of a handle; 0 is none

/// One piece of physical memory.
struct physical {
  page_handle id = 0;
  std::size_t bytes = 0;
  std::uint32_t active = 0;           ///< granule where it serves; `nowhere` for a spare one
  std::vector<std::uint32_t> mapped;  ///< every granule where it is mapped, the active one included
};

inline constexpr std::uint32_t nowhere = ~std::uint32_t{0};

class page_map {
 public:
  /// @throws std::bad_alloc
  void open(std::uintptr_t base, std::size_t bytes, std::size_t granularity) {
    granules_ = bytes / granularity;
    // calloc, so that the table of a huge range costs host memory only where it is used.
    table_.reset(static_cast<handle_ref*>(std::calloc(granules_, sizeof(handle_ref))));
    if (table_ == nullptr) throw std::bad_alloc();
    base_ = base;
    granularity_ = granularity;
    handles_.resize(1);
  }
  [[nodiscard]] bool is_open() const noexcept { return table_ != nullptr; }

  [[nodiscard]] std::uint32_t granule_of(std::uintptr_t address) const noexcept {
    return static_cast<std::uint32_t>((address - base_) / granularity_);
  }
  [[nodiscard]] std::uintptr_t address_of(std::uint32_t granule) const noexcept {
    return base_ + granule * granularity_;
  }
  /// The handle mapped at an address, 0 if none.
  [[nodiscard]] handle_ref at(std::uintptr_t address) const noexcept { return table_[granule_of(address)]; }

  [[nodiscard]] physical& operator[](handle_ref h) noexcept { return handles_[h]; }
  [[nodiscard]] physical const& operator[](handle_ref h) const noexcept { return handles_[h]; }
  [[nodiscard]] handle_ref size() const noexcept { return static_cast<handle_ref>(handles_.size()); }

  /// Adds a handle that is mapped nowhere. Room has been made.
  [[nodiscard]] handle_ref add(page_handle id, std::size_t bytes) noexcept {
    handle_ref h = first_free_;
    if (h != 0) {
      first_free_ = handles_[h].active;
    } else {
      h = static_cast<handle_ref>(handles_.size());
      handles_.emplace_back();
    }
    handles_[h].id = id;
    handles_[h].bytes = bytes;
    handles_[h].active = nowhere;
    ++count_;
    return h;
  }
  /// Room to add `count` handles and to note a further mapping of `h`. @throws std::bad_alloc
  void make_room(std::size_t count) {
    if (handles_.capacity() - handles_.size() < count) handles_.reserve(handles_.size() * 2 + count);
  }
  void make_room_for_mapping(handle_ref h) { handles_[h].mapped.reserve(handles_[h].mapped.size() + 1); }

  void remove(handle_ref h) noexcept {
    handles_[h].mapped.clear();
    handles_[h].bytes = 0;
    handles_[h].id = 0;
    handles_[h].active = first_free_;
    first_free_ = h;
    --count_;
  }

  void note_mapped(handle_ref h, std::uintptr_t address) noexcept {
    std::uint32_t const first = granule_of(address);
    for (std::uint32_t g = 0; g < handles_[h].bytes / granularity_; ++g) table_[first + g] = h;
    handles_[h].mapped.push_back(first);
    handles_[h].active = first;
  }
  void note_unmapped(handle_ref h, std::uintptr_t address) noexcept {
    std::uint32_t const first = granule_of(address);
    for (std::uint32_t g = 0; g < handles_[h].bytes / granularity_; ++g) table_[first + g] = 0;
    std::erase(handles_[h].mapped, first);
    if (handles_[h].active == first) handles_[h].active = nowhere;
  }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] std::size_t granularity() const noexcept { return granularity_; }
  [[nodiscard]] std::uintptr_t base() const noexcept { return base_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return granules_ * granularity_; }
  [[nodiscard]] bool contains(std::uintptr_t address) const noexcept {
    return is_open() && address >= base_ && address - base_ < bytes();
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return handles_.capacity() * sizeof(physical); }

 private:
  struct free_memory {
    void operator()(void* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<handle_ref[], free_memory> table_;
  std::vector<physical> handles_;
  std::uintptr_t base_ = 0;
  std::size_t granularity_ = 0;
  std::size_t granules_ = 0;
  std::size_t count_ = 0;
  handle_ref first_free_ = 0;
};

}  // namespace tarn::detail
