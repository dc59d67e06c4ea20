// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma GCC system_header
// Who holds the hot lock, over the mutex with switch points. Stands before the library in the include path.

#include "tarn/pool/hot_mutex.hpp"

#if __has_include_next("tarn/pool/hot_mutex.hpp")
#include_next "tarn/pool/hot_lock.hpp"
#else
#include <type_traits>

namespace tarn::detail {

static_assert(std::is_same_v<plain_hot_lock, std::unique_lock<plain_hot_mutex>>,
              "the library's hot_lock is another type: add its functions here, over the hot_mutex above");
using hot_lock = std::unique_lock<hot_mutex>;

}  // namespace tarn::detail
#endif
