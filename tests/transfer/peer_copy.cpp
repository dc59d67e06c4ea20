// SPDX-License-Identifier: Apache-2.0

#include "tarn/transfer/peer_copy.hpp"

#include <string_view>

#include "catch.hpp"
#include "contract/across_devices.hpp"
#include "contract/owners_reported.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

constexpr sim_nanoseconds second = 1'000'000'000;

sim_machine adversarial(std::uint64_t seed, sim_peers peers) {
  sim_options o;
  o.devices = 2;
  o.peers = peers;
  o.checks = sim_checks::stream_order;
  o.seed = seed;
  o.slow_streams = 500;
  o.late_events = 100'000;
  return sim_machine(o);
}

}  // namespace

TEST_CASE("peer_copy is ordered on both devices, with and without peer access, on any schedule",
          "[raii][peer_copy][stream][pages]") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    sim_peers const peers = seed % 2 == 0 ? sim_peers::reachable : sim_peers::apart;
    sim_machine const machine = adversarial(seed, peers);
    auto const busy = [&](int device, stream_ref stream) {
      auto const long_one = (seed + static_cast<std::uint64_t>(device)) % 3 == 0;
      REQUIRE(machine.driver(device_id{device}).launch(stream, long_one ? second : 100).ok());
    };
    auto const pages = [&](int device) { return sim_pages{machine.driver(device_id{device})}; };
    using tarn_test::owners_reported;
    tarn_test::pieces_travel(pages(0) | pooled{} | owners_reported{machine},
                             pages(1) | pooled{} | owners_reported{machine}, busy);
    tarn_test::pieces_travel(sim_malloc{machine.driver()} | pooled{} | owners_reported{machine},
                             pages(1) | pooled{}, busy);
    tarn_test::pieces_travel(pages(0) | pooled{} | owners_reported{machine},
                             pages(0) | pooled{} | owners_reported{machine},
                             [&](int, stream_ref stream) { busy(0, stream); });
    tarn_test::pieces_travel(sim_pinned_host{machine.driver()} | pooled{}, pages(1) | pooled{}, busy);
    if (peers == sim_peers::reachable) {
      tarn_test::pieces_travel(pages(0) | accessible_from{1} | pooled{} | owners_reported{machine},
                               pages(1) | accessible_from{0} | pooled{} | owners_reported{machine}, busy);
    }
    INFO("seed " << seed);
    CHECK(machine.findings().empty());
    CHECK(machine.leaks().total() == 0);
  }
}

TEST_CASE("peer_copy refuses a range beyond a buffer's end, and the error names the buffer",
          "[raii][peer_copy]") {
  auto const from = make_device_buffer<int>(sim_malloc{}, 10, stream_ref{});
  auto to = make_device_buffer<int>(sim_malloc{}, 5, stream_ref{});
  to.zero();
  CHECK_THROWS_AS(peer_copy(from, to), length_error);
  CHECK_THROWS_AS(peer_copy(from, 11, to, 0, 0), length_error);
  CHECK_THROWS_AS(peer_copy(from, 8, to, 0, 3), length_error);
  CHECK_THROWS_AS(peer_copy(from, 1, to, 0, static_cast<std::size_t>(-1)), length_error);
  CHECK_THROWS_AS(peer_copy(from, static_cast<std::size_t>(-1), to, 0, 1), length_error);
  try {
    peer_copy(from, 0, to, 3, 3);
    FAIL("no exception was thrown");
  } catch (length_error const& error) {
    std::string_view const text = error.what();
    CHECK(text.find("3 elements, starting at element 3 of the target, which has 5") != text.npos);
  }
  peer_copy(from, 10, to, 5, 0);
}

TEST_CASE("peer_copy within one buffer refuses overlapping ranges", "[raii][peer_copy]") {
  tarn_test::words const original = tarn_test::counted_words(100);
  auto buffer =
      make_device_buffer<std::uint32_t>(sim_malloc{}, std::span<std::uint32_t const>(original), stream_ref{});
  for (std::size_t const to : {0U, 1U, 49U}) {
    try {
      peer_copy(buffer, 0, buffer, to, 50);
      FAIL("no exception was thrown");
    } catch (misuse const& error) {
      CHECK(error.kind() == misuse_kind::overlap);
      CHECK(std::string_view(error.what()).find("overlap") != std::string_view::npos);
    }
  }
  CHECK(tarn_test::words_of(buffer) == original);
  peer_copy(buffer, 0, buffer, 50, 50);
  CHECK(tarn_test::words_of(buffer)[99] == original[49]);
}

TEST_CASE("peer_copy that fails leaves the source unchanged and leaks nothing", "[raii][peer_copy]") {
  using faulty_driver = faulty<sim_driver>;
  bool struck = true;
  for (std::uint64_t step = 1; struck; ++step) {
    REQUIRE(step < 50);
    sim_machine const machine = adversarial(step, sim_peers::reachable);
    fault_plan const plan;
    {
      auto const pool = [&](int device) {
        return basic_pages<faulty_driver>(faulty_driver(machine.driver(device_id{device}), plan)) | pooled{} |
               tarn_test::owners_reported{machine};
      };
      basic_stream<faulty_driver> const a{faulty_driver(machine.driver(device_id{0}), plan)};
      basic_stream<faulty_driver> const b{faulty_driver(machine.driver(device_id{1}), plan)};
      tarn_test::words const original = tarn_test::counted_words(100);
      auto const from =
          make_device_buffer<std::uint32_t>(pool(0), std::span<std::uint32_t const>(original), a);
      auto to = make_device_buffer<std::uint32_t>(pool(1), 100, b);
      plan.reset();
      plan.fail(step);
      try {
        peer_copy(from, 10, to, 0, 90);
        CHECK(plan.failed() == plan.failed(driver_call::destroy_event));
      } catch (cuda_error const&) {
        CHECK(plan.failed() == 1);
      }
      struck = plan.failed() != 0;
      plan.reset();
      CHECK(tarn_test::words_of(from) == original);
    }
    CHECK(machine.findings().empty());
    CHECK(machine.leaks().total() == machine.leaks().events);  // except an event whose destruction failed
  }
}
