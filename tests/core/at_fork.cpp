// SPDX-License-Identifier: Apache-2.0
// Locks around fork(). Pools and policies with threads inside: tests/faults/endings.hpp.
#include "tarn/core/at_fork.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "catch.hpp"

using namespace tarn;

namespace {

/// Runs `act` in a child. Returns the child's exit status: 0 if `act` returned true.
template <class Act>
int child_of(Act const& act) {
  pid_t const pid = ::fork();
  if (pid == 0) {
    (void)::alarm(20);
    ::_exit(act() ? 0 : 1);
  }
  int status = -1;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace

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
