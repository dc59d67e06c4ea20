// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/text.hpp"

#include <string>

#include "catch.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"

using namespace tarn;

TEST_CASE("put_printable passes characters on, and nothing that a terminal would obey", "[core][printable]") {
  auto const printed = [](std::string const& text) {
    std::string out;
    detail::put_printable(text, [&](std::string_view part) { out += part; });
    CHECK(out.size() <= text.size());
    message<200> line;
    CHECK(line.add_printable(text).view() == out);
    return out;
  };
  std::string const good = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80~ \xC2\xA0";
  CHECK(printed(good) == good);
  CHECK(printed("\x1B[2Jred\n\t\x7F") == " [2Jred   ");
  CHECK(printed(std::string("\0\x1F", 2)) == "  ");
  CHECK(printed("\xC2\x9B"
                "31m") == " 31m");  // the control sequence introducer as one character
  CHECK(printed("\xFF\xFE bad \xC3") == "?? bad ?");
  CHECK(printed("").empty());
}

TEST_CASE("out_of_memory prints the names of tags whatever they hold", "[core][printable][error]") {
  std::string const name = std::string(27, 'x') + "\xE2\x82\xAC\x1B[2J";  // a euro sign where the name is cut
  memory_report report;
  report.asked = 100;
  report.biggest_tags[0] = {"a\nb\xFF", 10};
  report.biggest_tags[1] = {name.c_str(), 5};
  std::string const text = out_of_memory(report).what();
  INFO(text);
  CHECK(text.find("By tag: a b? 10 B, xxx") != text.npos);
  for (char const c : text) CHECK(static_cast<unsigned char>(c) >= 0x20);
  for (std::string_view rest = text; !rest.empty();) {
    std::size_t const length = detail::utf8_length(rest);
    REQUIRE(length != 0);
    rest.remove_prefix(length);
  }
}
