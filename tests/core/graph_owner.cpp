// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/graph_owner.hpp"

#include "catch.hpp"
#include "tarn/core/owned.hpp"

namespace {

struct counting_owner final : tarn::detail::graph_owner {
  explicit counting_owner(int& ended) : ended_(ended) {}
  ~counting_owner() override { ++ended_; }
  tarn::detail::capture_number begin_capture(tarn::stream_ref) override { return 1; }
  void join_capture(tarn::detail::capture_number, tarn::stream_ref) override {}
  void end_capture(tarn::detail::capture_number) noexcept override {}
  tarn::graph_state state() const override { return {1, 2, 3}; }
  int& ended_;
};

}  // namespace

TEST_CASE("a graph_owner ends with the object that holds it", "[graph_owner]") {
  int ended = 0;
  {
    tarn::detail::owned<tarn::detail::graph_owner> const owner(new counting_owner(ended));
    CHECK((owner->state().reserved == 1 && owner->state().allocated == 2 && owner->state().kept == 3));
    CHECK(ended == 0);
  }
  CHECK(ended == 1);
}
