// SPDX-License-Identifier: Apache-2.0
#pragma once
// The identities of all streams that the program creates, noted when they are created. CUDA does not identify
// a stream while it is captured, and the question invalidates the capture. Link with --wrap of the functions
// in known_streams.cpp.

#include <cuda_runtime_api.h>

namespace tarn_clients {

/// Returns the identity of a stream that exists, as cudaStreamGetId; 0 for a default stream, and for one that
/// was not created through the wrapped functions. No call of CUDA. Any thread may call it.
[[nodiscard]] unsigned long long identity_of(cudaStream_t stream) noexcept;

}  // namespace tarn_clients
