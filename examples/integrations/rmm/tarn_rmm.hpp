// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn's resources as RMM's: what to copy into a program that uses both. RMM 26.06 or later.

#include <concepts>
#include <rmm/error.hpp>
#include <utility>

#include "tarn/cuda_mr.hpp"

namespace tarn_rmm {

/// RMM's code catches these two; tarn's report is in what(), and std::rethrow_if_nested gives the
/// tarn::out_of_memory itself.
using errors = tarn::errors_as<rmm::out_of_memory, rmm::bad_alloc>;

/// Returns `memory` as a resource for rmm::mr::set_current_device_resource(), for the upstream of RMM's
/// adaptors, and for every parameter of type rmm::device_async_resource_ref. Costs one copy of the handle;
/// memory lives as long as a copy of it.
template <tarn::resource Resource>
[[nodiscard]] tarn::cuda_resource<Resource, errors> resource(Resource memory) {
  return tarn::as_cuda_resource<errors>(std::move(memory));
}

}  // namespace tarn_rmm
