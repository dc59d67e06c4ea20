// SPDX-License-Identifier: Apache-2.0
#pragma once
// The owner of two parts of a pool's heap, as graph_memory holds it.

#include <atomic>
#include <cstddef>

#include "tarn/core/error.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/capture_gate.hpp"
#include "tarn/pool/arena/stream_order.hpp"
#include "tarn/pool/graph/captured_streams.hpp"
#include "tarn/pool/graph/graph_parts.hpp"
#include "tarn/pool/pages/growth_lock.hpp"

namespace TARN_NAMESPACE::detail {

/// The graph_memory that holds it holds the pool, too.
template <class Pool>
class graph_owner_of final : public graph_owner {
 public:
  /// @throws std::bad_alloc: nothing has changed
  explicit graph_owner_of(Pool& whole) : whole_(whole), parts_(make(whole)) {}
  graph_owner_of& operator=(graph_owner_of&&) = delete;
  ~graph_owner_of() override {
    growth_lock const growing = whole_.heap_.lock_growth();
    whole_.graphs_.end_owner(growing, whole_, parts_);
  }

  [[nodiscard]] capture_number begin_capture(stream_ref stream) override {
    if (whole_.heap_.is_lost()) whole_.heap_.refuse_forked();
    return whole_.graphs_.begin_capture(whole_, parts_, stream);
  }
  void join_capture(capture_number capture, stream_ref stream) override {
    if (whole_.heap_.is_lost()) whole_.heap_.refuse_forked();
    whole_.graphs_.captures().add(parts_, capture, whole_.heap_.with_identity(stream));
  }
  void end_capture(capture_number capture) noexcept override {
    if (whole_.heap_.is_lost()) {  // a thread of the parent may have been changing the rest
      return capture_gate::end_capture();
    }
    whole_.graphs_.captures().end(parts_, capture);
  }
  [[nodiscard]] graph_state state() const override { return whole_.graphs_.state_of(parts_); }
  /// See graph_memory::allocate(); `bytes` is not 0.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) {
    stream_id id = whole_.heap_.identity_of(stream);
    whole_.heap_.require_ready(id, bytes, alignment);
    captured_stream at;
    if (whole_.graphs_.is_watching()) at = whole_.graphs_.captures().of_allocation(id, stream);
    if (at.owner == &parts_) return whole_.slow_.allocate_captured(at, bytes, alignment);
    if (at.is_captured()) {  // the part keeps no order of the streams of another owner's capture
      id = neutral_id;
      stream = {};
    } else {
      whole_.heap_.require_access(stream_ref::from(stream.handle(), id));
    }
    void* const p = whole_.slow_.allocate_in(plain(), id, stream, bytes, alignment);
    whole_.graphs_.count_allocated(parts_, bytes, alignment);
    return p;
  }

 private:
  static graph_parts& make(Pool& whole) {
    growth_lock const growing = whole.heap_.lock_growth();
    (void)whole.graphs_.reap(growing, whole, false);
    return whole.graphs_.make_owner(growing);
  }
  /// The part for requests outside captures. Most owners have none.
  [[nodiscard]] part_ref plain() {
    if (part_ref const made = parts_.plain.load(std::memory_order_acquire); made != common) return made;
    growth_lock const growing = whole_.heap_.lock_growth();
    return whole_.graphs_.plain_of(growing, parts_);
  }

  Pool& whole_;
  graph_parts& parts_;
};

}  // namespace TARN_NAMESPACE::detail
