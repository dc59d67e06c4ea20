// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_reader.hpp"

#include <cstdio>
#include <string>
#include <string_view>

#include "catch.hpp"
#include "tarn/policy/traced.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn::bench;

namespace {

trace parse(std::initializer_list<std::string_view> lines) {
  trace_parser parser("some.trace");
  for (std::string_view const line : lines) parser.take(line);
  return std::move(parser).finish();
}

std::string refusal(std::initializer_list<std::string_view> lines) {
  try {
    (void)parse(lines);
  } catch (trace_error const& error) {
    return error.what();
  }
  return "accepted";
}

bool begins(std::string const& text, std::string_view with) {
  UNSCOPED_INFO(text);
  return text.starts_with(with);
}

}  // namespace

TEST_CASE("trace_parser gives frees the bytes and stream of their allocation", "[replay]") {
  trace const t = parse({"# a comment", "a 7 100 3", "a 8 50 0", "", "f 7", "a 9 25 3"});
  CHECK(t.name == "some");
  REQUIRE(t.events.size() == 4);
  CHECK(t.allocations == 3);
  CHECK(t.peak_live == 150);
  CHECK(t.stream_numbers == std::vector<std::uint64_t>{3, 0});
  CHECK(t.events[2].what == operation::free);
  CHECK(t.events[2].bytes == 100);
  CHECK(t.events[2].stream == 0);
  CHECK(t.events[2].slot == t.events[0].slot);
  CHECK(t.events[3].slot == t.events[0].slot);  // slots are reused: the table stays as small as the peak
  CHECK(t.slots == 2);
}

TEST_CASE("trace_parser ignores blanks, tabs and Windows line ends", "[replay]") {
  trace const t = parse({"a 1 2 0\r", "a\t2  4\t0 ", "f 1\r", " "});
  CHECK(t.events.size() == 3);
  CHECK(t.peak_live == 6);
}

TEST_CASE("trace_parser accepts an id again after it was freed", "[replay]") {
  CHECK(parse({"a 1 2 0", "f 1", "a 1 4 0", "f 1"}).peak_live == 4);
}

TEST_CASE("trace_parser accepts requests of zero bytes", "[replay]") {
  CHECK(parse({"a 1 0 0", "f 1"}).events.size() == 2);
}

TEST_CASE("trace_parser refuses a broken line and reports file and line", "[replay]") {
  CHECK(begins(refusal({"a 1 2 0", "x 1"}),
               "some.trace:2: no event; expected 'a <id> <bytes> <stream>', 'f <id>' or '# comment': 'x 1'"));
  CHECK(begins(refusal({"allocate 1 2 0"}), "some.trace:1: no event"));
  CHECK(begins(refusal({"a"}), "some.trace:1: the id is missing"));
  CHECK(begins(refusal({"a 1 2"}), "some.trace:1: the stream is missing"));
  CHECK(begins(refusal({"a 1 -2 0"}), "some.trace:1: the size is missing or not a number"));
  CHECK(begins(refusal({"a 1 2.5 0"}), "some.trace:1: the size is not a number"));
  CHECK(begins(refusal({"a 1 2 0 9"}), "some.trace:1: too many words: 'a 1 2 0 9'"));
  CHECK(begins(refusal({"a 99999999999999999999 2 0"}), "some.trace:1: the id is too large"));
  CHECK(begins(refusal({"a 1 9223372036854775807 0"}), "some.trace:1: no device has"));
  CHECK(begins(refusal({"a 1 2 0", "f 1 1"}), "some.trace:2: too many words: 'f 1 1'"));
}

TEST_CASE("trace_parser reads each line as parse_trace_line does", "[replay]") {
  for (std::string const line :
       {"a 1 2 0", " a\t1  2 0", "  # a 1 2 0", "# a 1 2 0", "a 1 2 18446744073709551615",
        "a 1 2 18446744073709551616", " ", "b", "a1 2 0", "a 1 2 0x1", "a 1 2 0 \r"}) {
    INFO(line);
    tarn::trace_event e;
    std::string reason;
    try {
      e = tarn::parse_trace_line(line, 1);
    } catch (tarn::trace_error const& error) {
      reason = error.reason();
      CHECK(error.what() == "line 1: " + reason);
    }
    if (!reason.empty()) {
      CHECK(begins(refusal({line}), "some.trace:1: " + reason));
      continue;
    }
    trace const t = parse({line});
    REQUIRE(t.events.size() == (e.kind == tarn::trace_event_kind::comment ? 0 : 1));
    if (!t.events.empty()) CHECK(t.stream_numbers == std::vector<std::uint64_t>{e.stream});
  }
}

TEST_CASE("trace_parser refuses sizes whose sum is larger than any device, with their line", "[replay]") {
  trace_parser parser("large.trace");
  std::string const largest = std::to_string(std::uint64_t{1} << 50);
  for (int i = 0; i < 1024; ++i) parser.take("a " + std::to_string(i) + " " + largest + " 0");
  try {
    parser.take("a 1024 1 0");
    FAIL("the trace was accepted");
  } catch (trace_error const& error) {
    CHECK(begins(error.what(),
                 "large.trace:1025: no device has 1152921504606846977 bytes, which are live at once"));
  }
  trace_parser again("freed.trace");  // what is not live at once is no sum
  for (int i = 0; i < 40'000; ++i) {
    again.take("a 1 " + largest + " 0");
    again.take("f 1");
  }
  CHECK(std::move(again).finish().peak_live == std::uint64_t{1} << 50);
}

TEST_CASE("trace_parser refuses a line that is too long, but no comment", "[replay]") {
  CHECK(parse({"#" + std::string(5000, ' ') + "x"}).events.empty());
  CHECK(begins(refusal({"a 1 2 0" + std::string(5000, ' ')}), "some.trace:1: the line is too long"));
}

TEST_CASE("trace_parser refuses an id that is unknown, already freed or still live", "[replay]") {
  CHECK(refusal({"a 1 2 0", "f 2"}) == "some.trace:2: unknown id 2: it was never allocated");
  CHECK(refusal({"a 1 2 0", "f 1", "#", "f 1"}) ==
        "some.trace:4: double free of id 1: it was freed at line 2");
  CHECK(refusal({"a 1 2 0", "a 1 2 0"}) == "some.trace:2: id 1 is still live: it was allocated at line 1");
}

TEST_CASE("trace_parser quotes a broken line short and printable", "[replay]") {
  std::string const text = refusal({std::string("\x1b[31m") + std::string(5000, 'z')});
  CHECK(text.size() < 200);
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("trace_parser accepts most_trace_streams streams and refuses one more", "[replay]") {
  trace_parser parser("many.trace");
  for (std::uint32_t i = 0; i < tarn::most_trace_streams; ++i) {
    std::string const id = std::to_string(i);
    parser.take("a " + id + " 1 " + std::to_string(i + 7));
  }
  try {
    parser.take("a 70000 1 1");
    FAIL("the trace was accepted");
  } catch (trace_error const& error) {
    CHECK(begins(error.what(), "many.trace:65536: more than 65,535 streams"));
  }
}

TEST_CASE("trace_parser reads what recorded writes for more than most_trace_streams streams", "[replay]") {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  constexpr std::uint32_t streams = tarn::most_trace_streams + 10;
  {
    auto memory = tarn::host_memory{} | tarn::traced(file);
    for (std::uint32_t i = 1; i <= streams; ++i) {
      auto const on =
          tarn::stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{i} * 4096), std::uint64_t{i} * 4096);
      memory.deallocate(on, memory.allocate(on, 10), 10);
    }
    memory.deallocate_sync(memory.allocate_sync(10), 10);  // the default stream is one more
  }
  std::rewind(file);
  trace_parser parser("recorded");
  std::string line;
  for (int c = 0; (c = std::fgetc(file)) != EOF;) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    parser.take(line);
    line.clear();
  }
  std::fclose(file);
  trace const t = std::move(parser).finish();
  CHECK(t.allocations == streams + 1);
  CHECK(t.stream_numbers.size() == tarn::most_trace_streams);
}
