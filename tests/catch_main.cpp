// SPDX-License-Identifier: Apache-2.0
// The one main() of the tests; Catch2 3 brings its own. After each test, what the process shares must be as
// before it: a capture that a test leaves open would change what pools do in all later tests.

#if TARN_CATCH2 == 2
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
using listener_base = Catch::TestEventListenerBase;
#define TARN_NAME_OF(ended) (ended).testInfo.name
#else
#include <catch2/catch_all.hpp>
using listener_base = Catch::EventListenerBase;
#define TARN_NAME_OF(ended) (ended).testInfo->name
#endif

#include <cstdio>
#include <cstdlib>

#include "tarn/driver/capture_gate.hpp"

namespace {
class shared_state : public listener_base {
 public:
  using listener_base::listener_base;
  void testCaseEnded(Catch::TestCaseStats const& ended) override {
    if (!tarn::detail::capture_gate::has_captures()) return;
    std::fprintf(stderr, "'%s' left a capture open in the capture_gate\n", TARN_NAME_OF(ended).c_str());
    std::abort();
  }
};
CATCH_REGISTER_LISTENER(shared_state)
}  // namespace
