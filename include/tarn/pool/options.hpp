// SPDX-License-Identifier: Apache-2.0
#pragma once
// User options of a pool; the defaults suit all recorded traces.

#include <cstddef>

namespace tarn {

/// Whether free physical handles may be remapped next to each other at a second address.
enum class remapping {
  when_tight,  ///< yes, before reserved memory exceeds the live peak (needs a page source)
  off          ///< no: every handle stays where it was first mapped
};

struct pool_options {
  remapping remap = remapping::when_tight;
  /// How far reserved memory may exceed the peak of live bytes, in thousandths, before free handles are remapped.
  unsigned slack_per_mille = 9;
  /// Largest physical handle to create, bytes, a multiple of 2 MiB; 0 derives it from the live peak, see
  /// pool/growth/growth.hpp. Smaller handles waste less memory and cost more driver calls.
  std::size_t largest_handle = 0;
};

}  // namespace tarn
