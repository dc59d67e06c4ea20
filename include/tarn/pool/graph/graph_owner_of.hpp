// SPDX-License-Identifier: Apache-2.0
#pragma once
// The owner of parts of a pool, as graph_memory holds it.

#include <atomic>
#include <cstddef>

#include "tarn/core/error.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/captured_handles.hpp"
#include "tarn/pool/growth/growth_lock.hpp"
#include "tarn/pool/other_pools.hpp"

namespace tarn::detail {

/// The graph_memory that holds it holds the pool, too.
template <class Pool>
class graph_owner_of final : public graph_owner {
 public:
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  explicit graph_owner_of(Pool& whole) : whole_(whole), part_(make(whole, nullptr)) {}
  graph_owner_of(graph_owner_of const&) = delete;
  graph_owner_of& operator=(graph_owner_of const&) = delete;
  ~graph_owner_of() override {
    growth_lock const growing = whole_.heap_.lock_growth();
    if (part_type* const outside = outside_.load(); outside != nullptr)
      whole_.graphs_.end_part(growing, whole_, *outside);
    whole_.graphs_.end_part(growing, whole_, part_);
  }

  [[nodiscard]] capture_number begin_capture(stream_ref stream) override {
    if (whole_.heap_.is_lost()) whole_.heap_.refuse_forked();
    growth_lock const growing = whole_.heap_.lock_growth();
    // What a warm-up has freed outside goes back, so that the capture can have as much.
    if (part_type* const outside = outside_.load(std::memory_order_acquire); outside != nullptr)
      (void)outside->memory.drain_.give_back(growing, 0, giving::what_is_idle);
    return whole_.graphs_.begin_capture(growing, whole_, part_, stream);
  }
  void join_capture(capture_number capture, stream_ref stream) override {
    if (whole_.heap_.is_lost()) whole_.heap_.refuse_forked();
    stream_id id = stream.id();
    if (id == stream_ref::unknown_id) {
      status const s = whole_.driver().identify(stream, id);
      if (!s.ok()) throw cuda_error(s, whole_.driver().device().value);
    }
    growth_lock const growing = whole_.heap_.lock_growth();
    whole_.graphs_.join_capture(growing, part_, capture, stream_ref::from(stream.handle(), id));
  }
  void end_capture(capture_number capture) noexcept override {
    growth_lock const growing = whole_.heap_.lock_growth();
    if (whole_.heap_.is_lost()) {  // a thread of the parent may have been changing the rest
      capture_gate::end_capture();
      return captured_handles::end_capture();
    }
    whole_.graphs_.end_capture(growing, part_, capture);
  }
  [[nodiscard]] graph_state state() const override {
    graph_state all = whole_.graphs_.state_of(part_);
    if (part_type* const outside = outside_.load(std::memory_order_acquire); outside != nullptr) {
      graph_state const more = whole_.graphs_.state_of(*outside);
      all.reserved += more.reserved;
      all.allocated += more.allocated;
      all.kept += more.kept;
    }
    return all;
  }
  /// See graph_memory::allocate(); `bytes` is not 0.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    stream_id const id = whole_.heap_.identity(stream);
    whole_.heap_.require_ready(id, bytes, alignment);
    return whole_.graphs_.allocate_for(
        whole_, part_, [this]() -> part_type& { return outside(); }, id, stream, bytes, alignment);
  }

 private:
  using part_type = typename Pool::graphs_type::part;

  static part_type& make(Pool& whole, part_type const* other) {
    growth_lock const growing = whole.heap_.lock_growth();
    (void)whole.graphs_.reap(growing, whole, false);
    return whole.graphs_.make_part(growing, other);
  }
  /// What serves requests outside captures. Most owners have none.
  part_type& outside() {
    if (part_type* const made = outside_.load(std::memory_order_acquire); made != nullptr) return *made;
    growth_lock const growing = whole_.heap_.lock_growth();
    if (outside_.load(std::memory_order_relaxed) == nullptr)
      outside_.store(&make(whole_, &part_), std::memory_order_release);
    return *outside_.load(std::memory_order_relaxed);
  }

  Pool& whole_;
  part_type& part_;  ///< what captures received
  std::atomic<part_type*> outside_{nullptr};
};

}  // namespace tarn::detail
