// SPDX-License-Identifier: Apache-2.0
#pragma once
// scope_chain: the live scopes of one kind on a thread, for scopes that set a per-thread value. Restoring the
// previous value would be wrong when scopes do not end in reverse order; removing a scope from a chain is
// correct in any order.

#include <cstdlib>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/misuse.hpp"

namespace TARN_NAMESPACE::detail {

/// The live scopes of the calling thread, innermost first. Scope must have a member `Scope* outer_`, null
/// before begin(), and declare the chain a friend. begin() and end() are O(1) for scopes that end in reverse
/// order, and O(scopes) otherwise.
template <class Scope>
class scope_chain {
 public:
  /// Returns null if there is no live scope.
  [[nodiscard]] static Scope* innermost() noexcept { return last_begun; }

  static void begin(Scope& scope) noexcept {
    scope.outer_ = last_begun;
    last_begun = &scope;
  }
  /// Removes a scope. A scope of another thread cannot be removed: that is reported as misuse, and the
  /// process is aborted if the handler returns, since that thread would use the scope after its end.
  /// @param what  the kind of scope, for the message
  /// @returns the next inner scope, null for the innermost one
  TARN_ALWAYS_INLINE static Scope* end(Scope& scope, char const* what) noexcept {
    if (last_begun != &scope) [[unlikely]]
      return end_out_of_order(scope, what);
    last_begun = scope.outer_;
    return nullptr;
  }

 private:
  TARN_NOINLINE static Scope* end_out_of_order(Scope& scope, char const* what) noexcept {
    for (Scope* inner = last_begun; inner != nullptr; inner = inner->outer_) {
      if (inner->outer_ != &scope) continue;
      inner->outer_ = scope.outer_;
      return inner;
    }
    message<256> const text(what,
                            " ended on a thread that did not begin it; end it on the thread that began it");
    report_misuse(misuse(misuse_kind::wrong_thread, &scope, text.view()));
    std::abort();
  }

  static inline thread_local constinit Scope* last_begun = nullptr;
};

}  // namespace TARN_NAMESPACE::detail
