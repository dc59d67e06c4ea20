// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pool behind tiny-cuda-nn's workspace. The functions that tiny-cuda-nn calls are declared in
// include/tiny-cuda-nn/gpu_memory.h.

#include <tarn/tarn.hpp>

namespace tcnn::tarn_workspace {

/// Takes workspace from this pool from now on. Call it before any workspace is allocated; the pool's device
/// is that of all streams.
void use(tarn::device_pool pool);

}  // namespace tcnn::tarn_workspace
