// SPDX-License-Identifier: Apache-2.0
#include "tarn/core/descriptor.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "catch.hpp"

using tarn::unique_descriptor;

namespace {

bool is_open(int descriptor) {
  return ::fcntl(descriptor, F_GETFD) != -1;
}

}  // namespace

TEST_CASE("unique_descriptor closes what it owns once, and release() gives it away", "[core][descriptor]") {
  int const first = ::dup(1);
  int const second = ::dup(1);
  {
    unique_descriptor a(first);
    unique_descriptor b(second);
    CHECK(a.get() == first);
    b = std::move(a);
    CHECK_FALSE(is_open(second));
    CHECK(is_open(first));
    CHECK(b.get() == first);
    unique_descriptor const c(std::move(b));
    CHECK_FALSE(static_cast<bool>(b));  // NOLINT(bugprone-use-after-move): a moved-from owner is empty
    CHECK(is_open(first));
  }
  CHECK_FALSE(is_open(first));
  int const kept = ::dup(1);
  CHECK(unique_descriptor(kept).release() == kept);
  CHECK(is_open(kept));
  unique_descriptor const last(kept);
  last.close_on_exec();
  CHECK((::fcntl(kept, F_GETFD) & FD_CLOEXEC) != 0);
}
