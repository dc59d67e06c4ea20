// SPDX-License-Identifier: Apache-2.0
#pragma once
// unique_pages: a unique owner of one handle of physical memory.

#include <cstddef>
#include <utility>

#include "tarn/core/resource.hpp"

namespace tarn_test {

/// Owns one physical handle of a page source and destroys it in its destructor. Move-only; moved-from owners
/// are empty. The handle must not be mapped anywhere at that point: unmap first.
template <tarn::page_source Source>
class unique_pages {
 public:
  /// Creates physical memory. @param bytes a multiple of the source's granularity
  /// @throws out_of_memory, cuda_error
  unique_pages(Source source, std::size_t bytes)
      : source_(std::move(source)), handle_(source_.create(bytes)), bytes_(bytes) {}

  unique_pages(unique_pages&& other) noexcept
      : source_(other.source_),
        handle_(std::exchange(other.handle_, tarn::page_handle{})),
        bytes_(std::exchange(other.bytes_, 0)) {}
  unique_pages& operator=(unique_pages&& other) noexcept {
    unique_pages(std::move(other)).swap(*this);
    return *this;
  }
  ~unique_pages() { reset(); }

  void swap(unique_pages& other) noexcept {
    std::swap(source_, other.source_);
    std::swap(handle_, other.handle_);
    std::swap(bytes_, other.bytes_);
  }

  /// Gives the memory back now.
  void reset() noexcept {
    if (bytes_ != 0) source_.destroy(handle_, bytes_);
    bytes_ = 0;
  }
  /// Releases ownership of the handle without destroying it.
  [[nodiscard]] tarn::page_handle release() noexcept {
    bytes_ = 0;
    return handle_;
  }

  [[nodiscard]] tarn::page_handle get() const noexcept { return handle_; }
  /// Zero if it owns nothing.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return bytes_ != 0; }

 private:
  Source source_;
  tarn::page_handle handle_{};
  std::size_t bytes_ = 0;
};

}  // namespace tarn_test
