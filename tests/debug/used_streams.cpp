// SPDX-License-Identifier: Apache-2.0
#include "tarn/debug/used_streams.hpp"

#include <string>
#include <vector>

#include "catch.hpp"
#include "contract/memory_access.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {
/// The texts of the misuse that is reported during a test.
class reported {
 public:
  reported() : before_(set_misuse_handler([](misuse const& m) { texts().push_back(m.what()); })) {
    texts().clear();
  }
  reported(reported const&) = delete;
  reported& operator=(reported const&) = delete;
  ~reported() { (void)set_misuse_handler(before_); }
  static std::vector<std::string>& texts() {
    static std::vector<std::string> all;
    return all;
  }

 private:
  misuse_handler before_;
};
constexpr auto any = [](stream_id) { return true; };
constexpr sim_nanoseconds a_second = 1'000'000'000;
}  // namespace

TEST_CASE("used_streams::report_unfinished reports each stream with work once", "[policy][used_streams]") {
  sim_machine const machine;
  sim_driver const driver = machine.driver();
  tarn_test::test_stream const busy(driver), idle(driver), unused(driver);
  reported const now;
  detail::used_streams<sim_driver> streams;
  streams.note(driver, busy);
  streams.note(driver, busy);
  streams.note(driver, idle);
  REQUIRE(machine.launch(busy, a_second).ok());
  REQUIRE(machine.launch(unused, a_second).ok());
  streams.report_unfinished(driver, "sleep", any);
  REQUIRE(reported::texts().size() == 1);
  CHECK(reported::texts()[0].find("sleep() was called while stream") != std::string::npos);
  REQUIRE(driver.synchronize_stream(busy).ok());
  streams.report_unfinished(driver, "sleep", any);
  CHECK(reported::texts().size() == 1);
}

TEST_CASE("used_streams remembers the latest 64 streams", "[policy][used_streams]") {
  sim_machine const machine;
  sim_driver const driver = machine.driver();
  std::vector<stream_ref> all(200);
  for (stream_ref& s : all) REQUIRE(driver.create_stream(s).ok());
  reported const now;
  detail::used_streams<sim_driver> streams;
  for (stream_ref const s : all) streams.note(driver, s);
  for (std::size_t i = all.size() - 64; i < all.size(); ++i) REQUIRE(machine.launch(all[i], a_second).ok());
  streams.report_unfinished(driver, "sleep", any);
  CHECK(reported::texts().size() == 64);
}
