// SPDX-License-Identifier: Apache-2.0
#pragma once
// retry_on_oom: a user's handler that may free memory before out_of_memory reaches the caller.

#include <concepts>
#include <cstddef>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/policy/compose.hpp"

namespace tarn {

template <class Upstream, class Handler>
class retry_layer;

/// Calls `handler(error, attempt)`, with attempt counting from 1, when the upstream throws out_of_memory. If it returns true,
/// something was freed and the request is retried; if false, the error is passed on. Exceptions of the handler reach the
/// caller. The handler may be called from several threads at once, and may itself free through the same memory.
///
/// Under a pool (`source | retry_on_oom{f} | pooled{}`) the handler runs inside the pool's growth. It may use that pool:
/// empty_cache() gives back what is wholly free; owns(), state() and deallocate() work; allocate() is served from the cache, or
/// refused with out_of_memory, since the pool cannot grow meanwhile. Other threads that need the pool to grow wait for the
/// handler, so it must not wait for them.
template <class Handler>
  requires std::predicate<Handler&, out_of_memory const&, unsigned>
struct retry_on_oom {
  Handler handler;

  explicit retry_on_oom(Handler h) : handler(std::move(h)) {}

  template <class Upstream>
  using layer = retry_layer<Upstream, Handler>;
};

template <class Upstream, class Handler>
class retry_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  retry_layer(Upstream upstream, retry_on_oom<Handler> options)
      : upstream_(std::move(upstream)), handler_(std::move(options.handler)) {}
  retry_layer(retry_layer const&) = delete;
  retry_layer& operator=(retry_layer const&) = delete;

  /// @throws out_of_memory  the handler declined; other exceptions are passed on unchanged
  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return retry([&] { return upstream_.allocate(stream, bytes, alignment); });
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return retry([&] { return upstream_.allocate_sync(bytes, alignment); });
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    upstream_.deallocate_sync(p, bytes, alignment);
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 private:
  template <class Allocate>
  void* retry(Allocate const& allocate) {
    for (unsigned attempt = 1;; ++attempt) {
      try {
        return allocate();
      } catch (out_of_memory const& error) {
        if (!handler_(error, attempt)) throw;
      }
    }
  }

  Upstream upstream_;
  Handler handler_;
};

}  // namespace tarn
