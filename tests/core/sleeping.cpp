// SPDX-License-Identifier: Apache-2.0
// The errors of a pool that sleeps: pool_asleep, and what wake() lacks.

#include "tarn/core/sleeping.hpp"

#include <string>

#include "catch.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"

using namespace tarn;

TEST_CASE("pool_asleep is an out_of_memory that says to wake the pool", "[core][sleep]") {
  memory_report r;
  r.asked = 3_MiB;
  r.device = 0;
  r.refused_by = "the sleeping pool";
  pool_asleep const error(r);
  out_of_memory const& base = error;
  std::string const text = base.what();
  CHECK(text.find("3 MiB asked on device 0") != std::string::npos);
  CHECK(text.find("refused by the sleeping pool. The pool is asleep: call tarn::wake(memory) first.") !=
        std::string::npos);
  CHECK(text.find("close other programs") == std::string::npos);
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
