// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/text.hpp"

#include <string>

#include "catch.hpp"

using tarn::detail::concat;

TEST_CASE("concat returns its parts in order", "[core][concat]") {
  std::string const middle = "middle";
  CHECK(concat({"first ", middle, std::string(" last")}) == "first middle last");
  CHECK(concat({"", "one", ""}) == "one");
  CHECK(concat({}).empty());
}
