// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/retry_on_oom.hpp"

#include <string>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

TEST_CASE("the handler of retry_on_oom sees no line of tarn's own", "[policy][retry_on_oom]") {
  std::string text;
  auto const handler = [&](out_of_memory const& error, unsigned) {
    text = error.what();
    return false;
  };
  auto memory = host_memory{} | limited{1000} | retry_on_oom{handler};
  CHECK_THROWS_AS(memory.allocate_sync(5000), out_of_memory);
  CHECK(text.find("limited(1000 B)") != std::string::npos);
  CHECK(text.find(".hpp") == std::string::npos);
}

TEST_CASE("retry_on_oom meets the resource contract", "[policy][retry_on_oom]") {
  tarn_test::resource_contract([] {
    return host_memory{} | retry_on_oom([](out_of_memory const&, unsigned attempt) { return attempt < 3; });
  });
}

TEST_CASE("retry_on_oom calls its handler until it declines, with attempts counted from one",
          "[policy][retry_on_oom]") {
  std::vector<unsigned> attempts;
  auto memory =
      host_memory{} | limited{1000} | retry_on_oom([&](out_of_memory const& error, unsigned attempt) {
        CHECK(error.asked() == 2000);
        attempts.push_back(attempt);
        return attempt < 4;
      });
  CHECK_THROWS_AS(memory.allocate({}, 2000), out_of_memory);
  CHECK(attempts == std::vector<unsigned>{1, 2, 3, 4});
  attempts.clear();
  CHECK_THROWS_AS(memory.allocate_sync(2000), out_of_memory);
  CHECK(attempts.size() == 4);
}

TEST_CASE("retry_on_oom serves the request from what its handler frees, also through the same memory",
          "[policy][retry_on_oom]") {
  auto limit = host_memory{} | pooled{} | limited{1_MiB};
  void* spare = limit.allocate({}, 1_MiB);
  auto memory = limit | retry_on_oom([&, limit](out_of_memory const&, unsigned) mutable {
                  if (spare == nullptr) return false;
                  limit.deallocate({}, spare, 1_MiB);
                  spare = nullptr;
                  return true;
                });
  void* const p = memory.allocate({}, 512_KiB);
  CHECK(p != nullptr);
  CHECK(spare == nullptr);
  memory.deallocate({}, p, 512_KiB);
}

TEST_CASE("retry_on_oom passes other exceptions on, including the handler's own", "[policy][retry_on_oom]") {
  fault_plan const plan;
  sim_machine const machine;
  int asked = 0;
  auto memory = basic_malloc<faulty<sim_driver>>(faulty<sim_driver>(machine.driver(), plan)) |
                retry_on_oom([&](out_of_memory const&, unsigned) -> bool {
                  ++asked;
                  throw 42;
                });
  plan.fail(driver_call::malloc_device, 1, {failure::other});
  CHECK_THROWS_AS(memory.allocate({}, 100), cuda_error);
  CHECK_THROWS_AS(memory.allocate({}, 100, 3), bad_alignment);
  CHECK(asked == 0);
  plan.fail(driver_call::malloc_device, 1);
  CHECK_THROWS_AS(memory.allocate({}, 100), int);
  CHECK(asked == 1);
}

#if defined(__unix__) || defined(__APPLE__)

TEST_CASE("a handler may fork: the child's call is refused, and does not wait",
          "[policy][retry_on_oom][at_fork]") {
  bool is_child = false;
  int status = -1;
  auto const forks = [&](out_of_memory const&, unsigned) {
    if (status != -1) return false;
    pid_t const pid = ::fork();
    if (pid == 0) {
      (void)::alarm(20);
      is_child = true;
      status = 0;
      return true;  // tries again, and is refused again
    }
    return pid > 0 && ::waitpid(pid, &status, 0) == pid && false;
  };
  auto pool = host_memory{} | limited{4_MiB} | retry_on_oom{forks} | pooled{};
  void* const small = pool.allocate({}, 1000);  // the thread has a cache
  bool refused = false;
  try {
    (void)pool.allocate({}, 8_MiB);
  } catch (std::exception const&) {
    refused = true;
  }
  if (is_child) ::_exit(refused ? 0 : 1);
  CHECK(refused);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  pool.deallocate({}, small, 1000);
}

#endif
