// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header
// Precedes the library's header in the include path.

#define hot_mutex plain_hot_mutex
#include_next "tarn/pool/arena/hot_mutex.hpp"
#undef hot_mutex

#include "hot_mutex_with_points.hpp"
