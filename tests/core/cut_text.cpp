// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/cut_text.hpp"

#include <string>

#include "catch.hpp"

using tarn::detail::first_of_text;
using tarn::detail::last_of_text;

TEST_CASE("first_of_text and last_of_text cut between characters", "[core][cut_text]") {
  std::string const text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80z";  // 1, 2, 3, 4 and 1 bytes
  std::size_t const firsts[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  std::size_t const lasts[] = {0, 1, 1, 1, 1, 5, 5, 5, 8, 8, 10, 11, 11};
  for (std::size_t most = 0; most < 13; ++most) {
    CAPTURE(most);
    CHECK(first_of_text(text, most) == text.substr(0, firsts[most]));
    CHECK(last_of_text(text, most) == text.substr(text.size() - lasts[most]));
  }
}

TEST_CASE("first_of_text and last_of_text accept bytes that are not UTF-8", "[core][cut_text]") {
  std::string const text(10, '\x80');
  CHECK(first_of_text(text, 4).empty());
  CHECK(last_of_text(text, 4).empty());
  CHECK(first_of_text({}, 4).empty());
  CHECK(last_of_text({}, 0).empty());
}
