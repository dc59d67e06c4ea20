// SPDX-License-Identifier: Apache-2.0
#pragma once
// The environment of a program: a simulated machine with its own schedule, pools, and streams with what the
// user must know about them to keep order.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mapped_pages.hpp"
#include "model.hpp"
#include "pool_under_test.hpp"
#include "profile.hpp"
#include "program.hpp"
#include "random_numbers.hpp"
#include "tarn/driver/sim/sim_driver.hpp"
#include "witness.hpp"

namespace simulation {

/// Every machine is one without virtual memory management, for all programs of this process: pools over pages
/// use plain blocks.
inline bool without_pages = false;
/// Every machine is one without memory pools, for all programs of this process.
inline bool without_memory_pools = false;

/// How a program is run: the machine, and the schedule of its streams. Drawn from the seed.
struct setting {
  tarn::sim_options machine;
  watch watched = watch::order;
  std::vector<pool_choice> pools;
  unsigned check_state_every = 1;  ///< steps
  bool frees_old_views = false;    /// < of the blocks that fragment() allocates
  std::size_t headroom = 0;        ///< that all pools leave, bytes
  bool across = false;             ///< two devices, whose streams use the memory of both
  unsigned depth = 2;  /// < threads are preempted this many times less one in each run of several threads
};

/// One pool in 16 has blocks of one handle each. This is not drawn, so that the other programs stay as they
/// are. Earlier headers do not have that option.
template <class Options>
void choose_handles(Options& options, std::uint64_t seed) {
  if constexpr (requires { options.handles; }) {
    if ((seed * 0x9E3779B97F4A7C15) >> 60 == 5) options.handles = decltype(options.handles)::one;
  }
}
template <class Options>
[[nodiscard]] bool has_one_handle_per_block(Options const& options) {
  if constexpr (requires { options.handles; }) {
    return options.handles == decltype(options.handles)::one;
  } else {
    return false;
  }
}

/// Earlier headers do not have that option.
template <class Options>
void lose_memory_pools(Options& options) {
  if constexpr (requires { options.memory_pools; }) {
    if (without_memory_pools) options.memory_pools = decltype(options.memory_pools)::missing;
  }
}

[[nodiscard]] inline setting draw_setting(std::uint64_t seed, profile const& kind) {
  random_numbers random(seed ^ 0x73657474696E67);
  setting s;
  s.watched = kind.watched;
  tarn::sim_options& m = s.machine;
  m.devices = static_cast<int>(kind.devices);
  m.capacity = 2_MiB * random.between(kind.least_capacity / 2_MiB, kind.most_capacity / 2_MiB);
  // With spare memory the pool does not search for memory, and blocks in a forgotten magazine stay there.
  if (kind.watched != watch::contents && random.percent(20)) m.capacity = 64_GiB;
  m.taken = 0;
  if (without_pages) m.paging = tarn::sim_paging::missing;
  lose_memory_pools(m);
  m.backing =
      kind.watched == watch::contents ? tarn::sim_backing::host_backed : tarn::sim_backing::address_only;
  m.checks = kind.watched == watch::model ? tarn::sim_checks::off : tarn::sim_checks::stream_order;
  if (random.percent(30)) {  // only work advances the time
    m.costs = tarn::sim_costs::nothing();
  }
  m.seed = random.percent(85) ? random() | 1 : 0;
  m.jitter = std::uint64_t{1} << random.between(4, 28);
  m.slow_streams = static_cast<unsigned>(random.below(3)) * 250;
  m.slowness = 1'000'000'000'000;
  if (random.percent(50)) m.late_events = std::uint64_t{1} << random.between(4, 28);
  s.check_state_every = kind.watched == watch::model ? 61 : 7;
  if (kind.has_headroom) {
    m.capacity = 2_MiB * random.between(kind.least_capacity / 2_MiB, kind.most_capacity / 2_MiB);
    s.headroom = TARN_SIMULATION_HEADROOM * 2_MiB * random.between(1, 8);
  }
  for (unsigned i = 0; i < kind.pools; ++i) {
    pool_choice c;
    c.on = random.percent(40) ? ground::pages : random.percent(50) ? ground::marked_pages : ground::blocks;
    if (random.percent(15)) c.options.remap = tarn::remapping::off;
    if (random.percent(20)) c.options.slack_per_mille = static_cast<unsigned>(random.below(300));
    // Where blocks are large, mostly of many handles: views of many handles are extended.
    if (random.percent(kind.largest >= 16_MiB ? 70 : 20)) c.options.largest_handle = 2_MiB << random.below(4);
    c.limit = random.percent(25) ? m.capacity / 2 : m.capacity * 4;
    if (!kind.fragments) choose_handles(c.options, seed + i);
    if (kind.fragments) {  // nearly always views of many handles, and no spare memory
      c.options.slack_per_mille = 0;
      c.options.largest_handle = 2_MiB;
      c.on = random.percent(80) ? ground::marked_pages : ground::pages;
      c.options.remap = tarn::remapping::when_tight;
      c.limit = m.capacity * 4;
      // Either views stay and are too many, or they become free and their streams' work is over soon.
      s.frees_old_views = frees_old_views(seed);
      if (s.frees_old_views) {
        m.jitter = std::uint64_t{1} << random.between(4, 14);
        m.slow_streams = 0;
        m.late_events = 0;
      }
    }
#if TARN_SIMULATION_ACROSS
    // Memory that both devices may use. Not drawn, so that the other programs stay as they are.
    if (kind.devices == 2 && !without_pages) {
      m.capacity =
          std::min(m.capacity, kind.most_capacity);  // pinned memory is the process's own, and is copied
      std::uint64_t const choice = (seed * 0x9E3779B97F4A7C15) >> (60 - i) & 3;
      s.across = true;
      c.limit = std::min(c.limit, m.capacity * 4);
      if (choice == 0) {
        c.shared_with = i % 2 == 0 ? 1 : 0;
        if (c.on == ground::blocks) c.on = ground::marked_pages;
      } else {
        c.on = choice == 1 ? ground::pinned : ground::marked_pinned;
      }
    }
#endif
    if (kind.has_headroom) {
      c.on = ground::marked_pages;
      c.headroom = s.headroom;
    }
    // Only pools over drivers of one type ask each other for cached memory.
    bool const is_same = i == 0 || (c.on == ground::pages) == (s.pools[0].on == ground::pages);
    if (kind.at_once != 0 && !is_same) c.on = s.pools[0].on;
    s.pools.push_back(c);
  }
  if (kind.at_once != 0) s.depth = random.percent(70) ? 2 : static_cast<unsigned>(random.between(3, 5));
  return s;
}

/// A stream, and how its work can be ordered with other work.
struct stream_state {
  tarn::stream_ref named;  ///< with its identity
  int device = 0;
  bool alive = true;
  bool legacy = false;                    ///< the legacy default stream
  bool blocking = false;                  /// < ordered with it
  unsigned thread = 0;                    /// < the thread whose default stream this is; 0: any thread's
  int graph = -1;                         /// < the graph that is being captured from it
  tarn::event_handle farewell = nullptr;  ///< recorded before it was destroyed
};

/// Handles that pins keep, with their sizes.
using pinned_handles = std::map<tarn::page_handle, std::size_t>;
[[nodiscard]] inline std::size_t bytes_of(pinned_handles const& handles) noexcept {
  std::size_t sum = 0;
  for (auto const& [handle, bytes] : handles) sum += bytes;
  return sum;
}

struct pool_state_of_user {
  std::unique_ptr<pool_under_test> memory;
  unsigned number = 0;  ///< with the model
  int device = 0;
  bool quiet = false;  /// < nothing uses its memory: it sleeps, falls asleep, or is compacted
  bool asleep = false;
  bool changing = false;      ///< a thread is inside sleep(), wake() or compact()
  pinned_handles may_stay{};  ///< at most these have not fallen asleep with the pool
  std::size_t kept = 0;       ///< bytes that captures without a scope have freed
};

/// The number under which the model holds what the pools keep of captures without a scope.
inline constexpr unsigned without_scope = ~0U;

/// While it lives, the calls of this thread are part of a capture for a graph memory.
class in_capture {
 public:
  explicit in_capture(unsigned memory) noexcept { of_ = memory; }
  in_capture(in_capture const&) = delete;
  in_capture& operator=(in_capture const&) = delete;
  ~in_capture() { of_ = 0; }
  [[nodiscard]] static unsigned of() noexcept { return of_; }

 private:
  static inline thread_local constinit unsigned of_ = 0;
};

/// The machine, its model, and the connection between them.
class world final : public witness {
 public:
  explicit world(setting const& chosen, findings& found)
      : chosen_(chosen), found_(found), machine_(chosen.machine), model_(found), pages_(found) {
    // Objects of the process that are created at the first use are created now: their locks are switch
    // points, at which the thread would be preempted while it holds the machine's lock, which is none.
    tarn::sim_machine const first(chosen.machine);
    void* p = nullptr;
    if (first.driver(0).reserve_range(2_MiB, 2_MiB, p).ok()) (void)first.driver(0).release_range(p, 2_MiB);
    if (first.driver(0).malloc_device(2_MiB, p).ok()) (void)first.driver(0).free_device(p);
  }

  [[nodiscard]] tarn::sim_machine const& machine() const noexcept { return machine_; }
  [[nodiscard]] tarn::sim_driver driver(int device) const { return machine_.driver(device); }
  [[nodiscard]] model& reference() noexcept { return model_; }
  [[nodiscard]] mapped_pages& pages() noexcept { return pages_; }
  [[nodiscard]] watched_device watched_driver(int device) { return {driver(device), &pages_}; }
  [[nodiscard]] setting const& chosen() const noexcept { return chosen_; }
  /// In programs with captures without a scope, no change of owners is part of a graph, except for the blocks
  /// that it frees: graphs use blocks that live as long as they do.
  void will_capture() noexcept { captures_ = true; }
  [[nodiscard]] tarn::stream_ref owner_stream(tarn::stream_ref stream) const noexcept {
    return captures_ && in_capture::of() == 0 ? tarn::stream_ref{} : stream;
  }
  /// True if no pool has to wait for the whole device after a stream was destroyed: that would invalidate a
  /// capture.
  [[nodiscard]] bool marks_all_work() const {
    return std::all_of(chosen_.pools.begin(), chosen_.pools.end(),
                       [](pool_choice const& c) { return marks_all(c.on); });
  }
  [[nodiscard]] findings& found() noexcept { return found_; }

  void given(unsigned pool, tarn::stream_ref stream, void* p, std::size_t bytes,
             std::size_t alignment) override {
    outside_library const now;
    model_.given(pool, p, bytes, alignment, in_capture::of());
    if (p == nullptr) return;
    machine_.allocated(p, bytes, owner_stream(stream));
    if (in_capture::of() != 0) hold(p, bytes, alignment);
  }
  void returned(unsigned pool, tarn::stream_ref stream, void* p, std::size_t bytes,
                std::size_t alignment) override {
    outside_library const now;
    model_.returned(pool, p, bytes, alignment);
    if (p == nullptr) return;
    machine_.freed(p, bytes, owner_stream(stream));
    if (in_capture::of() != 0) hold(p, bytes, alignment);
  }
  void extended(unsigned pool, tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                std::size_t alignment) override {
    outside_library const now;
    model_.extended(pool, p, bytes, more, alignment);
    machine_.freed(p, bytes, owner_stream(stream));
    machine_.allocated(p, bytes + more, owner_stream(stream));
  }
  void refused(unsigned pool) override {
    outside_library const now;
    model_.refused(pool);
  }
  void asked(unsigned pool, std::size_t bytes, std::size_t alignment) override {
    model_.count_early(pool, bytes, alignment, 1);
  }
  void unanswered(unsigned pool, std::size_t bytes, std::size_t alignment) override {
    model_.count_early(pool, bytes, alignment, -1);
  }
  void taken_back(unsigned pool, std::size_t bytes, std::size_t alignment) override {
    model_.count_early(pool, bytes, alignment, -1);
  }

  /// A graph memory ends: its graphs are not launched any more.
  void release_held([[maybe_unused]] unsigned memory) {
#if TARN_SIMULATION_GRAPHS
    std::vector<std::pair<void const*, std::size_t>> gone;
    model_.held().release(memory, [&](std::uintptr_t begin, std::size_t bytes) {
      gone.emplace_back(reinterpret_cast<void const*>(begin), bytes);
    });
    // A page of what is still held may have had an address that is not.
    auto const note = [&](bool stays) {
      model_.held().each_held([&](std::uintptr_t begin, std::size_t bytes) {
        machine_.graph_stays(reinterpret_cast<void const*>(begin), bytes, stays);
      });
    };
    note(true);
    for (auto const& [p, bytes] : gone) machine_.graph_released(p, bytes);
    note(false);
#endif
  }
  /// A pool has new physical memory at the same addresses.
  void hold_again() {
#if TARN_SIMULATION_GRAPHS
    model_.held().each_held([&](std::uintptr_t begin, std::size_t bytes) {
      machine_.graph_holds_again(reinterpret_cast<void const*>(begin), bytes);
    });
#endif
  }
  /// The user's own calls that are part of a capture.
  void count_captured(std::size_t calls) noexcept { captured_ += calls; }
  /// While a pool falls asleep, wakes or is compacted, it copies whole granules, with the free bytes between
  /// live blocks, and blocks that are freed meanwhile.
  class copies {
   public:
    explicit copies(world& of) : of_(of) {
      of_.check_order();
      ++of_.copies_;
    }
    copies(copies const&) = delete;
    copies& operator=(copies const&) = delete;
    ~copies() {
      of_.check_order();
      --of_.copies_;
      of_.checked_findings_ = of_.machine_.findings().size();
    }

   private:
    world& of_;
  };

  /// Reports that a user's call failed although it had to succeed.
  bool expect(tarn::status const& s, char const* what) {
    if (s.ok()) return true;
    found_.push_back(text("%s failed: %s (%s)", what, s.name, s.call));
    return false;
  }

  // The expected counters.

  /// Compares a pool's exact numbers with the model's.
  void check_numbers(pool_state_of_user const& pool) {
    model_.compare(pool.number, pool.memory->statistics());
  }

  /// Checks state() against the model and for consistency.
  tarn::pool_state check_state(pool_state_of_user const& pool) {
    tarn::pool_state const s = pool.memory->state();
    auto const need = [&](bool holds, char const* what, std::uint64_t a, std::uint64_t b) {
      if (!holds) found_.push_back(text("pool %u: %s (%" PRIu64 ", %" PRIu64 ")", pool.number, what, a, b));
    };
    std::size_t const live = model_.live(pool.number);
    if (s.deferred == 0) {
      need(s.live == live, "live differs from the allocated bytes", s.live, live);
      auto const blocks = static_cast<std::uint64_t>(model_.numbers(pool.number).allocations[0].current);
      need(s.live_blocks == blocks, "live_blocks differs from the allocated blocks", s.live_blocks, blocks);
    } else {
      need(s.live >= live + s.deferred, "live omits deferred blocks", s.live, live + s.deferred);
    }
    auto const check_active = [&](auto const& t) {
      if constexpr (requires { t.active_bytes; }) {  // earlier trees do not count them
        auto const active = static_cast<std::uint64_t>(t.active_bytes[0].current);
        need(active == static_cast<std::uint64_t>(t.allocated_bytes[0].current) + s.deferred,
             "active differs from the allocated and waiting bytes", active, s.deferred);
        auto const peak = static_cast<std::uint64_t>(t.active_bytes[0].peak);
        need(peak >= active, "the peak of active is below active", peak, active);
      }
    };
    check_active(pool.memory->statistics());
    if (pool.asleep &&
        model_.held().is_empty()) {  // graph memories that were woken before the pool failed to stay awake
      std::size_t const pinned = bytes_of(pool.may_stay);
      need(s.reserved <= pinned, "a sleeping pool holds memory that is not pinned", s.reserved, pinned);
      need(s.cached <= s.reserved, "a sleeping pool caches memory", s.cached, s.reserved);
    } else if (!pool.asleep) {
      need(s.reserved >= s.live, "live exceeds reserved", s.live, s.reserved);
      need(s.cached == s.reserved - s.live, "cached differs from reserved less live", s.cached,
           s.reserved - s.live);
      need(s.inactive_split_bytes <= s.cached, "free exceeds cached", s.inactive_split_bytes, s.cached);
    }
    need(s.largest_free_range <= s.inactive_split_bytes, "the largest free range exceeds all free bytes",
         s.largest_free_range, s.inactive_split_bytes);
    need(s.reserved_peak >= s.reserved, "reserved_peak is below reserved", s.reserved_peak, s.reserved);
    need(s.reserved_total - s.released_total == s.reserved, "the totals do not add up to reserved",
         s.reserved_total - s.released_total, s.reserved);
    need(s.creates - s.destroys == s.handles, "creates less destroys differ from handles",
         s.creates - s.destroys, s.handles);
    need(s.handles_peak >= s.handles, "handles_peak is below handles", s.handles_peak, s.handles);
    need(static_cast<std::size_t>(s.smaller.reserved.current + s.larger.reserved.current) == s.reserved,
         "the parts do not add up to reserved",
         static_cast<std::uint64_t>(s.smaller.reserved.current + s.larger.reserved.current), s.reserved);
    need(static_cast<std::uint64_t>(s.smaller.handles.current + s.larger.handles.current) == s.handles,
         "the parts do not add up to handles",
         static_cast<std::uint64_t>(s.smaller.handles.current + s.larger.handles.current), s.handles);
    need(s.smaller.free_blocks + s.larger.free_blocks == s.free_blocks,
         "the parts do not add up to the free blocks", s.smaller.free_blocks + s.larger.free_blocks,
         s.free_blocks);
    need(pool.memory->limited() >= s.reserved, "the limit counts fewer bytes than reserved",
         pool.memory->limited(), s.reserved);
    return s;
  }
  /// The bytes that the device holds equal the bytes that its pools report as reserved.
  void check_device(std::vector<pool_state_of_user> const& pools, int device) {
    std::size_t reserved = 0, handles = 0;
    for (auto const& p : pools) {
      if (p.device != device || p.memory == nullptr) continue;
      tarn::pool_state const s = p.memory->state();
      reserved += s.reserved;
      handles += s.handles;
    }
    auto const used = machine_.usage(device);
    if (used.used < reserved || used.handles + used.blocks < handles)
      found_.push_back(text("device %d holds %zu bytes in %zu pieces, its pools report %zu in %zu", device,
                            used.used, used.handles + used.blocks, reserved, handles));
  }
  void check_order() {
    auto const now = machine_.findings();
    for (std::size_t i = checked_findings_; i < now.size(); ++i) {
      if (copies_ == 0 || !is_of_copy(now[i])) found_.push_back(now[i]);
    }
    if (machine_.captured_calls() != captured_)
      found_.push_back("a driver call was captured into the user's graph");
  }

 private:
  /// Nothing but captures for the same memory receives the block until that ends.
  void hold(void* p, std::size_t bytes, std::size_t alignment) {
    auto const begin = reinterpret_cast<std::uintptr_t>(p);
    std::size_t const rounded = expected_block(bytes, alignment);
    [[maybe_unused]] bool const is_others =
        model_.held().is_held_by_another(in_capture::of(), begin, rounded);
    model_.held().hold(in_capture::of(), begin, rounded);
#if TARN_SIMULATION_GRAPHS
    machine_.graph_holds(
        p, bytes, is_others ? nullptr : reinterpret_cast<void const*>(std::uintptr_t{in_capture::of()}));
#endif
  }

  static bool is_of_copy(std::string const& finding) {
    return finding.starts_with("read of freed bytes") || finding.starts_with("write to freed bytes");
  }

  setting const& chosen_;
  findings& found_;
  std::size_t checked_findings_ = 0;
  unsigned copies_ = 0;
  bool captures_ = false;
  std::size_t captured_ = 0;  ///< calls of the user
  tarn::sim_machine machine_;
  model model_;
  mapped_pages pages_;
};

}  // namespace simulation
