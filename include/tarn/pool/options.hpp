// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a user may choose of a pool; the defaults serve all traces.

#include <cstddef>

namespace tarn {

/// May free physical handles be seen side by side at a second place?
enum class remapping {
  when_tight,  ///< yes, before reserved memory outgrows the live peak (needs a page source)
  off          ///< no: every handle is seen where it was first mapped
};

struct pool_options {
  remapping remap = remapping::when_tight;
  /// How far reserved memory may exceed the peak of live bytes, in thousandths, before free handles are
  /// remapped.
  unsigned slack_per_mille = 9;
  /// Largest physical handle to create, bytes, a multiple of 2 MiB; 0: from the live peak, see pool/growth/growth.hpp. Smaller
  /// ones waste less and cost more driver calls.
  std::size_t largest_handle = 0;
};

}  // namespace tarn
