// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver calls of sleep(), wake() and compact(), and how each fails.

#include <cstdint>

#include "driver/faulty.hpp"

namespace tarn_test {

using tarn::driver_call;
using tarn::fault_moment;

/// A driver call, and how it fails: a call that gives something back does its work, as a driver that reports
/// an earlier error.
struct failing_call {
  driver_call call;
  fault_moment moment;
};
inline constexpr failing_call failing_calls[] = {
    {driver_call::memory_info, fault_moment::instead},
    {driver_call::create_pages, fault_moment::instead},
    {driver_call::map_pages, fault_moment::instead},
    {driver_call::copy, fault_moment::instead},
    {driver_call::malloc_pinned, fault_moment::instead},
    {driver_call::create_stream, fault_moment::instead},
    {driver_call::create_event, fault_moment::instead},
    {driver_call::record_event, fault_moment::instead},
    {driver_call::synchronize_event, fault_moment::instead},
    {driver_call::synchronize_stream, fault_moment::instead},
    {driver_call::synchronize_device, fault_moment::instead},
    {driver_call::unmap_pages, fault_moment::after},
    {driver_call::destroy_pages, fault_moment::after},
    {driver_call::free_pinned, fault_moment::after},
    {driver_call::destroy_event, fault_moment::after},
    {driver_call::destroy_stream, fault_moment::after},
};

/// Which of the calls of one kind fail: every one, or, without TARN_THOROUGH, the first, the fourth and so
/// on.
#ifdef TARN_FEWER_CASES
inline constexpr std::uint64_t next_failing = 3;
#else
inline constexpr std::uint64_t next_failing = 1;
#endif

/// The driver does not report that copies are complete.
inline void fail_waits(tarn::fault_plan const& plan) {
  for (driver_call const call :
       {driver_call::synchronize_event, driver_call::synchronize_stream, driver_call::synchronize_device}) {
    for (unsigned nth = 1; nth <= 8; ++nth) plan.fail(call, nth);
  }
}

}  // namespace tarn_test
