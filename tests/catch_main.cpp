// SPDX-License-Identifier: Apache-2.0
// The one main() of the tests. Catch2 3 brings its own.

#if TARN_CATCH2 == 2
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
