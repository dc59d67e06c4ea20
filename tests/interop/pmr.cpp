// SPDX-License-Identifier: Apache-2.0

#include "tarn/pmr.hpp"

#include <memory_resource>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "raii/archetype.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

TEST_CASE("pmr_resource lets pmr containers allocate from a pool", "[interop][pmr]") {
  auto memory = host_memory{} | pooled{};
  auto adaptor = as_pmr_resource(memory);  // as the docstring of as_pmr_resource has it
  pmr_resource same(memory);
  pmr_resource other(host_memory{} | pooled{});
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

TEST_CASE("from_pmr_resource satisfies the resource contract", "[interop][pmr]") {
  tarn_test::resource_contract(
      [] { return from_pmr_resource(std::pmr::new_delete_resource()) | limited{3_GiB}; });
}

TEST_CASE("pmr_resource deallocates each block with its original size and alignment, and throws bad_alloc",
          "[interop][pmr]") {
  tarn_test::kept_memory memory;
  pmr_resource adaptor(memory);
  static_assert(!std::is_copy_constructible_v<decltype(adaptor)>);  // containers hold its address
  for (std::size_t const alignment : {std::size_t{1}, std::size_t{16}, std::size_t{4096}}) {
    void* const p = adaptor.allocate(1000, alignment);
    CHECK(is_aligned(p, alignment));
    CHECK(memory.kept().live.at(p).alignment == alignment);
    adaptor.deallocate(p, 1000, alignment);
  }
  memory.driver().plan().fail(1);
  CHECK_THROWS_AS(adaptor.allocate(10), std::bad_alloc);
  CHECK_THROWS_AS(adaptor.allocate(max_request_bytes + 1), std::bad_alloc);
  CHECK(memory.balanced());
}

TEST_CASE("from_pmr_resource under a pool gets all memory back, and out_of_memory names memory_resource",
          "[interop][pmr]") {
  tarn_test::kept_memory memory;
  {
    pmr_resource adaptor(memory);
    {
      auto pool = from_pmr_resource(&adaptor) | pooled{};
      CHECK(pool.layer().upstream().memory_resource() == &adaptor);
      void* const p = pool.allocate_sync(1000);
      pool.deallocate_sync(p, 1000);
    }
    CHECK(from_pmr_resource(&adaptor) == from_pmr_resource(&adaptor));
    CHECK_FALSE(from_pmr_resource(&adaptor) == from_pmr_resource(std::pmr::new_delete_resource()));
    auto source = from_pmr_resource(std::pmr::null_memory_resource());
    try {
      (void)source.allocate_sync(1000);
      FAIL("allocated");
    } catch (out_of_memory const& error) {
      CHECK(error.asked() == 1000);
      CHECK(std::string(error.what()).find("std::pmr::memory_resource") != std::string::npos);
    }
  }
  CHECK(memory.balanced());
}

TEST_CASE("from_pmr_resource passes on the out_of_memory of a tarn resource below", "[interop][pmr]") {
  auto limit = host_memory{} | limited{1000};
  auto adaptor = as_pmr_resource(limit);
  auto memory = from_pmr_resource(&adaptor);
  try {
    (void)memory.allocate_sync(5000);
    FAIL("5000 bytes of 1000");
  } catch (out_of_memory const& error) {
    CHECK(error.report().limit == 1000);
  }
}
