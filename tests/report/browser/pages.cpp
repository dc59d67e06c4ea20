// SPDX-License-Identifier: Apache-2.0
// Writes the pages that check.py opens into a folder, and expected.json: the expected values of each page,
// counted while its snapshot is made, not from it. Usage: pages FOLDER [EVENTS]. EVENTS: one page of that
// many, for measuring.

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tarn/report/timeline_html.hpp"

using namespace tarn;

namespace {

constexpr std::uintptr_t first_address = 0x7f5a00000000U;
constexpr std::size_t mib = std::size_t{1} << 20U;

/// A simulated program's memory: each block follows the previous one, and no address is reused.
struct story {
  snapshot s;
  std::vector<snapshot_block> blocks;  // live or freed; a freed block has use cached
  std::uint64_t time = 1'000;
  std::size_t live = 0, peak = 0, calls = 0, peak_call = 0, peak_blocks = 0, live_blocks = 0;
  std::uintptr_t next = first_address;

  story(std::string title, std::vector<std::string> const& tags) {
    s.title = std::move(title);
    s.started_ns = 1'700'000'000'000'000'000U;
    for (std::string const& name : tags) {
      s.tags.emplace_back();
      s.tags.back().name = name;
    }
    s.locations.emplace_back();
  }
  void note(snapshot_event_kind kind, snapshot_block const& b) {
    s.events.push_back({kind, b.address, b.bytes, b.requested, b.stream, b.tag, b.location, time});
    ++calls;
  }
  void reserve(std::size_t bytes) {
    s.events.push_back({snapshot_event_kind::reserve, next, bytes, 0, 0, 0, 0, time});
    s.pool.reserved += bytes;
    s.pool.reserved_peak = s.pool.reserved;
  }
  std::size_t allocate(std::size_t requested, std::uint32_t tag, std::uint32_t place, stream_id stream = 7) {
    std::size_t const bytes = (requested + 511) / 512 * 512;
    if (next + bytes > first_address + s.pool.reserved)
      reserve((bytes + 64 * mib - 1) / (64 * mib) * (64 * mib));
    blocks.push_back({next, bytes, requested, block_use::live, stream, tag, place, time});
    next += bytes;
    live += bytes;
    ++live_blocks;
    note(snapshot_event_kind::allocate, blocks.back());
    if (live > peak) {
      peak = live;
      peak_call = calls;
      peak_blocks = live_blocks;
    }
    history_tag& t = s.tags[tag];
    t.bytes += bytes;
    t.requested += requested;
    t.peak_bytes = std::max(t.peak_bytes, t.bytes);
    ++t.blocks;
    ++t.allocations;
    return blocks.size() - 1;
  }
  void release(std::size_t block) {
    snapshot_block& b = blocks[block];
    note(snapshot_event_kind::free, b);
    live -= b.bytes;
    --live_blocks;
    s.tags[b.tag].bytes -= b.bytes;
    s.tags[b.tag].requested -= b.requested;
    --s.tags[b.tag].blocks;
    b.use = block_use::cached;
    b.requested = 0;
  }
  /// Makes one segment of the blocks. Call it when the snapshot is taken.
  void take() {
    snapshot_segment segment;
    segment.address = first_address;
    segment.bytes = s.pool.reserved;
    segment.handles = static_cast<std::uint32_t>(s.pool.reserved / (64 * mib));
    segment.stream = 7;
    segment.blocks = blocks;
    if (next < first_address + s.pool.reserved) {
      segment.blocks.push_back(
          {next, first_address + s.pool.reserved - next, 0, block_use::cached, 7, 0, 0, 0});
    }
    s.segments = {segment};
    s.now_ns = time;
    s.pool.live = live;
    s.pool.live_blocks = live_blocks;
    s.pool.cached = s.pool.reserved - live;
  }
};

/// Training steps: weights that stay, activations that grow and are freed, and one larger step.
story training(std::size_t steps) {
  story t("training of a small model",
          {"untagged", "weights", "optimizer state", "activations", "gradients", "attention workspace",
           "data loader", "embedding", "logits", "temporaries", "metrics"});
  for (int i = 0; i < 24; ++i) {
    std::string const layer = std::to_string(i % 6);
    t.s.locations.push_back({{"/home/user/model/src/layer_" + layer + ".cpp", 40 + i, "forward"},
                             {"/home/user/model/src/train.cpp", 200 + i, "train_step"}});
  }
  std::mt19937 random(11);
  auto const below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (std::uint32_t i = 0; i < 30; ++i) {
    t.time += 40'000;
    t.allocate((3 + below(20)) * mib + below(9000), 1 + i % 2, 1 + i % 6);
  }
  for (std::size_t step = 0; step < steps; ++step) {
    std::vector<std::size_t> mine;
    std::uint32_t const layers = step == steps * 2 / 3 ? 26 : 16 + below(6);
    for (std::uint32_t l = 0; l < layers; ++l) {
      t.time += 30'000 + below(90'000);
      mine.push_back(t.allocate((1 + below(12)) * mib + below(5000), 3, 7 + l % 12));
      std::size_t const brief = t.allocate(700 + below(90'000), 5 + below(6), 19 + below(6), 9);
      t.time += 4'000;
      t.release(brief);
    }
    while (!mine.empty()) {
      t.time += 30'000;
      std::size_t const gradient = t.allocate((1 + below(3)) * mib, 4, 20);
      t.release(mine.back());
      t.release(gradient);
      mine.pop_back();
      if (step + 1 == steps && mine.size() == 9) return t;  // the snapshot is taken during the last step
    }
    t.time += 2'000'000;
  }
  return t;
}

void write(std::string const& path, story const& t, time_axis time, std::ostream& expected,
           std::string const& name) {
  std::ofstream page(path + "/" + name + ".html", std::ios::binary);
  write_timeline_html(page, t.s, {.time = time});
  if (!page.flush()) throw std::runtime_error(path + "/" + name + ".html cannot be written");
  std::size_t blocks = 0;
  for (snapshot_segment const& segment : t.s.segments) blocks += segment.blocks.size();
  expected << (expected.tellp() > 2 ? ",\n" : "") << "\"" << name << "\": {\"peak\": " << t.peak
           << ", \"peak_call\": " << t.peak_call << ", \"peak_blocks\": " << t.peak_blocks
           << ", \"blocks\": " << blocks << ", \"live\": " << t.s.pool.live
           << ", \"events\": " << t.s.events.size() << ", \"calls\": " << t.calls - t.s.forgotten_events
           << ", \"now\": " << t.s.now_ns << "}";
}

/// Drops the first `count` events, as a full ring buffer does, which holds calls only.
void forget(story& t, std::size_t count) {
  auto const first = t.s.events.begin();
  auto const kept = first + static_cast<std::ptrdiff_t>(count);
  auto const is_call = [](snapshot_event const& e) { return e.kind <= snapshot_event_kind::refused; };
  t.s.forgotten_events = static_cast<std::uint64_t>(std::count_if(first, kept, is_call));
  t.s.events.erase(first, kept);
}

/// Drops all calls: what a pool without a history records. What is live is known at the snapshot only.
void forget_calls(story& t) {
  std::erase_if(t.s.events, [](snapshot_event const& e) { return e.kind <= snapshot_event_kind::refused; });
  t.calls = 0;
  t.peak = t.live;
  t.peak_blocks = t.live_blocks;
}

void write_all(std::string const& folder) {
  std::ofstream expected(folder + "/expected.json");
  expected << "{\n";
  story t = training(12);
  t.s.pool.ooms = 1;
  t.take();
  write(folder, t, time_axis::nanoseconds, expected, "training");

  forget(t, 150);
  write(folder, t, time_axis::nanoseconds, expected, "forgotten");

  // A replay: the time is the call number, the snapshot is taken at the peak, and calls follow it.
  story replay("replayed", {"untagged", "up to 1 MiB", "over 1 MiB"});
  std::vector<std::size_t> held;
  for (int i = 0; i < 40; ++i)
    held.push_back(replay.allocate(std::size_t(i + 1) * 400'000, i < 2 ? 1U : 2U, 0, 3));
  replay.take();
  for (std::size_t const block : held) replay.release(block);
  std::uint64_t call = 0;
  for (snapshot_event& e : replay.s.events)
    e.time_ns = call += e.kind <= snapshot_event_kind::refused ? 1 : 0;
  replay.s.now_ns = replay.peak_call;
  write(folder, replay, time_axis::calls, expected, "replay");

  std::string const bad = "</script><img src=x onerror=\"window.harmed=1\"><script>window.harmed=1</script>";
  story hostile(bad, {"untagged", bad, "\xFF\xFE broken", std::string(300, 'w')});
  hostile.s.locations.push_back({{bad, 1, bad}});
  hostile.s.locations.push_back(
      {{"/a/" + std::string(200, 'x') + "/" + std::string(200, 'y') + ".cpp", 1, std::string(300, 'z')}});
  for (std::uint32_t i = 0; i < 9; ++i) hostile.allocate(mib, 1 + i % 3, 1 + i % 2);
  hostile.take();
  write(folder, hostile, time_axis::nanoseconds, expected, "hostile");

  write(folder, story("nothing at all", {}), time_axis::nanoseconds, expected, "empty");

  story quiet = training(2);
  quiet.take();
  forget_calls(quiet);
  write(folder, quiet, time_axis::nanoseconds, expected, "no_history");
  quiet.s.events.clear();
  write(folder, quiet, time_axis::nanoseconds, expected, "no_events");

  // No segments, and a pool that held memory before it was watched: the curve is drawn above that.
  story watched("watched from the middle on", {"untagged"});
  watched.release(watched.allocate(3 * mib, 0, 0));
  watched.s.pool.live = 100 * mib;
  watched.peak += 100 * mib;
  watched.s.now_ns = watched.time;
  write(folder, watched, time_axis::nanoseconds, expected, "watched");

  // All at one time, with a peak that lasts one event of very many.
  story spike("one event high", {"untagged", "large"});
  for (std::size_t i = 0; i < 30'000; ++i) {
    spike.release(spike.allocate(mib, 0, 0));
    spike.blocks.pop_back();
    spike.next = first_address;
    if (i != 20'011) continue;
    spike.release(spike.allocate(999 * mib, 1, 0));
    spike.blocks.pop_back();
    spike.next = first_address;
  }
  spike.take();
  write(folder, spike, time_axis::nanoseconds, expected, "spike");
  expected << "\n}\n";
  if (!expected.flush()) throw std::runtime_error(folder + "/expected.json cannot be written");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3) {
      story t = training(std::stoul(argv[2]) / 140 + 1);
      t.take();
      std::ofstream ignored("/dev/null");
      write(argv[1], t, time_axis::nanoseconds, ignored, "measured");
      std::cout << t.s.events.size() << " events\n";
    } else if (argc == 2) {
      write_all(argv[1]);
    } else {
      std::cerr << "pages FOLDER [EVENTS]\n";
      return 2;
    }
  } catch (std::exception const& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
