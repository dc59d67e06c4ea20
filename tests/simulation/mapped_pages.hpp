// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pages that a machine's pools have mapped, as their driver calls show, and the pinned ones: no call may
// unmap or destroy those. This does not use what the library reports.

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "in_library.hpp"
#include "model.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

namespace simulation {

/// Contiguous bytes of one handle, as tarn::memory_segment, which earlier headers lack.
struct page_piece {
  void const* address = nullptr;
  std::size_t bytes = 0;
  tarn::page_handle handle = 0;
  std::size_t offset = 0;  ///< in the handle
  std::size_t handle_bytes = 0;
  friend bool operator==(page_piece const&, page_piece const&) noexcept = default;
};

class mapped_pages {
 public:
  explicit mapped_pages(findings& found) noexcept : found_(found) {}

  void mapped(void const* p, std::size_t bytes, tarn::page_handle handle) {
    all_.insert_or_assign(address(p), mapping{bytes, handle});
  }
  void unmapping(void const* p, std::size_t bytes) {
    std::uintptr_t const begin = address(p);
    each_pinned([&](page_piece const& piece) {
      if (address(piece.address) < begin + bytes && begin < address(piece.address) + piece.bytes)
        found_.push_back(text("pinned pages are unmapped: %zu bytes at %p, of handle %" PRIu64, bytes, p,
                              static_cast<std::uint64_t>(piece.handle)));
    });
    all_.erase(begin);
  }
  void destroying(tarn::page_handle handle) {
    each_pinned([&](page_piece const& piece) {
      if (piece.handle == handle)
        found_.push_back(text("a pinned handle is destroyed: %" PRIu64 " behind %p",
                              static_cast<std::uint64_t>(handle), piece.address));
    });
  }

  /// The pieces of handles behind these bytes, in order; ends early where nothing is mapped.
  [[nodiscard]] std::vector<page_piece> behind(void const* p, std::size_t bytes) const {
    std::vector<page_piece> pieces;
    std::uintptr_t at = address(p);
    std::uintptr_t const end = at + bytes;
    auto it = all_.upper_bound(at);
    if (it != all_.begin()) --it;
    for (; at < end && it != all_.end() && it->first <= at; ++it) {
      std::size_t const offset = at - it->first;
      if (offset >= it->second.bytes) break;
      std::size_t const rest = it->second.bytes - offset;
      std::size_t const part = rest < end - at ? rest : end - at;
      pieces.push_back(
          {reinterpret_cast<void const*>(at), part, it->second.handle, offset, it->second.bytes});
      at += part;
    }
    return pieces;
  }

  void pin(std::uint64_t number, std::vector<page_piece> pieces) {
    pinned_.insert_or_assign(number, std::move(pieces));
  }
  void unpin(std::uint64_t number) { pinned_.erase(number); }

 private:
  struct mapping {
    std::size_t bytes = 0;
    tarn::page_handle handle = 0;
  };
  static std::uintptr_t address(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  template <class F>
  void each_pinned(F const& f) const {
    for (auto const& [number, pieces] : pinned_) {
      for (page_piece const& piece : pieces) f(piece);
    }
  }

  findings& found_;
  std::map<std::uintptr_t, mapping> all_;
  std::map<std::uint64_t, std::vector<page_piece>> pinned_;  ///< by number of the pin
};

/// What a driver with `watched` is made from.
struct watched_device {
  tarn::sim_driver driver;
  mapped_pages* pages = nullptr;
};

/// A driver whose calls for pages are reported to a mapped_pages.
template <class Driver>
class watched : public Driver {
 public:
  explicit watched(watched_device const& device) noexcept : Driver(device.driver), pages_(device.pages) {}

  tarn::status map_pages(void* p, std::size_t bytes, tarn::page_handle handle) const noexcept {
    tarn::status const s = Driver::map_pages(p, bytes, handle);
    outside_library const now;
    if (s.ok()) pages_->mapped(p, bytes, handle);
    return s;
  }
  tarn::status unmap_pages(void* p, std::size_t bytes) const noexcept {
    {
      outside_library const now;
      pages_->unmapping(p, bytes);
    }
    return Driver::unmap_pages(p, bytes);
  }
  tarn::status destroy_pages(tarn::page_handle handle) const noexcept {
    {
      outside_library const now;
      pages_->destroying(handle);
    }
    return Driver::destroy_pages(handle);
  }

 private:
  mapped_pages* pages_;
};

}  // namespace simulation
