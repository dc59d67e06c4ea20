// SPDX-License-Identifier: Apache-2.0
#pragma once
// witnessed: a policy on top of a stack that reports every allocation and deallocation to a witness, whether
// a user or an owner made the call.

#include <cstddef>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/policy/compose.hpp"

namespace simulation {

/// The interface that is notified. `pool` is the number that the pool has with the witness.
struct witness {
  virtual void given(unsigned pool, tarn::stream_ref stream, void* p, std::size_t bytes,
                     std::size_t alignment) = 0;
  /// Called before the pool receives the block.
  virtual void returned(unsigned pool, tarn::stream_ref stream, void* p, std::size_t bytes,
                        std::size_t alignment) = 0;
  /// Called after a block has become longer.
  virtual void extended(unsigned pool, tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                        std::size_t alignment) = 0;
  virtual void refused(unsigned pool) = 0;
  /// Called before the pool is asked for a block, and after it has received one: between these and the calls
  /// above, other threads run.
  virtual void asked(unsigned, std::size_t, std::size_t) {}
  virtual void unanswered(unsigned, std::size_t, std::size_t) {}
  virtual void taken_back(unsigned, std::size_t, std::size_t) {}

 protected:
  ~witness() = default;
};

template <class Upstream>
class witnessed_layer;

struct witnessed {
  witness* who = nullptr;
  unsigned pool = 0;

  template <class Upstream>
  using layer = witnessed_layer<Upstream>;
};

template <class Upstream>
class witnessed_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  witnessed_layer(Upstream upstream, witnessed const& options)
      : upstream_(std::move(upstream)), options_(options) {}
  witnessed_layer(witnessed_layer const&) = delete;
  witnessed_layer& operator=(witnessed_layer const&) = delete;

  void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return observe(stream, bytes, alignment, [&] { return upstream_.allocate(stream, bytes, alignment); });
  }
  void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    options_.who->returned(options_.pool, stream, p, bytes, alignment);
    upstream_.deallocate(stream, p, bytes, alignment);
    options_.who->taken_back(options_.pool, p == nullptr ? 0 : bytes, alignment);
  }
  template <class Owner>
  void* allocate_for(Owner& owner, tarn::stream_ref stream, std::size_t bytes, std::size_t alignment)
    requires requires(Upstream& below) {
      tarn::detail::layer_of(below).allocate_for(owner, stream, bytes, alignment);
    }
  {
    return observe(stream, bytes, alignment, [&] {
      return tarn::detail::layer_of(upstream_).allocate_for(owner, stream, bytes, alignment);
    });
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return observe({}, bytes, alignment, [&] { return upstream_.allocate_sync(bytes, alignment); });
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    options_.who->returned(options_.pool, {}, p, bytes, alignment);
    upstream_.deallocate_sync(p, bytes, alignment);
    options_.who->taken_back(options_.pool, p == nullptr ? 0 : bytes, alignment);
  }

  void* allocate_at(tarn::stream_ref stream, void* at, std::size_t bytes, std::size_t alignment)
    requires requires(Upstream& below) { below.allocate_at(stream, at, bytes, alignment); }
  {
    return observe(stream, bytes, alignment,
                   [&] { return upstream_.allocate_at(stream, at, bytes, alignment); });
  }
  void deallocate_at(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept
    requires requires(Upstream& below) { below.deallocate_at(stream, p, bytes, alignment); }
  {
    options_.who->returned(options_.pool, stream, p, bytes, alignment);
    upstream_.deallocate_at(stream, p, bytes, alignment);
    options_.who->taken_back(options_.pool, bytes, alignment);
  }

  bool extend(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t more, std::size_t alignment)
    requires requires(Upstream& below) { below.extend(stream, p, bytes, more, alignment); }
  {
    options_.who->asked(options_.pool, bytes + more, alignment);
    bool extended = false;
    try {
      extended = upstream_.extend(stream, p, bytes, more, alignment);
    } catch (...) {
      options_.who->unanswered(options_.pool, bytes + more, alignment);
      throw;
    }
    if (!extended) {
      options_.who->unanswered(options_.pool, bytes + more, alignment);
      return false;
    }
    options_.who->extended(options_.pool, stream, p, bytes, more, alignment);
    options_.who->unanswered(options_.pool, bytes + more, alignment);
    return true;
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 private:
  template <class Allocate>
  void* observe(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment, Allocate const& allocate) {
    void* p = nullptr;
    options_.who->asked(options_.pool, bytes, alignment);
    try {
      p = allocate();
    } catch (tarn::out_of_memory const&) {
      options_.who->unanswered(options_.pool, bytes, alignment);
      options_.who->refused(options_.pool);
      throw;
    } catch (...) {
      options_.who->unanswered(options_.pool, bytes, alignment);
      throw;
    }
    options_.who->given(options_.pool, stream, p, bytes, alignment);
    return p;
  }

  Upstream upstream_;
  witnessed options_;
};

}  // namespace simulation
