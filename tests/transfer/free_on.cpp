// SPDX-License-Identifier: Apache-2.0
#include "tarn/transfer/free_on.hpp"

#include <utility>

#include "catch.hpp"
#include "contract/early_release_contract.hpp"
#include "raii/archetype.hpp"
#include "raii/watched_machine.hpp"

using namespace tarn;
using tarn_test::bare_stream;
using tarn_test::kept_memory;
using tarn_test::watched_machine;

TEST_CASE("retire orders the release after the last user on any schedule", "[raii][free_on][stream]") {
  for (unsigned const seed : {0U, 1U, 2U, 3U}) {
    watched_machine const t(seed);
    tarn_test::free_on_contract(t.pool(), t.pinned(), t.busy());
    CHECK(t.machine.findings().empty());
  }
}

TEST_CASE("retire makes the memory reusable on the last user's stream without a host wait",
          "[raii][free_on]") {
  sim_machine const machine;
  sim_pool const memory{sim_pages{machine.driver()}};
  basic_stream const a(machine.driver());
  basic_stream const b(machine.driver());
  auto buffer = make_device_buffer<std::byte>(memory, 30_MiB, a);
  auto const* const place = buffer.data();
  REQUIRE(machine.launch(a, 1'000'000'000).ok());
  auto const start = machine.now();
  free_on(std::move(buffer), b);
  auto const next = make_device_buffer<std::byte>(memory, 30_MiB, b);
  CHECK(next.data() == place);
  CHECK(machine.now() - start < 1'000'000);  // the host did not wait
}

TEST_CASE("retire makes no driver call if the streams are already ordered", "[raii][free_on]") {
  sim_machine const machine;
  sim_pool const memory{sim_pages{machine.driver()}};
  basic_stream const a(machine.driver());
  basic_stream const b(machine.driver());
  auto one = make_device_buffer<int>(memory, 100, a);
  auto two = make_device_buffer<int>(memory, 100, a);
  auto three = make_device_buffer<int>(memory, 100, a);
  auto warm = make_device_buffer<int>(memory, 100, b);
  warm.reset();
  machine.reset_calls();
  free_on(std::move(one), a);
  free_on(std::move(two), b, earlier_work::is_waited_for);
  CHECK(machine.calls().total() == machine.calls()[driver_call::is_capturing]);
  free_on(std::move(three), b);
  CHECK(machine.calls()[driver_call::record_event] == 1);
}

TEST_CASE("retire records one event for consecutive owners on the same stream", "[raii][free_on]") {
  kept_memory memory;
  {
    auto one = make_device_buffer<int>(memory, 10, bare_stream(1));
    auto two = make_device_buffer<int>(memory, 20, bare_stream(1));
    auto three = make_device<double>(memory, bare_stream(2));
    pinned_buffer<int, kept_memory> four(memory, 5, elements::uninitialised, bare_stream(2));
    device_buffer<int, kept_memory> five(memory, bare_stream(5));
    memory.driver().plan().reset();
    free_on(bare_stream(3), std::move(one), std::move(two), std::move(three), std::move(four),
            std::move(five));
    CHECK(memory.driver().plan().calls(driver_call::record_event) == 2);
    CHECK(memory.kept().live.empty());
    CHECK(memory.kept().freed_on == bare_stream(3));
    CHECK(memory.kept().freed_on.id() != stream_ref::unknown_id);
    CHECK(five.stream() == bare_stream(5));
  }
  CHECK(memory.balanced());
}

TEST_CASE("retire deallocates the whole capacity of a buffer", "[raii][free_on]") {
  kept_memory memory;
  {
    auto one = make_device_buffer<int>(memory, 100, bare_stream(1));
    one.resize(10);
    pinned_buffer<int, kept_memory> two(memory, 100);
    two.resize(10);
    free_on(bare_stream(1), std::move(one), std::move(two));
    free_on(std::move(one), bare_stream(2));  // NOLINT: an owner of nothing
    CHECK(memory.kept().live.empty());
  }
  CHECK(memory.balanced());
}

TEST_CASE("retire frees elements that are const", "[raii][free_on]") {
  sim_machine const machine;
  sim_pool const memory{sim_pages{machine.driver()}};
  basic_stream const stream(machine.driver());
  device_ptr<float const, sim_pool> one = make_device<float>(memory, stream);
  device_ptr<float const[], sim_pool> several(memory, make_device<float[]>(memory, 9, stream).release(), 9,
                                              stream);
  free_on(stream, std::move(one), std::move(several));
  CHECK(memory->statistics().requested_bytes[0].current == 0);
}

TEST_CASE("retire releases nothing if a stream cannot be made to wait", "[raii][free_on]") {
  tarn_test::fail_each_step(
      [](kept_memory const& m) {
        return std::pair(make_device_buffer<int>(m, 10, bare_stream(1)), make_device<int>(m, bare_stream(2)));
      },
      [](auto& two) { free_on(bare_stream(3), std::move(two.first), std::move(two.second)); },
      [](auto const& two) {
        CHECK((two.first.size() == 10 && two.second && two.first.stream() == bare_stream(1)));
      });
}

TEST_CASE("retire with earlier_work::is_waited_for and no such wait is found by the order checker",
          "[raii][free_on][stream]") {
  watched_machine const t(0);
  basic_stream const a(t.machine.driver());
  basic_stream const b(t.machine.driver());
  auto const memory = t.pool();
  auto buffer = make_device_buffer<std::byte>(memory, 3_MiB, a);
  REQUIRE(t.machine.launch(a, 1'000'000'000, {sim_reads(buffer.data(), 3_MiB)}).ok());
  free_on(std::move(buffer), b, earlier_work::is_waited_for);
  make_device_buffer<std::byte>(memory, 3_MiB, b).zero();
  REQUIRE(t.machine.driver().synchronize_device().ok());
  CHECK_FALSE(t.machine.findings().empty());
}
