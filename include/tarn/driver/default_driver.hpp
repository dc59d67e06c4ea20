// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver that a program means where it names none: CUDA's, or in a program without CUDA that of
// <tarn/sim.hpp>.

#include "tarn/core/config.hpp"
#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE::detail {

// T makes the driver known only where it is used: <tarn/sim.hpp> may be included before or after the headers
// that use it.
#if TARN_HAS_CUDA
template <class T>
using default_driver = cuda_driver;
#else
/// Defined by <tarn/sim.hpp>. Without CUDA and without that header there is no default: name the resource, as
/// in device_buffer<T, Pool>, or use make_device_buffer().
template <class T>
struct simulated_driver;
template <class T>
using default_driver = typename simulated_driver<T>::type;
#endif

}  // namespace TARN_NAMESPACE::detail
