// SPDX-License-Identifier: Apache-2.0
#pragma once
// device_pool: the stack that most programs need: pages of the device, pooled, with statistics. A call goes
// through core/shared_resource.hpp and policy/tracked.hpp to pool/pool.hpp, which lists the files behind it.

#include "tarn/core/config.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/source/cuda_pages.hpp"

namespace TARN_NAMESPACE {

/// A tracked pool over any page source or resource.
template <class Source>
using pool_over = stack<Source, pooled, tracked>;

#if TARN_HAS_CUDA
/// A pool of the current device's memory: `tarn::device_pool pool;`, or of another: `device_pool
/// pool{cuda_pages{1}};`.
///
/// Where the device has no virtual memory management it uses blocks of cudaMalloc: allocator_backend(pool)
/// reports which. sleep(), segments_of(), page_pin and export_block() then throw cuda_error of kind
/// `unsupported`.
///
/// It reports a double free, and a free with another size or of an address within a block, to the misuse
/// handler if the memory has not been handed out again meanwhile: at once, or, up to 1 MiB, when the thread's
/// cached blocks return to the pool. It cannot detect a use after the free, an overrun, or a wrong free of
/// memory that has a new owner; `| checked{}` detects these, too.
using device_pool = pool_over<cuda_pages>;
#endif

}  // namespace TARN_NAMESPACE
