// SPDX-License-Identifier: Apache-2.0

#include "tarn/pmr.hpp"

#include <memory_resource>
#include <string>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

TEST_CASE("pmr containers live in a pool", "[doors][pmr]") {
  auto memory = host_memory{} | pooled{};
  pmr_adaptor adaptor(memory);
  pmr_adaptor same(memory);
  pmr_adaptor other(host_memory{} | pooled{});
  CHECK(adaptor.is_equal(same));
  CHECK_FALSE(adaptor.is_equal(other));
  CHECK_FALSE(adaptor.is_equal(*std::pmr::new_delete_resource()));
  {
    std::pmr::vector<std::pmr::string> words(&adaptor);
    words.emplace_back("a word that is too long for the small buffer of a string");
    CHECK(memory->state().live > 0);
    void* const nothing = adaptor.allocate(0);
    CHECK(nothing != nullptr);
    adaptor.deallocate(nothing, 0);
  }
  CHECK(memory->state().live == 0);
}

TEST_CASE("a pmr resource is a resource", "[doors][pmr]") {
  tarn_test::resource_contract([] { return from_pmr(std::pmr::new_delete_resource()) | limited{3_GiB}; });
}
