// SPDX-License-Identifier: Apache-2.0
// Pools that sleep, wake and are compacted: alone, with graph memories, next to another pool, below
// `checked`. Each call leaves the pool asleep or awake, contents are kept, and after the fault is cleared the
// call can be tried again.
#include <cstring>
#include <optional>
#include <vector>

#include "faults/held_blocks.hpp"
#include "faults/scene_memory.hpp"
#include "faults/scenes.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"

namespace tarn_test {

namespace of_sleep {

sim_options small_machine() {
  return machine_of(14_MiB, 32_MiB);
}
sim_options compacted_machine() {
  return machine_of(22_MiB, 4_MiB);
}

/// The contents of blocks, each filled with a byte of its own.
class written_blocks {
 public:
  explicit written_blocks(trial& t) : trial_(t) {
    host_faults::not_counted const own;
    blocks_.reserve(64);
  }
  /// Ignores null, the result of a refusal.
  void write(void* p, std::size_t bytes) {
    host_faults::not_counted const own;
    if (p == nullptr) return;
    blocks_.push_back({static_cast<unsigned char*>(p), bytes, static_cast<unsigned char>(++last_)});
    std::memset(p, last_, bytes);
  }
  void forget(void* p) {
    host_faults::not_counted const own;
    std::erase_if(blocks_, [p](block const& b) { return b.p == p; });
  }
  /// For a pool that is awake.
  void check() {
    host_faults::not_counted const own;
    for (block const& b : blocks_) {
      for (std::size_t i = 0; i < b.bytes; i += 4096) {
        if (b.p[i] != b.value) return trial_.complain("contents were lost");
      }
      if (b.p[b.bytes - 1] != b.value) return trial_.complain("the end of the contents was lost");
    }
  }

 private:
  struct block {
    unsigned char* p;
    std::size_t bytes;
    unsigned char value;
  };
  trial& trial_;
  std::vector<block> blocks_;
  int last_ = 0;
};

/// Waits for all work, as sleep() and compact() require.
void synchronize(trial& t) {
  host_faults::not_counted const own;
  (void)t.machine().driver().synchronize_device();
}

/// Returns whether the pool sleeps.
template <class Memory>
bool put_to_sleep(trial& t, Memory& memory, contents where) {
  synchronize(t);
  bool const done = t.attempt("sleep", [&] { (void)sleep(memory, where); });
  t.check(is_asleep(memory) == done, done ? "awake after sleep" : "sleep failed, but the pool is asleep");
  return done;
}
/// Wakes a pool, if need be after the fault is cleared. Returns whether it is awake: a permanent fault may
/// keep it asleep.
template <class Memory>
bool wake_up(trial& t, Memory& memory, after_waking then = after_waking::free_host_memory) {
  if (!is_asleep(memory)) return true;
  bool done = t.attempt("wake", [&] { (void)wake(memory, then); });
  t.check(is_asleep(memory) != done, done ? "asleep after wake" : "wake failed, but the pool is awake");
  if (done) return true;
  t.heal();
  done = t.attempt("wake again", [&] { (void)wake(memory, then); });
  t.check(is_asleep(memory) != done, "wake did not do what it reported");
  return done;
}

/// Blocks at home and, in this small machine, in a view. The small one is first: a run in memory that was
/// freed before would be copied whole, and the order checker would report the bytes between its blocks as
/// freed. Returns whether the block in the view was served.
template <class Held>
bool allocate_everywhere(Held& held, written_blocks& written, stream_ref a) {
  written.write(held.get(a, 1000), 1000);
  void* spread[6];
  for (void*& p : spread) p = held.get(a, 2_MiB);
  for (int i : {0, 2, 4}) held.give(spread[i]);
  for (int i : {1, 3, 5}) written.write(spread[i], 2_MiB);
  void* const wide = held.get(a, 4_MiB);
  written.write(wide, 4_MiB);
  return wide != nullptr;
}

template <contents Where>
void sleeping(trial& t) {
  stream const a(t.driver());
  held_blocks held(t, watched_pool(t));
  written_blocks written(t);
  // Without the view, the next block lies where the order checker knows an earlier one without pages.
  if (!allocate_everywhere(held, written, a) && Where == contents::discarded) return;
  void* const other = held.get(a, 2_MiB);
  for (auto const then : {after_waking::keep_host_memory, after_waking::free_host_memory}) {
    if (put_to_sleep(t, held.memory(), Where)) {
      t.attempt(
          "allocate while asleep", [&] { (void)held.memory().allocate(a, 1000); }, step_outcome::refused);
      t.attempt("sleep while asleep", [&] { (void)sleep(held.memory(), Where); });
      if (then == after_waking::free_host_memory) held.give(other);
      t.attempt("trim while asleep", [&] { (void)held.memory().trim(0); });
    }
    if (!wake_up(t, held.memory(), then)) return;
    if (Where != contents::discarded) written.check();
    if (Where == contents::discarded) break;
  }
  t.heal();
  held.give(other);
  (void)held.get(a, 2_MiB);
  held.empty_out("after sleep");
}

/// A pool that ends while it sleeps: what its sleep could not release must be released then, and nothing
/// twice.
void ending_asleep(trial& t) {
  stream const a(t.driver());
  held_blocks held(t, watched_pool(t));
  written_blocks written(t);
  (void)allocate_everywhere(held, written, a);
  (void)put_to_sleep(t, held.memory(), contents::in_pinned_memory);
  t.heal();
}

void sleeping_with_a_graph_memory(trial& t) {
  stream const a(t.driver());
  held_blocks held(t, watched_pool(t));
  written_blocks written(t);
  written.write(held.get(a, 3_MiB), 3_MiB);
  using memory_type = std::remove_reference_t<decltype(held.memory())>;
  std::optional<graph_memory<memory_type>> memory;
  t.attempt("make a graph_memory", [&] { memory.emplace(held.memory()); });
  void* of_graph = nullptr;
  in_capture(t, memory, a, [&](capture_scope&) {
    t.attempt("allocate while captured", [&] { of_graph = held.memory().allocate(a, 5_MiB); });
  });
  written.write(of_graph, 5_MiB);
  std::size_t const reserved = held.state().reserved;
  (void)put_to_sleep(t, held.memory(), contents::in_pinned_memory);
  if (!is_asleep(held.memory())) {
    t.check_equal(held.state().reserved, reserved, "what the pool and its graph memories reserve");
  } else if (!t.struck()) {  // otherwise contents may not be known to be saved, and keep their handles
    t.check_equal(held.state().reserved, 0, "what the pool and its graph memories reserve asleep");
  }
  bool const awake = wake_up(t, held.memory());
  if (awake) written.check();
  if (awake && put_to_sleep(t, held.memory(), contents::in_pinned_memory)) {
    written.forget(of_graph);
    if (of_graph != nullptr) held.memory().deallocate(a, of_graph, 5_MiB);
    of_graph = nullptr;
    memory.reset();  // the owner of memory that sleeps ends
  }
  if (wake_up(t, held.memory())) written.check();
  if (of_graph != nullptr) held.memory().deallocate(a, of_graph, 5_MiB);
  memory.reset();
  t.heal();
  if (is_asleep(held.memory())) return;
  (void)held.get(a, 2_MiB);
  held.empty_out("after sleep with a graph_memory");
}

void two_sleeping_pools(trial& t) {
  stream const a(t.driver());
  held_blocks first(t, watched_pool(t));
  held_blocks second(t, watched_pool(t));
  written_blocks of_first(t);
  written_blocks of_second(t);
  of_first.write(first.get(a, 6_MiB), 6_MiB);
  bool const first_sleeps = put_to_sleep(t, first.memory(), contents::in_pinned_memory);
  if (first_sleeps) {
    void* const p = second.get(a, 10_MiB);
    of_second.write(p, 10_MiB);
    if (p != nullptr && !t.struck()) {
      t.attempt(
          "wake without memory", [&] { (void)wake(first.memory()); }, step_outcome::refused);
      t.check(is_asleep(first.memory()), "awake without memory");
    }
    (void)put_to_sleep(t, second.memory(), contents::in_pinned_memory);
  }
  if (!wake_up(t, second.memory())) return;
  of_second.check();
  second.give_all();
  t.attempt("trim the second pool", [&] { (void)second.memory().trim(0); });
  t.heal();
  t.attempt("trim the second pool again", [&] { (void)second.memory().trim(0); });
  if (!wake_up(t, first.memory())) return;
  of_first.check();
  first.empty_out("of the first pool");
  second.empty_out("of the second pool");
}

void compaction_of_a_pool(trial& t) {
  stream const a(t.driver());
  held_blocks held(t, watched_pool(t, t.driver(), pooled{.largest_handle = 4_MiB}));
  written_blocks written(t);
  // Five handles of 4 MiB. The view shows the second half of the first, the third, and the first half of the
  // last.
  void* handles[5];
  for (void*& p : handles) p = held.get(a, 4_MiB);
  for (void* p : handles) held.give(p);
  void* blocks[7];
  for (int i = 0; i < 7; ++i) blocks[i] = held.get(a, i >= 2 && i <= 4 ? 4_MiB : 2_MiB);
  for (int i : {1, 3, 5}) held.give(blocks[i]);
  for (int i : {2, 4}) written.write(blocks[i], 4_MiB);
  written.write(held.get(a, 8_MiB), 8_MiB);
  for (int i : {0, 6}) held.give(blocks[i]);
  synchronize(t);
  bool done = t.attempt("compact", [&] { (void)compact(held.memory()); });
  if (is_asleep(held.memory())) t.check(!done && t.struck(), "compact put the pool to sleep");
  if (!wake_up(t, held.memory())) return;
  written.check();
  t.heal();
  done = t.attempt("compact again", [&] { (void)compact(held.memory()); });
  if (!wake_up(t, held.memory())) return;
  written.check();
  (void)held.get(a, 2_MiB);
  if (t.log().plan.failed(driver_call::synchronize_device) == 0) held.empty_out("after compact");
}

void sleeping_below_checked(trial& t) {
  stream const a(t.driver());
  auto memory = watched_pool(t) | checked{};
  void* p = nullptr;
  t.attempt("allocate", [&] { p = memory.allocate(a, 1_MiB); });
  if (put_to_sleep(t, memory, contents::in_pinned_memory)) (void)wake_up(t, memory);
  if (!is_asleep(memory)) {
    synchronize(t);
    t.attempt("compact", [&] { (void)compact(memory); });
    (void)wake_up(t, memory);
  }
  t.heal();
  if (p != nullptr) memory.deallocate(a, p, 1_MiB);
  t.wait_for(a);
}

// Slow: their contents are real memory.
constexpr scene all[] = {
    {"sleep_in_pinned_memory", small_machine, sleeping<contents::in_pinned_memory>, false, true},
    {"sleep_discarded", small_machine, sleeping<contents::discarded>, false, true},
    {"ending_asleep", small_machine, ending_asleep, false, true},
    {"sleep_with_a_graph_memory", small_machine, sleeping_with_a_graph_memory, false, true},
    {"two_sleeping_pools", small_machine, two_sleeping_pools, false, true},
    {"compaction", compacted_machine, compaction_of_a_pool, false, true, true},
    {"sleep_below_checked", small_machine, sleeping_below_checked, false, true},
};

}  // namespace of_sleep

std::span<scene const> sleep_scenes() {
  return of_sleep::all;
}

}  // namespace tarn_test
