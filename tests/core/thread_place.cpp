// SPDX-License-Identifier: Apache-2.0

#include "tarn/core/thread_tag.hpp"

#include <atomic>
#include <barrier>
#include <set>
#include <thread>
#include <vector>

#include "catch.hpp"

using namespace tarn::detail;

TEST_CASE("place_table::take returns the lowest free place, and thread_places when all are taken",
          "[core][thread_place]") {
  place_table table;
  for (unsigned i = 0; i < thread_places; ++i) CHECK(table.take() == i);
  CHECK(table.take() == thread_places);
  table.give(31);
  table.give(7);
  CHECK(table.take() == 7);
  CHECK(table.take() == 31);
  CHECK(table.take() == thread_places);
}

TEST_CASE(
    "place_holder::take gives running threads different places, and an ended thread's place to a later one",
    "[core][thread_place][threads]") {
  // Others of this program may hold places.
  constexpr unsigned count = thread_places + 8;
  for (int round = 0; round < 3; ++round) {
    std::vector<unsigned> places(count, thread_places);
    std::barrier together(count);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        place_holder::take();
        if (this_thread_place.table == &places_of_threads) places[t] = this_thread_place.index;
        together.arrive_and_wait();
      });
    }
    for (std::thread& t : threads) t.join();
    std::set<unsigned> different;
    std::size_t with_place = 0;
    for (unsigned const place : places) {
      if (place == thread_places) continue;
      ++with_place;
      different.insert(place);
    }
    CHECK(different.size() == with_place);
    CHECK(with_place >= thread_places - 4);
    CHECK(with_place <= thread_places);
  }
}
