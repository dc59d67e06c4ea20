// SPDX-License-Identifier: Apache-2.0
#pragma once
// peer_access: a policy below a pool through which other devices can be given access to its pages at any
// time, as PyTorch does when it first copies between two devices.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <tarn/tarn.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tarn_torch {

template <class Upstream>
class peer_access_layer;

/// `cuda_pages{0} | peer_access{} | pooled{}`: no other device has access until grant() is called.
struct peer_access {
  template <class Upstream>
  using layer = peer_access_layer<Upstream>;
};

/// Passes plain blocks of cudaMalloc on; for those cudaDeviceEnablePeerAccess gives access.
template <class Upstream>
class peer_access_layer : public tarn::resource_adaptor<peer_access_layer<Upstream>, Upstream> {
  static_assert(tarn::page_source<Upstream>, "put peer_access below the pool");
  using base = tarn::resource_adaptor<peer_access_layer, Upstream>;

 public:
  explicit peer_access_layer(Upstream upstream, peer_access const& = {}) : base(std::move(upstream)) {}

  /// Lets kernels of `other` read and write all pages, those that are mapped now and those that will be.
  /// Calling it again does nothing. One driver call for each mapping. @throws tarn::cuda_error  the device
  /// cannot reach the pages; nothing has changed for pages that are mapped later
  void grant(tarn::device_id other) {
    std::lock_guard const guard(mutex_);
    if (other == this->driver().device()) return;
    for (tarn::device_id const known : others_) {
      if (known == other) return;
    }
    for (auto const& [address, bytes] : mapped_) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): it was a pointer
      share(reinterpret_cast<void*>(address), bytes, other);
    }
    others_.push_back(other);
  }

  [[nodiscard]] std::size_t granularity() const noexcept { return this->upstream_.granularity(); }
  [[nodiscard]] void* reserve(std::size_t bytes) { return this->upstream().reserve(bytes); }
  void unreserve(void* p, std::size_t bytes) noexcept { this->upstream().unreserve(p, bytes); }
  [[nodiscard]] tarn::page_handle create(std::size_t bytes) { return this->upstream().create(bytes); }
  void destroy(tarn::page_handle handle, std::size_t bytes) noexcept {
    this->upstream().destroy(handle, bytes);
  }
  /// @throws tarn::out_of_memory, tarn::cuda_error, std::bad_alloc; nothing is mapped
  void map(void* p, std::size_t bytes, tarn::page_handle handle) {
    std::lock_guard const guard(mutex_);
    this->upstream().map(p, bytes, handle);
    try {
      mapped_[reinterpret_cast<std::uintptr_t>(p)] = bytes;
      for (tarn::device_id const other : others_) share(p, bytes, other);
    } catch (...) {
      mapped_.erase(reinterpret_cast<std::uintptr_t>(p));
      this->upstream().unmap(p, bytes);
      throw;
    }
  }
  void unmap(void* p, std::size_t bytes) noexcept {
    std::lock_guard const guard(mutex_);
    mapped_.erase(reinterpret_cast<std::uintptr_t>(p));
    this->upstream().unmap(p, bytes);
  }
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires tarn::has_plain_blocks<Upstream>
  {
    return this->upstream().allocate_plain(bytes);
  }
  void deallocate_plain(void* p, std::size_t bytes) noexcept
    requires tarn::has_plain_blocks<Upstream>
  {
    this->upstream().deallocate_plain(p, bytes);
  }

 private:
  void share(void* p, std::size_t bytes, tarn::device_id other) const {
    tarn::status const s = this->driver().share_pages(p, bytes, other);
    if (!s.ok()) throw tarn::cuda_error(s, other.value);
  }

  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, std::size_t> mapped_;
  std::vector<tarn::device_id> others_;
};

}  // namespace tarn_torch
