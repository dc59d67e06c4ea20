// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/block_set.hpp"

#include <thread>
#include <vector>

#include "catch.hpp"

using tarn::detail::block_set;

TEST_CASE("block_set contains a block from insert to erase, each of which reports a change",
          "[policy][block_set]") {
  block_set set;
  int blocks[2] = {};
  CHECK(!set.contains(&blocks[0]));
  CHECK(!set.erase(&blocks[0]));
  CHECK(set.insert(&blocks[0]));
  CHECK(!set.insert(&blocks[0]));
  CHECK(set.contains(&blocks[0]));
  CHECK(!set.contains(&blocks[1]));
  CHECK(!set.erase(&blocks[1]));
  CHECK(set.size() == 1);
  CHECK(set.erase(&blocks[0]));
  CHECK(!set.erase(&blocks[0]));
  CHECK(set.size() == 0);
}

TEST_CASE("block_set keeps the blocks of several threads apart", "[policy][block_set][threads]") {
  block_set set;
  std::vector<char> blocks(4000);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < blocks.size(); i += 4) {
        if (!set.insert(&blocks[i]) || !set.contains(&blocks[i])) ++wrong[t];
        if (i % 8 < 4 && !set.erase(&blocks[i])) ++wrong[t];
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(wrong == std::vector<int>(4, 0));
  CHECK(set.size() == 2000);
}
