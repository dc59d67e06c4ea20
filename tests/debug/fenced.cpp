// SPDX-License-Identifier: Apache-2.0
#include "tarn/debug/fenced.hpp"

#include <concepts>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "driver/calling_driver.hpp"
#include "tarn/debug/checked.hpp"
#include "tarn/debug/poisoned.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

namespace {
/// Collects the reported misuses for the duration of a test.
struct reported {
  static std::vector<misuse_kind>& kinds() {
    static std::vector<misuse_kind> all;
    return all;
  }
  reported() : before(set_misuse_handler([](misuse const& m) { kinds().push_back(m.kind()); })) {
    kinds().clear();
  }
  ~reported() { (void)set_misuse_handler(before); }
  reported(reported const&) = delete;
  reported& operator=(reported const&) = delete;
  misuse_handler before;
};
}  // namespace

TEST_CASE("fenced meets the resource contract", "[policy][fenced]") {
  tarn_test::resource_contract([] { return host_memory{} | fenced{}; });
}
TEST_CASE("fenced and checked refuse a fence_bytes that is larger than any block",
          "[policy][fenced][checked]") {
  for (std::size_t const bytes : {~std::size_t{0}, ~std::size_t{0} / 2, max_request_bytes + 1}) {
    CHECK_THROWS_AS(host_memory{} | fenced{.fence_bytes = bytes}, length_error);
    CHECK_THROWS_AS(host_memory{} | checked{.fence_bytes = bytes}, length_error);
  }
  auto memory = host_memory{} | pooled{} | fenced{.fence_bytes = max_request_bytes};
  try {
    (void)memory.allocate({}, 100);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    CHECK(error.asked() == 100);
  }
}
TEST_CASE("fenced over a pool of pages meets the resource contract", "[policy][fenced]") {
  tarn_test::resource_contract([] { return sim_pages{} | pooled{} | fenced{}; });
}

TEST_CASE("fenced reports a byte written past either end at deallocation and in check_all",
          "[policy][fenced]") {
  std::size_t const bytes = GENERATE(std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{10'000});
  std::size_t const alignment = GENERATE(std::size_t{1}, std::size_t{256}, std::size_t{4096});
  reported const t;
  auto memory = host_memory{} | fenced{};
  for (std::ptrdiff_t const where : {std::ptrdiff_t{-1}, static_cast<std::ptrdiff_t>(bytes),
                                     static_cast<std::ptrdiff_t>(bytes) + 255, std::ptrdiff_t{-256}}) {
    auto* const p = static_cast<unsigned char*>(memory.allocate({}, bytes, alignment));
    for (std::size_t i = 0; i < bytes; ++i) p[i] = 1;
    CHECK(memory->check_all() == 0);
    CHECK(reported::kinds().empty());
    p[where] = 1;
    CHECK(memory->check_all() == 1);
    REQUIRE(reported::kinds() == std::vector{misuse_kind::overrun});
    memory.deallocate({}, p, bytes, alignment);
    CHECK(reported::kinds() == std::vector(2, misuse_kind::overrun));
    reported::kinds().clear();
  }
}

TEST_CASE("fenced reports and drops a foreign pointer, a second free and a wrong size", "[policy][fenced]") {
  reported const t;
  auto memory = host_memory{} | limited{1_MiB} | fenced{};
  auto& limit = memory->upstream().layer();
  int local = 0;
  int* volatile stranger = &local;  // volatile: otherwise the compiler warns
  memory.deallocate({}, stranger, 4);
  CHECK(reported::kinds() == std::vector{misuse_kind::foreign_pointer});
  void* const p = memory.allocate({}, 1000);
  std::size_t const used = limit.used();
  reported::kinds().clear();
  memory.deallocate({}, p, 999);
  CHECK(reported::kinds() == std::vector{misuse_kind::wrong_size});
  memory.deallocate({}, p, 1000, 512);
  CHECK(reported::kinds().back() == misuse_kind::wrong_alignment);
  CHECK(limit.used() == used);
  memory.deallocate({}, p, 1000);
  CHECK(limit.used() == 0);
  memory.deallocate({}, p, 1000);
  CHECK(reported::kinds().size() == 3);
  CHECK(limit.used() == 0);
}

TEST_CASE("fenced counts its fences as part of the block", "[policy][fenced]") {
  auto memory = host_memory{} | fenced{64} | tracked{};
  void* const p = memory.allocate({}, 1000, 1);
  CHECK(memory->statistics().allocated_bytes[0].current == 1000 + 128);
  CHECK(memory->statistics().requested_bytes[0].current == 1000);
  memory.deallocate({}, p, 1000, 1);
  CHECK(memory->statistics().allocated_bytes[0].current == 0);
}

TEST_CASE("fenced verifies no fence that sleep discarded while it was written", "[policy][fenced][pages]") {
  reported const r;
  sim_machine const machine;
  std::function<void()> next = nullptr;
  tarn_test::calling_driver const driver(machine.driver(), driver_call::fill, next);
  auto memory = basic_pages(driver) | pooled{} | fenced{};
  tarn_test::test_stream const stream(machine.driver());
  next = [&] {  // as another thread may
    (void)sleep(memory, contents::discarded);
    (void)wake(memory);
  };
  void* const p = memory.allocate(stream, 1_MiB);
  REQUIRE(machine.driver().synchronize_device().ok());
  CHECK(memory->check_all() == 0);
  memory.deallocate(stream, p, 1_MiB);
  CHECK(reported::kinds().empty());
}

TEST_CASE("fenced checks fences on a device in stream order", "[policy][fenced]") {
  reported const t;
  sim_machine const machine;
  tarn_test::test_stream const stream(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | fenced{};
  auto* const p = static_cast<unsigned char*>(memory.allocate(stream, 1000));
  REQUIRE(machine.launch(stream, 1'000'000, [p] { p[1000] = 1; }).ok());
  memory.deallocate(stream, p, 1000);  // waits for the kernel that overran
  CHECK(reported::kinds() == std::vector{misuse_kind::overrun});
}

namespace {
/// The pointer that the handler of the next test frees, and its memory.
struct freed_by_handler {
  static inline stack<host_memory, fenced>* memory = nullptr;
  static inline void* p = nullptr;
  static inline int reported = 0;
};
}  // namespace

TEST_CASE("fenced allows the misuse handler to use the memory that reports to it", "[policy][fenced]") {
  stack<host_memory, fenced> memory;
  freed_by_handler::memory = &memory;
  freed_by_handler::reported = 0;
  misuse_handler const before = set_misuse_handler([](misuse const&) {
    ++freed_by_handler::reported;
    freed_by_handler::memory->deallocate({}, std::exchange(freed_by_handler::p, nullptr), 100);
    freed_by_handler::memory->deallocate({}, freed_by_handler::memory->allocate({}, 100), 100);
  });
  auto const next = [&] { freed_by_handler::p = memory.allocate({}, 100); };
  auto* const broken = static_cast<unsigned char*>(memory.allocate({}, 50));
  int local = 0;
  int* volatile stranger = &local;
  next();
  memory.deallocate({}, stranger, 4);  // foreign
  next();
  memory.deallocate({}, broken, 51);  // wrong size
  broken[50] = 0;
  broken[-1] = 0;
  next();
  CHECK(memory->check_all() == 1);  // both ends are reported
  next();
  memory.deallocate({}, broken, 50);
  CHECK(freed_by_handler::reported == 6);
  CHECK(freed_by_handler::p == nullptr);
  (void)set_misuse_handler(before);
}

TEMPLATE_TEST_CASE("record_stream refuses what is not the start of a live block", "[policy][record_stream]",
                   pooled, fenced, checked, poisoned, tracked) {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{};
  auto memory = [&] {
    if constexpr (std::same_as<TestType, pooled>) {
      return pool;
    } else {
      return pool | TestType{};
    }
  }();
  tarn_test::test_stream const a(machine.driver()), b(machine.driver());
  for (std::size_t const bytes : {std::size_t{1000}, std::size_t{200'000}, 64_MiB}) {
    void* const p = memory.allocate(a, bytes);
    void* const inner = static_cast<char*>(p) + 512;
    try {
      memory.record_stream(inner, 100, b);
      FAIL("no exception was thrown");
    } catch (misuse const& error) {
      CHECK(error.kind() == misuse_kind::foreign_pointer);
      CHECK(error.pointer() != nullptr);
      CHECK(std::string_view(error.what()).find("pass the pointer that allocate() returned") !=
            std::string_view::npos);
    }
    int local = 0;
    CHECK_THROWS_AS(memory.record_stream(&local, 100, b), misuse);
    CHECK_NOTHROW(memory.record_stream(nullptr, 0, b));
    memory.record_stream(p, bytes, b);
    memory.deallocate(a, p, bytes);
  }
}

TEST_CASE("fenced forwards record_stream with the address of the pool's block", "[policy][fenced]") {
  sim_machine const machine;
  tarn_test::test_stream const stream(machine.driver());
  tarn_test::test_stream const other(machine.driver());
  auto memory = sim_pages(machine.driver()) | pooled{} | fenced{};
  void* const p = memory.allocate(stream, 1000, 512);
  REQUIRE(machine.launch(other, 50'000'000, {sim_reads(p, 1000)}).ok());
  memory.record_stream(p, 1000, other);
  memory.deallocate(stream, p, 1000, 512);
  CHECK(memory->upstream()->state().deferred > 0);  // deferred until the other stream has passed the use
}
