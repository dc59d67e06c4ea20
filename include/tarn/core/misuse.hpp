// SPDX-License-Identifier: Apache-2.0
#pragma once
// The process-wide handler for misuse that cannot be thrown. Deallocation is noexcept, so it passes a
// tarn::misuse to the handler.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"

namespace TARN_NAMESPACE {

/// Called on misuse. If it returns, the block is leaked (never allocated again) and the program continues.
/// Only after misuse_kind::wrong_thread it is aborted.
using misuse_handler = void (*)(misuse const&);

/// Prints the message to standard error and aborts: memory that was freed wrongly may already have another
/// owner.
inline void abort_on_misuse(misuse const& what) {
  std::fprintf(stderr, "%s\n", what.what());
  std::abort();
}

namespace detail {
inline std::atomic<misuse_handler> current_misuse_handler{&abort_on_misuse};
}

/// Sets the process-wide handler; null restores abort_on_misuse. Returns the previous handler. Thread-safe.
inline misuse_handler set_misuse_handler(misuse_handler handler) noexcept {
  return detail::current_misuse_handler.exchange(handler != nullptr ? handler : &abort_on_misuse);
}

/// Calls the handler. An exception from the handler terminates the program, as in any noexcept function.
inline void report_misuse(misuse const& what) noexcept {
  detail::current_misuse_handler.load()(what);
}

namespace detail {
/// Reports one of several findings that were made together: the default handler prints all of them before it
/// ends the program.
inline void report_misuse_of_several(misuse const& what, bool is_last) noexcept {
  if (!is_last && current_misuse_handler.load() == &abort_on_misuse) {
    std::fprintf(stderr, "%s\n", what.what());
  } else {
    report_misuse(what);
  }
}

/// Refuses a pointer where a call needs one that allocate() returned.
[[noreturn]] inline void refuse_pointer(void const* p, char const* call) {
  message<256> const text(call, " of ", p,
                          ": no live block starts there; pass the pointer that allocate() returned");
  throw misuse(misuse_kind::foreign_pointer, p, text.view());
}
}  // namespace detail

}  // namespace TARN_NAMESPACE
