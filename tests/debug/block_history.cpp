// SPDX-License-Identifier: Apache-2.0
#include "tarn/debug/block_history.hpp"

#include <string>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"

using namespace tarn;
using detail::block_history;
using detail::block_record;
using detail::block_state;

namespace {
block_record record_of(void* p, std::size_t bytes) {
  block_record b;
  b.p = p;
  b.bytes = bytes;
  return b;
}
/// Adds a live block.
block_record& live(block_history& history, void* p, std::size_t bytes) {
  history.make_room();
  history.begin(record_of(p, bytes));
  return *history.find(p);
}
std::size_t blocks_in(block_history const& history) {
  std::size_t count = 0;
  history.for_each([&](block_record const&) { ++count; });
  return count;
}
}  // namespace

TEST_CASE("block_history quarantines freed blocks in the order of their frees", "[policy][block_history]") {
  std::vector<char> memory(4);
  block_history history;
  history.remember(4);
  for (std::size_t i = 0; i < memory.size(); ++i) (void)live(history, &memory[i], 100 * (i + 1));
  CHECK(history.live() == 4);
  for (std::size_t const i : {2, 0, 3}) {
    block_record& b = *history.find(&memory[i]);
    history.end(b, {});
    CHECK(b.state == block_state::freed);
    history.quarantine(b);
  }
  CHECK(history.live() == 1);
  CHECK(history.quarantined() == 3);
  CHECK(history.quarantined_bytes() == 300 + 100 + 400);
  history.leave(*history.find(&memory[0]));  // from the middle
  CHECK(history.quarantined_bytes() == 300 + 400);
  for (std::size_t const i : {2, 3}) {
    CHECK(history.oldest().p == &memory[i]);
    history.leave(*history.find(&memory[i]));
  }
  CHECK(history.quarantined() == 0);
  CHECK(history.quarantined_bytes() == 0);
  CHECK(history.find(&memory[3])->state == block_state::gone);
  CHECK(history.find(&memory[1])->state == block_state::live);
}

TEST_CASE("block_history remembers as many gone blocks as remember() says, the latest",
          "[policy][block_history]") {
  std::vector<char> memory(5);
  block_history history;
  history.remember(2);
  for (char& c : memory) {
    block_record& b = live(history, &c, 1);
    history.end(b, {});
    history.leave(b);
  }
  CHECK(blocks_in(history) == 2);
  CHECK(history.find(&memory[2]) == nullptr);
  CHECK(history.find(&memory[3])->state == block_state::gone);
  CHECK(history.find(&memory[4])->state == block_state::gone);
  CHECK(live(history, &memory[3], 7).bytes == 7);  // the address is reused
  CHECK(blocks_in(history) == 2);
  CHECK(history.live() == 1);
}

TEST_CASE("block_history counts a block once that was freed below and handed out again",
          "[policy][block_history]") {
  std::vector<char> memory(2);
  block_history history;
  history.remember(2);
  for (char& c : memory) (void)live(history, &c, 100);
  CHECK(live(history, &memory[0], 7).bytes == 7);
  CHECK(history.live() == 2);
  history.end(*history.find(&memory[1]), {});
  history.quarantine(*history.find(&memory[1]));
  CHECK(live(history, &memory[1], 8).bytes == 8);
  CHECK(history.live() == 2);
  CHECK(history.quarantined() == 0);
  CHECK(history.quarantined_bytes() == 0);
}

TEST_CASE("history_of names the lines of the allocation and of the free", "[policy][block_history]") {
  block_record b = record_of(nullptr, 12);
  b.allocated = {{"a/b/solver.cpp", 42, "step"}, 7, 3, 1};
  auto const text = [&] { return std::string(detail::history_of(b, "was freed ", 2).view()); };
  CHECK(text() ==
        "block 0x0 of 12 bytes was freed 2; allocated: solver.cpp:42 (step), call 7, stream 3, thread 1");
  b.freed.call = 9;
  CHECK(text().ends_with("; freed: at an unknown location, call 9, stream 0, thread 0"));
}

TEST_CASE("checked_resources lists one in a child that was forked while another thread added the first one",
          "[policy][block_history][at_fork]") {
  using detail::checked_resources;
  auto const list = [] {
    checked_resources::member one;
    checked_resources::add(one);
    checked_resources::remove(one);
  };
  CHECK(child_forked_during(list, [&] { return list(), true; }) == 0);
}
