// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/joined.hpp"

#include <string>

#include "catch.hpp"

using tarn::detail::joined;

TEST_CASE("joined returns its parts in order", "[core][joined]") {
  std::string const middle = "middle";
  CHECK(joined({"first ", middle, std::string(" last")}) == "first middle last");
  CHECK(joined({"", "one", ""}) == "one");
  CHECK(joined({}).empty());
}
