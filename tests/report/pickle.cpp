// SPDX-License-Identifier: Apache-2.0
// Pickles: the values that PyTorch's viewer reads, and histories that it can undo.

#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "report/sample_snapshot.hpp"
#include "report/undo.hpp"
#include "report/unpickle.hpp"
#include "tarn/core/text.hpp"
#include "tarn/report/pickle.hpp"
#include "tarn/report/viewer_history.hpp"

using namespace tarn;
using namespace tarn_test;

namespace {

pickled_ref pickled_from(snapshot const& s) {
  std::ostringstream out;
  write_pickle(out, s);
  return unpickler(out.str()).read();
}

std::vector<std::string> actions_of(pickled const& p, std::size_t device) {
  std::vector<std::string> actions;
  for (auto const& e : p.at("device_traces").at(device).items) actions.push_back(e->at("action").text);
  return actions;
}

snapshot of_segments(std::vector<snapshot_segment> segments) {
  snapshot s;
  s.tags.resize(1);
  s.locations.resize(1);
  s.segments = std::move(segments);
  return s;
}

snapshot_segment segment_at(std::uintptr_t address, segment_kind kind) {
  snapshot_segment segment;
  segment.address = address;
  segment.kind = kind;
  return segment;
}

using kind = snapshot_event_kind;

}  // namespace

TEST_CASE("pickle_text writes numbers of every length and texts of any bytes", "[report][pickle]") {
  std::vector<std::uint64_t> numbers{0, 1, 0xff, 0x100, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0xffffffff};
  for (unsigned bits = 33; bits < 64; ++bits) {
    numbers.push_back((std::uint64_t{1} << bits) - 1);
    numbers.push_back(std::uint64_t{1} << bits);
  }
  numbers.push_back(std::numeric_limits<std::uint64_t>::max());
  std::ostringstream out;
  {
    tarn::detail::pickle_text p(out);
    p.begin_list();
    for (std::uint64_t const n : numbers) {
      p.item();
      p.number(n);
    }
    p.item();
    p.text(awkward_name);
    p.item();
    p.text("");
    p.end_list();
    p.stop();
  }
  auto const read = unpickler(out.str()).read();
  REQUIRE(read->items.size() == numbers.size() + 2);
  for (std::size_t i = 0; i < numbers.size(); ++i) CHECK(read->at(i).number == numbers[i]);
  CHECK(read->at(numbers.size()).text == awkward_as_utf8);
  CHECK(read->at(numbers.size() + 1).text.empty());
}

TEST_CASE("pickle_text writes long lists in batches and repeated words once", "[report][pickle]") {
  for (std::size_t const count : {0, 1, 999, 1000, 1001, 2000, 5000}) {
    std::ostringstream out;
    tarn::detail::pickle_text p(out);
    p.begin_list();
    for (std::size_t i = 0; i < count; ++i) {
      p.item();
      p.word(i % 2 == 0 ? "a rather long word" : "another");
    }
    p.end_list();
    p.stop();
    auto const read = unpickler(out.str()).read();
    CHECK(read->items.size() == count);
    if (count != 0) CHECK(read->at(count - 1).text == (count % 2 == 1 ? "a rather long word" : "another"));
    CHECK(out.str().size() < 60 + 3 * count);
  }
}

TEST_CASE("utf8_length accepts only well-formed characters", "[report][utf8]") {
  for (char const* good : {"a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xef\xbf\xbf",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(tarn::detail::utf8_length(good) == std::string(good).size());
  for (char const* bad : {"", "\x80", "\xc1\xbf", "\xc2", "\xc2(", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
                          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"})
    CHECK(tarn::detail::utf8_length(bad) == 0);
  CHECK(tarn::detail::as_utf8(awkward_name) == awkward_as_utf8);
}

TEST_CASE("write_pickle has the fields of PyTorch's snapshots", "[report][pickle]") {
  auto const read = pickled_from(sample_snapshot());
  auto const& segments = read->at("segments");
  REQUIRE(segments.items.size() == 2);
  pickled const& home = segments.at(0);
  CHECK(home.at("device").number == 1);
  CHECK(home.at("address").number == 0x7f0000000000);
  CHECK(home.at("total_size").number == 0x4000);
  CHECK(home.at("allocated_size").number == 0x1000);
  CHECK(home.at("active_size").number == 0x2000);
  CHECK(home.at("requested_size").number == 0xff0 + 0x1000);  // a deferred block is active
  CHECK(home.at("segment_type").text == "small");
  CHECK(home.at("is_expandable").number == 1);
  CHECK(home.at("segment_pool_id").what == pickled::kind::pair);
  CHECK(home.at("frames").items.empty());
  REQUIRE(home.at("blocks").items.size() == 3);
  pickled const& live = home.at("blocks").at(0);
  CHECK(live.at("state").text == "active_allocated");
  CHECK(live.at("requested_size").number == 0xff0);
  CHECK(live.at("size").number == 0x1000);
  REQUIRE(live.at("frames").items.size() == 3);
  CHECK(live.at("frames").at(0).at("filename").text == "dir/" + awkward_as_utf8 + ".cpp");
  CHECK(live.at("frames").at(0).at("line").number == 12);
  CHECK(live.at("frames").at(0).at("name").text == "load");
  CHECK(live.at("frames").at(2).at("filename").text == "tag");
  CHECK(live.at("frames").at(2).at("name").text == awkward_as_utf8);
  CHECK(home.at("blocks").at(1).at("state").text == "inactive");
  CHECK(home.at("blocks").at(2).at("state").text == "active_pending_free");
  CHECK(segments.at(1).at("segment_type").text == "large");
  CHECK(segments.at(1).at("blocks").at(0).at("frames").items.empty());
  REQUIRE(read->at("device_traces").items.size() == 2);
  CHECK(read->at("device_traces").at(0).items.empty());
  CHECK(read->at("allocator_settings").at("allocator").text == "a sample");
  CHECK(read->at("allocator_settings").at("forgotten_events").number == 3);
  CHECK(actions_of(*read, 1) == std::vector<std::string>{"segment_map", "segment_map", "segment_map", "alloc",
                                                         "alloc", "free_requested", "free_completed", "oom",
                                                         "segment_unmap", "segment_unmap", "segment_map",
                                                         "alloc", "alloc", "free_requested"});
  for (auto const& e : read->at("device_traces").at(1).items) {
    CHECK(e->at("stream").number == 0);  // the default stream, whatever its identity
    CHECK(e->at("time_us").number >= 1'700'000'000'000'000);
    if (e->at("action").text == "oom") CHECK((e->has("device_free") && !e->has("addr")));
  }
  CHECK(read->at("device_traces").at(1).at(3).at("size").number ==
        0xff0);  // the requested size, as in PyTorch
  undone_history const undone(*read, 1);
  CHECK(undone.mistake() == "");
  CHECK(undone.live_at_start() == 0);
  CHECK(undone.bytes_at_start() == 0);
}

TEST_CASE("write_pickle maps and unmaps the segment of an ended view with its block",
          "[report][pickle][viewer_history]") {
  auto home = segment_at(0x10000, segment_kind::pages);
  add_block(home, 0x4000, block_use::cached);
  snapshot s = of_segments({home});
  add_event(s, kind::allocate, 0x90000, 0x3000, 0x3000);
  add_event(s, kind::free, 0x90000, 0x3000, 0x3000);
  auto const read = pickled_from(s);
  CHECK(actions_of(*read, 0) == std::vector<std::string>{"segment_map", "alloc", "free_requested",
                                                         "free_completed", "segment_unmap"});
  CHECK(undone_history(*read, 0).mistake() == "");
  CHECK(undone_history(*read, 0).bytes_at_start() == 0x4000);
}

TEST_CASE("write_pickle reports handles only where their home segment shows them",
          "[report][pickle][viewer_history]") {
  snapshot s = sample_snapshot();
  // The view's block is older than the history, so the handles of its pieces are not reported.
  s.events.clear();
  add_event(s, kind::reserve, 0x7f0000000000, 0x20000);
  auto const read = pickled_from(s);
  CHECK(actions_of(*read, 1).empty());  // a block that is live at the end was allocated before
  CHECK(undone_history(*read, 1).mistake() == "");
  CHECK(undone_history(*read, 1).bytes_at_start() == 0x8000);
}

TEST_CASE("write_pickle moves a late reserve of a handle before its first block",
          "[report][pickle][viewer_history]") {
  auto home = segment_at(0x10000, segment_kind::pages);
  add_block(home, 0x1000, block_use::live, 0x1000);
  add_block(home, 0x1000, block_use::live, 0x1000);
  add_block(home, 0x2000, block_use::cached);
  snapshot s = of_segments({home});
  add_event(s, kind::refused, 0, 5, 5);
  add_event(s, kind::allocate, 0x10000, 0x1000, 0x1000);
  add_event(s, kind::allocate, 0x11000, 0x1000, 0x1000);
  add_event(s, kind::reserve, 0x10000, 0x4000);
  auto const read = pickled_from(s);
  CHECK(actions_of(*read, 0) == std::vector<std::string>{"oom", "segment_map", "alloc", "alloc"});
  CHECK(undone_history(*read, 0).mistake() == "");
  CHECK(undone_history(*read, 0).bytes_at_start() == 0);
}

TEST_CASE("write_pickle moves a late reserve of a handle before a block that reaches into it",
          "[report][pickle][viewer_history]") {
  auto home = segment_at(0x10000, segment_kind::pages);
  add_block(home, 0x3000, block_use::live, 0x3000);
  add_block(home, 0x1000, block_use::cached);
  snapshot s = of_segments({home});
  add_event(s, kind::reserve, 0x10000, 0x2000);
  add_event(s, kind::allocate, 0x10000, 0x3000, 0x3000);
  add_event(s, kind::reserve, 0x12000, 0x2000);
  auto const read = pickled_from(s);
  CHECK(actions_of(*read, 0) == std::vector<std::string>{"segment_map", "segment_map", "alloc"});
  CHECK(undone_history(*read, 0).mistake() == "");
  CHECK(undone_history(*read, 0).bytes_at_start() == 0);
}

TEST_CASE("write_pickle over blocks allocates and frees whole segments", "[report][pickle][viewer_history]") {
  auto segment = segment_at(0x10000, segment_kind::upstream);
  add_block(segment, 0x1000, block_use::live, 0x1000);
  add_block(segment, 0x3000, block_use::cached);
  snapshot s = of_segments({segment});
  add_event(s, kind::reserve, 0x80000, 0x2000);
  add_event(s, kind::allocate, 0x80000, 0x1000, 0x1000);
  add_event(s, kind::free, 0x80000, 0x1000, 0x1000);
  add_event(s, kind::reserve, 0x10000, 0x4000);
  add_event(s, kind::release, 0x80000, 0x2000);
  add_event(s, kind::reserve, 0x10000, 0x2000);  // no such segment
  add_event(s, kind::allocate, 0x10000, 0x1000, 0x1000);
  auto const read = pickled_from(s);
  CHECK(actions_of(*read, 0) == std::vector<std::string>{"segment_alloc", "alloc", "free_requested",
                                                         "free_completed", "segment_alloc", "segment_free",
                                                         "alloc"});
  CHECK(undone_history(*read, 0).mistake() == "");
  CHECK(undone_history(*read, 0).bytes_at_start() == 0);
  CHECK(read->at("segments").at(0).at("is_expandable").number == 0);
}

TEST_CASE("write_pickle omits history events that contradict the final state",
          "[report][pickle][viewer_history]") {
  auto home = segment_at(0x10000, segment_kind::pages);
  add_block(home, 0x1000, block_use::live, 0x1000);
  add_block(home, 0x3000, block_use::deferred);
  snapshot s = of_segments({home});
  add_event(s, kind::allocate, 0x13000, 0x1000, 0x1000);  // never freed, but not in the final state
  add_event(s, kind::free, 0x10000, 0x1000, 0x1000);      // but it is live
  add_event(s, kind::allocate, 0x11000, 0x3000, 0x3000);  // but it is deferred
  auto const read = pickled_from(s);
  CHECK(actions_of(*read, 0).empty());
  CHECK(undone_history(*read, 0).mistake() == "");
}
