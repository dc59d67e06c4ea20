// SPDX-License-Identifier: Apache-2.0
// The policies that call the driver or keep their own records: fences, poison, fallback, retry, recording.
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "faults/held_blocks.hpp"
#include "faults/scene_memory.hpp"
#include "faults/scenes.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/fenced.hpp"
#include "tarn/debug/logged.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/fallback_to.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/prefetched.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tagged.hpp"
#include "tarn/policy/traced.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/cuda_async.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/transfer/reservation.hpp"

namespace tarn_test {

namespace of_policy {

sim_options small_machine() {
  return machine_of(24_MiB, 16_MiB);
}

void fences_and_poison(trial& t) {
  stream const a(t.driver());
  auto pages = basic_pages<sited_driver>(t.driver());
  held_blocks held(t, pages | pooled{} | order_watched{t.machine()} | fenced{} | poisoned{} | tracked{});
  void* const p = held.get(a, 1000);
  void* const q = held.get(a, 3_MiB);
  t.attempt("check_all", [&] {
    t.wait_for(a);
    (void)nearest(held.memory(), [](auto& l) -> decltype(l.check_all()) { return l.check_all(); });
  });
  held.give(p);
  held.give(q);
  void* const s = held.get_sync(5000);
  held.give_sync(s);
  (void)held.get(a, 40_MiB, step_outcome::refused);
  t.heal();
  (void)held.get(a, 3_MiB);
  held.empty_out("with fences");
}

/// Blocks of a capture are not filled: the layer notes them instead.
void poison_in_a_capture(trial& t) {
  stream const a(t.driver());
  auto memory =
      basic_pages<sited_driver>(t.driver()) | pooled{} | order_watched{t.machine()} | poisoned{} | tracked{};
  std::optional<graph_memory<decltype(memory)>> graphs;
  void* p = nullptr;
  t.attempt("make a graph_memory", [&] { graphs.emplace(memory); });
  in_capture(t, graphs, a, [&](capture_scope&) {
    t.attempt("allocate while captured", [&] { p = memory.allocate(a, 1_MiB); });
  });
  if (p != nullptr) memory.deallocate(a, p, 1_MiB);
  graphs.reset();
  t.wait_for(a);
  t.heal();
  t.check_equal(memory_allocated(memory), 0, "bytes live after a capture with poison");
}

void reserving(trial& t) {
  stream const a(t.driver());
  auto const memory = basic_pages<sited_driver>(t.driver()) | pooled{} | order_watched{t.machine()} |
                      tracked{} | limited{16_MiB};
  {
    auto const used = t.watch([&] { return std::to_string(memory->used()) + " B of the limit"; });
    std::optional<reservation<std::remove_const_t<decltype(memory)>>> task;
    t.attempt("reserve", [&] { task.emplace(reserve(memory, 10_MiB)); });
    if (!task) {
      t.check_equal(memory->used(), 0, "bytes of the limit after reserve() failed");
      return;
    }
    t.attempt(
        "reserve too much", [&] { (void)reserve(memory, 7_MiB); }, step_outcome::refused);
    held_blocks held(t, task->resource());
    (void)held.get(a, 4_MiB);
    (void)held.get(a, 7_MiB, step_outcome::refused);
    void* const p = held.get(a, 5_MiB);
    held.give(p);
    t.check_equal(memory->used(), 10_MiB, "bytes of the limit while 10 MiB are reserved");
    task.reset();
    held.give_all();
    t.check_equal(memory->used(), 0, "bytes of the limit after the end");
  }
  t.heal();
  held_blocks held(t, memory);
  (void)held.get(a, 16_MiB);
  held.empty_out("after a reservation");
}

/// Correct use of a checked resource: whatever fails, no misuse may be reported.
void checks(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  auto pool = basic_pages<sited_driver>(t.driver()) | pooled{} | order_watched{t.machine()};
  {
    auto memory = pool | checked{.quarantine_bytes = 400_KiB};
    void* p = nullptr;
    void* q = nullptr;
    void* s = nullptr;
    void* r = nullptr;
    t.attempt("allocate", [&] { p = memory.allocate(a, 1000); });
    t.attempt("allocate", [&] { q = memory.allocate(a, 300_KiB); });
    t.attempt("allocate_sync", [&] { s = memory.allocate_sync(5000); });
    t.attempt(
        "allocate too much", [&] { (void)memory.allocate(a, 40_MiB); }, step_outcome::refused);
    t.attempt(
        "allocate more than any device has", [&] { (void)memory.allocate(a, 1024_GiB); },
        step_outcome::refused);
    t.attempt("record_stream", [&] {
      if (p != nullptr) memory.record_stream(p, 1000, b);
    });
    t.attempt("check_all", [&] {
      (void)nearest(memory, [](auto& l) -> decltype(l.check_all()) { return l.check_all(); });
    });
    memory.deallocate(a, p, 1000);
    memory.deallocate(a, q, 300_KiB);
    memory.deallocate_sync(s, 5000);
    t.attempt("allocate again", [&] { r = memory.allocate(a, 300_KiB); });
    memory.deallocate(a, r, 300_KiB);  // the oldest leave the quarantine
    t.heal();
  }
  t.attempt("trim", [&] { pool.empty_cache(); });  // blocks deferred for a recorded use are returned
  if (t.struck() && !t.healed()) return;
  t.check_equal(nearest(pool, [](auto& l) -> decltype(l.state()) { return l.state(); }).live, 0,
                "live below a checked resource that has ended");
}

void fallback(trial& t) {
  stream const a(t.driver());
  auto other = basic_managed<sited_driver>(t.driver()) | pooled{};
  auto memory = basic_pages<sited_driver>(t.driver()) | pooled{} | fallback_to{other} | tracked{};
  auto const spare = [&] {
    return nearest(memory, [](auto& l) -> decltype(l.fallback_blocks()) { return l.fallback_blocks(); });
  };
  auto const live = t.watch([&] {
    auto const mine = nearest(memory, pool_call::state{});
    return std::to_string(mine.live) + " + " + std::to_string(other->state().live) + " B live, " +
           std::to_string(spare()) + " elsewhere";
  });
  void* block[3] = {};
  for (void*& p : block) t.attempt("allocate", [&] { p = memory.allocate(a, 10_MiB); });
  void* sync = nullptr;
  t.attempt("allocate_sync", [&] { sync = memory.allocate_sync(3_MiB); });
  t.attempt(
      "too much for both", [&] { (void)memory.allocate(a, 100_MiB); }, step_outcome::refused);
  memory.deallocate_sync(sync, 3_MiB);
  for (void* p : block) memory.deallocate(a, p, 10_MiB);
  t.check_equal(spare(), 0, "blocks of the fallback after all was freed");
  t.check_equal(other->state().live, 0, "bytes of the fallback after all was freed");
}

/// Recorded uses of blocks of a pool, and of blocks that no pool defers: the driver hands them out again at
/// once.
void fallback_uses(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  auto memory = basic_pages<sited_driver>(t.driver()) | limited{12_MiB} | pooled{} |
                order_watched{t.machine()} |
                fallback_to{basic_async<sited_driver>(t.driver()) | order_watched{t.machine()}};
  void* first = nullptr;
  void* other = nullptr;
  t.attempt("allocate", [&] { first = memory.allocate(a, 12_MiB); });
  t.attempt("allocate elsewhere", [&] { other = memory.allocate(a, 2_MiB); });
  t.attempt("record_stream", [&] {
    if (first != nullptr) memory.record_stream(first, 12_MiB, b);
  });
  t.order(b, a);
  if (t.attempt("record_stream elsewhere", [&] {
        if (other != nullptr) memory.record_stream(other, 2_MiB, b);
      }))
    write(t, b, other, 2_MiB);
  memory.deallocate(a, other, 2_MiB);
  other = nullptr;
  t.attempt("allocate elsewhere again", [&] { other = memory.allocate(a, 2_MiB); });
  write(t, a, other, 2_MiB);
  memory.deallocate(a, other, 2_MiB);
  memory.deallocate(a, first, 12_MiB);
  t.attempt("trim", [&] { memory.empty_cache(); });
  t.heal();
  if (t.struck() && !t.healed()) return;
  t.attempt("trim again", [&] { memory.empty_cache(); });
  other = nullptr;
  t.attempt("allocate elsewhere once more", [&] { other = memory.allocate(a, 13_MiB); });
  memory.deallocate(a, other, 13_MiB);  // gives back what could not be waited for before
  t.check_equal(memory->fallback_blocks(), 0, "blocks of the fallback after all was freed");
}

/// Managed memory, whose blocks are moved as they are allocated.
void prefetches(trial& t) {
  stream const a(t.driver());
  held_blocks held(t, basic_managed<sited_driver>(t.driver()) | pooled{} | order_watched{t.machine()} |
                          tracked{} | prefetched{});
  void* const p = held.get(a, 1_MiB);
  (void)held.get_sync(100);
  if (p != nullptr) {
    std::span const elements(static_cast<char*>(p), 1000);
    t.attempt("advise", [&] { advise(t.driver(), elements, memory_advice::accessed_by, 0); });
    t.attempt("prefetch", [&] { prefetch(t.driver(), elements, host_id, a); });
  }
  held.give(p);
  t.heal();
  (void)held.get(a, 1_MiB);
  held.empty_out("with prefetches");
}

/// Blocks whose stream is destroyed, over policies that call the driver themselves.
template <class Driver>
void lost_streams_on(trial& t, Driver driver) {
  stream_ref gone;
  auto memory = basic_pages<Driver>(driver) | pooled{} | fenced{} | poisoned{} | checked{};
  void* p = nullptr;
  void* q = nullptr;
  {
    stream const a(t.driver());
    t.attempt("identify", [&] { gone = identified(memory, stream_ref(a)); });
    t.attempt("allocate", [&] { p = memory.allocate(gone, 1000); });
    t.attempt("allocate", [&] { q = memory.allocate(gone, 3_MiB); });
  }
  memory.deallocate(gone, p, 1000);
  memory.deallocate(gone, q, 3_MiB);
  t.heal();
}
void lost_streams(trial& t) {
  lost_streams_on(t, t.driver());
}
void lost_streams_marking_all(trial& t) {
  lost_streams_on(t, t.driver_that_marks_all());
}

void retry(trial& t) {
  stream const a(t.driver());
  auto below = basic_pages<sited_driver>(t.driver()) | pooled{};
  void* spare = nullptr;
  unsigned asked = 0;
  auto memory = below | retry_on_oom{[&](out_of_memory const&, unsigned) {
                  ++asked;
                  if (spare == nullptr) return false;
                  below.deallocate(a, spare, 12_MiB);
                  spare = nullptr;
                  return true;
                }} |
                tracked{};
  t.attempt("a spare block", [&] { spare = below.allocate(a, 12_MiB); });
  void* p = nullptr;
  t.attempt("allocate, the handler frees", [&] { p = memory.allocate(a, 20_MiB); });
  if (p != nullptr) t.check(asked != 0 || t.struck(), "the handler was not called");
  void* q = nullptr;
  t.attempt(
      "allocate, the handler declines", [&] { q = memory.allocate(a, 20_MiB); }, step_outcome::refused);
  memory.deallocate(a, q, 20_MiB);
  memory.deallocate(a, p, 20_MiB);
  if (spare != nullptr) below.deallocate(a, spare, 12_MiB);
  t.check_equal(below->state().live, 0, "live after all was freed");
}

void recording(trial& t) {
  stream const a(t.driver());
  std::FILE* const file = std::tmpfile();
  {
    auto memory = basic_pages<sited_driver>(t.driver()) | pooled{} | traced{file};
    auto const live = t.watch([&] {
      auto const s = nearest(memory, [](auto& l) -> decltype(l.state()) { return l.state(); });
      return std::to_string(s.live) + " B live";
    });
    void* p = nullptr;
    void* q = nullptr;
    t.attempt("allocate", [&] { p = memory.allocate(stream_ref::from(stream_ref(a).handle()), 3000); });
    t.attempt("allocate on the default stream", [&] { q = memory.allocate(stream_ref{}, 3_MiB); });
    memory.deallocate(a, p, 3000);
    memory.deallocate(stream_ref{}, q, 3_MiB);
  }
  host_faults::not_counted const own;
  std::fclose(file);
}

/// The layer and the pool agree on what is live, whatever failed.
void watching(trial& t) {
  stream const a(t.driver());
  auto memory = basic_pages<sited_driver>(t.driver()) | pooled{} | with_history{.history = 3} |
                logged{[](call_record const&) {}} | tagged{"scene"};
  auto watched_memory = memory->upstream()->upstream();
  auto const live = t.watch([&] {
    host_faults::not_counted const own;
    auto const s = nearest(memory, [](auto& l) -> decltype(l.state()) { return l.state(); });
    auto const seen = watched_memory->record();
    std::size_t bytes = 0;
    for (auto const& b : seen.live) bytes += b.bytes;
    t.check_equal(bytes, s.live, "bytes recorded by a `with_history` layer");
    return std::to_string(bytes) + " B live in " + std::to_string(seen.live.size());
  });
  std::size_t const sizes[] = {3000, 3_MiB, 100, 5000};
  void* blocks[4] = {};
  for (int i = 0; i < 4; ++i) t.attempt("allocate", [&] { blocks[i] = memory.allocate(a, sizes[i]); });
  void* sync = nullptr;
  t.attempt("allocate_sync", [&] { sync = memory.allocate_sync(200); });
  t.attempt(
      "allocate too much", [&] { (void)memory.allocate(a, 40_MiB); }, step_outcome::refused);
  t.attempt("record", [&] { (void)watched_memory->record(); });
  t.attempt("tags", [&] { (void)watched_memory->tags(); });
  memory.deallocate_sync(sync, 200);
  for (int i = 0; i < 4; ++i) memory.deallocate(a, blocks[i], sizes[i]);
}

constexpr scene all[] = {
    {"fences_and_poison", small_machine, fences_and_poison},
    {"poison_in_a_capture", small_machine, poison_in_a_capture},
    {"checks", small_machine, checks},
    {"fallback", small_machine, fallback},
    {"fallback_uses", small_machine, fallback_uses, false, false, true},
    {"lost_streams", small_machine, lost_streams},
    {"lost_streams_marking_all", small_machine, lost_streams_marking_all},
    {"prefetches", small_machine, prefetches},
    {"retry", small_machine, retry},
    {"reserving", small_machine, reserving},
    {"recording", small_machine, recording},
    {"watching", small_machine, watching},
};

}  // namespace of_policy

std::span<scene const> policy_scenes() {
  // The registry of checked resources keeps its memory for the life of the process.
  static auto const first = host_memory{} | checked{};
  return of_policy::all;
}

}  // namespace tarn_test
