// SPDX-License-Identifier: Apache-2.0
// The report page as text: its data, read back, and what it must not contain. tests/report/browser runs its
// script.

#include "tarn/report/timeline_html.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <sstream>
#include <streambuf>
#include <string>
#include <system_error>

#include "catch.hpp"
#include "report/page_reader.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

using namespace tarn;

namespace {

std::string page_of(snapshot const& s, timeline_html_options options = {}) {
  std::ostringstream out;
  write_timeline_html(out, s, options);
  REQUIRE(out.good());
  return out.str();
}

std::size_t count(std::string const& text, std::string const& what) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != text.npos; ++at) ++n;
  return n;
}

std::string script_string(std::string_view text) {
  std::ostringstream out;
  detail::json_text(out, detail::json_in::script).text(text).flush();
  return out.str();
}

/// Events of every kind in random order, and segments with and without gaps.
snapshot any_snapshot(std::uint32_t seed) {
  std::mt19937 random(seed);
  auto const below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  snapshot s;
  s.tags.resize(4);
  s.locations.resize(5);
  std::uint64_t time = below(1000);
  std::vector<snapshot_event> live;
  for (std::uint32_t i = 0; i < 400; ++i) {
    snapshot_event e;
    time += below(3) == 0 ? 0 : below(100'000);
    e.time_ns =
        time - std::min<std::uint64_t>(time, below(50));  // slightly out of order, as from several threads
    std::uint32_t const draw = below(20);
    if (draw < 9 || live.empty()) {
      e.address = 0x7f0000000000U + (std::uintptr_t{i} << 20U) + 512U * below(100);
      e.bytes = 512U * (1 + below(5000));
      e.requested = e.bytes - below(512);
      e.stream = below(8) == 0 ? std::numeric_limits<stream_id>::max() : below(3);
      e.tag = below(4);
      e.location = below(5);
      live.push_back(e);
    } else if (draw < 17) {
      std::size_t const at = below(static_cast<std::uint32_t>(live.size()));
      std::uint64_t const when = e.time_ns;
      e = live[at];
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      e.kind = snapshot_event_kind::free;
      e.time_ns = when;
      if (below(3) == 0) e.stream = 77;
      if (below(9) == 0) e.address += 256;  // of a block that was allocated before the first event
    } else {
      e.kind = draw == 17   ? snapshot_event_kind::refused
               : draw == 18 ? snapshot_event_kind::reserve
                            : snapshot_event_kind::release;
      e.bytes = std::size_t{1} << below(60);
      e.requested = e.kind == snapshot_event_kind::refused ? e.bytes : 0;
      e.address = below(2) == 0 ? 0 : 0x7e0000000000U;
    }
    s.events.push_back(e);
  }
  for (std::uint32_t i = 0; i < 6; ++i) {
    snapshot_segment segment;
    segment.address = 0x7d0000000000U + (std::uintptr_t{i} << 34U);
    segment.kind = static_cast<segment_kind>(i % 3);
    segment.is_small = i % 2 == 0;
    segment.handles = i;
    segment.stream = i;
    std::uintptr_t at = segment.address;
    for (std::uint32_t b = below(30); b != 0; --b) {
      snapshot_block block;
      block.address = at += below(10) == 0 ? 4096 : 0;
      block.bytes = 512U * (1 + below(100'000));
      block.use = static_cast<block_use>(below(3));
      block.requested = block.use == block_use::live ? block.bytes - 1 : 0;
      block.stream = below(3);
      block.tag = below(4);
      block.location = below(5);
      block.time_ns = below(1'000'000);
      segment.blocks.push_back(block);
      at += block.bytes;
    }
    segment.bytes = at - segment.address + 2048;
    s.segments.push_back(segment);
  }
  return s;
}

bool same(snapshot_event const& a, snapshot_event const& b) {
  return a.kind == b.kind && a.address == b.address && a.bytes == b.bytes && a.requested == b.requested &&
         a.stream == b.stream && a.tag == b.tag && a.location == b.location && a.time_ns == b.time_ns;
}
bool same(snapshot_block const& a, snapshot_block const& b) {
  return a.use == b.use && a.address == b.address && a.bytes == b.bytes && a.requested == b.requested &&
         a.stream == b.stream && a.tag == b.tag && a.location == b.location && a.time_ns == b.time_ns;
}
bool same(snapshot_segment const& a, snapshot_segment const& b) {
  return a.address == b.address && a.bytes == b.bytes && a.kind == b.kind && a.is_small == b.is_small &&
         a.handles == b.handles && a.stream == b.stream && a.blocks.size() == b.blocks.size() &&
         std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin(),
                    [](auto const& x, auto const& y) { return same(x, y); });
}

/// Accepts a fixed number of characters, as a full disk does.
class full_disk : public std::streambuf {
 public:
  explicit full_disk(std::streamsize room) : room_(room) {}

 protected:
  std::streamsize xsputn(char const*, std::streamsize n) override {
    std::streamsize const taken = std::min(n, room_);
    room_ -= taken;
    return taken;
  }
  int_type overflow(int_type c) override { return room_-- > 0 ? c : traits_type::eof(); }

 private:
  std::streamsize room_;
};

}  // namespace

TEST_CASE("write_timeline_html writes every event and block of its snapshot exactly",
          "[report][timeline_html]") {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    snapshot const s = any_snapshot(seed);
    snapshot const read = tarn_test::read_page(page_of(s));
    INFO("seed " << seed);
    REQUIRE(read.events.size() == s.events.size());
    for (std::size_t i = 0; i < s.events.size(); ++i) {
      INFO("event " << i);
      REQUIRE(same(read.events[i], s.events[i]));
    }
    REQUIRE(read.segments.size() == s.segments.size());
    for (std::size_t i = 0; i < s.segments.size(); ++i) REQUIRE(same(read.segments[i], s.segments[i]));
  }
}

TEST_CASE("write_timeline_html writes a segment that is less aligned than all events",
          "[report][timeline_html]") {
  snapshot s;
  s.tags.resize(1);
  s.locations.resize(1);
  snapshot_event e;
  e.address = 0x7e0000100000U;
  e.bytes = e.requested = 4096;
  e.time_ns = 1;  // after the snapshot
  s.events.push_back(e);
  snapshot_segment segment;
  segment.address = 0x7d0000000300U;
  segment.bytes = 4096;
  s.segments.push_back(segment);
  snapshot const read = tarn_test::read_page(page_of(s));
  REQUIRE((read.events.size() == 1 && read.segments.size() == 1));
  CHECK(same(read.events[0], e));
  CHECK(same(read.segments[0], segment));
}

TEST_CASE("write_timeline_html writes the blocks and history of a watched pool", "[report][timeline_html]") {
  sim_machine machine{sim_options{.backing = sim_backing::address_only}};
  auto memory = sim_pages{machine.driver(0)} | pooled{} | with_history{.history = 100};
  remember_growth(memory);
  void* const kept = memory.allocate({}, 5'000'000);
  memory.deallocate({}, memory.allocate({}, 3000), 3000);
  snapshot const s = take_snapshot(memory);
  snapshot const read = tarn_test::read_page(page_of(s));
  REQUIRE(read.segments.size() == s.segments.size());
  for (std::size_t i = 0; i < s.segments.size(); ++i) CHECK(same(read.segments[i], s.segments[i]));
  REQUIRE(read.events.size() == s.events.size());
  for (std::size_t i = 0; i < s.events.size(); ++i) CHECK(same(read.events[i], s.events[i]));
  CHECK(s.events.size() >= 4);
  memory.deallocate({}, kept, 5'000'000);
}

TEST_CASE("write_timeline_html keeps a reused address, and omits the free of a block that is not live",
          "[report][timeline_html][html_data]") {
  snapshot s;
  s.tags.resize(1);
  s.locations.resize(1);
  using kind = snapshot_event_kind;
  for (kind const k : {kind::free, kind::allocate, kind::free, kind::free, kind::allocate, kind::free}) {
    snapshot_event e;
    e.kind = k;
    e.address = 0x7000;
    e.bytes = 512 * (1 + s.events.size() / 2);  // each allocation has its own size, also the unmatched frees
    e.requested = e.bytes;
    s.events.push_back(e);
  }
  s.events[2].bytes = s.events[2].requested = s.events[1].bytes;
  s.events[5].bytes = s.events[5].requested = s.events[4].bytes;
  snapshot read = tarn_test::read_page(page_of(s));
  REQUIRE(read.events.size() == 5);
  read.events.insert(read.events.begin() + 2, s.events[2]);  // of two frees in turn, the first is omitted
  s.events[3].bytes = s.events[3].requested = s.events[1].bytes;
  for (std::size_t i = 0; i < s.events.size(); ++i) CHECK(same(read.events.at(i), s.events[i]));
  s.events.clear();
  CHECK(tarn_test::read_page(page_of(s)).events.empty());
}

TEST_CASE("html_numbers writes numbers of any size", "[report][timeline_html][html_numbers]") {
  std::uint64_t const most = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::uint64_t> const all{0, 1, 127, 128, 16'383, 16'384, 1ULL << 53U, most, 0, most - 1};
  for (std::size_t n = 0; n <= all.size(); ++n) {  // each length of the last group of three bytes
    std::ostringstream out;
    out << "id=\"x\">";
    detail::html_numbers numbers(out);
    std::uint64_t before = 1000;
    for (std::size_t i = 0; i < n; ++i) {
      numbers.add(all[i]);
      if (all[i] < 1ULL << 60U) numbers.add_step(before, all[i]);
      if (all[i] < 1ULL << 60U) before = all[i];
    }
    numbers.finish();
    out << "</script>";
    tarn_test::page_reader read(out.str(), "x");
    before = 1000;
    for (std::size_t i = 0; i < n; ++i) {
      REQUIRE(read.next() == all[i]);
      if (all[i] < 1ULL << 60U) REQUIRE((before = read.step(before)) == all[i]);
    }
    REQUIRE(read.ended());
  }
}

TEST_CASE("write_timeline_html escapes names that would end the script",
          "[report][timeline_html][json_text]") {
  snapshot s;
  std::string const bad = "</script><img src=x onerror=alert(1)><!--<script>";
  s.title = bad;
  s.tags.resize(2);
  s.tags[1].name = bad;
  s.locations = {{}, {{bad, 7, bad}}};
  std::string const page = page_of(s);
  CHECK(count(page, "<script") == 5);
  CHECK(count(page, "</script") == 5);
  CHECK(count(page, "<img") == 0);
  CHECK(count(page, "<!--") == 0);
  CHECK(count(page, "&lt;/script&gt;") == 1);                  // the title of the window
  CHECK(count(page, "\\u003c/script\\u003e\\u003cimg") == 4);  // title, tag, file, function
  std::string const name = script_string(bad);
  std::string const figures = R"(,"bytes":0,"peak":0,"requested":0,"blocks":0,"allocations":0})";
  CHECK(count(page, R"("tags":[{"name":"")" + figures + R"(,{"name":)" + name + figures +
                        R"(],"locations":[[],[[)" + name + ",7," + name + R"(]]],"counts":[")") == 1);
}

TEST_CASE("write_timeline_html writes valid JSON strings for any bytes",
          "[report][timeline_html][json_text]") {
  CHECK(script_string("a \"b\" \\ c/d") == R"("a \"b\" \\ c/d")");
  CHECK(script_string(std::string_view("\0\n\x1f\x7f", 4)) == R"("\u0000\u000a\u001f\u007f")");
  CHECK(script_string("<&>") == R"("\u003c\u0026\u003e")");
  CHECK(script_string("h\xC3\xB6he \xE2\x82\xAC \xF0\x9F\x98\x80") ==
        "\"h\xC3\xB6he \xE2\x82\xAC \xF0\x9F\x98\x80\"");
  // Truncated, lone continuation, overlong, surrogate, beyond Unicode, invalid byte.
  CHECK(script_string("\xE2\x82") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(script_string("\xC3(") == "\"\xEF\xBF\xBD(\"");
  CHECK(script_string("\x80") == "\"\xEF\xBF\xBD\"");
  CHECK(script_string("\xC0\xAF") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(script_string("\xE0\x80\xAF") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(script_string("\xED\xA0\x80") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(script_string("\xF0\x80\x80\xAF") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(script_string("\xF4\x90\x80\x80") == "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
  CHECK(script_string("\xFF<") == "\"\xEF\xBF\xBD\\u003c\"");
  std::string title;
  detail::add_html_text(title, std::string_view("a&<b>\xFF\0 \xC3\xB6", 10));
  CHECK(title == "a&amp;&lt;b&gt;\xEF\xBF\xBD\xEF\xBF\xBD \xC3\xB6");
}

TEST_CASE("write_timeline_html makes a page without network requests", "[report][timeline_html]") {
  std::string const page = page_of(any_snapshot(3));
  for (char const* way :
       {"http:", "https:", "src=", "url(", "@import", "fetch(", "XMLHttpRequest", "WebSocket", "import("})
    CHECK(count(page, way) == 0);
  CHECK(count(page, "default-src 'none'") == 1);
  CHECK(count(page, "<link ") == 1);
  CHECK(count(page, "<link rel=\"icon\" href=\"data:,\">") == 1);
}

TEST_CASE("write_timeline_html accepts an empty snapshot and indices out of range",
          "[report][timeline_html]") {
  snapshot s;
  CHECK(tarn_test::read_page(page_of(s)).events.empty());
  snapshot_event e;
  e.tag = 7;
  e.location = 9;
  e.address = std::numeric_limits<std::uintptr_t>::max();
  e.time_ns = std::numeric_limits<std::uint64_t>::max() / 4;
  s.events.push_back(e);
  snapshot const read = tarn_test::read_page(page_of(s));
  CHECK(read.events.at(0).tag == 0);
  CHECK(read.events.at(0).location == 0);
  CHECK(read.events.at(0).address == e.address);
}

TEST_CASE("write_timeline_html names the unit of its time axis", "[report][timeline_html]") {
  CHECK(count(page_of({}), "\"clock\":\"time\"") == 1);
  CHECK(count(page_of({}, {.time = time_axis::calls}), "\"clock\":\"calls\"") == 1);
}

TEST_CASE("save_timeline_html writes the same page to a file", "[report][timeline_html]") {
  snapshot const s = any_snapshot(5);
  std::string const path = std::string(std::filesystem::temp_directory_path() / "tarn_test_page.html");
  save_timeline_html(s, path);
  std::ifstream file(path, std::ios::binary);
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == page_of(s));
  (void)std::remove(path.c_str());

  sim_machine const machine;
  auto const memory = sim_pages(machine.driver()) | pooled{} | with_history{};
  save_timeline_html(memory, path);
  CHECK(std::filesystem::file_size(path) > 10'000);

  CHECK_THROWS_AS(save_timeline_html(s, path + "/page.html"), std::system_error);  // below a file
  (void)std::remove(path.c_str());
  std::filesystem::create_symlink("/dev/full", path);
  CHECK_THROWS_AS(save_timeline_html(s, path), std::system_error);
  CHECK(std::filesystem::remove(path));
}

TEST_CASE("write_timeline_html reports a write error through its stream, wherever it occurs",
          "[report][timeline_html]") {
  snapshot const s = any_snapshot(5);
  auto const size = static_cast<std::streamsize>(page_of(s).size());
  for (std::streamsize room : {std::streamsize{0}, std::streamsize{500}, size / 2, size - 1}) {
    full_disk disk(room);
    std::ostream out(&disk);
    write_timeline_html(out, s);
    CHECK(out.bad());
    full_disk again(room);
    std::ostream throwing(&again);
    throwing.exceptions(std::ios::badbit);
    CHECK_THROWS_AS(write_timeline_html(throwing, s), std::ios_base::failure);
  }
  full_disk enough(size);
  std::ostream out(&enough);
  write_timeline_html(out, s);
  CHECK(out.good());
}

TEST_CASE("write_timeline_html writes few bytes per event for repeated sizes",
          "[report][timeline_html][html_data]") {
  snapshot s;
  s.tags.resize(1);
  s.locations.resize(1);
  std::size_t const empty = page_of(s).size();
  for (std::uint64_t i = 0; i < 50'000; ++i) {
    snapshot_event e;
    e.address = 0x7f0000000000U + (i % 97) * 4096U;
    e.bytes = e.requested = 4096U * (1 + i % 13);
    e.stream = 5;
    e.time_ns = 6'000 * i;
    s.events.push_back(e);
    e.kind = snapshot_event_kind::free;
    e.time_ns += 3'000;
    s.events.push_back(e);
  }
  CHECK((page_of(s).size() - empty) / s.events.size() <= 6);
}
