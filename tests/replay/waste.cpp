// SPDX-License-Identifier: Apache-2.0
// The parts of a pool's memory at the peaks of a replayed trace.

#include "replay/waste.hpp"

#include <initializer_list>
#include <random>
#include <sstream>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "peers/simulated_device.hpp"
#include "peers/tarn_pool.hpp"
#include "replay/find_waste.hpp"
#include "replay/json.hpp"
#include "replay/trace_reader.hpp"
#include "replay/waste_table.hpp"

using namespace tarn::bench;
using tarn::operator""_KiB;
using tarn::operator""_MiB;

namespace {

using simulated = tarn_pool<simulated_device, with_defaults>;
using simulated_without_remap = tarn_pool<simulated_device, without_remap>;
using simulated_tracked = tarn_pool<simulated_device, with_tracking>;

trace parse(std::initializer_list<std::string_view> lines) {
  trace_parser parser("t.trace");
  for (std::string_view const line : lines) parser.take(line);
  return std::move(parser).finish();
}
/// 600 calls of up to 64 MiB on three streams.
trace random_trace(unsigned seed) {
  std::mt19937 random(seed);
  trace_parser parser("t.trace");
  std::vector<int> live;
  for (int i = 0; i < 600; ++i) {
    bool const frees = !live.empty() && random() % 5 < 2;
    if (frees) {
      std::size_t const at = random() % live.size();
      parser.take("f " + std::to_string(live[at]));
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      live.push_back(i);
      auto const bytes = std::size_t{1} << random() % 26;
      parser.take("a " + std::to_string(i) + " " + std::to_string(bytes + random() % bytes) + " " +
                  std::to_string(random() % 3));
    }
  }
  return std::move(parser).finish();
}
template <class Pool = simulated>
waste waste_of(trace const& t, unsigned passes = 1, std::uint64_t capacity = 0) {
  progress silent(progress::output::silent);
  setup s;
  s.capacity = capacity;
  return find_waste<Pool>(t, s, passes, silent);
}
std::uint64_t sum_of(waste_moment const& m) {
  std::uint64_t sum = 0;
  for (part_amount const& part : m.parts) sum += part.bytes;
  return sum;
}
waste_moment const& live_peak_of(waste const& w) {
  return w.at_peak_live ? *w.at_peak_live : w.at_peak_reserved;
}
std::uint64_t free_bytes(waste_moment const& m, memory_part part) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < std::size(free_sizes); ++i)
    sum += m.parts[static_cast<std::size_t>(part) + i].bytes;
  return sum;
}
bool says(std::string const& text, std::string_view what) {
  UNSCOPED_INFO(text << "must contain " << what);
  return text.find(what) != text.npos;
}

template <class Pool>
void check_random_traces() {
  for (unsigned seed = 1; seed <= 5; ++seed) {
    trace const t = random_trace(seed);
    waste const w = waste_of<Pool>(t, 3);
    CHECK(w.peak_live == t.peak_live);
    CHECK(sum_of(w.at_peak_reserved) == w.at_peak_reserved.reserved);
    CHECK(w.at_peak_reserved.reserved == w.peak_reserved);
    CHECK(sum_of(live_peak_of(w)) == live_peak_of(w).reserved);
    CHECK(live_peak_of(w).of(memory_part::requested).bytes == t.peak_live);
    CHECK(live_peak_of(w).pass == w.at_peak_reserved.pass);
    progress silent(progress::output::silent);
    CHECK(run<Pool>(t, setup{}, 3, silent).peak_reserved == w.peak_reserved);
  }
}

}  // namespace

TEST_CASE("find_waste divides the peaks of a small trace into their parts", "[replay][waste]") {
  waste const w = waste_of(parse({"a 1 1000 5", "a 2 3000000 5", "f 1", "a 3 5000 5"}));
  CHECK(w.trace == "t");
  CHECK(w.pool == "tarn");
  CHECK(w.device == "sim");
  CHECK(w.events == 4);
  CHECK(w.peak_live == 3'005'000);
  CHECK(w.at_peak_reserved.pass == 1);
  CHECK(w.at_peak_reserved.event == 2);
  CHECK(w.at_peak_reserved.asked == 3'000'000);
  CHECK(w.at_peak_reserved.of(memory_part::requested).bytes == 3'001'000);
  CHECK(w.at_peak_reserved.of(memory_part::requested).count == 2);
  CHECK(w.at_peak_reserved.of(memory_part::class_rounding).bytes == 24);
  CHECK(w.at_peak_reserved.of(memory_part::class_rounding).count == 1);
  CHECK(w.at_peak_reserved.of(memory_part::grain_rounding).bytes == 320);
  CHECK(w.at_peak_reserved.of(memory_part::grain_rounding).count == 1);
  REQUIRE(w.at_peak_live.has_value());
  waste_moment const& live = *w.at_peak_live;
  CHECK(live.event == 4);
  CHECK(live.reserved == w.at_peak_reserved.reserved);
  CHECK(live.of(memory_part::requested).bytes == 3'005'000);
  CHECK(live.of(memory_part::class_rounding).bytes == 120);
  // The thread keeps the freed block, and what it took beside each of the two.
  CHECK(live.of(memory_part::thread_caches).count > 1);
  CHECK(live.of(memory_part::run_ends).bytes == 256_KiB % 5120);
  CHECK(live.of(memory_part::run_blocks).bytes % 1024 == 0);
}

TEST_CASE("live_blocks counts only blocks that are larger than requested as rounded", "[replay][waste]") {
  using change = detail::live_blocks::change;
  detail::live_blocks live;
  live.count(1000, 1024, change::added);
  live.count(1024, 1024, change::added);
  live.count(2_MiB, 2_MiB, change::added);
  live.count(2_MiB + 1, 2_MiB + 512, change::added);
  live.count(2_MiB + 1, 2_MiB + 512, change::removed);
  waste_moment m;
  live.describe(m);
  CHECK(m.of(memory_part::requested).count == 3);
  CHECK(m.of(memory_part::requested).bytes == 2024 + 2_MiB);
  CHECK(m.of(memory_part::class_rounding).count == 1);
  CHECK(m.of(memory_part::class_rounding).bytes == 24);
  CHECK(m.of(memory_part::grain_rounding).count == 0);
  CHECK(m.of(memory_part::grain_rounding).bytes == 0);
}

TEST_CASE("find_waste is exact on random traces of several streams", "[replay][waste]") {
  check_random_traces<simulated>();
  check_random_traces<simulated_without_remap>();
  check_random_traces<simulated_tracked>();
}

TEST_CASE("find_waste finds the peak of the pass that reserves the most", "[replay][waste]") {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    trace const t = random_trace(seed);
    waste const once = waste_of<simulated_without_remap>(t, 1);
    waste const often = waste_of<simulated_without_remap>(t, 10);
    CHECK((often.at_peak_reserved.pass > 1) == (often.peak_reserved > once.peak_reserved));
    CHECK(live_peak_of(often).pass == often.at_peak_reserved.pass);
    CHECK(often.at_peak_reserved.reserved == often.peak_reserved);
  }
}

TEST_CASE("find_waste has one moment if both peaks are the same event", "[replay][waste]") {
  CHECK_FALSE(waste_of(parse({"a 1 1000 5"})).at_peak_live.has_value());
}

TEST_CASE("find_waste counts refused requests", "[replay][waste]") {
  waste const w = waste_of(parse({"a 1 4000000 0", "a 2 90000000 0", "f 2", "f 1"}), 2, 16_MiB);
  CHECK(w.out_of_memory == 2);
  CHECK(w.at_peak_reserved.of(memory_part::requested).bytes == 4'000'000);
  CHECK_FALSE(w.utilisation().has_value());
}

TEST_CASE("find_waste of an empty trace reserves nothing", "[replay][waste]") {
  waste const w = waste_of(parse({}));
  CHECK(w.at_peak_reserved.event == 0);
  CHECK(w.peak_reserved == 0);
}

TEST_CASE("add_pool counts blocks that are deferred for recorded uses, or wait for their stream",
          "[replay][waste]") {
  setup s;
  s.streams = 2;
  simulated pool(s);
  void* const used = pool.allocate(0, 3'000'000);
  void* const small = pool.allocate(0, 1000);
  pool.record_stream(1, used, 3'000'000);
  pool.deallocate(0, used, 3'000'000);
  waste_moment before;
  detail::add_pool(before, pool);
  CHECK(before.of(memory_part::recorded_uses).bytes == 3'000'320);
  CHECK(before.of(memory_part::recorded_uses).count == 1);
  CHECK(sum_of(before) + 1024 == before.reserved);

  std::vector<void*> more;
  for (int i = 0; i < 200; ++i) more.push_back(pool.allocate(0, 1000));
  for (void* const p : more) pool.deallocate(1, p, 1000);  // more than a thread caches
  waste_moment after;
  detail::add_pool(after, pool);
  CHECK(after.of(memory_part::stream_order).count > 0);
  CHECK(after.of(memory_part::stream_order).bytes == 1024 * after.of(memory_part::stream_order).count);
  CHECK(sum_of(after) + 1024 == after.reserved);
  pool.deallocate(0, small, 1000);
}

TEST_CASE("add_free_range separates whole handles from the stretches beside them", "[replay][waste]") {
  std::vector<tarn::detail::held_memory> const held{{0x1000000, 4_MiB, {}, true},
                                                    {0x1400000, 20_MiB, {}, true},
                                                    {0x2800000, 2_MiB, {}, true},
                                                    {0x2a00000, 96_MiB, {}, true}};
  tarn::detail::range free;
  free.address = 0x1000000 + 1_MiB;
  free.bytes = 3_MiB + 20_MiB + 2_MiB + 512_KiB;
  waste_moment m;
  detail::add_free_range(m, free, held);
  CHECK(free_bytes(m, memory_part::free_parts) == 3_MiB + 512_KiB);
  CHECK(free_bytes(m, memory_part::free_handles) == 22_MiB);
  auto const of_size = [&](memory_part part, std::size_t size) {
    return m.parts[static_cast<std::size_t>(part) + size];
  };
  CHECK(of_size(memory_part::free_parts, 1).bytes == 512_KiB);
  CHECK(of_size(memory_part::free_parts, 3).bytes == 3_MiB);
  CHECK(of_size(memory_part::free_handles, 3).bytes == 2_MiB);
  CHECK(of_size(memory_part::free_handles, 4).bytes == 20_MiB);
  CHECK(of_size(memory_part::free_handles, 4).count == 1);

  waste_moment one;
  free.address = held[3].address;
  free.bytes = 96_MiB;
  detail::add_free_range(one, free, held);
  CHECK(free_bytes(one, memory_part::free_parts) == 0);
  CHECK(one.parts.back().bytes == 96_MiB);

  waste_moment within;
  free.address += 1_MiB;
  free.bytes = 32_MiB;
  detail::add_free_range(within, free, held);
  CHECK(sum_of(within) == 32_MiB);
  CHECK(within.parts[static_cast<std::size_t>(memory_part::free_parts) + 5].bytes == 32_MiB);
}

TEST_CASE("require_sum refuses parts that do not add up to the reserved bytes", "[replay][waste]") {
  waste w;
  w.trace = "demucs";
  w.pool = "tarn";
  waste_moment m;
  m.pass = 2;
  m.event = 7;
  m.reserved = 2_MiB;
  m.of(memory_part::requested).add(1_MiB);
  m.add_free(memory_part::free_parts, 1_MiB);
  CHECK_NOTHROW(require_sum(w, m));
  m.reserved += 512;
  std::string text;
  try {
    require_sum(w, m);
  } catch (waste_error const& error) {
    text = error.what();
  }
  CHECK(text ==
        "demucs on tarn, event 7 of pass 2: the parts add up to 2097152 bytes, but 2097664 are reserved");
}

TEST_CASE("write_table of a waste has a line for each part that is not empty, in MiB and per cent",
          "[replay][waste]") {
  waste w;
  w.trace = "demucs";
  w.pool = "tarn";
  w.events = 1234;
  w.passes = 1;
  w.peak_live = 1500_MiB;
  w.peak_reserved = 2000_MiB;
  w.at_peak_reserved.pass = 1;
  w.at_peak_reserved.event = 1000;
  w.at_peak_reserved.asked = 8_MiB;
  w.at_peak_reserved.reserved = 2000_MiB;
  w.at_peak_reserved.handles = 50;
  w.at_peak_reserved.of(memory_part::requested) = {1400_MiB, 99};
  w.at_peak_reserved.of(memory_part::class_rounding) = {1_MiB / 20, 12};
  w.at_peak_reserved.add_free(memory_part::free_parts, 600_MiB - 1_MiB / 20);
  std::ostringstream one;
  write_table(one, w);
  CHECK(says(one.str(),
             "demucs on tarn: 1,234 events, peak live 1,500.0 MiB, peak reserved 2,000.0 MiB, "
             "utilisation 0.750\n"));
  CHECK(says(one.str(),
             "  peak reserved and live: first after event 1,000 of pass 1, an allocation of 8.00 MiB\n"));
  CHECK(says(one.str(), "  requested by live blocks                           1,400.00   70.00     99\n"));
  CHECK(says(one.str(), "  rounding to size classes                               0.05    0.00     12\n"));
  CHECK(says(one.str(), "  free parts of handles, 32 MiB or more                599.95   30.00      1\n"));
  CHECK(says(one.str(), "  reserved                                           2,000.00  100.00     50\n"));
  CHECK_FALSE(says(one.str(), "thread caches"));
  CHECK_FALSE(says(one.str(), "peak live, MiB"));

  w.at_peak_live = w.at_peak_reserved;
  w.at_peak_live->of(memory_part::thread_caches).add(1_MiB);
  w.out_of_memory = 3;
  std::ostringstream two;
  write_table(two, w);
  CHECK(says(two.str(), "peak live, MiB"));
  CHECK(says(two.str(), "thread caches"));
  CHECK(says(two.str(), "  3 requests refused in 1 passes"));
  CHECK_FALSE(says(two.str(), "utilisation"));
}

TEST_CASE("write_json of a waste has every part of both peaks", "[replay][waste]") {
  waste w;
  w.trace = "demucs";
  w.at_peak_reserved.event = 5;
  w.at_peak_reserved.reserved = 100;
  w.at_peak_reserved.of(memory_part::requested) = {100, 3};
  std::ostringstream out;
  write_json(out, w);
  std::string const text = out.str();
  CHECK(text.find('\n') == text.size() - 1);
  CHECK(says(
      text,
      R"("at_peak_reserved":{"pass":0,"event":5,"asked":0,"reserved":100,"handles":0,"bytes":{"requested":100,)"));
  CHECK(says(text, R"("count":{"requested":3,)"));
  CHECK(says(text, R"("at_peak_live":{"pass":0,"event":5,)"));
  for (memory_part_name const& part : memory_part_names) {
    CHECK(says(text, "\"" + std::string(part.key) + "\":"));
  }
}
