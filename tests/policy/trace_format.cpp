// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/traced.hpp"

#include <limits>
#include <string>

#include "catch.hpp"

using namespace tarn;

TEST_CASE("parse_trace_line reads back what format_trace_line wrote", "[policy][trace_format]") {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  for (trace_event const& e : {trace_event{trace_event_kind::allocate, 1, 2, 3},
                               trace_event{trace_event_kind::allocate, most, most, most},
                               trace_event{trace_event_kind::free, most, 0, 0}}) {
    auto const text = format_trace_line(e);
    std::string_view line = text.view();
    REQUIRE(!line.empty());
    CHECK(line.back() == '\n');
    line.remove_suffix(1);
    auto const back = parse_trace_line(line, 1);
    CHECK(back.kind == e.kind);
    CHECK(back.id == e.id);
    CHECK(back.bytes == e.bytes);
    CHECK(back.stream == e.stream);
  }
}

TEST_CASE("parse_trace_line accepts comments, blanks and carriage returns", "[policy][trace_format]") {
  for (char const* line : {"", " ", "\t", "#", "# a 1 2 3", "  # x", "\r", "\r\t", " \r \r"}) {
    CHECK(parse_trace_line(line, 1).kind == trace_event_kind::comment);
  }
  auto const e = parse_trace_line(" a\t7  8 9 \r", 1);
  CHECK(e.kind == trace_event_kind::allocate);
  CHECK(e.id == 7);
  CHECK(e.bytes == 8);
  CHECK(e.stream == 9);
  CHECK(parse_trace_line("f 1\r ", 1).id == 1);  // as tarn_replay reads it
}

TEST_CASE("parse_trace_line throws with the line number for a line that is no event",
          "[policy][trace_format]") {
  for (char const* line :
       {"a", "a 1", "a 1 2", "a 1 2 3 4", "f", "f 1 2", "f -1", "f x", "f 1x", "x 1", "a1 2 3", "af 1",
        "a 1 2 -3", "a 1 2 18446744073709551616", "f 18446744073709551616", "a 1 2.5 3", "f 0x10", "1 2 3"}) {
    INFO(line);
    CHECK_THROWS_AS(parse_trace_line(line, 17), trace_error);
    try {
      (void)parse_trace_line(line, 17);
    } catch (trace_error const& error) {
      CHECK(error.line() == 17);
      CHECK(error.what() == "line 17: " + std::string(error.reason()));
    }
  }
}

TEST_CASE("format_trace_line writes a comment as one", "[policy][trace_format]") {
  auto const line = format_trace_line({});
  CHECK(line.view() == "#\n");
  CHECK(parse_trace_line("#", 1).kind == trace_event_kind::comment);
}
