// SPDX-License-Identifier: Apache-2.0
#pragma once
// Catch2 in the version that is there: 2 (Debian 12, Ubuntu 22.04) or 3 (later ones). Tests include this and nothing of
// Catch itself.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
