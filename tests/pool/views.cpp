// SPDX-License-Identifier: Apache-2.0
// Views: blocks that are mapped from free pieces, tested on host-backed memory.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/pool/pages/physical_segments.hpp"
#include "tarn/raii/growing_buffer.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

struct backed_machine {
  sim_machine machine{sim_options{.capacity = 2_GiB, .taken = 0}};
  sim_driver driver = machine.driver(0);
  stream_ref stream;
};

}  // namespace

TEST_CASE("pooled maps free pieces into one contiguous view", "[pool][view][pages]") {
  backed_machine m;
  auto memory = sim_pages{m.driver} | limited{64_MiB} | pooled{};
  std::vector<unsigned char*> small;
  for (int i = 0; i < 24; ++i) small.push_back(static_cast<unsigned char*>(memory.allocate(m.stream, 2_MiB)));
  for (std::size_t i = 0; i < small.size(); ++i) std::memset(small[i], static_cast<int>(i), 2_MiB);
  for (std::size_t i = 0; i < small.size(); i += 2) memory.deallocate(m.stream, small[i], 2_MiB);
  constexpr std::size_t bytes = 23_MiB;
  auto* const large = static_cast<unsigned char*>(memory.allocate(m.stream, bytes));
  CHECK(memory->state().remaps > 0);
  for (std::size_t at = 0; at < bytes; at += 4096) large[at] = static_cast<unsigned char>(at / 4096 * 7);
  for (std::size_t i = 1; i < small.size(); i += 2) {
    CHECK(small[i][0] == i);
    CHECK(small[i][2_MiB - 1] == i);
  }
  bool same = true;
  for (std::size_t at = 0; at < bytes; at += 4096)
    same = same && large[at] == static_cast<unsigned char>(at / 4096 * 7);
  CHECK(same);
  memory.deallocate(m.stream, large, bytes);
  for (std::size_t i = 1; i < small.size(); i += 2) memory.deallocate(m.stream, small[i], 2_MiB);
}

TEST_CASE("pooled reuses a view without a driver call when the same shortage recurs", "[pool][view][pages]") {
  backed_machine m;
  auto memory = sim_pages{m.driver} | limited{64_MiB} | pooled{};
  std::uint64_t calls[3];
  for (std::uint64_t& made : calls) {
    std::uint64_t const before = m.machine.calls().memory();
    std::vector<void*> small;
    for (int i = 0; i < 24; ++i) small.push_back(memory.allocate(m.stream, 2_MiB));
    for (std::size_t i = 0; i < small.size(); i += 2) memory.deallocate(m.stream, small[i], 2_MiB);
    void* const large = memory.allocate(m.stream, 23_MiB);
    for (std::size_t i = 1; i < small.size(); i += 2) memory.deallocate(m.stream, small[i], 2_MiB);
    memory.deallocate(m.stream, large, 23_MiB);
    made = m.machine.calls().memory() - before;
  }
  CHECK(calls[0] > 0);
  CHECK(calls[2] == 0);
}

namespace {

/// Keeps every other of `count` blocks of 2 MiB, filled with its number; the free handles are not adjacent.
struct checkerboard {
  backed_machine m;
  stack<sim_pages, limited, pooled> memory;
  std::vector<unsigned char*> kept;
  std::vector<unsigned char*> freed;  ///< addresses of the free handles, sorted

  checkerboard(int count, std::size_t cap) : memory(sim_pages{m.driver} | limited{cap} | pooled{}) {
    for (int i = 0; i < count; ++i) {
      (i % 2 == 0 ? kept : freed).push_back(static_cast<unsigned char*>(memory.allocate(m.stream, 2_MiB)));
    }
    for (std::size_t i = 0; i < kept.size(); ++i) std::memset(kept[i], static_cast<int>(i), 2_MiB);
    for (unsigned char* const p : freed) memory.deallocate(m.stream, p, 2_MiB);
    std::sort(freed.begin(), freed.end());
  }
  ~checkerboard() {
    for (unsigned char* const p : kept) memory.deallocate(m.stream, p, 2_MiB);
  }
  checkerboard(checkerboard const&) = delete;
  checkerboard& operator=(checkerboard const&) = delete;

  unsigned char* allocate(std::size_t bytes) {
    return static_cast<unsigned char*>(memory.allocate(m.stream, bytes));
  }
  void free(void* p, std::size_t bytes) { memory.deallocate(m.stream, p, bytes); }

  /// Whether bytes written to a block at each 4 KiB can be read back, and no kept block has changed.
  bool holds(unsigned char* p, std::size_t bytes) const {
    for (std::size_t at = 0; at < bytes; at += 4096) p[at] = static_cast<unsigned char>(at / 4096 * 7);
    for (std::size_t at = 0; at < bytes; at += 4096) {
      if (p[at] != static_cast<unsigned char>(at / 4096 * 7)) return false;
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
      for (std::size_t at = 0; at < 2_MiB; at += 4096) {
        if (kept[i][at] != i) return false;
      }
    }
    return true;
  }
};

}  // namespace

TEST_CASE("each segment of a block in a view is a part of a free handle at home", "[pool][view][pages]") {
  checkerboard board(24, 64_MiB);
  unsigned char* const block = board.allocate(20_MiB);
  REQUIRE(board.memory->state().remaps == 10);
  std::size_t bytes = 0;
  int segments = 0;
  board.memory->each_segment(block + 1_MiB, 18_MiB, [&](memory_segment const& s) {
    CHECK(s.address == block + 1_MiB + bytes);
    CHECK(s.handle_bytes == 2_MiB);
    CHECK(s.offset == (segments == 0 ? 1_MiB : 0));
    bytes += s.bytes;
    ++segments;
  });
  CHECK(bytes == 18_MiB);
  CHECK(segments == 10);
  CHECK_THROWS_AS(board.memory->each_segment(block, 21_MiB, [](memory_segment const&) {}), misuse);
  board.free(block, 20_MiB);
}

TEST_CASE("pooled extends an idle view for a larger request and maps only what it lacks",
          "[pool][view][pages]") {
  checkerboard board(24, 64_MiB);
  board.free(board.allocate(20_MiB), 20_MiB);
  std::uint64_t const before = board.memory->state().remaps;
  CHECK(before == 10);
  unsigned char* const larger = board.allocate(24_MiB);
  CHECK(board.memory->state().remaps == before + 2);
  CHECK(board.holds(larger, 24_MiB));
  board.free(larger, 24_MiB);
}

TEST_CASE("pooled does not extend a view whose last handle is in use", "[pool][view][pages]") {
  checkerboard board(24, 64_MiB);
  board.free(board.allocate(20_MiB), 20_MiB);
  std::vector<unsigned char*> all;
  for (std::size_t i = 0; i < board.freed.size(); ++i) all.push_back(board.allocate(2_MiB));
  std::sort(all.begin(), all.end());
  CHECK(all == board.freed);
  unsigned char* const last_of_view = all[9];
  for (unsigned char* const p : all) {
    if (p != last_of_view) board.free(p, 2_MiB);
  }
  std::memset(last_of_view, 0xEE, 2_MiB);
  unsigned char* const larger = board.allocate(22_MiB);
  CHECK(board.holds(larger, 22_MiB));
  CHECK(last_of_view[0] == 0xEE);
  CHECK(last_of_view[2_MiB - 1] == 0xEE);
  board.free(larger, 22_MiB);
  board.free(last_of_view, 2_MiB);
}

TEST_CASE("pooled extends a view by handles that are free at their start", "[pool][view]") {
  checkerboard board(24, 64_MiB);
  unsigned char* const ends_free = board.allocate(3_MiB);  // 1 MiB of its last handle stays free
  std::memset(ends_free, 0xEE, 3_MiB);
  board.free(board.allocate(20_MiB), 20_MiB);
  unsigned char* const larger = board.allocate(21_MiB);
  CHECK(board.holds(larger, 21_MiB));
  bool same = true;
  for (std::size_t at = 0; at < 3_MiB; at += 4096) same = same && ends_free[at] == 0xEE;
  CHECK(same);
  board.free(larger, 21_MiB);
  board.free(ends_free, 3_MiB);
}

TEST_CASE("pooled extends a view no further than its address range", "[pool][view]") {
  checkerboard board(60, 128_MiB);
  board.free(board.allocate(20_MiB), 20_MiB);
  unsigned char* const larger = board.allocate(48_MiB);
  unsigned char* other = nullptr;
  REQUIRE_NOTHROW(other = board.allocate(8_MiB));
  CHECK(board.holds(larger, 48_MiB));
  CHECK(board.holds(other, 8_MiB));
  board.free(larger, 48_MiB);
  board.free(other, 8_MiB);
}

TEST_CASE("pooled keeps the mapped part of a view whose extension failed", "[pool][view][pages]") {
  sim_machine machine{sim_options{.capacity = 2_GiB, .taken = 0}};
  fault_plan plan;
  faulty<sim_driver> const driver{machine.driver(0), plan};
  auto memory = basic_pages{driver} | limited{64_MiB} | pooled{};
  std::vector<void*> small;
  for (int i = 0; i < 24; ++i) small.push_back(memory.allocate(stream_ref{}, 2_MiB));
  for (std::size_t i = 0; i < small.size(); i += 2) memory.deallocate(stream_ref{}, small[i], 2_MiB);
  memory.deallocate(stream_ref{}, memory.allocate(stream_ref{}, 20_MiB), 20_MiB);
  std::uint64_t const before = memory->state().remaps;
  plan.fail(driver_call::map_pages, 2, {failure::other, fault_moment::instead, fault_span::once});
  CHECK_THROWS_AS(memory.allocate(stream_ref{}, 24_MiB), cuda_error);
  CHECK(memory->state().remaps == before + 1);
  void* const larger = memory.allocate(stream_ref{}, 24_MiB);
  CHECK(memory->state().remaps == before + 2);
  memory.deallocate(stream_ref{}, larger, 24_MiB);
  for (std::size_t i = 1; i < small.size(); i += 2) memory.deallocate(stream_ref{}, small[i], 2_MiB);
}

TEST_CASE("pooled under a limit serves small blocks from a wholly free handle of large blocks",
          "[pool][view]") {
  backed_machine m;
  auto memory = sim_pages{m.driver} | limited{32_MiB} | pooled{};
  std::vector<void*> large;
  for (int i = 0; i < 8; ++i) large.push_back(memory.allocate(m.stream, 4_MiB));
  memory.deallocate(m.stream, large[3], 4_MiB);
  std::vector<void*> small;
  for (int i = 0; i < 30; ++i) small.push_back(memory.allocate(m.stream, 64_KiB));
  for (void* p : small) memory.deallocate(m.stream, p, 64_KiB);
  for (int i = 0; i < 8; ++i) {
    if (i != 3) memory.deallocate(m.stream, large[static_cast<std::size_t>(i)], 4_MiB);
  }
  // All memory can serve large blocks again.
  void* const all = memory.allocate(m.stream, 32_MiB);
  memory.deallocate(m.stream, all, 32_MiB);
}

TEST_CASE("trim releases handles and keeps the views of live blocks intact", "[pool][view]") {
  backed_machine m;
  auto memory = sim_pages{m.driver} | limited{64_MiB} | pooled{};
  std::vector<void*> small;
  for (int i = 0; i < 24; ++i) small.push_back(memory.allocate(m.stream, 2_MiB));
  for (std::size_t i = 0; i < small.size(); i += 2) memory.deallocate(m.stream, small[i], 2_MiB);
  void* const wide = memory.allocate(m.stream, 20_MiB);
  memory.deallocate(m.stream, wide, 20_MiB);
  auto* const narrow = static_cast<unsigned char*>(memory.allocate(m.stream, 9_MiB));
  std::memset(narrow, 0x5a, 9_MiB);
  std::size_t const before = memory->state().reserved;
  CHECK(memory.trim(0) > 0);
  CHECK(memory->state().reserved < before);
  bool same = true;
  for (std::size_t at = 0; at < 9_MiB; at += 4096) same = same && narrow[at] == 0x5a;
  CHECK(same);
  memory.deallocate(m.stream, narrow, 9_MiB);
  for (std::size_t i = 1; i < small.size(); i += 2) memory.deallocate(m.stream, small[i], 2_MiB);
  memory.empty_cache();
  CHECK(memory->state().reserved == 0);
  CHECK(m.machine.usage(device_id{0}).used == 0);
}

TEST_CASE("pooled maps a view from a handle that is free at both ends", "[pool][view][pages]") {
  backed_machine m;
  auto memory = sim_pages{m.driver} | limited{48_MiB} | pooled{.largest_handle = 16_MiB};
  void* handles[3];
  for (void*& p : handles) p = memory.allocate(m.stream, 16_MiB);
  for (void* const p : handles) memory.deallocate(m.stream, p, 16_MiB);
  // | free 6  live 4  free 6 | live 16 | free 5  live 11 |
  constexpr std::size_t sizes[] = {6_MiB, 4_MiB, 6_MiB, 16_MiB, 5_MiB, 11_MiB};
  void* blocks[6];
  for (std::size_t i = 0; i < 6; ++i) blocks[i] = memory.allocate(m.stream, sizes[i]);
  for (std::size_t const i : {0u, 2u, 4u}) memory.deallocate(m.stream, blocks[i], sizes[i]);
  void* const p = memory.allocate(m.stream, 11_MiB);  // the end of the first handle, the start of the third
  CHECK(memory->state().reserved == 48_MiB);
  memory.deallocate(m.stream, p, 11_MiB);
  for (std::size_t const i : {1u, 3u, 5u}) memory.deallocate(m.stream, blocks[i], sizes[i]);
}

TEST_CASE("pooled unmaps old views, also those that several streams used", "[pool][view]") {
  sim_machine machine{sim_options{.backing = sim_backing::address_only}};  // addresses do not run out
  sim_driver const driver = machine.driver(0);
  stream_ref streams[2];
  REQUIRE(driver.create_stream(streams[1]).ok());
  {
    auto memory = sim_pages{driver} | limited{512_MiB} | pooled{.largest_handle = 20_MiB};
    std::vector<std::pair<void*, std::size_t>> live;
    std::size_t bytes_live = 0;
    std::mt19937_64 random(1);
    auto const let_go = [&](std::size_t i) {
      memory.deallocate(streams[random() % 2], live[i].first, live[i].second);
      bytes_live -= live[i].second;
      live[i] = live.back();
      live.pop_back();
    };
    for (int step = 0; step < 100'000; ++step) {
      if (!live.empty() && (bytes_live > 400_MiB || random() % 5 < 2)) {
        let_go(random() % live.size());
        continue;
      }
      std::size_t const bytes = 1_MiB + random() % 40_MiB;
      try {
        live.emplace_back(memory.allocate(streams[random() % 2], bytes), bytes);
        bytes_live += bytes;
      } catch (out_of_memory const&) {
      }
    }
    pool_state const state = memory->state();
    CHECK(state.maps - state.unmaps < 2000);  // 512 views of two or three handles
    while (!live.empty()) let_go(live.size() - 1);
  }
  (void)driver.destroy_stream(streams[1]);
}

TEST_CASE("pooled unmaps idle views where no address is left, and maps the new one", "[pool][view][pages]") {
  sim_machine machine{sim_options{.capacity = 64_MiB, .taken = 0, .backing = sim_backing::address_only}};
  stream_ref const a;
  auto memory = sim_pages{machine.driver(0)} | pooled{};
  void* blocks[8];
  for (void*& p : blocks) p = memory.allocate(a, 8_MiB);
  auto const view_of = [&](std::initializer_list<int> freed) {
    for (int const i : freed) memory.deallocate(a, blocks[i], 8_MiB);
    void* const p = memory.allocate(a, 8_MiB * freed.size());
    memory.deallocate(a, p, 8_MiB * freed.size());
    for (int const i : freed) blocks[i] = memory.allocate(a, 8_MiB);
  };
  std::vector<growing_buffer<char, decltype(memory)>> held;
  CHECK_THROWS_AS(
      [&] {
        for (;;) held.emplace_back(memory, 16_MiB, a);
      }(),
      out_of_memory);
  for (int i = 0; i < 4; ++i) held.pop_back();  // addresses of 64 MiB are left
  std::uint64_t const calls = machine.calls().memory();
  for (int const i : {0, 1, 4, 5}) view_of({i, i + 2});
  CHECK(memory->state().unmaps == 16);                    // of the first two views, for the third one
  CHECK(machine.calls().memory() - calls == 16 + 4 * 8);  // and nothing but the maps
  for (void* const p : blocks) memory.deallocate(a, p, 8_MiB);
}

TEST_CASE("pooled keeps the bytes of live blocks in a random program that is always short of memory",
          "[pool][view][random][pages]") {
  backed_machine m;
  stream_ref other;
  REQUIRE(m.driver.create_stream(other).ok());
  {
    auto memory = sim_pages{m.driver} | limited{192_MiB} | pooled{};
    struct block {
      unsigned char* p;
      std::size_t bytes;
      unsigned char mark;
      stream_ref stream;
    };
    std::vector<block> live;
    std::mt19937_64 random(17);
    std::size_t refused = 0;
    std::size_t bytes_live = 0;
    auto const let_go = [&](std::size_t i) {
      block const b = live[i];
      bool same = true;
      for (std::size_t at = 0; at < b.bytes; at += 8192) same = same && b.p[at] == b.mark;
      same = same && b.p[b.bytes - 1] == b.mark;
      REQUIRE(same);
      memory.deallocate(b.stream, b.p, b.bytes);
      bytes_live -= b.bytes;
      live[i] = live.back();
      live.pop_back();
    };
    for (int step = 0; step < 6000; ++step) {
      if (!live.empty() && (bytes_live > 150_MiB || random() % 5 < 2)) {
        let_go(random() % live.size());
        continue;
      }
      std::size_t const kind = random() % 8;
      std::size_t const bytes = kind < 2   ? 1 + random() % 200'000
                                : kind < 7 ? 1_MiB + random() % 9_MiB
                                           : (1 + random() % 20) * 2_MiB;
      stream_ref const stream = random() % 4 == 0 ? other : m.stream;
      try {
        auto* const p = static_cast<unsigned char*>(memory.allocate(stream, bytes));
        auto const mark = static_cast<unsigned char>(random());
        for (std::size_t at = 0; at < bytes; at += 8192) p[at] = mark;
        p[bytes - 1] = mark;
        live.push_back({p, bytes, mark, stream});
        bytes_live += bytes;
      } catch (out_of_memory const&) {
        ++refused;
      }
      if (step % 997 == 0) (void)memory.trim(100_MiB);
    }
    CHECK(memory->state().remaps > 50);
    CHECK(memory->state().reserved <= 192_MiB);
    CHECK(refused < 300);
    while (!live.empty()) let_go(live.size() - 1);
    CHECK(memory->state().live == 0);
    memory.empty_cache();
    CHECK(memory->state().reserved == 0);
  }
  CHECK(m.driver.destroy_stream(other).ok());
  CHECK(m.machine.leaks().total() == 0);
}
