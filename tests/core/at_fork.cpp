// SPDX-License-Identifier: Apache-2.0
// Locks around fork(). Pools and policies with threads inside: tests/faults/endings.hpp.
#include "tarn/core/at_fork.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "catch.hpp"
#include "child_process.hpp"

using namespace tarn;

TEST_CASE("fork_mutex under contention is free in each child, and its data is consistent after a fork",
          "[core][at_fork]") {
  detail::fork_mutex mutex;
  int a = 0, b = 0;
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (!over) {
      std::lock_guard const guard(mutex);
      ++a;
      std::this_thread::yield();
      ++b;
    }
  });
  int bad = 0;
  for (int i = 0; i < 30; ++i) {
    bad += child_of([&] {
      std::lock_guard const guard(mutex);
      return a == b;
    });
  }
  over = true;
  other.join();
  CHECK(bad == 0);
}

TEST_CASE(
    "recursive_fork_mutex held by another thread at the fork is unlocked by its next owner in the child",
    "[core][at_fork]") {
  detail::recursive_fork_mutex mutex;
  std::atomic<bool> held{false};
  std::atomic<bool> over{false};
  std::thread other([&] {
    std::lock_guard const guard(mutex);
    held = true;
    while (!over) std::this_thread::yield();
  });
  while (!held) std::this_thread::yield();
  CHECK(child_of([&] {
          { std::lock_guard const guard(mutex); }
          bool is_free = false;
          std::thread([&] {
            is_free = mutex.try_lock();
            if (is_free) mutex.unlock();
          }).join();
          return is_free;
        }) == 0);
  over = true;
  other.join();
}

TEST_CASE("fork_mutex held by the forking thread stays held by it in parent and child", "[core][at_fork]") {
  detail::fork_mutex mutex;
  std::unique_lock held(mutex);
  CHECK(mutex.is_mine());
  int const status = child_of([&] {
    bool taken = true;
    std::thread([&] { taken = mutex.try_lock(); }).join();
    held.unlock();
    return !taken && mutex.try_lock();
  });
  CHECK(status == 0);
  bool taken = true;
  std::thread([&] { taken = mutex.try_lock(); }).join();
  CHECK_FALSE(taken);
  held.unlock();
  CHECK_FALSE(mutex.is_mine());
}

TEST_CASE("at_fork runs hooks in order before and in reverse after, with the side, until it is destroyed",
          "[core][at_fork]") {
  struct note {
    std::string text;
    detail::at_fork first{
        &text, [](void* self) noexcept { return add(self, "a"); },
        [](void* self, detail::fork_side side) noexcept { (void)add(self, name_of(side, "A")); }};
    detail::at_fork second{
        &text, [](void* self) noexcept { return add(self, "b"); },
        [](void* self, detail::fork_side side) noexcept { (void)add(self, name_of(side, "B")); }};
    static bool add(void* self, char const* what) noexcept {
      *static_cast<std::string*>(self) += what;
      return true;
    }
    static char const* name_of(detail::fork_side side, char const* in_parent) noexcept {
      return side == detail::fork_side::parent ? in_parent : "c";
    }
  };
  auto notes = std::make_unique<note>();
  CHECK(child_of([&] { return notes->text == "abcc"; }) == 0);
  CHECK(notes->text == "abBA");
  notes.reset();
  CHECK(child_of([] { return true; }) == 0);
}

TEST_CASE("at_fork releases what it took before it tries again to take what it could not",
          "[core][at_fork]") {
  static std::string notes;
  notes.clear();
  detail::at_fork const first{nullptr, [](void*) noexcept { return notes += "a", true; },
                              [](void*, detail::fork_side) noexcept { notes += "A"; }};
  int refused = 0;
  detail::at_fork const second{&refused,
                               [](void* self) noexcept {
                                 bool const takes = ++*static_cast<int*>(self) > 2;
                                 notes += takes ? "b" : "-";
                                 return takes;
                               },
                               [](void*, detail::fork_side) noexcept { notes += "B"; }};
  CHECK(child_of([] { return notes == "a-Aa-AabBA"; }) == 0);
  CHECK(notes == "a-Aa-AabBA");
}

TEST_CASE("creating_process is this process, but not in a forked child", "[core][at_fork]") {
  detail::creating_process const process;
  CHECK(process.is_this());
  CHECK(child_of([&] {
          detail::creating_process const own;
          detail::creating_process const copy = process;
          return !process.is_this() && !copy.is_this() && own.is_this() &&
                 child_of([&] { return !process.is_this() && !own.is_this(); }) == 0;
        }) == 0);
  CHECK(process.is_this());
}
