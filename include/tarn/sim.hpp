// SPDX-License-Identifier: Apache-2.0
#pragma once
// The simulated device, for tests and for machines without a GPU. Opt-in, since it takes long to compile. In
// a program that is compiled without CUDA, device_pool, stream, cuda_pages and the other names of CUDA's
// types mean the simulated device.

#include "tarn/core/config.hpp"

#include "tarn/driver/default_driver.hpp"
#include "tarn/policy/any_resource.hpp"
#include "tarn/policy/device_pool.hpp"
#include "tarn/raii/device_guard.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/sim_sources.hpp"

namespace TARN_NAMESPACE {

/// device_pool on the simulated device: `tarn::sim_pool pool;` simulates an H200,
/// `sim_pool{sim_pages{machine.driver(0)}}` a user-defined machine.
using sim_pool = pool_over<sim_pages>;
/// An owning stream of the simulated device.
using sim_stream = basic_stream<sim_driver>;

#if !TARN_HAS_CUDA
// A program for the GPU, compiled with TARN_NO_CUDA, runs on the simulated device: include this header in its
// tests, or compile it with `-include tarn/sim.hpp`. Use the same way for all translation units of a program.
using cuda_pages = sim_pages;
using cuda_malloc = sim_malloc;
using cuda_async = sim_async;
using cuda_async_pinned = sim_async_pinned;
using cuda_async_managed = sim_async_managed;
using pinned_host = sim_pinned_host;
using registered_host = sim_registered_host;
using managed = sim_managed;
using device_pool = sim_pool;
using any_resource = basic_any_resource<sim_driver, device_accessible>;
using device_guard = basic_device_guard<sim_driver>;
class stream : public sim_stream {
 public:
  using sim_stream::sim_stream;
};
namespace detail {
template <class T>
struct simulated_driver {
  using type = sim_driver;
};
}  // namespace detail
#endif

}  // namespace TARN_NAMESPACE
