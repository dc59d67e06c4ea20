// SPDX-License-Identifier: Apache-2.0
#pragma once
// The process that created something on a device. A forked child has a copy of it, but most drivers do not work there.

#include <cstdint>

#include "tarn/core/at_fork.hpp"
#include "tarn/driver/driver.hpp"

namespace tarn::detail {

/// Remembers the process that created it. O(1): a system call.
class creating_process {
 public:
  /// Whether this process may use, through `driver`, what was created.
  template <class D>
  [[nodiscard]] bool may_use(D const& driver) const noexcept {
    return survives_fork(driver) || process_ == this_process();
  }

 private:
  std::int64_t process_ = this_process();
};

}  // namespace tarn::detail
