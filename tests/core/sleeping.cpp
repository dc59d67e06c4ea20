// SPDX-License-Identifier: Apache-2.0
// The errors of a pool that sleeps: pool_asleep, and what wake() lacks.

#include "tarn/core/pool_call.hpp"

#include <string>

#include "catch.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"

using namespace tarn;

TEST_CASE("pool_asleep says what was asked, and to wake the pool", "[core][sleep]") {
  pool_asleep const error(3_MiB, 0);
  CHECK(error.asked() == 3_MiB);
  CHECK(error.device() == 0);
  CHECK(std::string(error.what()) ==
        "tarn: 3 MiB asked on device 0: the pool is asleep; call tarn::wake(memory) first");
}

TEST_CASE("out_of_memory says how many bytes are lacking", "[core][sleep]") {
  memory_report r;
  r.asked = 10_MiB;
  r.device = 0;
  r.device_free = 4_MiB;
  r.lacking = 6_MiB;
  CHECK(std::string(out_of_memory(r).what()).find("Free on the device 4 MiB, lacking 6 MiB.") !=
        std::string::npos);
}

TEST_CASE("compaction begins with zeros", "[core][sleep]") {
  compaction const c;
  CHECK(c.released + c.live + c.stretches + c.reserved == 0);
}
