// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a user may choose of a pool; the defaults serve all traces.
// Above it: ladder, pool. Below it: nothing.

namespace tarn {

/// May physical handles move inside the pool's address range?
enum class remapping {
  when_tight,  ///< free handles are moved before reserved memory outgrows the live peak (needs a page source)
  off          ///< every handle stays where it was first mapped
};

struct pool_options {
  remapping remap = remapping::when_tight;
  /// How far reserved memory may exceed the peak of live bytes, in thousandths, before free handles are
  /// moved.
  unsigned slack_per_mille = 8;
};

}  // namespace tarn
