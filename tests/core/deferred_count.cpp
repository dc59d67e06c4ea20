// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/deferred_count.hpp"

#include "catch.hpp"

using namespace tarn::detail;

namespace {
struct observer final : deferred_observer {
  void deferred_changed(deferred_amount const& more_small,
                        deferred_amount const& more_large) noexcept override {
    small += more_small.bytes;
    large += more_large.bytes;
    blocks += more_small.blocks + more_large.blocks;
  }
  std::int64_t small = 0, large = 0, blocks = 0;
};
}  // namespace

TEST_CASE("deferred_count notifies every observer, and a new one of the blocks deferred already",
          "[core][deferred_count]") {
  deferred_count count;
  observer first, second;
  count.attach(first);
  count.change(true, 512, 500, 1);
  count.change(false, 2048, 2000, 1);
  count.attach(second);
  CHECK(second.small == 512);
  CHECK(second.large == 2048);
  CHECK(second.blocks == 2);
  count.change(true, 512, 500, -1);
  CHECK(count.now().blocks == 1);
  CHECK(count.now().bytes == 2048);
  CHECK(count.now().requested == 2000);
  count.detach(first);
  count.change(false, 2048, 2000, -1);
  CHECK(first.small == 0);
  CHECK(first.large == 2048);
  CHECK(second.large == 0);
  CHECK(second.blocks == 0);
  count.detach(second);
  count.change(true, 512, 500, 1);
  CHECK(second.blocks == 0);
}
