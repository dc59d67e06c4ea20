// SPDX-License-Identifier: Apache-2.0
#pragma once
// A scoped holder of the growth lock. A function that takes a growth_lock const& runs under it and keeps it.

#include "tarn/core/at_fork.hpp"
#include "tarn/core/mutex.hpp"

namespace TARN_NAMESPACE::detail {

/// Holds the growth lock for its scope. Its owner thread may take it again: a handler of the source may call
/// the pool in a growth.
using growth_lock = scoped_lock<recursive_fork_mutex>;

}  // namespace TARN_NAMESPACE::detail
