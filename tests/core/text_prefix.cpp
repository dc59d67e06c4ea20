// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/text.hpp"

#include <string>

#include "catch.hpp"

using tarn::detail::text_prefix;
using tarn::detail::text_suffix;

TEST_CASE("text_prefix and text_suffix cut between characters", "[core][text_prefix]") {
  std::string const text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80z";  // 1, 2, 3, 4 and 1 bytes
  std::size_t const firsts[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  std::size_t const lasts[] = {0, 1, 1, 1, 1, 5, 5, 5, 8, 8, 10, 11, 11};
  for (std::size_t most = 0; most < 13; ++most) {
    CAPTURE(most);
    CHECK(text_prefix(text, most) == text.substr(0, firsts[most]));
    CHECK(text_suffix(text, most) == text.substr(text.size() - lasts[most]));
  }
}

TEST_CASE("text_prefix and text_suffix accept bytes that are not UTF-8", "[core][text_prefix]") {
  std::string const text(10, '\x80');
  CHECK(text_prefix(text, 4).empty());
  CHECK(text_suffix(text, 4).empty());
  CHECK(text_prefix({}, 4).empty());
  CHECK(text_suffix({}, 0).empty());
}
