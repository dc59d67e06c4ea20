// SPDX-License-Identifier: Apache-2.0
// tests/debug/nvtx tests the ranges that a profiler receives.
#include "tarn/debug/nvtx_ranged.hpp"

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

TEST_CASE("nvtx_ranged meets the resource contract without a profiler", "[policy][nvtx_ranged]") {
  tarn_test::resource_contract([] { return sim_pages{} | pooled{} | nvtx_ranged{"contract"}; });
  auto memory = sim_pages{} | pooled{} | limited{1_MiB} | nvtx_ranged{};
  CHECK_THROWS_AS(memory.allocate({}, 2_MiB), out_of_memory);
}

TEST_CASE("nvtx_ranged without a name has the name of its default", "[policy][nvtx_ranged]") {
  auto memory = sim_pages{} | pooled{} | nvtx_ranged{nullptr};
  memory.deallocate({}, memory.allocate({}, 100), 100);
}
