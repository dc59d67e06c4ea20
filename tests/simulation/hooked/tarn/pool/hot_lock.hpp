// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header
// For trees without pool/arena/, such as that of commit ea2f077, which have both classes in this header.
// Precedes the library's header in the include path.

#include <mutex>
#include <type_traits>

#define hot_mutex plain_hot_mutex
#define hot_lock plain_hot_lock
#include_next "tarn/pool/hot_lock.hpp"
#undef hot_lock
#undef hot_mutex

#include "hot_mutex_with_points.hpp"

namespace tarn::detail {

static_assert(std::is_same_v<plain_hot_lock, std::unique_lock<plain_hot_mutex>>,
              "the library's hot_lock is another type: add its functions here, over the hot_mutex above");
using hot_lock = std::unique_lock<hot_mutex>;

}  // namespace tarn::detail
