// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/with_oom_retry.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "raii/failing_calls.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

using sizes = std::vector<std::size_t>;

[[noreturn]] void run_out(std::size_t bytes) {
  memory_report r;
  r.asked = bytes;
  throw out_of_memory(r);
}

/// Work with a fixed amount of room. It records the sizes that it was called with.
struct bounded_work {
  std::size_t room = 0;
  sizes called{};
  void operator()(std::size_t size) {
    called.push_back(size);
    if (size > room) run_out(size);
  }
};

sim_options small(std::size_t capacity = 64_MiB) {
  sim_options o;
  o.capacity = capacity;
  o.taken = 0;
  return o;
}

}  // namespace

TEST_CASE("with_oom_retry halves the size of work that runs out of memory until it fits",
          "[raii][with_oom_retry]") {
  bounded_work work{13};
  auto const r = with_oom_retry(100, work);
  CHECK(work.called == sizes{100, 50, 25, 12});
  CHECK(r.size == 12);
  CHECK(r.attempts == 4);
  bounded_work fits{100};
  CHECK(with_oom_retry(100, fits).attempts == 1);
  auto const seven = with_oom_retry(8, [](std::size_t n) {
    if (n > 4) run_out(n);
    return std::make_unique<std::size_t>(n + 3);
  });
  CHECK(*seven.value == 7);
  CHECK(seven.size == 4);
  int x = 0;
  CHECK(&with_oom_retry(1, [&](std::size_t) -> int& { return x; }).value == &x);
}

TEST_CASE("with_oom_retry stops at the least size and rethrows the last error", "[raii][with_oom_retry]") {
  bounded_work never{0};
  try {
    (void)with_oom_retry(100, never, {.least = 30});
    FAIL("must not succeed");
  } catch (out_of_memory const& error) {
    CHECK(error.asked() == 30);
  }
  CHECK(never.called == sizes{100, 50, 30});
  bounded_work one{0};
  CHECK_THROWS_AS(with_oom_retry(3, one), out_of_memory);
  CHECK(one.called == sizes{3, 1});
  bounded_work below{0};
  CHECK_THROWS_AS(with_oom_retry(3, below, {.least = 10}), out_of_memory);
  CHECK(below.called == sizes{3});
  struct special : out_of_memory {
    special() : out_of_memory(memory_report{}) {}
  };
  CHECK_THROWS_AS(with_oom_retry(1, [](std::size_t) { throw special(); }), special);  // not sliced
  bounded_work zero{0};
  CHECK(with_oom_retry(0, zero).size == 0);
}

TEST_CASE("with_oom_retry retries only the requested error types", "[raii][with_oom_retry]") {
  int calls = 0;
  auto const throwing = [&](auto error) {
    return [&calls, error](std::size_t n) {
      ++calls;
      if (n > 1) throw error;
    };
  };
  CHECK_THROWS_AS(with_oom_retry(8, throwing(std::runtime_error("tarn: out of memory"))), std::runtime_error);
  CHECK_THROWS_AS(with_oom_retry(8, throwing(length_error("too long"))), length_error);
  CHECK_THROWS_AS(with_oom_retry(8, throwing(std::bad_alloc())), std::bad_alloc);
  CHECK_THROWS_AS(
      with_oom_retry(8, throwing(cuda_error({failure::out_of_memory, 2, "cudaErrorMemoryAllocation", "x"}))),
      cuda_error);
  CHECK(calls == 4);
  oom_retry_options any{.errors = oom_errors::any_bad_alloc};
  CHECK(with_oom_retry(8, throwing(std::bad_alloc()), any).size == 1);
  any.search = oom_search::upward;
  auto const bounded = [](std::size_t n) {
    if (n > 100) throw std::bad_alloc();
  };
  CHECK(with_oom_retry(8, bounded, any).size == 100);
  CHECK_THROWS_AS(with_oom_retry(8, bounded, {.search = oom_search::upward}), std::bad_alloc);
}

TEST_CASE("with_oom_retry clears the pool's cache and retries the same size once before halving it",
          "[raii][with_oom_retry]") {
  sim_machine const machine{small()};
  sim_pool const memory{sim_pages{machine.driver()}};
  sim_malloc const rival{machine.driver()};  // like another library: it cannot use the pool's cached memory
  make_device_buffer<std::byte>(memory, 40_MiB, stream_ref{}).reset();
  sizes called;
  auto const train = [&](std::size_t mib) {
    called.push_back(mib);
    auto const mine = make_device_buffer<std::byte>(memory, 1_MiB, stream_ref{});
    auto const theirs = make_device_buffer<std::byte>(rival, mib * 1_MiB, stream_ref{});
    return mine.size();
  };
  auto const r = with_oom_retry(memory, 50, train);
  CHECK(called == sizes{50, 50});
  CHECK(r.size == 50);
  CHECK(r.attempts == 2);
  CHECK(r.value == 1_MiB);
  make_device_buffer<std::byte>(memory, 40_MiB, stream_ref{}).reset();
  called.clear();
  CHECK(with_oom_retry(memory, 100, train).size == 50);
  CHECK(called == sizes{100, 100, 50});
  CHECK_THROWS_AS(with_oom_retry(memory, 100, train, {.least = 70}), out_of_memory);
  CHECK(memory_reserved(memory) == 0);  // also cleared after the last attempt
  called.clear();
  CHECK_THROWS_AS(with_oom_retry(50, [&](std::size_t n) { (void)train(n + 20); }, {.least = 50}),
                  out_of_memory);
  CHECK(called == sizes{70});
}

TEST_CASE("with_oom_retry does not retry the same size if clearing the cache freed nothing",
          "[raii][with_oom_retry]") {
  sim_machine const machine{small()};
  bounded_work work{4};
  CHECK(with_oom_retry(sim_pool{sim_pages{machine.driver()}}, 8, work).size == 4);
  CHECK(work.called == sizes{8, 4});
  work.called.clear();
  CHECK(with_oom_retry(sim_malloc{machine.driver()}, 8, work).size == 4);  // has no cache
  CHECK(work.called == sizes{8, 4});
}

TEST_CASE("with_oom_retry with upward search finds the largest size that works", "[raii][with_oom_retry]") {
  for (std::size_t const room : {1U, 2U, 7U, 100U, 1000U, 1023U, 1024U, 1025U}) {
    bounded_work work{room};
    auto const r = with_oom_retry(64, work, {.search = oom_search::upward});
    CHECK(r.size == room);
    CHECK(r.attempts == work.called.size());
    CHECK(r.attempts <= 24);
  }
  bounded_work coarse{1000};
  auto const r = with_oom_retry(64, coarse, {.search = oom_search::upward, .tolerance = 100});
  CHECK(r.size <= 1000);
  CHECK(r.size > 900);
  bounded_work capped{1000};
  CHECK(with_oom_retry(64, capped, {.search = oom_search::upward, .most = 500}).size == 500);
  CHECK(capped.called == sizes{64, 128, 256, 500});
  bounded_work boundless{~std::size_t{0}};
  CHECK(with_oom_retry(1, boundless, {.search = oom_search::upward}).size >= ~std::size_t{0} - 1);
}

TEST_CASE("with_oom_retry frees the value of an attempt before it tries a larger size",
          "[raii][with_oom_retry]") {
  sim_machine const machine{small()};
  sim_pool const memory{sim_pages{machine.driver()}};
  {
    std::size_t calls = 0;
    auto const r = with_oom_retry(memory, 10,
                                  [&](std::size_t mib) {
                                    ++calls;
                                    return make_device_buffer<std::byte>(memory, mib * 2_MiB, stream_ref{});
                                  },
                                  {.search = oom_search::upward});
    CHECK(r.size == 32);
    CHECK(r.value.size() == 64_MiB);
    CHECK(r.attempts == calls);
  }
  CHECK(memory_allocated(memory) == 0);
}

TEST_CASE("with_oom_retry remembers sizes that failed and does not try them again",
          "[raii][with_oom_retry]") {
  oom_sizes known;
  bounded_work work{100};
  oom_retry_options options{.search = oom_search::upward, .remember = &known};
  CHECK(with_oom_retry(16, work, options).size == 100);
  CHECK((known.good == 100 && known.bad == 101));
  work.called.clear();
  CHECK(with_oom_retry(16, work, options).size == 100);
  CHECK(work.called == sizes{100});
  work.called.clear();
  options.search = oom_search::downward;
  CHECK(with_oom_retry(500, work, options).size == 100);  // 101 and more failed
  CHECK(with_oom_retry(60, work, options).size == 60);
  CHECK(work.called == sizes{100, 60});
  work.room = 30;  // less is free now
  work.called.clear();
  CHECK(with_oom_retry(100, work, options).size == 25);
  CHECK((known.good == 25 && known.bad == 50));
  work.room = 1000;
  known = {};
  options.search = oom_search::upward;
  CHECK(with_oom_retry(25, work, options).size == 1000);
  oom_sizes only_bad{0, 64};
  work.called.clear();
  CHECK(with_oom_retry(100, work, {.remember = &only_bad}).size == 32);
  CHECK(work.called == sizes{32});
}

TEST_CASE("with_oom_retry begins with no more than was asked, whatever is remembered",
          "[raii][with_oom_retry]") {
  bounded_work work{1000};
  oom_sizes known{0, 8};
  CHECK(with_oom_retry(8, work, {.least = 64, .remember = &known}).size == 8);
  known = {500, 1000};
  CHECK(with_oom_retry(0, work, {.remember = &known}).size == 0);
  CHECK(work.called == sizes{8, 0});
}

TEST_CASE("with_oom_retry with upward search rethrows any other error at once", "[raii][with_oom_retry]") {
  int calls = 0;
  CHECK_THROWS_AS(with_oom_retry(4,
                                 [&](std::size_t n) {
                                   ++calls;
                                   if (n > 8) throw std::logic_error("x");
                                 },
                                 {.search = oom_search::upward}),
                  std::logic_error);
  CHECK(calls == 3);
}

TEST_CASE("with_oom_retry frees what a failed attempt took before the next attempt",
          "[raii][with_oom_retry]") {
  sim_machine const machine{small()};
  auto const memory = sim_pages{machine.driver()} | pooled{} | limited{40_MiB} | tracked{};
  auto const r = with_oom_retry(memory, 32, [&](std::size_t mib) {
    auto const activations = make_device_buffer<std::byte>(memory, mib * 1_MiB, stream_ref{});
    auto const gradients = make_device_buffer<std::byte>(memory, mib * 1_MiB, stream_ref{});
    return activations.size() + gradients.size();
  });
  CHECK(r.size == 16);
  CHECK(memory_allocated(memory) == 0);
}

TEST_CASE("with_oom_retry throws a typed error and leaks nothing, whichever driver call fails",
          "[raii][with_oom_retry]") {
  for (std::uint64_t nth = 1;; nth += tarn_test::next_failing) {
    REQUIRE(nth < 2'000);
    sim_options options = small();
    options.backing = sim_backing::address_only;  // nothing is written
    sim_machine const machine{options};
    fault_plan const plan;
    {
      using faulty_driver = faulty<sim_driver>;
      auto const memory = basic_pages<faulty_driver>(faulty_driver(machine.driver(), plan)) | pooled{};
      plan.reset();
      plan.fail(nth);
      try {
        (void)with_oom_retry(
            memory, 100,
            [&](std::size_t mib) { (void)make_device_buffer<std::byte>(memory, mib * 1_MiB, stream_ref{}); },
            {.search = oom_search::upward});
      } catch (out_of_memory const&) {
      } catch (cuda_error const&) {
      }
      if (plan.failed() == 0) break;
      plan.disarm();
    }
    sim_leaks const left = machine.leaks();
    CHECK(left.streams + left.events == 0);
    // Only what a failed call would have freed may leak.
    CHECK(left.total() <= 3);
  }
}

TEST_CASE("with_oom_retry accepts the largest std::size_t as the start", "[raii][with_oom_retry]") {
  bounded_work work{100};
  auto const r = with_oom_retry(~std::size_t{0}, work);
  CHECK(work.called.front() == ~std::size_t{0});
  bounded_work nearly{~std::size_t{0} - 1};
  oom_sizes known;
  for (int call = 0; call < 2; ++call) (void)with_oom_retry(~std::size_t{0}, nearly, {.remember = &known});
  CHECK(std::count(nearly.called.begin(), nearly.called.end(), ~std::size_t{0}) == 1);  // it is known to fail
  CHECK((r.size > 50 && r.size <= 100));
}

TEST_CASE("with_oom_retry with upward search never tries more than most", "[raii][with_oom_retry]") {
  bounded_work work{1000};
  auto const r = with_oom_retry(500, work, {.search = oom_search::upward, .most = 10});
  CHECK(*std::max_element(work.called.begin(), work.called.end()) == 10);
  CHECK(r.size == 10);
}

TEST_CASE("with_oom_retry searches upward below a start that does not fit", "[raii][with_oom_retry]") {
  oom_retry_options const within{.search = oom_search::upward, .most = 200};
  for (std::size_t const start : {199U, 200U, 201U, 1000U}) {
    bounded_work work{170};
    auto const r = with_oom_retry(start, work, within);
    CHECK(r.size == 170);
    CHECK(r.attempts == work.called.size());
    auto const valued = with_oom_retry(
        start,
        [](std::size_t n) {
          if (n > 170) run_out(n);
          return std::make_unique<std::size_t>(n);
        },
        within);
    CHECK(valued.size == 170);
    CHECK(*valued.value == 170);
  }
  bounded_work fits{200};
  CHECK(with_oom_retry(1000, fits, within).attempts == 1);
}

TEST_CASE("with_oom_retry stays within most where a larger size is remembered", "[raii][with_oom_retry]") {
  oom_sizes known{100, 128};
  oom_retry_options options{.search = oom_search::upward, .most = 50, .remember = &known};
  bounded_work work{110};
  CHECK(with_oom_retry(16, work, options).size == 50);
  CHECK(work.called == sizes{50});
  CHECK((known.good == 100 && known.bad == 128));  // the remembered sizes are kept
  work.room = 30;
  CHECK(with_oom_retry(16, work, options).size == 30);
  known = {80, 40};  // contradictory: only the smaller size is used
  CHECK(with_oom_retry(16, work, options).size == 30);
}

TEST_CASE("with_oom_retry finds the largest size within its bounds for every start and memory",
          "[raii][with_oom_retry]") {
  for (std::size_t const room : {1U, 3U, 50U, 99U}) {
    for (std::size_t const most : {1U, 2U, 49U, 50U, 51U, 100U}) {
      for (std::size_t start = 1; start < 110; start += 3) {
        oom_sizes known;
        for (int call = 0; call < 2; ++call) {  // the second call uses the remembered sizes
          bounded_work work{room};
          auto const r =
              with_oom_retry(start, work, {.search = oom_search::upward, .most = most, .remember = &known});
          CHECK(r.size == std::min(room, most));
          CHECK(*std::max_element(work.called.begin(), work.called.end()) <= most);
        }
      }
    }
  }
}
