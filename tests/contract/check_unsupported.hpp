// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks that a call which a device does not support is refused as such.

#include <initializer_list>
#include <string_view>

#include "catch.hpp"
#include "tarn/core/error.hpp"

namespace tarn_test {

/// Checks that a call on device 0 throws a cuda_error of kind `unsupported` that contains these texts.
template <class Call>
void check_unsupported(Call const& call, std::initializer_list<std::string_view> texts) {
  try {
    call();
    FAIL("must not succeed");
  } catch (tarn::cuda_error const& error) {
    CHECK(error.kind() == tarn::failure::unsupported);
    CHECK(error.device() == 0);
    INFO(error.what());
    for (std::string_view const text : texts)
      CHECK(std::string_view(error.what()).find(text) != std::string_view::npos);
  }
}

}  // namespace tarn_test
