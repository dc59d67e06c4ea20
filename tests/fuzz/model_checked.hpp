// SPDX-License-Identifier: Apache-2.0
#pragma once
// model_checked: a policy that compares every call, from any caller, with the trivial allocator, and reports
// the owner of each byte to the machine's order checker.

#include <cstddef>
#include <utility>

#include "fuzz/live_blocks.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/driver/sim/sim_machine.hpp"
#include "tarn/driver/stream_life.hpp"
#include "tarn/policy/compose.hpp"

namespace tarn_fuzz {

template <class Upstream>
class model_checked_layer;

struct model_checked {
  tarn::sim_machine machine;

  template <class Upstream>
  using layer = model_checked_layer<Upstream>;
};

template <class Upstream>
class model_checked_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  model_checked_layer(Upstream upstream, model_checked options)
      : upstream_(std::move(upstream)), machine_(std::move(options.machine)) {}
  model_checked_layer(model_checked_layer const&) = delete;
  model_checked_layer& operator=(model_checked_layer const&) = delete;

  void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return seen(stream, upstream_.allocate(stream, bytes, alignment), bytes, alignment);
  }
  void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    gone(stream, p, bytes, alignment);
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return seen({}, upstream_.allocate_sync(bytes, alignment), bytes, alignment);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    gone({}, p, bytes, alignment);
    upstream_.deallocate_sync(p, bytes, alignment);
  }

  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }
  [[nodiscard]] live_blocks const& blocks() const noexcept { return blocks_; }
  /// The blocks that captures without a scope have freed: the pool keeps them until it ends.
  [[nodiscard]] live_blocks const& kept() const noexcept { return kept_; }

 private:
  void* seen(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) {
    promise((p == nullptr) == (bytes == 0), "null is returned for zero bytes only");
    if (p == nullptr) return p;
    live_block const b{bytes, alignment, tarn::detail::block_bytes_of(upstream_, bytes, alignment)};
    blocks_.add(p, b);
    kept_.add(p, b);  // it must not overlap them either
    (void)kept_.remove(p);
    machine_.allocated(p, bytes, stream);
    return p;
  }
  void gone(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p == nullptr) return;
    live_block const b = blocks_.remove(p);
    promise(b.bytes == bytes && b.alignment == alignment,
            "a block is freed with its allocated size and alignment");
    if (is_captured(stream)) kept_.add(p, b);
    machine_.freed(p, bytes, exists(stream) ? stream : tarn::stream_ref{});
  }
  [[nodiscard]] bool is_captured(tarn::stream_ref stream) const noexcept {
    bool captured = false;
    return !tarn::detail::is_default_stream(stream) && exists(stream) &&
           driver().is_capturing(tarn::stream_ref::from(stream.handle()), captured).ok() && captured;
  }
  /// The checker knows only streams that were not destroyed. Asks the machine: a call would invalidate the
  /// stream's capture.
  [[nodiscard]] bool exists(tarn::stream_ref stream) const noexcept {
    tarn::stream_id const now = driver().made_identity(stream.handle());
    return now != tarn::stream_ref::unknown_id &&
           (stream.id() == tarn::stream_ref::unknown_id || stream.id() == now);
  }

  Upstream upstream_;
  tarn::sim_machine machine_;
  live_blocks blocks_;
  live_blocks kept_;
};

}  // namespace tarn_fuzz
