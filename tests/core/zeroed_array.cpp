// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/zeroed_array.hpp"

#include <cstdint>
#include <utility>

#include "catch.hpp"

namespace {

using table = tarn::detail::zeroed_array<std::uint64_t>;

}  // namespace

TEST_CASE("zeroed_array has zeros, and takes memory only where it is written", "[core]") {
  std::size_t const count = std::size_t{1} << 30;  // 8 GiB, more than the tests may take
  table const t(count);
  CHECK(t[0] == 0);
  t[count - 1] = 5;
  CHECK(t[count - 1] == 5);
  CHECK(t[count / 2] == 0);
}

TEST_CASE("zeroed_array moves its elements and leaves nothing behind", "[core]") {
  table a(10);
  a[3] = 7;
  table b = std::move(a);
  CHECK_FALSE(static_cast<bool>(a));  // NOLINT(bugprone-use-after-move)
  CHECK(b[3] == 7);
  a = table(20);
  CHECK(a[19] == 0);
  a = std::move(b);
  CHECK(a[3] == 7);
}
