// SPDX-License-Identifier: Apache-2.0
// A value looked up under the hot lock is void once the lock was released: interleavings forced inside driver
// calls, and the check that finds a use of such a value.

#include "tarn/pool/arena/looked_up.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/core/promised_room.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

std::function<void()> in_is_capturing;
std::function<void()> in_unmap;

void run_once(std::function<void()>& hook) {
  if (auto const chosen = std::exchange(hook, nullptr)) chosen();
}

/// The simulated driver; runs a hook inside chosen calls, once.
struct hooked_driver : sim_driver {
  explicit hooked_driver(sim_driver const& d) : sim_driver(d) {}
  status is_capturing(stream_ref s, bool& answer) const noexcept {
    run_once(in_is_capturing);
    return sim_driver::is_capturing(s, answer);
  }
  status unmap_pages(void* p, std::size_t bytes) const noexcept {
    run_once(in_unmap);
    return sim_driver::unmap_pages(p, bytes);
  }
};

/// A pool with 512 views in use, the maximum that is kept, over a checkerboard of 2 MiB handles. A second
/// thread runs a given function once inside a driver call of the first; its thread cache exists already, so
/// it needs no growth lock.
struct full_pool {
  sim_machine machine{sim_options{.capacity = 16_GiB, .taken = 0}};
  sim_driver device = machine.driver(device_id{0});
  stack<basic_pages<hooked_driver>, pooled> memory = basic_pages<hooked_driver>{hooked_driver(device)} |
                                                     pooled{.slack_per_mille = 0, .largest_handle = 2_MiB};
  basic_stream<sim_driver> stream{device};
  std::vector<unsigned char*> viewed;
  std::binary_semaphore ready{0}, go{0}, done{0};
  std::thread other;

  full_pool() {
    std::vector<void*> small;
    for (int i = 0; i < 2120; ++i) small.push_back(memory.allocate(stream, 2_MiB));
    for (std::size_t i = 0; i < small.size(); i += 2) memory.deallocate(stream, small[i], 2_MiB);
    for (int i = 0; i < 512; ++i)
      viewed.push_back(static_cast<unsigned char*>(memory.allocate(stream, 4_MiB)));
  }
  full_pool(full_pool const&) = delete;
  full_pool& operator=(full_pool const&) = delete;
  ~full_pool() {
    if (other.joinable()) other.join();
    in_is_capturing = nullptr;
    in_unmap = nullptr;
  }

  /// A hook that lets the second thread run `work` and waits for it.
  std::function<void()> elsewhere(std::function<void()> work) {
    other = std::thread([this, work = std::move(work)] {
      memory.deallocate(stream, memory.allocate(stream, 1_KiB), 1_KiB);
      ready.release();
      go.acquire();
      work();
      done.release();
    });
    ready.acquire();
    return [this] {
      go.release();
      done.acquire();
    };
  }
};

}  // namespace

TEST_CASE("pooled does not use free pieces that another thread took while views were dropped",
          "[pool][looked_up][threads][pages]") {
  full_pool pool;
  REQUIRE(pool.memory->state().remaps >= 1024);
  std::vector<unsigned char*> theirs;
  in_is_capturing = pool.elsewhere([&] {
    for (int i = 0; i < 30; ++i)
      theirs.push_back(static_cast<unsigned char*>(pool.memory.allocate(pool.stream, 2_MiB)));
  });
  auto* const mine = static_cast<unsigned char*>(pool.memory.allocate(pool.stream, 4_MiB));
  REQUIRE(theirs.size() == 30);
  for (unsigned char* const p : theirs) std::memset(p, 0xAA, 2_MiB);
  std::memset(mine, 0xBB, 4_MiB);
  for (unsigned char* const p : theirs) CHECK(p[0] == 0xAA);
}

TEST_CASE("pooled keeps a view mapped under its work when its block is freed while another view is dropped",
          "[pool][looked_up][threads][pages]") {
  full_pool pool;
  bool ran = false;
  pool.memory.deallocate(pool.stream, pool.viewed[0], 4_MiB);  // the least recently used view is idle
  REQUIRE(pool.device.synchronize_device().ok());
  in_unmap = pool.elsewhere([&] {
    ran = pool.machine.launch(pool.stream, 1'000'000'000, {sim_writes(pool.viewed[1], 4_MiB)}).ok();
    pool.memory.deallocate(pool.stream, pool.viewed[1], 4_MiB);
  });
  (void)pool.memory.allocate(pool.stream, 6_MiB);  // no view is large enough: the idle one is unmapped
  REQUIRE(ran);
  CHECK(pool.machine.is_accessible(pool.viewed[1], 4_MiB));
  CHECK(pool.device.synchronize_device().ok());
}

#if TARN_CHECK_LOCKS
namespace {

/// Runs `work` in a child process; returns its standard error and whether it was aborted.
std::pair<std::string, bool> in_child(void (*work)()) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  pid_t const child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)dup2(ends[1], STDERR_FILENO);
    (void)signal(SIGABRT, SIG_DFL);  // not Catch2's handler
    work();
    _exit(0);
  }
  (void)close(ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  (void)close(ends[0]);
  int state = 0;
  (void)waitpid(child, &state, 0);
  return {text, WIFSIGNALED(state) && WTERMSIG(state) == SIGABRT};
}

}  // namespace

TEST_CASE("looked_up::get aborts after the lock was released and names all three places",
          "[pool][looked_up]") {
  auto const [text, aborted] = in_child([] {
    detail::hot_mutex mutex;
    detail::hot_lock held(mutex);
    detail::looked_up<int> const value(held, 7, source_location{"lookup.cpp", 11, ""});
    if (value.get(held) != 7) _exit(1);
    { detail::unlocked const released(detail::may_release(held), source_location{"release.cpp", 22, ""}); }
    (void)value.get(held, source_location{"use.cpp", 33, ""});
  });
  CHECK(aborted);
  CHECK(text.find("lookup.cpp:11") != std::string::npos);
  CHECK(text.find("release.cpp:22") != std::string::npos);
  CHECK(text.find("use.cpp:33") != std::string::npos);
}

TEST_CASE(
    "a table stops the program that uses it without room, or in room that an earlier hold of the lock had "
    "made",
    "[pool][looked_up]") {
  auto const stops = [](void (*use)()) {
    auto const [text, aborted] = in_child(use);
    return aborted && text.find("call make_room() while the same lock is held") != std::string::npos;
  };
  CHECK(stops([] {
    detail::range_table ranges;
    ranges.make_room(1);
    (void)ranges.take();
    (void)ranges.take();
  }));
  CHECK(stops([] {
    detail::address_map<int> map;
    map.make_room(1);
    map.insert(1, 1);
    map.insert(1, 2);
    map.insert(2, 2);
  }));
  CHECK(stops([] {
    detail::slot_table<detail::range> slots;
    (void)slots.take();
  }));
  CHECK(stops([] {
    detail::run_table runs;
    runs.make_room();
    (void)runs.add(1, detail::frame_bytes, 0, 1);
    (void)runs.add(2, 2 * detail::frame_bytes, 0, 1);
  }));
  CHECK(stops([] {
    detail::hot_mutex mutex;
    detail::arena space;
    space.end_room_with(mutex.hold().number());
    {
      detail::hot_lock const held(mutex);
      space.make_room();
      (void)space.ranges.take();
    }
    detail::hot_lock const held(mutex);
    (void)space.ranges.take();
  }));
}
#endif
