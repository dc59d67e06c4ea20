// SPDX-License-Identifier: Apache-2.0
#pragma once
// unique_descriptor: a unique owner of a file descriptor.

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "tarn/core/min_max.hpp"
#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

/// Owns a file descriptor and closes it. Move-only; a moved-from owner is empty.
class unique_descriptor {
 public:
  unique_descriptor() noexcept = default;
  explicit unique_descriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  unique_descriptor(unique_descriptor&& other) noexcept : descriptor_(other.release()) {}
  unique_descriptor& operator=(unique_descriptor&& other) noexcept {
    unique_descriptor(std::move(other)).swap(*this);
    return *this;
  }
  ~unique_descriptor() {
    if (descriptor_ >= 0) (void)::close(descriptor_);
  }

  void swap(unique_descriptor& other) noexcept { std::swap(descriptor_, other.descriptor_); }
  /// -1 if it owns none.
  [[nodiscard]] int get() const noexcept { return descriptor_; }
  /// Releases ownership without closing.
  [[nodiscard]] int release() noexcept { return detail::exchange(descriptor_, -1); }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  /// A program that this process starts does not get the descriptor.
  void close_on_exec() const noexcept {
    if (descriptor_ >= 0) (void)::fcntl(descriptor_, F_SETFD, FD_CLOEXEC);
  }

 private:
  int descriptor_ = -1;
};

}  // namespace TARN_NAMESPACE
