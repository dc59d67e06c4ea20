// SPDX-License-Identifier: Apache-2.0
#pragma once
// scope_chain: the scopes of one kind that live on a thread, where a scope sets something of its thread. A scope that puts
// back the value from before would be wrong where scopes do not end in the reverse order of their beginning; one that leaves
// a chain is not.

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/misuse.hpp"

namespace tarn::detail {

/// The live scopes of the calling thread, innermost first. Scope has a member `Scope* outer_`, null before begin(), and
/// makes the chain its friend. begin() and end() are O(1) for scopes that end in reverse order, and O(scopes) otherwise.
template <class Scope>
class scope_chain {
 public:
  /// Null where no scope lives.
  [[nodiscard]] static Scope* innermost() noexcept { return last_begun; }

  static void begin(Scope& scope) noexcept {
    scope.outer_ = last_begun;
    last_begun = &scope;
  }
  /// Takes a scope out. A scope of another thread cannot be: that is reported as misuse.
  /// @param what  the kind of scope, for the message
  /// @returns the next scope further in, null for the innermost one
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
    message<160> text;
    text.add(what).add(" ended on a thread that did not begin it; end it on the thread that did");
    report_misuse(misuse(misuse_kind::wrong_thread, &scope, text.view()));
    return nullptr;
  }

  static inline thread_local constinit Scope* last_begun = nullptr;
};

}  // namespace tarn::detail
