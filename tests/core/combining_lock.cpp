// SPDX-License-Identifier: Apache-2.0

#include "tarn/core/combining_lock.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "tarn/core/at_fork.hpp"

using namespace tarn::detail;

namespace {
struct numbered {
  unsigned thread = 0;
  long number = 0;
};

/// Notes when it is copied, as the lock does to publish it.
struct noting_update {
  noting_update() = default;
  noting_update(unsigned thread_, std::atomic<bool>& copied_) : thread(thread_), copied(&copied_) {}
  noting_update(noting_update const&) = default;
  noting_update& operator=(noting_update const& other) noexcept {
    thread = other.thread;
    copied = other.copied;
    *copied = true;
    return *this;
  }
  ~noting_update() = default;

  unsigned thread = 0;
  std::atomic<bool>* copied = nullptr;
};
}  // namespace

TEST_CASE("combining_lock applies each update once, in each thread's order, before run returns",
          "[core][combining_lock][threads]") {
  constexpr unsigned thread_count = 40;  // more threads than slots
  constexpr long updates = 500;
  combining_lock<numbered> lock;
  std::vector<long> last(thread_count, 0);
  long applied = 0;
  long wrong = 0;
  std::vector<long> late(thread_count, 0);
  auto const apply = [&](numbered const& u) noexcept {
    wrong += u.number == last[u.thread] + 1 ? 0 : 1;
    last[u.thread] = u.number;
    ++applied;
    if (u.number % 8 == 0) std::this_thread::yield();  // lets other threads queue updates meanwhile
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < thread_count; ++t) {
    threads.emplace_back([&, t] {
      for (long i = 1; i <= updates; ++i) {
        lock.run({t, i}, apply);
        if (i % 50 != 0) continue;
        std::lock_guard const guard(lock);
        late[t] += last[t] == i ? 0 : 1;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(applied == thread_count * updates);
  CHECK(wrong == 0);
  for (long const l : late) CHECK(l == 0);
}

TEST_CASE("combining_lock runs queued updates on the thread that holds the lock",
          "[core][combining_lock][threads]") {
  std::thread::id done_by[2];
  // The lock says that it is about to publish an update, not that it has: a thread may be suspended in
  // between, but not each time.
  for (int round = 0; round < 1000 && done_by[1] != std::this_thread::get_id(); ++round) {
    combining_lock<noting_update> lock;
    std::atomic<bool> is_queued{false};
    std::thread other;
    auto const note = [&](noting_update const& u) noexcept {
      done_by[u.thread] = std::this_thread::get_id();
    };
    lock.run({0, is_queued}, [&](noting_update const& u) noexcept {
      if (u.thread == 0) {
        other = std::thread([&] { lock.run({1, is_queued}, note); });
        while (!is_queued) std::this_thread::yield();
        for (int i = 0; i < 100; ++i) std::this_thread::yield();
      }
      note(u);
    });
    other.join();
  }
  CHECK(done_by[0] == std::this_thread::get_id());
  CHECK(done_by[1] == std::this_thread::get_id());
}

TEST_CASE("combining_lock drops the updates of the parent's waiting threads in a forked child",
          "[core][combining_lock][at_fork]") {
  struct scene {
    combining_lock<noting_update> lock;
    held_at_fork<combining_lock<noting_update>> member{lock};
    std::atomic<bool> begins{false};
    std::atomic<bool> is_queued{false};
    int applied[2] = {};
    void count(unsigned thread) {
      lock.run({thread, is_queued}, [this](noting_update const& u) noexcept { ++applied[u.thread]; });
    }
  } its;
  std::thread other([&] {
    while (!its.begins) std::this_thread::yield();
    its.count(1);
  });
  {
    // Taken after the lock: the other thread publishes its update while the forking thread holds the lock.
    at_fork const later(
        &its,
        [](void* of) noexcept {
          auto& s = *static_cast<scene*>(of);
          s.begins = true;
          while (!s.is_queued) std::this_thread::yield();
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          return true;
        },
        [](void*, fork_side) noexcept {});
    CHECK(tarn::child_of([&] {
            its.count(0);
            return its.applied[0] == 1 && its.applied[1] == 0;
          }) == 0);
  }
  other.join();
  its.count(0);
  CHECK(its.applied[0] == 1);
  CHECK(its.applied[1] == 1);
}
