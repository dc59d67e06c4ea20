// SPDX-License-Identifier: Apache-2.0
// The pool over pages and over blocks: growth, remap, the ladder, stream order, recorded uses, capture,
// threads, devices.
#include <optional>
#include <string_view>
#include <thread>
#include <type_traits>

#include "faults/held_blocks.hpp"
#include "faults/scene_memory.hpp"
#include "faults/scenes.hpp"
#include "tarn/policy/headroom.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/cache_guard.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/cuda_async.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/source/pinned_host.hpp"

namespace tarn_test {

namespace of_pool {

constexpr sim_nanoseconds long_time = 1'000'000'000;

sim_options small_machine() {
  sim_options o = machine_of(32_MiB, 32_MiB);
  o.backing = sim_backing::address_only;
  return o;
}
sim_options roomy_machine() {
  sim_options o = small_machine();
  o.capacity = 512_MiB;  // so that a pool can begin with 8 MiB before other processes' memory is taken
  return o;
}
sim_options machine_with_tool() {
  sim_options o = small_machine();
  o.tool = sim_tool::attached;
  return o;
}
sim_options machine_without_pages() {
  sim_options o = small_machine();
  o.paging = sim_paging::missing;
  o.memory_pools = sim_memory_pools::missing;
  return o;
}
sim_options two_devices() {
  sim_options o = small_machine();
  o.devices = 2;
  return o;
}

void growth_and_remap(trial& t) {
  stream const a(t.driver());
  held_blocks held(t, watched_pool(t, t.driver()));
  void* block[6];
  for (void*& p : block) p = held.get(a, 4_MiB);
  for (int i = 0; i < 6; i += 2) held.give(block[i]);
  void* const wide = held.get(a, 12_MiB);  // three handles, mapped next to each other
  held.give(wide);
  void* const again = held.get(a, 12_MiB);  // the same view
  for (int i = 1; i < 6; i += 2) held.give(block[i]);
  held.give(again);
  void* const all = held.get(a, 28_MiB);
  (void)held.get(a, 64_MiB, step_outcome::refused);
  held.give(all);
  std::size_t kept = 0;
  t.attempt("trim to 8 MiB", [&] {
    kept = nearest(held.memory(), [](auto& l) -> decltype(l.trim(0)) { return l.trim(8_MiB); });
  });
  void* const small = held.get(a, 1000);
  void* const medium = held.get(a, 200_KiB);
  void* const aligned = [&] {
    void* p = nullptr;
    t.attempt("an aligned allocation", [&] { p = held.memory().allocate(a, 3_MiB, 2_MiB); });
    return p;
  }();
  if (aligned != nullptr) held.memory().deallocate(a, aligned, 3_MiB, 2_MiB);
  held.give(small);
  held.give(medium);
  t.heal();
  (void)held.get(a, 20_MiB);
  held.empty_out("after growth and remap");
}

void growth_while_roomy(trial& t) {
  stream const a(t.driver());
  held_blocks held(t, watched_pool(t, t.driver()));
  void* block[8];
  for (void*& p : block) p = held.get(a, 1000);
  void* const large = held.get(a, 3_MiB);
  for (void* p : block) held.give(p);
  held.give(large);
  void* const sync = held.get_sync(5000);
  held.give_sync(sync);
  (void)held.get(a, 1_GiB, step_outcome::refused);  // so large that the pool first queries the free memory
  t.heal();
  (void)held.get(a, 100_KiB);
  held.empty_out("after rung 0");
}

void no_remap(trial& t) {
  stream const a(t.driver());
  held_blocks held(t, watched_pool(t, t.driver(), pooled{.remap = remapping::off}));
  void* const p = held.get(a, 6_MiB);
  void* const q = held.get(a, 6_MiB);
  held.give(p);
  void* const r = held.get(a, 12_MiB);
  held.give(q);
  held.give(r);
  (void)held.get(a, 30_MiB);
  t.heal();
  held.give_all();
  (void)held.get(a, 24_MiB);
  held.empty_out("without remapping");
}

template <class Driver>
void across_streams_on(trial& t, Driver driver) {
  stream const a(t.driver());
  stream const b(t.driver());
  held_blocks held(t, watched_pool(t, driver));
  void* const p = held.get(a, 20_MiB);
  held.use(a, p, 20_MiB, long_time);
  held.give(p);
  void* const q = held.get(b, 20_MiB);  // b waits on the device
  held.give(q);
  t.machine().advance(2 * long_time);
  void* const r = held.get(a, 20_MiB);  // the work is over: no thread waits
  void* const s = held.get(b, 1000);
  t.order(a, b);
  held.give(a, s);  // a block of another stream's run
  void* const u = held.get(a, 1000);
  held.give(r);
  t.order(b, a);
  held.use(b, u, 1000, long_time);
  held.give(b, u);
  void* const sync = held.get_sync(24_MiB);  // waits on the host
  held.give_sync(sync);
  t.attempt("trim",
            [&] { (void)nearest(held.memory(), [](auto& l) -> decltype(l.trim(0)) { return l.trim(0); }); });
  t.heal();
  (void)held.get(a, 10_MiB);
  (void)held.get(b, 10_MiB);
  held.empty_out("across streams");
}
void across_streams(trial& t) {
  across_streams_on(t, t.driver());
}
void across_streams_marking_all(trial& t) {
  across_streams_on(t, t.driver_that_marks_all());
}

/// A stream named by its handle alone: the pool queries its identity from the driver.
stream_ref bare(stream_ref s) {
  return stream_ref::from(s.handle());
}

template <class Driver>
void destroyed_streams_on(trial& t, Driver driver) {
  stream const a(t.driver());
  held_blocks held(t, watched_pool(t, driver));
  void* orphan = nullptr;
  stream_ref gone;
  {
    stream const c(t.driver());
    gone = c;
    void* const p = held.get(c, 12_MiB);
    orphan = held.get(c, 4_MiB);
    held.use(c, p, 12_MiB, long_time);
    held.give(p);
  }
  void* const q = held.get(a, 24_MiB);  // must reuse what was freed on the destroyed stream
  held.give(bare(gone), orphan);        // its handle is no longer valid
  void* const r = held.get(bare(a), 1000);
  held.give(bare(a), r);
  held.give(q);
  void* const named = held.get(bare(a), 2_MiB);
  held.give(bare(a), named);
  t.heal();
  (void)held.get(a, 24_MiB);
  held.empty_out("after a stream was destroyed");
}
void destroyed_streams(trial& t) {
  destroyed_streams_on(t, t.driver());
}
void destroyed_streams_marking_all(trial& t) {
  destroyed_streams_on(t, t.driver_that_marks_all());
}

template <class Driver>
void recorded_uses_on(trial& t, Driver driver, pooled options) {
  stream const a(t.driver());
  stream const b(t.driver());
  held_blocks held(t, watched_pool(t, driver, options));
  auto const record = [&](void* p, stream_ref s) {
    // A caller whose record_stream() was refused waits for that stream before the free.
    bool const recorded = t.attempt("record_stream", [&] {
      nearest(held.memory(),
              [&](auto& l) -> decltype(l.record_stream(p, 0, s)) { return l.record_stream(p, 4_MiB, s); });
    });
    if (!recorded) t.wait_for(s);
  };
  void* const p = held.get(a, 4_MiB);
  t.order(b, a);
  held.use(b, p, 4_MiB, long_time);
  record(p, bare(b));
  record(p, b);
  held.give(p);                         // deferred for b
  void* const q = held.get(a, 28_MiB);  // the host waits for b
  held.give(q);
  void* const r = held.get(a, 4_MiB);
  t.order(b, a);
  held.use(b, r, 4_MiB);
  record(r, b);
  held.give(r);
  t.machine().advance(long_time);
  (void)held.get(b, 26_MiB);  // its use is over by now
  held.give_all();
  void* const u = held.get(a, 4_MiB);
  {
    stream const c(t.driver());
    t.order(c, a);
    held.use(c, u, 4_MiB, long_time);
    record(u, c);
  }
  held.give(u);  // used on a stream that is destroyed
  void* const last = held.get(a, 4_MiB);
  t.order(b, a);
  held.use(b, last, 4_MiB, long_time);
  record(last, b);
  held.give(last);  // still deferred when the pool ends
  t.heal();
  if (t.healed()) (void)held.get(a, 28_MiB);
  if (t.healed()) held.empty_out("after recorded uses");
}
void recorded_streams(trial& t) {
  recorded_uses_on(t, t.driver(), {.captures = capture_watch::in_scopes});
}
void recorded_uses_marking_all(trial& t) {
  recorded_uses_on(t, t.driver_that_marks_all(), {});
}

void capture(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  held_blocks held(t, watched_pool(t, t.driver()));
  void* const before = held.get(b, 16_MiB);
  held.use(b, before, 16_MiB, long_time);
  held.give(before);
  if (!t.begin_capture(a)) return;
  void* p = nullptr;
  void* q = nullptr;
  t.attempt("allocate while captured", [&] { p = held.memory().allocate(a, 1000); });
  t.attempt("allocate much while captured", [&] { q = held.memory().allocate(a, 12_MiB); });
  t.check(t.end_capture(a) || t.struck(), "the capture was invalidated");
  // Freed inside the capture, the pool would keep them until it ends.
  if (q != nullptr) held.memory().deallocate(a, q, 12_MiB);
  if (p != nullptr) held.memory().deallocate(a, p, 1000);
  t.check_equal(t.machine().captured_calls(), 0, "driver calls recorded into a graph by accident");
  void* const after = held.get(a, 20_MiB);
  held.give(after);
  t.heal();
  (void)held.get(a, 24_MiB);
  held.empty_out("after a capture");
}

template <template <class> class Source>
void over_blocks(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  held_blocks held(t, Source<sited_driver>(t.driver()) | pooled{} | order_watched{t.machine()} | tracked{});
  void* const small = held.get(a, 1000);
  void* const p = held.get(a, 9_MiB);
  void* const q = held.get(a, 9_MiB);
  held.use(a, p, 9_MiB, long_time);
  held.give(p);
  held.give(q);
  void* const r = held.get(b, 9_MiB);
  void* const wide = held.get(b, 18_MiB);  // the driver refuses until the cached segments are released
  held.give(r);
  (void)held.get(a, 40_MiB, step_outcome::refused);
  held.give(wide);
  held.give(small);
  void* const sync = held.get_sync(3_MiB);
  held.give_sync(sync);
  t.heal();
  (void)held.get(a, 24_MiB);
  held.empty_out("over blocks");
}

/// A pool described to an attached tool.
template <template <class> class Source>
void with_a_tool(trial& t) {
  {
    stream const a(t.driver());
    stream const b(t.driver());
    held_blocks held(t, Source<sited_driver>(t.driver()) | pooled{} | order_watched{t.machine()} | tracked{});
    void* const small = held.get(a, 1000);
    void* const p = held.get(a, 5_MiB);
    void* const q = held.get(b, 9_MiB);
    held.use(a, p, 5_MiB, long_time);
    held.give(p);
    held.give(q);
    (void)held.get(a, 40_MiB, step_outcome::refused);
    if (t.begin_capture(a)) {
      void* captured = nullptr;
      t.attempt("allocate while captured", [&] { captured = held.memory().allocate(a, 1000); });
      t.check(t.end_capture(a) || t.struck(), "the capture was invalidated");
      if (captured != nullptr) held.memory().deallocate(a, captured, 1000);
    }
    using memory_type = std::remove_reference_t<decltype(held.memory())>;
    std::optional<graph_memory<memory_type>> owner;
    t.attempt("make a graph_memory", [&] { owner.emplace(held.memory()); });
    in_capture(t, owner, a, [&](capture_scope&) {
      void* of_graph = nullptr;
      t.attempt("allocate for a graph", [&] { of_graph = held.memory().allocate(a, 2_MiB); });
      if (of_graph != nullptr) held.memory().deallocate(a, of_graph, 2_MiB);
    });
    owner.reset();
    held.give(small);
    void* const wide = held.get(b, 26_MiB);
    held.give(wide);
    t.heal();
    (void)held.get(a, 24_MiB);
    held.empty_out("with a tool");
  }
  for (std::string const& finding : t.machine().tool_findings())
    t.check(t.struck(), finding.c_str());  // where a wait fails a region may end too early
  if (!t.struck()) t.check_equal(t.machine().tool_counts().regions, 0, "regions left");
}

/// On a device without virtual memory management: segments of plain blocks, under a limit and beside a graph
/// memory.
void without_pages(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  auto pages = basic_pages<sited_driver>(t.driver()) | limited{30_MiB};
  held_blocks held(t, pages | pooled{} | order_watched{t.machine()} | tracked{});
  t.check(std::string_view(allocator_backend(held.memory())) == "cudaMalloc", "the pool has pages");
  void* const small = held.get(a, 1000);
  void* const p = held.get(a, 20_MiB);
  held.use(a, p, 20_MiB, long_time);
  held.give(p);
  void* const q = held.get(b, 20_MiB);  // b waits on the device
  (void)held.get(a, 12_MiB, step_outcome::refused);
  t.attempt("a sleep that is refused", [&] {
    try {
      (void)sleep(held.memory());
    } catch (cuda_error const& error) {
      if (error.kind() != failure::unsupported) throw;
    }
  });
  t.check(!is_asleep(held.memory()), "a pool without pages is asleep");
  t.attempt("record_stream", [&] { held.memory().record_stream(small, 1000, b); });
  held.give(small);
  held.give(q);
  t.attempt("compact", [&] { (void)compact(held.memory()); });
  t.attempt("trim", [&] { (void)held.memory().trim(4_MiB); });
  held.give_all();  // where a fault kept memory from others, a refused request was served
  t.heal();
  (void)held.get(a, 24_MiB);
  held.empty_out("without pages");
  if (t.healed())
    t.check_equal(nearest(pages, [](auto& l) -> decltype(l.used()) { return l.used(); }), 0,
                  "reserved budget");
}

void a_thread_ends(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  held_blocks held(t, watched_pool(t, t.driver()));
  void* handed_over = nullptr;
  std::thread([&] {
    host_faults::counted const library;
    void* const p = held.get(a, 1000);
    void* const q = held.get(b, 50_KiB);
    handed_over = held.get(a, 5_MiB);
    held.give(p);
    held.give(q);
  }).join();  // its magazines are reclaimed
  t.order(b, a);
  held.give(b, handed_over);
  void* const r = held.get(b, 28_MiB);
  held.give(r);
  t.heal();
  (void)held.get(a, 24_MiB);
  held.empty_out("after a thread ended");
}

void devices(trial& t) {
  stream const a(t.driver(device_id{0}));
  stream const b(t.driver(device_id{1}));
  held_blocks first(t, watched_pool(t, t.driver(device_id{0})));
  held_blocks second(t, watched_pool(t, t.driver(device_id{1})));
  void* const p = first.get(a, 5_MiB);
  void* const q = second.get(b, 5_MiB);
  first.give(p);
  second.give(q);
  (void)first.get(a, 30_MiB);
  (void)second.get(b, 30_MiB);
  (void)second.get(b, 30_MiB, step_outcome::refused);
  t.heal();
  first.give_all();
  second.give_all();
  (void)first.get(a, 20_MiB);
  first.empty_out("on device 0");
  second.empty_out("on device 1");
}

/// Two pools share a device that has not enough for both: each gets what the other caches.
void two_pools(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  held_blocks first(t, watched_pool(t, t.driver()));
  held_blocks second(t, watched_pool(t, t.driver()));
  (void)first.get(a, 5_MiB);
  void* const q = first.get(b, 18_MiB);
  first.give(q);
  void* const r = second.get(a, 20_MiB);
  second.give(r);
  (void)first.get(b, 22_MiB);
  (void)second.get(a, 10_MiB, step_outcome::refused);
  t.heal();
  first.give_all();
  second.give_all();
  (void)second.get(a, 30_MiB);
  first.empty_out("of the first pool");
  second.empty_out("of the second pool");
}

void leaving_headroom(trial& t) {
  stream const a(t.driver());
  auto memory = basic_pages<sited_driver>(t.driver()) | headroom{6_MiB} | pooled{} |
                order_watched{t.machine()} | tracked{};
  held_blocks held(t, memory);
  void* const p = held.get(a, 8_MiB);
  void* const q = held.get(a, 16_MiB);
  (void)held.get(a, 5_MiB, step_outcome::refused);
  held.give(q);
  t.machine().take_memory(0, 6_MiB);
  t.attempt("keep the headroom", [&] { (void)keep_headroom(memory); });
  t.machine().take_memory(0, 0);
  held.give(p);
  t.heal();
  (void)held.get(a, 20_MiB);
  held.empty_out("beside the headroom");
}

void limits_and_cache(trial& t) {
  stream const a(t.driver());
  auto pages = basic_pages<sited_driver>(t.driver()) | limited{24_MiB};
  held_blocks held(t, pages | pooled{} | order_watched{t.machine()} | limited{16_MiB} | tracked{});
  auto const used = [&] {
    return nearest(held.memory(), [](auto& l) -> decltype(l.used()) { return l.used(); });
  };
  auto const budget = t.watch([&] { return std::to_string(used()) + " B of the budget"; });
  void* const p = held.get(a, 6_MiB);
  (void)held.get(a, 12_MiB, step_outcome::refused);
  held.give(p);
  t.attempt("cache_guard", [&] {
    cache_guard const clear(held.memory(), {.only_if_free_below = 1_GiB});
    (void)held.get(a, 8_MiB);
  });
  held.give_all();
  t.check_equal(used(), 0, "budget used after all was freed");
  t.heal();
  (void)held.get(a, 16_MiB);
  held.empty_out("under limits");
  if (t.healed())
    t.check_equal(nearest(pages, [](auto& l) -> decltype(l.used()) { return l.used(); }), 0,
                  "reserved budget");
}

/// The host has no memory to record the block's stream: the pool waits for the device instead.
void no_host_memory_for_a_free(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  stream const c(t.driver());
  held_blocks held(t, watched_pool(t, t.driver()));
  void* const p = held.get(a, 1000);
  void* const q = held.get(a, 3_MiB);
  void* const r = held.get(a, 1000);
  t.order(b, a);
  t.order(c, a);
  held.use(b, p, 1000, long_time);
  held.use(c, q, 3_MiB, long_time);
  void* const named = held.get(a, 4_MiB);
  t.order(b, a);
  held.use(b, named, 4_MiB, long_time);
  bool const recorded = t.attempt("record_stream", [&] {
    nearest(held.memory(), [&](auto& l) -> decltype(l.record_stream(named, 0, b)) {
      return l.record_stream(named, 4_MiB, b);
    });
  });
  if (!recorded) t.wait_for(b);
  {
    host_faults::arm(1, host_faults::lasting::for_good);
    held.give(a, named);
    held.give(b, p);  // to a stream that is new to the pool
    held.give(c, q);
    host_faults::disarm();
  }
  void* const s = held.get(a, 28_MiB);
  held.give(s);
  held.give(r);
  t.heal();
  (void)held.get(a, 10_MiB);
  held.empty_out("without host memory");
}

/// The host has no memory to record a block that is freed under the handle of a destroyed stream: the pool
/// waits for the device instead.
void no_memory_for_an_unknown_stream(trial& t) {
  stream const a(t.driver());
  held_blocks held(t, watched_pool(t, t.driver()));
  void* const first = held.get(a, 1000);
  void* p = nullptr;
  stream_ref gone;
  {
    stream const c(t.driver());
    gone = c;
    p = held.get(c, 4_MiB);
    held.use(c, p, 4_MiB, long_time);
  }
  host_faults::arm(1, host_faults::lasting::for_good);
  held.give(bare(gone), p);
  host_faults::disarm();
  void* const s = held.get(a, 26_MiB);
  held.give(s);
  held.give(first);
  t.heal();
  (void)held.get(a, 10_MiB);
  held.empty_out("without host memory");
}

/// Two captures with an owner each: what a failed step leaves must go back when the owner and the pool end.
template <class Driver>
void graph_memories_on(trial& t, Driver const& driver) {
  basic_stream<Driver> const a(driver), b(driver);
  held_blocks held(t, watched_pool(t, driver));
  for (int round = 0; round < 2; ++round) {
    void* const eager = held.get(a, 300'000);
    using memory_type = std::remove_reference_t<decltype(held.memory())>;
    std::optional<graph_memory<memory_type>> memory;
    stream_ref by_default;
    t.attempt("identify the default stream", [&] { by_default = identified(driver, stream_ref{}); });
    void* const on_default = held.get(by_default, 2000);
    t.attempt("make a graph_memory", [&] { memory.emplace(held.memory()); });
    void* of_graph = nullptr;
    in_capture(t, memory, a, [&](capture_scope& scope) {
      void* p = nullptr;
      t.attempt("allocate while captured", [&] { p = held.memory().allocate(a, 5_MiB); });
      if (p != nullptr) {
        t.attempt("record a use of a bare stream", [&] { held.memory().record_stream(p, 5_MiB, bare(a)); });
        held.memory().deallocate(a, p, 5_MiB);
      }
      held.give(eager);
      held.give(on_default);
      t.attempt("join a bare stream", [&] { scope.join(bare(b)); });
      t.attempt("allocate little while captured", [&] { of_graph = held.memory().allocate(a, 1000); });
    });
    if (of_graph != nullptr && round == 0) {
      t.attempt("record a use", [&] { held.memory().record_stream(of_graph, 1000, b); });
      held.memory().deallocate(b, of_graph, 1000);
      of_graph = nullptr;
    }
    memory.reset();
    if (of_graph != nullptr) held.memory().deallocate(a, of_graph, 1000);
    held.give(eager);
    held.give(on_default);
  }
  t.check_equal(t.machine().captured_calls(), 0, "driver calls recorded into a graph by accident");
  t.heal();
  (void)held.get(a, 20_MiB);
  held.empty_out("after captures with graph memories");
}
void graph_memories(trial& t) {
  graph_memories_on(t, t.driver());
}
void graph_memories_marking_all(trial& t) {
  graph_memories_on(t, t.driver_that_marks_all());
}

/// A block that the graph of one owner uses is freed in the capture of another one: it waits for the end of
/// both.
void graphs_of_two_owners(trial& t) {
  stream const a(t.driver()), b(t.driver());
  held_blocks held(t, watched_pool(t));
  auto& memory = held.memory();
  std::optional<graph_memory<std::remove_reference_t<decltype(memory)>>> first, second;
  t.attempt("make a graph_memory", [&] { first.emplace(memory); });
  t.attempt("make another one", [&] { second.emplace(memory); });
  void* p = nullptr;
  t.attempt("allocate", [&] { p = memory.allocate(a, 300'000); });
  in_capture(t, first, a, [&](capture_scope&) {
    t.attempt("record a use of the first", [&] {
      if (p != nullptr) memory.record_stream(p, 300'000, a);
    });
  });
  in_capture(t, second, b, [&](capture_scope&) {
    if (p != nullptr) memory.deallocate(b, detail::exchange(p, nullptr), 300'000);
  });
  if (p != nullptr) memory.deallocate(a, p, 300'000);
  first.reset();
  second.reset();
  t.heal();
  (void)held.get(a, 20_MiB);
  held.empty_out("after graphs of two owners");
}

constexpr scene all[] = {
    {"growth_and_remap", small_machine, growth_and_remap},
    {"growth_while_roomy", roomy_machine, growth_while_roomy, false, true},
    {"no_remap", small_machine, no_remap},
    {"across_streams", small_machine, across_streams},
    {"across_streams_marking_all", small_machine, across_streams_marking_all},
    {"destroyed_streams", small_machine, destroyed_streams},
    {"destroyed_streams_marking_all", small_machine, destroyed_streams_marking_all},
    {"recorded_streams", small_machine, recorded_streams},
    {"recorded_uses_marking_all", small_machine, recorded_uses_marking_all},
    {"capture", small_machine, capture},
    {"graph_memories", small_machine, graph_memories},
    {"graph_memories_marking_all", small_machine, graph_memories_marking_all},
    {"graphs_of_two_owners", small_machine, graphs_of_two_owners},
    {"over_cuda_malloc", small_machine, over_blocks<basic_malloc>},
    {"over_pinned", small_machine, over_blocks<basic_pinned>},
    {"over_managed", small_machine, over_blocks<basic_managed>},
    {"with_a_tool_over_pages", machine_with_tool, with_a_tool<basic_pages>},
    {"with_a_tool_over_async", machine_with_tool, with_a_tool<basic_async>},
    {"with_a_tool_over_cuda_malloc", machine_with_tool, with_a_tool<basic_malloc>},
    {"without_pages", machine_without_pages, without_pages},
    {"graph_memories_without_pages", machine_without_pages, graph_memories},
    {"a_thread_ends", small_machine, a_thread_ends},
    {"devices", two_devices, devices},
    {"two_pools", small_machine, two_pools},
    {"leaving_headroom", small_machine, leaving_headroom},
    {"limits_and_cache", small_machine, limits_and_cache},
    {"no_host_memory_for_a_free", small_machine, no_host_memory_for_a_free, true},
    {"no_memory_for_an_unknown_stream", small_machine, no_memory_for_an_unknown_stream, true},
};

}  // namespace of_pool

std::span<scene const> pool_scenes() {
  return of_pool::all;
}

}  // namespace tarn_test
