// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>

#include "catch.hpp"
#include "peers/simulated_device.hpp"
#include "peers/tarn_pool.hpp"
#include "replay/run.hpp"
#include "replay/trace_reader.hpp"

using namespace tarn::bench;

namespace {

trace parse(std::initializer_list<std::string_view> lines) {
  trace_parser parser("t.trace");
  for (std::string_view const line : lines) parser.take(line);
  return std::move(parser).finish();
}

/// Records its requests and counts invalid ones.
struct watched_pool {
  static constexpr std::string_view name = "watched";
  static constexpr std::string_view about = "for tests";
  static constexpr place_of_memory where = place_of_memory::host;

  inline static std::size_t made = 0, destroyed_with_blocks = 0, wrong = 0;

  explicit watched_pool(setup const& s) : capacity_(s.capacity), streams_(s.streams) { ++made; }
  watched_pool(watched_pool const&) = delete;
  ~watched_pool() {
    if (!blocks_.empty()) ++destroyed_with_blocks;
  }
  void* allocate(std::size_t stream, std::size_t bytes) {
    if (stream >= streams_) ++wrong;
    ++calls_;
    if (bytes == 13) throw std::bad_alloc();
    if (live_ + bytes > capacity_) return nullptr;
    live_ += bytes;
    peak_ = std::max(peak_, live_);
    void* const block = reinterpret_cast<void*>(++next_);
    blocks_[block] = {bytes, stream};
    return block;
  }
  void deallocate(std::size_t stream, void* block, std::size_t bytes) noexcept {
    ++calls_;
    if (block == nullptr) return;
    auto const found = blocks_.find(block);
    if (found == blocks_.end() || found->second != std::pair(bytes, stream)) {
      ++wrong;
      return;
    }
    live_ -= bytes;
    blocks_.erase(found);
  }
  [[nodiscard]] usage used() const { return {2 * peak_, calls_, 10 * calls_}; }

 protected:
  std::size_t capacity_, streams_, live_ = 0, peak_ = 0, next_ = 0;
  std::uint64_t calls_ = 0;
  std::map<void*, std::pair<std::size_t, std::size_t>> blocks_;
};

/// Holds 300 bytes more in the second pass and 100 more in the later ones.
struct creeping_pool : watched_pool {
  using watched_pool::watched_pool;
  void reset_peak() {
    peak_ = live_;
    more_ = more_ == 0 ? 300 : 100;
  }
  [[nodiscard]] usage used() const { return {peak_ + more_, calls_, 0}; }

 private:
  std::size_t more_ = 0;
};

/// Notes the threads that call it. Throws for 17 bytes.
struct noting_pool : watched_pool {
  using watched_pool::watched_pool;
  inline static std::set<std::thread::id> callers;
  void* allocate(std::size_t stream, std::size_t bytes) {
    callers.insert(std::this_thread::get_id());
    if (bytes == 17) throw std::logic_error("17");
    return watched_pool::allocate(stream, bytes);
  }
};

template <class Pool = watched_pool>
figures run_watched(trace const& t, unsigned passes, std::uint64_t capacity = 1000, unsigned threads = 1) {
  watched_pool::made = watched_pool::destroyed_with_blocks = watched_pool::wrong = 0;
  progress silent(progress::output::silent);
  setup s;
  s.capacity = capacity;
  s.threads = threads;
  figures const row = run<Pool>(t, s, passes, silent);
  CHECK(watched_pool::made == 1);
  CHECK(watched_pool::wrong == 0);
  CHECK(watched_pool::destroyed_with_blocks == 0);
  return row;
}

}  // namespace

TEST_CASE("run frees in each pass what it allocated, with the same bytes on the same stream", "[replay]") {
  figures const row = run_watched(parse({"a 1 100 5", "a 2 60 0", "f 1", "a 3 30 5"}), 3);
  CHECK(row.events == 4);
  CHECK(row.peak_live == 160);
  CHECK(row.peak_reserved == 320U);
  CHECK(row.utilisation() == 0.5);
  CHECK(row.out_of_memory == 0);
}

TEST_CASE("run counts driver calls of the first and second pass, without the frees of leftovers",
          "[replay]") {
  figures const row = run_watched(parse({"a 1 100 0", "a 2 60 0", "f 1"}), 2);
  CHECK(row.driver_calls == 3U);
  CHECK(row.driver_calls_warm == 3U);
  CHECK(row.driver_ns_cold == 10);
}

TEST_CASE("run has the peak reserved of each pass of a pool that can reset its peak", "[replay]") {
  static_assert(resets_peak<creeping_pool> && !resets_peak<watched_pool>);
  trace const t = parse({"a 1 100 0", "a 2 60 0", "f 1"});
  figures const row = run_watched<creeping_pool>(t, 4);
  CHECK(row.peak_reserved_of_pass == std::vector<std::uint64_t>{160, 460, 260, 260});
  CHECK(row.peak_reserved_first() == 160U);
  CHECK(row.peak_reserved_last() == 260U);
  CHECK(row.creep() == 260.0 / 160.0);
  CHECK(row.peak_reserved == 460U);
  figures const unknown = run_watched(t, 4);
  CHECK(unknown.peak_reserved == 320U);
  CHECK(unknown.peak_reserved_of_pass.empty());
  CHECK_FALSE(unknown.peak_reserved_first().has_value());
  CHECK_FALSE(unknown.creep().has_value());
}

TEST_CASE("reset_peak of tarn's pool counts from what it holds then", "[replay]") {
  tarn_pool<simulated_device, with_tracking> pool(setup{});
  void* const block = pool.allocate(0, 100'000'000);
  pool.deallocate(0, block, 100'000'000);
  auto memory = pool.memory();
  (void)memory.trim();
  CHECK(pool.used().peak_reserved >= 100'000'000U);
  pool.reset_peak();
  CHECK(pool.used().peak_reserved == 0U);
}

TEST_CASE("run with one pass has no warm figures", "[replay]") {
  figures const row = run_watched(parse({"a 1 100 0", "f 1"}), 1);
  CHECK_FALSE(row.driver_calls_warm.has_value());
  CHECK_FALSE(row.warm_ns_per_event.has_value());
}

TEST_CASE("run counts a refused request, skips its free, and reports no utilisation", "[replay]") {
  figures const row = run_watched(parse({"a 1 100 0", "a 2 60 0", "f 2", "f 1", "a 3 13 0", "f 3"}), 2, 120);
  CHECK(row.out_of_memory == 4);  // 60 bytes by null, 13 by bad_alloc, twice each
  CHECK_FALSE(row.utilisation().has_value());
}

TEST_CASE("run by several threads is the same run, by each of them in turn", "[replay]") {
  trace const t = parse({"a 1 100 5", "a 2 60 0", "f 1", "a 3 30 5"});
  noting_pool::callers.clear();
  figures const row = run_watched<noting_pool>(t, 3, 1000, 3);
  CHECK(noting_pool::callers.size() == 3);
  CHECK(noting_pool::callers.count(std::this_thread::get_id()) == 0);
  CHECK(row.threads == 3);
  CHECK(row.peak_reserved == 320U);
  CHECK(row.driver_calls == 4U);
  noting_pool::callers.clear();
  CHECK(run_watched<noting_pool>(t, 3).threads == 1);
  CHECK(noting_pool::callers == std::set{std::this_thread::get_id()});
}

TEST_CASE("run by several threads throws what a pool throws", "[replay]") {
  CHECK_THROWS_AS(run_watched<noting_pool>(parse({"a 1 17 0"}), 1, 1000, 2), std::logic_error);
}

TEST_CASE("run accepts an empty trace", "[replay]") {
  figures const row = run_watched(parse({}), 2);
  CHECK(row.events == 0);
  CHECK(row.cold_ns_per_event >= 0);
}
