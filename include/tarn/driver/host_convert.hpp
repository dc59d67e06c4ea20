// SPDX-License-Identifier: Apache-2.0
#pragma once
// Synchronous element conversion in plain host memory.

#include <cstddef>

#include "tarn/core/element.hpp"
#include "tarn/driver/no_driver.hpp"

namespace TARN_NAMESPACE {

template <class To, class From>
status no_driver::convert(stream_ref, To* to, From const* from, std::size_t count) const noexcept {
  if (count == 0) return {};
  if (to == nullptr || from == nullptr) return invalid(driver_call::convert);
  for (std::size_t i = 0; i < count; ++i) to[i] = element_cast<To>(from[i]);
  return {};
}

}  // namespace TARN_NAMESPACE
