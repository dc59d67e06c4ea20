// SPDX-License-Identifier: Apache-2.0
#pragma once
// retry_on_oom: a user's handler that may free memory before out_of_memory reaches the caller.

#include <concepts>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

/// Calls `handler(error, attempt)`, with attempt counting from 1, when the upstream throws out_of_memory. If
/// it returns true, something was freed and the request is retried; if false, the error is passed on.
/// Exceptions of the handler reach the caller. The handler may be called from several threads at once, and
/// may itself free through the same memory. Costs nothing where the upstream has the memory.
///
/// Under a pool (`source | retry_on_oom{f} | pooled{}`) the handler runs inside the pool's growth. It may use
/// that pool: empty_cache() gives back what is wholly free; owns(), state() and deallocate() work; allocate()
/// is served from the cache, or refused with out_of_memory, since the pool cannot grow meanwhile. Other
/// threads that need the pool to grow wait for the handler, so it must not wait for them.
template <class Handler>
  requires std::predicate<Handler&, out_of_memory const&, unsigned>
struct retry_on_oom {
  Handler handler;

  explicit retry_on_oom(Handler h) : handler(std::move(h)) {}

  template <class Upstream>
  using layer = around_layer<retry_on_oom, Upstream>;

  /// @throws out_of_memory  the handler declined; other exceptions, such as pool_asleep, are passed on
  ///                        unchanged
  void* around_allocate(request const& r, auto const& next) {
    for (unsigned attempt = 1;; ++attempt) {
      try {
        return next.allocate(r);
      } catch (out_of_memory& error) {
        error.set_where(location_scope::current());  // otherwise that of the policy's own call
        if (!detail::call_user([&] { return handler(error, attempt); })) throw;
      }
    }
  }
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    return next.extend(r, p, more);
  }
};

}  // namespace TARN_NAMESPACE
