// SPDX-License-Identifier: Apache-2.0
#include "replay/turns.hpp"

#include <sys/resource.h>

#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"

using tarn::bench::turns;

namespace {

/// Allows this process so many more bytes of addresses.
void limit_addresses(std::size_t more) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  ::rlimit limit{};
  (void)::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + more;
  (void)::setrlimit(RLIMIT_AS, &limit);
}

}  // namespace

TEST_CASE("turns executes tasks in turn on several threads", "[replay][turns]") {
  for (unsigned const threads : {1U, 3U}) {
    turns t(threads);
    std::vector<std::thread::id> on;
    for (int i = 0; i < 6; ++i) t.next([&] { on.push_back(std::this_thread::get_id()); });
    CHECK((on[0] == std::this_thread::get_id()) == (threads == 1));
    CHECK((on[0] == on[1]) == (threads == 1));
    CHECK(on[0] == on[3]);
    CHECK_THROWS_AS(t.next([] { throw std::logic_error("of a task"); }), std::logic_error);
    t.next([&] { on.clear(); });
    CHECK(on.empty());
  }
}

TEST_CASE("turns throws where a thread is refused, after some have started", "[replay][turns]") {
  int const status = tarn::child_of([] {
    limit_addresses(100U << 20);
    try {
      turns const t(64);
    } catch (std::system_error const&) {
      return true;
    }
    return false;
  });
  CHECK(status == 0);
}
