// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/at_fork.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "catch.hpp"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>

using tarn::detail::static_mutex;

namespace {
/// Returns whether a child ends by itself, with exit status 0, after `check` has returned true in it.
template <class Check>
bool child_ends(Check const& check) {
  pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(20);
    ::_exit(check() ? 0 : 1);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child && status == 0;
}
}  // namespace

TEST_CASE("a static_mutex with users is unlocked in a forked child, and its data is consistent",
          "[core][static_mutex][fork]") {
  static_mutex mutex;
  int a = 0, b = 0;
  std::optional<static_mutex::user> first(std::in_place, mutex);
  static_mutex::user const second(mutex);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) {
      std::lock_guard const guard(mutex);
      ++a;
      std::this_thread::yield();
      ++b;
    }
  });
  auto const is_free = [&] {
    std::lock_guard const guard(mutex);
    return a == b;
  };
  for (int i = 0; i < 30; ++i) CHECK(child_ends(is_free));
  first.reset();
  CHECK(child_ends(is_free));
  stop = true;
  other.join();
}

TEST_CASE("fork does not touch a static_mutex without users", "[core][static_mutex][fork]") {
  auto mutex = std::make_unique<static_mutex>();
  { static_mutex::user const user(*mutex); }
  mutex.reset();  // as with the module
  CHECK(child_ends([] { return true; }));
}
#endif
