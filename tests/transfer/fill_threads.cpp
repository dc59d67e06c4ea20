// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/fill_threads.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"

using tarn::detail::fill_threads;

TEST_CASE("fill_threads fills every piece of every opened batch once", "[raii][fill_threads][threads]") {
  for (unsigned const threads : {0U, 1U, 3U}) {
    constexpr std::size_t pieces = 4;
    std::vector<std::atomic<int>> filled(100 * pieces);
    fill_threads crew(threads, pieces, 3, [&](std::size_t batch, std::size_t piece) {
      ++filled[batch * pieces + piece];
      return batch;
    });
    for (std::size_t batch = 0; batch < 100; ++batch) {
      crew.open();
      CHECK(crew.take(batch) == batch * pieces);
      CHECK(crew.is_filled(batch));
    }
    CHECK(crew.opened() == 100);
    for (auto const& times : filled) CHECK(times == 1);
  }
}

TEST_CASE("fill_threads fills opened batches ahead of the one that is taken, and no others",
          "[raii][fill_threads][threads]") {
  std::atomic<std::size_t> begun{0};
  fill_threads crew(2, 1, 4, [&](std::size_t, std::size_t) {
    ++begun;
    return std::size_t{1};
  });
  for (int i = 0; i < 3; ++i) crew.open();
  while (!crew.is_filled(2)) std::this_thread::yield();  // the first is not taken yet
  (void)crew.take(0);
  std::this_thread::yield();
  CHECK(begun == 3);
}

TEST_CASE("fill_threads rethrows a fill's exception only in take of the same batch",
          "[raii][fill_threads][threads]") {
  for (unsigned const threads : {0U, 2U}) {
    fill_threads crew(threads, 2, 3, [&](std::size_t batch, std::size_t piece) -> std::size_t {
      if (batch == 1 && piece == 1) throw std::runtime_error("the second piece's");
      return 5;
    });
    for (int i = 0; i < 3; ++i) crew.open();
    CHECK(crew.take(0) == 10);
    CHECK_THROWS_WITH(crew.take(1), "the second piece's");
    CHECK_FALSE(crew.is_filled(1));
    CHECK(crew.take(2) == 10);
  }
}

TEST_CASE("fill_threads joins its threads on destruction with batches still open",
          "[raii][fill_threads][threads]") {
  std::atomic<int> inside{0};
  for (int i = 0; i < 20; ++i) {
    fill_threads crew(3, 2, 4, [&](std::size_t, std::size_t) {
      ++inside;
      std::this_thread::yield();
      --inside;
      return std::size_t{1};
    });
    for (int b = 0; b < 4; ++b) crew.open();
  }
  CHECK(inside == 0);
}

// ~condition_variable waits for the waiters of the parent, and the mutex may be locked.
TEST_CASE("a forked child destroys fill_threads without its threads", "[raii][fill_threads][threads][fork]") {
  auto const ends_in_child = [](bool in_fill) {
    std::atomic<bool> begun{false};
    std::atomic<bool> may_end{!in_fill};
    auto crew = std::make_unique<fill_threads>(2U, 1U, 4U, [&](std::size_t, std::size_t) {
      begun = true;
      while (!may_end) std::this_thread::yield();
      return std::size_t{1};
    });
    crew->open();
    while (!begun) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others wait
    int const status = tarn::child_of([&] {
      crew.reset();
      return true;
    });
    may_end = true;
    return status;
  };
  CHECK(ends_in_child(false) == 0);
  CHECK(ends_in_child(true) == 0);
}
