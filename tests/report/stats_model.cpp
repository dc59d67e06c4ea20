// SPDX-License-Identifier: Apache-2.0
// Compares memory_stats and take_snapshot with a model. Random programs bring blocks into every state of a
// pool; each key and field is compared after each step.

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "report/unpickle.hpp"
#include "report/whole.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/memory_stats.hpp"
#include "tarn/report/pickle.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

/// One statistic as PyTorch defines it.
struct expected_stat {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(std::int64_t n) {
    current += n;
    peak = std::max(peak, current);
    (n > 0 ? allocated : freed) += n > 0 ? n : -n;
  }
};
/// All, small, large.
struct expected_group {
  std::array<expected_stat, 3> of;
  void add(bool small, std::int64_t n) {
    of[0].add(n);
    of[small ? 1 : 2].add(n);
  }
};

struct expected_block {
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  std::size_t rounded = 0;
  stream_id stream = 0;      ///< of the allocation; for a waiting block, of the free
  std::size_t location = 0;  ///< index of the program's stream, or synchronous
  bool used = false;         ///< unfinished work of another stream is recorded
  [[nodiscard]] bool small() const { return bytes <= 1_MiB; }
};

/// The documented rounding: 256-byte steps up to 2 KiB, eighths of a power of two up to 32 KiB, sixteenths up
/// to 1 MiB, and 512-byte steps beyond, or if the alignment is above 256.
std::size_t rounded(std::size_t bytes, std::size_t alignment) {
  std::size_t step = 512;
  if (alignment <= 256 && bytes <= 1_MiB) {
    step = 256;
    if (bytes > 2048) {
      std::size_t power = 2048;
      while (power * 2 < bytes) power *= 2;
      step = power / (bytes <= 32768 ? 8 : 16);
    }
  }
  return (bytes + step - 1) / step * step;
}

/// Free ranges that fill a handle or segment only in part, found by comparing each pair.
struct counted_splits {
  std::array<std::int64_t, 3> blocks{}, bytes{};

  template <class Heap, class Front, class Waiting, class Graphs>
  void operator()(detail::growth_lock const& growing, Heap& heap, Front&, Waiting&, Graphs&) {
    detail::hot_lock const held = heap.lock_hot();
    detail::arena& space = heap.space(held);
    for (detail::range_ref r = 1; r < space.ranges.size(); ++r) {
      detail::range const& node = space.ranges[r];
      if (node.state != detail::range_state::free) continue;
      std::int64_t split = 0;
      auto const count = [&](detail::held_memory const& h) {
        // The unaligned ends of a segment, which no range can cover, count as part of it.
        std::uintptr_t const from = h.is_handle ? h.address : align_up(h.address, std::size_t{512});
        std::uintptr_t const to =
            h.is_handle ? h.address + h.bytes : (h.address + h.bytes) / 512 * std::uintptr_t{512};
        std::uintptr_t const first = std::max(from, node.address);
        std::uintptr_t const last = std::min(to, node.end());
        if (first < last && (first != from || last != to)) split += static_cast<std::int64_t>(last - first);
      };
      heap.growth(growing).visit([&](auto const& memory) { memory.for_each_held(count); });
      if (split == 0) continue;
      std::size_t const group = node.where == detail::zone::smaller ? 1 : 2;
      for (std::size_t const g : {std::size_t{0}, group}) {
        ++blocks[g];
        bytes[g] += split;
      }
    }
  }
};

template <class Memory>
class program {
 public:
  program(sim_machine const& machine, Memory memory, unsigned seed)
      : machine_(machine), memory_(std::move(memory)), random_(seed) {
    for (int i = 0; i < 3; ++i) streams_.emplace_back(machine_.driver(0));
  }

  /// Returns the first difference; empty if there is none.
  std::string run(int steps) {
    for (int i = 0; i < steps && wrong_.empty(); ++i) {
      step();
      check();
      if (!wrong_.empty()) wrong_ += " at step " + std::to_string(i);
    }
    for (std::uintptr_t const p : addresses()) free(p, live_[p].location);
    for (basic_stream<sim_driver> const& s : streams_) s.synchronize();
    memory_.trim(0);
    must_wait_.reset();
    if (wrong_.empty()) check();
    if (wrong_.empty() && !waiting_.empty()) wrong_ = "blocks are deferred after trim(0)";
    return wrong_;
  }
  /// Number of steps with blocks in each state, so that a test can check that each state was reached.
  std::size_t seen_waiting = 0, seen_views = 0, seen_ooms = 0, seen_unknown = 0;

 private:
  static constexpr std::size_t synchronous = 99;

  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  std::vector<std::uintptr_t> addresses() const {
    std::vector<std::uintptr_t> all;
    for (auto const& [p, b] : live_) all.push_back(p);
    return all;
  }
  std::uintptr_t any_live() {
    auto at = live_.begin();
    std::advance(at, below(live_.size()));
    return at->first;
  }
  std::size_t any_size() {
    switch (below(8)) {
      case 0:
        return 1 + below(2048);
      case 1:
        return 1 + below(32_KiB);
      case 2:
      case 3:
        return 1 + below(1_MiB);
      case 4:
        return 1_MiB + below(2);
      case 5:
        return 2_MiB * (1 + below(3));
      case 6:
        return 1 + below(24_MiB);
      default:
        return 1 + below(6_MiB);
    }
  }

  void step() {
    std::size_t const what = below(100);
    if (what < 40) return allocate(any_size(), below(10) == 0 ? 4096 : 256, below(4));
    if (what < 75) {
      if (live_.empty()) return;
      std::uintptr_t const p = any_live();
      return free(p, below(4) == 0 ? below(4) : live_[p].location);
    }
    if (what < 84) return record();
    if (what < 87) return finish(below(3));
    if (what < 90) return end_stream();
    if (what < 92) return (void)memory_.trim(below(2) == 0 ? 0 : below(64_MiB));
    if (what < 94) return allocate(below(2) == 0 ? 100_GiB : ~std::size_t{0} / 2, 256, below(4));
    if (what < 96) return allocate(0, 256, below(4));
    if (what < 98) return reset_peaks();
    reset_totals();
  }

  void allocate(std::size_t bytes, std::size_t alignment, std::size_t on) {
    void* p = nullptr;
    stream_id id = 0;
    try {
      if (on == 3) {
        p = memory_.allocate_sync(bytes, alignment);
      } else {
        id = streams_[on].ref().id();
        p = memory_.allocate(streams_[on], bytes, alignment);
      }
    } catch (out_of_memory const&) {
      ++ooms_;
      ++seen_ooms;
      return;
    }
    if (bytes == 0) {
      if (p != nullptr) wrong_ = "an allocation of zero bytes returned a block";
      return;
    }
    pending_ = std::pair(
        reinterpret_cast<std::uintptr_t>(p),
        expected_block{bytes, alignment, rounded(bytes, alignment), id, on == 3 ? synchronous : on, false});
  }
  void free(std::uintptr_t p, std::size_t on) {
    expected_block b = live_.at(p);
    live_.erase(p);
    b.stream = on < 3 ? streams_[on].ref().id() : 0;
    bool const must_wait = b.used && !(on < 3 && used_on_[p] == b.stream);
    if (on < 3) {
      memory_.deallocate(streams_[on], reinterpret_cast<void*>(p), b.bytes, b.alignment);
    } else {
      memory_.deallocate_sync(reinterpret_cast<void*>(p), b.bytes, b.alignment);
    }
    count_free(p, b, must_wait);
  }
  void count_free(std::uintptr_t p, expected_block const& b, bool must_wait) {
    allocations_.add(b.small(), -1);
    allocated_bytes_.add(b.small(), -static_cast<std::int64_t>(b.rounded));
    waiting_.emplace(p, b);  // check() removes it if the pool does not hold it back
    if (must_wait) must_wait_ = p;
  }

  /// Enqueues long-running work of another stream on a block and records the use.
  void record() {
    if (live_.empty()) return;
    std::uintptr_t const p = any_live();
    expected_block& b = live_[p];
    if (b.used) return;
    basic_stream<sim_driver> const& user = streams_[below(3)];
    if (!machine_.driver(0).launch(user, 1'000'000'000'000).ok()) return;
    memory_.record_stream(reinterpret_cast<void*>(p), b.bytes, user);
    b.used = true;
    used_on_[p] = user.ref().id();
  }
  void finish(std::size_t which) {
    streams_[which].synchronize();
    for (auto& [p, b] : live_) b.used = b.used && used_on_[p] != streams_[which].ref().id();
  }
  /// Destroys a stream, then frees one of its blocks on it by the bare handle.
  void end_stream() {
    std::size_t const which = below(3);
    finish(which);
    stream_ref const gone = stream_ref::from(streams_[which].ref().handle());
    streams_[which] = basic_stream<sim_driver>(machine_.driver(0));
    stream_id id = 0;
    if (live_.empty() || machine_.driver(0).identify(gone, id).ok()) return;
    std::uintptr_t const p = any_live();
    expected_block b = live_[p];
    live_.erase(p);
    b.stream = 0;
    memory_.deallocate(gone, reinterpret_cast<void*>(p), b.bytes, b.alignment);
    count_free(p, b, false);
    ++seen_unknown;
  }

  template <class F>
  void each_stat(F const& f) {
    for (auto* group : {&allocations_, &allocated_bytes_, &active_, &active_bytes_, &requested_bytes_}) {
      for (auto& s : group->of) f(s);
    }
  }
  void reset_peaks() {
    reset_peak_memory_stats(memory_);
    each_stat([](expected_stat& s) { s.peak = s.current; });
    peak_before_reset_ = machine_.usage(0).peak_used;
    for (auto& [key, s] : bounded_) s.peak = s.current;
  }
  void reset_totals() {
    reset_accumulated_memory_stats(memory_);
    each_stat([](expected_stat& s) { s.allocated = s.freed = 0; });
    ooms_ = 0;
    for (auto& [key, s] : bounded_)
      s.allocated = s.current, s.freed = 0;  // allocated: the value of `current`
    calls_before_reset_ = machine_.calls();
  }

  void need(bool holds, std::string const& what, std::int64_t is, std::int64_t expected) {
    if (!holds && wrong_.empty())
      wrong_ = what + " is " + std::to_string(is) + ", expected " + std::to_string(expected);
  }
  void need_equal(std::string const& what, std::int64_t is, std::int64_t expected) {
    need(is == expected, what, is, expected);
  }

  void count_active(expected_block const& b, std::int64_t sign) {
    active_.add(b.small(), sign);
    active_bytes_.add(b.small(), sign * static_cast<std::int64_t>(b.rounded));
    requested_bytes_.add(b.small(), sign * static_cast<std::int64_t>(b.bytes));
  }

  void check() {
    snapshot const s = take_snapshot(memory_);
    // Only the pool knows which blocks wait. That they wait, and its consequences, are compared.
    std::map<std::uintptr_t, snapshot_block> deferred, live;
    std::size_t cached = 0;
    for (snapshot_segment const& segment : s.segments) {
      seen_views += segment.kind == segment_kind::view;
      for (snapshot_block const& b : segment.blocks) {
        if (b.use == block_use::deferred) deferred.emplace(b.address, b);
        if (b.use == block_use::live) live.emplace(b.address, b);
        if (b.use == block_use::cached) cached += b.bytes;
        need(b.use != block_use::cached || b.requested == 0, "requested of a cached block",
             static_cast<std::int64_t>(b.requested), 0);
      }
    }
    if (must_wait_) need(deferred.count(*must_wait_) != 0, "a block with a recorded use waits", 0, 1);
    must_wait_.reset();
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      if (deferred.count(at->first) != 0) {
        ++at;
        continue;
      }
      count_active(at->second, -1);
      at = waiting_.erase(at);
    }
    if (pending_) {
      auto const& [p, b] = *pending_;
      live_.emplace(p, b);
      allocations_.add(b.small(), 1);
      allocated_bytes_.add(b.small(), static_cast<std::int64_t>(b.rounded));
      count_active(b, 1);
      pending_.reset();
    }
    seen_waiting += waiting_.size();

    tarn_test::check_whole(s);
    compare_blocks("live", live, live_);
    compare_blocks("deferred", deferred, waiting_);
    need_equal("bytes of cached blocks", number(cached), number(s.pool.cached));
    need_equal("pool.live", number(s.pool.live), active_bytes_.of[0].current);
    need_equal("pool.live_blocks", number(s.pool.live_blocks), active_.of[0].current);
    need_equal("pool.deferred", number(s.pool.deferred),
               active_bytes_.of[0].current - allocated_bytes_.of[0].current);
    need_equal("pool.deferred_blocks", number(s.pool.deferred_blocks), number(waiting_.size()));
    need_equal("pool.cached", number(s.pool.cached), number(s.pool.reserved - s.pool.live));
    for (snapshot_segment const& segment : s.segments) {
      std::map<stream_id, std::size_t> bytes;
      for (snapshot_block const& b : segment.blocks) bytes[b.stream] += b.bytes;
      std::size_t most = 0;
      for (auto const& [id, sum] : bytes) most = std::max(most, sum);
      need_equal("bytes of a segment's stream", number(bytes[segment.stream]), number(most));
    }
    check_stats(s);
    if (below(8) == 0) check_pickle(s);
  }

  static std::int64_t number(std::uint64_t n) { return static_cast<std::int64_t>(n); }

  void compare_blocks(std::string const& what, std::map<std::uintptr_t, snapshot_block> const& is,
                      std::map<std::uintptr_t, expected_block> const& expected) {
    need_equal(what + " blocks", number(is.size()), number(expected.size()));
    for (auto const& [p, e] : expected) {
      auto const found = is.find(p);
      if (found == is.end()) return need(false, "a block that is " + what, 0, 1);
      need_equal("bytes of a block that is " + what, number(found->second.bytes), number(e.rounded));
      need_equal("requested of a block that is " + what, number(found->second.requested), number(e.bytes));
      if (e.location != synchronous || what == "deferred")
        need_equal("stream of a block that is " + what, number(found->second.stream), number(e.stream));
    }
  }

  void check_stats(snapshot const& s) {
    std::map<std::string, std::int64_t> stats;
    for (auto const& [key, n] : memory_stats(memory_)) stats.emplace(key, n);
    std::size_t compared = 0;
    auto const take = [&](std::string const& key) {
      ++compared;
      auto const found = stats.find(key);
      if (found == stats.end()) wrong_ = "no key " + key;
      return found == stats.end() ? 0 : found->second;
    };
    static char const* const groups[] = {".all", ".small_pool", ".large_pool"};
    auto const exact = [&](std::string const& name, expected_group const& e) {
      for (std::size_t g = 0; g < 3; ++g) {
        std::string const key = name + groups[g];
        need_equal(key + ".current", take(key + ".current"), e.of[g].current);
        need_equal(key + ".peak", take(key + ".peak"), e.of[g].peak);
        need_equal(key + ".allocated", take(key + ".allocated"), e.of[g].allocated);
        need_equal(key + ".freed", take(key + ".freed"), e.of[g].freed);
      }
    };
    exact("allocation", allocations_);
    exact("allocated_bytes", allocated_bytes_);
    exact("active", active_);
    exact("active_bytes", active_bytes_);
    exact("requested_bytes", requested_bytes_);
    // Values that may rise and fall within one call: the current value is exact, the peak is at least what
    // was seen, and the totals balance.
    auto const bounded = [&](std::string const& key, std::int64_t current) {
      need_equal(key + ".current", take(key + ".current"), current);
      expected_stat& seen = bounded_[key];
      seen.current = current;
      seen.peak = std::max(seen.peak, current);
      std::int64_t const peak = take(key + ".peak");
      need(peak >= seen.peak, key + ".peak", peak, seen.peak);
      seen.peak = peak;  // the peak never falls without a reset
      std::int64_t const allocated = take(key + ".allocated");
      std::int64_t const freed = take(key + ".freed");
      need_equal(key + ".allocated - .freed", allocated - freed, current - seen.allocated);
      need(allocated >= 0 && freed >= seen.freed, key + ".freed", freed, seen.freed);
      seen.freed = freed;
    };
    counted_splits splits;
    nearest(memory_, [&](auto& l) -> decltype(l.inspect(splits)) { return l.inspect(splits); });
    sim_usage const usage = machine_.usage(0);
    std::array<std::int64_t, 3> reserved{number(usage.used), 0, number(usage.used)};
    std::array<std::int64_t, 3> segments{number(usage.handles + usage.blocks), 0,
                                         number(usage.handles + usage.blocks)};
    reserved[1] = stats["reserved_bytes.small_pool.current"];
    reserved[2] -= reserved[1];
    segments[1] = stats["segment.small_pool.current"];
    segments[2] -= segments[1];
    std::int64_t small = 0;
    for (snapshot_segment const& segment : s.segments)
      small += segment.is_small && segment.kind != segment_kind::view ? number(segment.bytes) : 0;
    for (snapshot_segment const& segment : s.segments) need(segment.handles > 0, "handles", 0, 1);
    if (seen_views == 0) need_equal("reserved_bytes.small_pool.current", reserved[1], small);
    for (std::size_t g = 0; g < 3; ++g) {
      bounded(std::string("reserved_bytes") + groups[g], reserved[g]);
      bounded(std::string("segment") + groups[g], segments[g]);
      bounded(std::string("inactive_split") + groups[g], splits.blocks[g]);
      bounded(std::string("inactive_split_bytes") + groups[g], splits.bytes[g]);
    }
    std::int64_t const peak = stats["reserved_bytes.all.peak"];
    if (number(usage.peak_used) > peak_before_reset_ || peak_before_reset_ == 0) {
      need_equal("reserved_bytes.all.peak", peak, number(usage.peak_used));
    } else {
      need(peak <= number(usage.peak_used), "reserved_bytes.all.peak", peak, number(usage.peak_used));
    }
    sim_calls const calls = machine_.calls();
    auto const made = [&](driver_call a, driver_call b) {
      return number(calls[a] + calls[b] - calls_before_reset_[a] - calls_before_reset_[b]);
    };
    std::int64_t const creates = made(driver_call::create_pages, driver_call::malloc_device);
    std::int64_t const destroys = made(driver_call::destroy_pages, driver_call::free_device);
    need_equal("num_device_alloc", take("num_device_alloc"), creates);
    need_equal("num_device_free", take("num_device_free"), destroys);
    need_equal("segment.all.allocated", stats["segment.all.allocated"], creates);
    need_equal("segment.all.freed", stats["segment.all.freed"], destroys);
    need_equal("num_ooms", take("num_ooms"), ooms_);
    need_equal("max_split_size", take("max_split_size"), -1);
    need(take("num_alloc_retries") >= 0, "num_alloc_retries", -1, 0);
    need(take("num_sync_all_streams") >= 0, "num_sync_all_streams", -1, 0);
    for (char const* name : {"oversize_allocations", "oversize_segments"}) {
      for (char const* part : {".current", ".peak", ".allocated", ".freed"})
        need_equal(std::string(name) + part, take(std::string(name) + part), 0);
    }
    need_equal("keys", number(stats.size()), number(compared));
    need_equal("memory_allocated", number(memory_allocated(memory_)), allocated_bytes_.of[0].current);
    need_equal("max_memory_allocated", number(max_memory_allocated(memory_)), allocated_bytes_.of[0].peak);
    need_equal("memory_reserved", number(memory_reserved(memory_)), number(usage.used));
    need_equal("pool.reserved", number(s.pool.reserved), number(usage.used));
  }

  void check_pickle(snapshot const& s) {
    std::ostringstream out;
    write_pickle(out, s);
    auto const read = tarn_test::unpickler(out.str()).read();
    tarn_test::pickled const& segments = read->at("segments");
    for (std::size_t i = 0; i < segments.items.size(); ++i) {
      tarn_test::pickled const& segment = segments.at(i);
      std::uint64_t total = 0, allocated = 0, active = 0, requested = 0;
      for (auto const& item : segment.at("blocks").items) {
        std::uintptr_t const p = item->at("address").number;
        bool const is_live = live_.count(p) != 0;
        bool const waits = waiting_.count(p) != 0;
        std::size_t const bytes = item->at("size").number;
        total += bytes;
        allocated += is_live ? live_[p].rounded : 0;
        active += is_live ? live_[p].rounded : waits ? waiting_[p].rounded : 0;
        requested += is_live ? live_[p].bytes : waits ? waiting_[p].bytes : 0;
        std::string const state = is_live ? "active_allocated" : waits ? "active_pending_free" : "inactive";
        need(item->at("state").text == state, "state of a pickled block", 0, 1);
        need_equal("requested_size of a pickled block", number(item->at("requested_size").number),
                   number(is_live ? live_[p].bytes
                          : waits ? waiting_[p].bytes
                                  : 0));
      }
      need_equal("total_size", number(segment.at("total_size").number), number(total));
      need_equal("allocated_size", number(segment.at("allocated_size").number), number(allocated));
      need_equal("active_size", number(segment.at("active_size").number), number(active));
      need_equal("requested_size", number(segment.at("requested_size").number), number(requested));
    }
  }

  sim_machine machine_;
  Memory memory_;
  std::mt19937_64 random_;
  std::vector<basic_stream<sim_driver>> streams_;
  std::map<std::uintptr_t, expected_block> live_, waiting_;
  std::map<std::uintptr_t, stream_id> used_on_;
  std::optional<std::pair<std::uintptr_t, expected_block>> pending_;  ///< allocated in this step
  std::optional<std::uintptr_t> must_wait_;
  expected_group allocations_, allocated_bytes_, active_, active_bytes_, requested_bytes_;
  std::map<std::string, expected_stat> bounded_;  ///< `allocated` holds `current` at the last reset of totals
  std::int64_t ooms_ = 0;
  std::int64_t peak_before_reset_ = 0;
  sim_calls calls_before_reset_;
  std::string wrong_;
};

/// Runs programs over memory made by `make(driver)`, each on its own machine.
template <class Make>
void run_programs(Make const& make, bool with_views) {
  std::size_t waiting = 0, views = 0, ooms = 0, unknown = 0;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
    program p(machine, make(machine.driver(0), seed), seed);
    std::string const wrong = p.run(250);
    INFO("seed " << seed << ": " << wrong);
    CHECK(wrong.empty());
    if (!wrong.empty()) return;
    waiting += p.seen_waiting;
    views += p.seen_views;
    ooms += p.seen_ooms;
    unknown += p.seen_unknown;
  }
  CHECK(waiting > 100);
  CHECK(ooms > 10);
  CHECK(unknown > 10);
  if (with_views) CHECK(views > 10);
}

}  // namespace

TEST_CASE("memory_stats and take_snapshot agree with a model over pages",
          "[report][stats][snapshot][pages]") {
  run_programs(
      [](sim_driver const& driver, unsigned seed) {
        return sim_pages{driver} | limited{72_MiB} | pooled{} | tracked{} |
               with_history{.history = seed % 2 == 0 ? 1000u : 0u};
      },
      true);
}

TEST_CASE("memory_stats and take_snapshot agree with a model over blocks", "[report][stats][snapshot]") {
  run_programs(
      [](sim_driver const& driver, unsigned seed) {
        return sim_malloc{driver} | limited{96_MiB} | pooled{} | tracked{} |
               with_history{.history = seed % 2 == 0 ? 1000u : 0u};
      },
      false);
}
