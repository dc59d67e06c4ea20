// SPDX-License-Identifier: Apache-2.0
#pragma once
// poisoned: fills memory at allocation and deallocation, so that reading it too early or too late becomes
// visible.

#include <concepts>
#include <cstddef>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/debug/fill_pattern.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/policy/block_set.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

template <class Upstream>
class poisoned_layer;

/// Fills with pattern::uninitialised at allocation and pattern::freed at deallocation. For debugging.
struct poisoned {
  template <class Upstream>
  using layer = poisoned_layer<Upstream>;
};

/// Costs one fill of the whole block per call, in stream order (about 2 us, plus its bytes at memory
/// bandwidth). Never synchronises, except for the _sync calls, which wait for their fill, and if the stream
/// of a deallocation may be destroyed and its work cannot be ordered on the device. Fills nothing while the
/// stream is capturing a graph or the pool sleeps, and no block that was allocated in a capture.
template <class Upstream>
class poisoned_layer : public resource_adaptor<poisoned_layer<Upstream>, Upstream> {
  using base = resource_adaptor<poisoned_layer<Upstream>, Upstream>;

 public:
  using base::driver;

  poisoned_layer()
    requires std::default_initializable<Upstream>
      : poisoned_layer(Upstream{}) {}
  explicit poisoned_layer(Upstream upstream, poisoned const& = {}) : base(std::move(upstream)) {}

  void* around_allocate(request const& asked, auto const& next) {
    request const r = asked.on(detail::named_stream<named>(driver(), asked.stream));
    void* const p = next.allocate(r);
    if (p == nullptr) return p;
    if (detail::is_capturing(driver(), r.stream)) {
      try {
        used_elsewhere_.insert(p);  // its graph may run when it is freed
      } catch (...) {
        next.deallocate(r, p);
        throw;
      }
      return p;
    }
    (void)detail::fill_in_order(driver(), r.stream, p, pattern::uninitialised, r.bytes);
    if (!r.is_synchronous()) return p;
    if (status const s = driver().synchronize_stream(r.stream); !s.ok()) {
      // The fill may still run, and would overwrite what the caller writes: free the block after the fill, in
      // stream order.
      next.deallocate(r.in_stream_order(), p);
      throw cuda_error(s, driver().device().value);
    }
    return p;
  }
  void around_deallocate(request const& asked, void* p, auto const& next) noexcept {
    request r = asked.on(detail::named_stream<named>(driver(), asked.stream));
    if (!used_elsewhere_.erase(p) && !detail::sleeps(this->upstream())) fill_freed(r, p);
    next.deallocate(r, p);
  }

  /// Such a block is not poisoned when it is freed: the other stream may still use it. Nor is it after a
  /// refused call, since another thread may have recorded a stream meanwhile. @throws std::bad_alloc
  void record_stream(void* p, std::size_t bytes, stream_ref stream)
    requires detail::records_streams<Upstream>
  {
    if (p != nullptr) (void)used_elsewhere_.insert(p);
    nearest(this->upstream(), pool_call::record_stream{p, bytes, stream});
  }

 private:
  /// Poisons a block that is being freed, and changes how it is freed so that no other caller gets it before
  /// the fill.
  void fill_freed(request& r, void* p) noexcept {
    stream_ref on = r.stream;
    if (detail::life_of(driver(), on) != detail::stream_life::alive ||
        detail::is_of_any_device(driver(), on, named)) {
      stream_id id = stream_ref::unknown_id;
      if (!driver().identify(stream_ref{}, id).ok()) return;
      on = stream_ref::from(nullptr, id);
      if (!detail::order_behind_lost(driver(), on).ok()) return;
    }
    if (detail::is_capturing(driver(), on)) return;
    bool const filled = detail::fill_in_order(driver(), on, p, pattern::freed, r.bytes).ok();
    if (r.is_synchronous()) {
      if (!driver().synchronize_stream(on).ok()) r = r.in_stream_order();  // the fill may still run
    } else if (filled) {
      r.stream = on;
    }
  }

  /// What a default stream refers to that a call names without an identity.
  static constexpr auto named = detail::default_streams_of<Upstream>();

  detail::block_set used_elsewhere_;  ///< blocks that record_stream() named, and those of captures
};

}  // namespace TARN_NAMESPACE
