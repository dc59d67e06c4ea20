// SPDX-License-Identifier: Apache-2.0
#include "replay/choose_options.hpp"

#include <sstream>

#include "catch.hpp"
#include "tarn/core/bytes.hpp"

using namespace tarn;
using namespace tarn::bench;

namespace {

figures of(std::uint64_t held, double driver_ns, std::uint64_t refused = 0) {
  figures row;
  row.device = "sim";
  row.events = 1000;
  row.peak_live = 900;
  row.peak_reserved = held;
  row.driver_ns_cold = driver_ns;
  row.cold_ns_per_event = 1e9;  // not compared on the simulated device
  row.out_of_memory = refused;
  return row;
}
std::size_t recommended(std::vector<figures> const& rows) {
  return choose_options(rows).value().recommended;
}

}  // namespace

TEST_CASE("choose_options recommends the defaults unless others save memory or time", "[replay]") {
  CHECK(recommended({of(1000, 100)}) == 0);
  CHECK(recommended({of(1000, 100), of(995, 100), of(1000, 95)}) == 0);  // saves too little
  CHECK(recommended({of(1000, 100), of(900, 111), of(1001, 10)}) == 0);  // takes longer, or holds more
  CHECK(recommended({of(1000, 100), of(980, 110), of(970, 109), of(1000, 10)}) == 2);
  CHECK(recommended({of(1000, 100), of(999, 80), of(1000, 70)}) == 2);
}

TEST_CASE("choose_options names the tightest and the fastest, and none where requests were refused",
          "[replay]") {
  std::vector<figures> const rows{of(1000, 100), of(900, 500), of(2000, 1), of(100, 0, 1)};
  choice const c = choose_options(rows).value();
  CHECK((c.recommended == 0 && c.tightest == 1 && c.fastest == 2));
  CHECK(recommended({of(1000, 100, 3), of(2000, 50), of(2000, 20)}) == 2);
  CHECK_FALSE(choose_options(std::vector<figures>{of(1, 1, 1)}));
  CHECK_FALSE(choose_options({}));
  std::ostringstream out;
  write_choice(out, std::vector<figures>{of(1, 1, 1)}, std::vector<pooled>(1));
  CHECK(out.str() == "no recommendation: requests were refused with all options\n\n");
}

TEST_CASE("choose_options compares host times on a GPU", "[replay]") {
  std::vector<figures> rows{of(1000, 0), of(1000, 0)};
  for (figures& row : rows) row.device = "cuda";
  rows[1].cold_ns_per_event = 1e8;
  CHECK(recommended(rows) == 1);
}

TEST_CASE("options_to_try begins with the defaults and has no options twice", "[replay]") {
  std::vector<pooled> const all = options_to_try();
  CHECK(to_text(all.front()) == "pooled{}");
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) CHECK(to_text(all[i]) != to_text(all[k]));
  }
  CHECK(to_text({.remap = remapping::off, .slack_per_mille = 0}) ==
        "pooled{.remap = remapping::off, .slack_per_mille = 0}");
  CHECK(to_text({.largest_handle = 8_MiB, .release_threshold = 0}) ==
        "pooled{.largest_handle = 8_MiB, .release_threshold = 0}");
  CHECK(to_text({.largest_handle = 3072}) == "pooled{.largest_handle = 3072}");
}

TEST_CASE("write_choice prints the recommended options first, with their figures", "[replay]") {
  std::vector<figures> const rows{of(2 << 20, 4000), of(1 << 20, 2000)};
  std::vector<pooled> const tried{{}, {.largest_handle = 8_MiB}};
  std::ostringstream out;
  write_choice(out, rows, tried);
  CHECK(
      out.str().starts_with("recommended: pooled{.largest_handle = 8_MiB}: 1.0 MiB held (0.001 in use at the "
                            "peak), first pass 2.00 ms\n"
                            "defaults:    pooled{}: 2.0 MiB held"));
}
