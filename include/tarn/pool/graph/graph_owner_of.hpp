// SPDX-License-Identifier: Apache-2.0
#pragma once
// The owner of a part of a pool, as graph_memory holds it.

#include <cstddef>

#include "tarn/core/error.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/driver/captured_handles.hpp"
#include "tarn/pool/growth/growth_lock.hpp"

namespace tarn::detail {

/// The graph_memory that holds it holds the pool, too.
template <class Pool>
class graph_owner_of final : public graph_owner {
 public:
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  explicit graph_owner_of(Pool& whole) : whole_(whole), part_(make(whole)) {}
  graph_owner_of(graph_owner_of const&) = delete;
  graph_owner_of& operator=(graph_owner_of const&) = delete;
  ~graph_owner_of() override {
    growth_lock const growing = whole_.heap_.lock_growth();
    whole_.graphs_.end_part(growing, whole_, part_);
  }

  [[nodiscard]] capture_number begin_capture(stream_ref stream) override {
    if (whole_.heap_.is_lost()) whole_.heap_.refuse_forked();
    growth_lock const growing = whole_.heap_.lock_growth();
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
  [[nodiscard]] graph_state state() const override { return whole_.graphs_.state_of(part_); }
  /// See graph_memory::allocate(); `bytes` is not 0.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    stream_id const id = whole_.heap_.identity(stream);
    whole_.heap_.require_ready(id, bytes, alignment);
    return whole_.graphs_.allocate_from(whole_, part_, id, stream, bytes, alignment);
  }

 private:
  using part_type = typename Pool::graphs_type::part;

  static part_type& make(Pool& whole) {
    growth_lock const growing = whole.heap_.lock_growth();
    (void)whole.graphs_.reap(growing, whole, false);
    return whole.graphs_.make_part(growing);
  }

  Pool& whole_;
  part_type& part_;
};

}  // namespace tarn::detail
