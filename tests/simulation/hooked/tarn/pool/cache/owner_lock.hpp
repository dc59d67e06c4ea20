// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header
// Precedes the library's header in the include path.

#define owner_lock plain_owner_lock
#include_next "tarn/pool/cache/owner_lock.hpp"
#undef owner_lock

#include "owner_lock_with_points.hpp"
