// SPDX-License-Identifier: Apache-2.0
#pragma once
// How long calls wait for another process.

#include <chrono>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

/// How long one step of the other process may take.
inline constexpr std::chrono::milliseconds default_sharing_timeout{30'000};

namespace detail {

/// A longer limit counts as this one, which can be added to the time of any clock.
inline constexpr std::chrono::milliseconds longest_wait = std::chrono::hours(24 * 365);

}  // namespace detail
}  // namespace TARN_NAMESPACE
