// SPDX-License-Identifier: Apache-2.0
#pragma once
// The device ordinal as a type.

#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

/// A device by its ordinal, as cudaSetDevice numbers them.
struct device_id {
  int value = 0;
  constexpr device_id() noexcept = default;
  constexpr device_id(int ordinal) noexcept : value(ordinal) {}  // NOLINT: an ordinal is a device
  friend constexpr bool operator==(device_id, device_id) noexcept = default;
};

}  // namespace TARN_NAMESPACE
