// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where misuse is told when nothing can be thrown: deallocation is noexcept, so it hands a tarn::misuse to
// one handler.

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "tarn/core/error.hpp"

namespace tarn {

/// Told of a misuse; returns to leave the block alone (leaked, never handed out twice) and go on.
using misuse_handler = void (*)(misuse const&);

/// Prints the message to standard error and aborts: memory that was freed wrongly may already be somebody
/// else's.
inline void abort_on_misuse(misuse const& what) {
  std::fprintf(stderr, "%s\n", what.what());
  std::abort();
}

namespace detail {
inline std::atomic<misuse_handler> current_misuse_handler{&abort_on_misuse};
}

/// Sets the process-wide handler; null restores abort_on_misuse. Returns the one before. Safe from any
/// thread.
inline misuse_handler set_misuse_handler(misuse_handler handler) noexcept {
  return detail::current_misuse_handler.exchange(handler != nullptr ? handler : &abort_on_misuse);
}

/// Tells the handler. An exception from the handler ends the program, as from any noexcept function.
inline void report_misuse(misuse const& what) noexcept {
  detail::current_misuse_handler.load()(what);
}

}  // namespace tarn
