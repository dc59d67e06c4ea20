// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sources on the simulated device: the same code as on CUDA, on a driver in plain C++. They are in a
// header of their own, since the simulated device is slow to compile.

#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/source/cuda_async.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/source/pinned_host.hpp"
#include "tarn/source/registered_host.hpp"

namespace TARN_NAMESPACE {

using sim_pages = basic_pages<sim_driver>;
using sim_malloc = basic_malloc<sim_driver>;
using sim_async = basic_async<sim_driver>;
using sim_async_pinned = basic_async_pinned<sim_driver>;
using sim_async_managed = basic_async_managed<sim_driver>;
using sim_pinned_host = basic_pinned<sim_driver>;
using sim_registered_host = basic_registered<sim_driver>;
using sim_managed = basic_managed<sim_driver>;

static_assert(page_source<sim_pages>);
static_assert(resource<sim_malloc> && resource<sim_async> && resource<sim_async_pinned> &&
              resource<sim_async_managed> && resource<sim_pinned_host> && resource<sim_managed> &&
              resource<sim_registered_host>);

}  // namespace TARN_NAMESPACE
