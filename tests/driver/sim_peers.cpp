// SPDX-License-Identifier: Apache-2.0
// Several simulated devices: which devices may access which pages, and the cost of copies between them.

#include "catch.hpp"
#include "tarn/core/element.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;

namespace {

/// A range of two mappings on device 0 of a machine with three devices.
struct two_pages {
  explicit two_pages(sim_peers peers = sim_peers::reachable) : machine(options(peers)) {
    sim_driver const zero = machine.driver();
    REQUIRE(zero.reserve_range(6_MiB, 0, range).ok());
    for (int i : {0, 1}) {
      REQUIRE(zero.create_pages(2_MiB, handle[i]).ok());
      REQUIRE(zero.map_pages(page(i), 2_MiB, handle[i]).ok());
    }
  }
  static sim_options options(sim_peers peers) {
    sim_options o;
    o.devices = 3;
    o.peers = peers;
    return o;
  }
  [[nodiscard]] char* page(int i) const {
    return static_cast<char*>(range) + static_cast<std::size_t>(i) * 2_MiB;
  }
  /// True if a copy made by the device may access the page; the same holds for a kernel.
  [[nodiscard]] bool touches(int device, int i) const {
    sim_driver const driver = machine.driver(device_id{device});
    void* own = nullptr;
    REQUIRE(driver.malloc_device(1_KiB, own).ok());
    bool const copies = driver.copy(stream_ref{}, own, page(i), 1_KiB).ok();
    REQUIRE(
        driver.convert(stream_ref{}, static_cast<float16*>(own), reinterpret_cast<float*>(page(i)), 10).ok());
    bool const converts = driver.synchronize_device().ok();
    machine.repair();
    REQUIRE(driver.free_device(own).ok());
    CHECK(copies == converts);
    return copies;
  }

  sim_machine machine;
  void* range = nullptr;
  page_handle handle[2] = {};
};

}  // namespace

TEST_CASE("sim_driver pages are private to their device until shared, per mapping",
          "[driver][sim][peers][pages]") {
  two_pages const t;
  sim_driver const zero = t.machine.driver();
  CHECK(t.touches(0, 0));
  CHECK_FALSE(t.touches(1, 0));
  REQUIRE(zero.share_pages(t.page(0), 2_MiB, device_id{1}).ok());
  CHECK(t.touches(1, 0));
  CHECK_FALSE(t.touches(1, 1));
  CHECK_FALSE(t.touches(2, 0));
  CHECK(t.touches(0, 0));
  REQUIRE(zero.share_pages(t.range, 4_MiB, device_id{2}).ok());
  CHECK(t.touches(2, 0));
  CHECK(t.touches(2, 1));
  // After remapping it is private to the device again.
  REQUIRE(zero.unmap_pages(t.range, 2_MiB).ok());
  REQUIRE(zero.map_pages(t.range, 2_MiB, t.handle[0]).ok());
  CHECK_FALSE(t.touches(1, 0));
}

TEST_CASE("sim_driver shares only whole mappings, with devices that exist", "[driver][sim][peers][pages]") {
  two_pages const t;
  sim_driver const zero = t.machine.driver();
  CHECK(zero.share_pages(t.range, 1_MiB, device_id{1}).code == 1);
  CHECK(zero.share_pages(t.range, 6_MiB, device_id{1}).code == 1);
  CHECK(zero.share_pages(t.page(0) + 1_MiB, 2_MiB, device_id{1}).code == 1);
  CHECK(zero.share_pages(t.range, 0, device_id{1}).code == 1);
  CHECK(zero.share_pages(t.range, 2_MiB, device_id{3}).kind == failure::no_device);
  CHECK_FALSE(t.touches(1, 0));
}

TEST_CASE("sim_driver refuses to share pages between devices without peer access",
          "[driver][sim][peers][pages]") {
  two_pages const t{sim_peers::apart};
  sim_driver const zero = t.machine.driver();
  bool yes = true;
  REQUIRE(zero.can_share(device_id{1}, yes).ok());
  CHECK_FALSE(yes);
  REQUIRE(zero.can_share(device_id{0}, yes).ok());
  CHECK(yes);
  CHECK(zero.can_share(device_id{3}, yes).kind == failure::no_device);
  CHECK(zero.share_pages(t.range, 2_MiB, device_id{1}).kind == failure::unsupported);
  CHECK(zero.share_pages(t.range, 2_MiB, device_id{0}).ok());
  two_pages const near;
  yes = false;
  REQUIRE(near.machine.driver().can_share(device_id{1}, yes).ok());
  CHECK(yes);
}

TEST_CASE("sim_driver copies between devices take the time of their link, or of the path through the host",
          "[driver][sim][peers]") {
  auto const time_of = [](sim_peers peers, int to, int from) {
    sim_options o = two_pages::options(peers);
    o.backing = sim_backing::address_only;
    sim_machine const machine{o};
    sim_driver const target = machine.driver(device_id{to});
    void *a = nullptr, *b = nullptr;
    REQUIRE(target.malloc_device(1_GiB, a).ok());
    REQUIRE(machine.driver(device_id{from}).malloc_device(1_GiB, b).ok());
    auto const start = machine.now();
    REQUIRE(target.copy_from_device(stream_ref{}, a, device_id{from}, b, 1_GiB).ok());
    REQUIRE(target.synchronize_stream(stream_ref{}).ok());
    return static_cast<double>(machine.now() - start) / static_cast<double>(1_GiB);
  };
  sim_costs const costs;
  CHECK(time_of(sim_peers::reachable, 1, 0) == Approx(1 / costs.peer_rate).epsilon(0.01));
  CHECK(time_of(sim_peers::apart, 1, 2) == Approx(1 / costs.staged_rate).epsilon(0.01));
  CHECK(time_of(sim_peers::apart, 1, 1) == Approx(1 / costs.on_device_rate).epsilon(0.01));
}
