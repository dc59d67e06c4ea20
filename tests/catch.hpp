// SPDX-License-Identifier: Apache-2.0
#pragma once
// Catch2 in the version that the build found: 2 (Debian 12, Ubuntu 22.04) or 3 (later ones). Tests include
// this and nothing of Catch itself.

#if !defined(TARN_CATCH2)
#if __has_include(<catch2/catch.hpp>)
#define TARN_CATCH2 2
#else
#define TARN_CATCH2 3
#endif
#endif

#if TARN_CATCH2 == 3
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
