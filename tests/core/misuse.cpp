// SPDX-License-Identifier: Apache-2.0
// Where misuse is reported: to the program's handler, or by termination.

#include "tarn/core/misuse.hpp"

#include <array>
#include <csignal>
#include <string>

#include "catch.hpp"

#if defined(__unix__)
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace tarn;

namespace {
std::string reported;
}

TEST_CASE("set_misuse_handler receives the whole message and returns the previous handler",
          "[core][misuse]") {
  misuse_handler const before = set_misuse_handler([](misuse const& what) { reported = what.what(); });
  int const here = 0;
  report_misuse(misuse(misuse_kind::double_free, &here, "freed twice"));
  CHECK(reported == "tarn: freed twice");
  CHECK(set_misuse_handler(before) != before);
  CHECK(set_misuse_handler(nullptr) == before);  // null restores the handler that terminates
  CHECK(set_misuse_handler(before) == &abort_on_misuse);
}

#if defined(__unix__)
TEST_CASE("report_misuse without a handler prints the message and aborts", "[core][misuse]") {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  pid_t const child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)dup2(ends[1], 2);
    std::signal(SIGABRT, SIG_DFL);  // Catch2's handler would report in the parent's name
    set_misuse_handler(nullptr);
    report_misuse(misuse(misuse_kind::foreign_pointer, nullptr, "not yours"));
    _exit(0);
  }
  (void)close(ends[1]);
  std::string text;
  char c = 0;
  while (read(ends[0], &c, 1) == 1) text += c;
  (void)close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(text.find("tarn: not yours\n") == 0);
}
#endif
