// SPDX-License-Identifier: Apache-2.0
#pragma once
// Deferred blocks: freed, but waiting for streams named by record_stream(), or for a stream that the driver
// does not know. They count as live until the device has completed those uses (order/recorded_streams.hpp);
// then they return to the heap.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/deferred_count.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/stream_device.hpp"
#include "tarn/pool/arena/size_class.hpp"
#include "tarn/pool/block_request.hpp"
#include "tarn/pool/order/recorded_streams.hpp"
#include "tarn/pool/pages/growth_lock.hpp"
#include "tarn/pool/tool/quarantine.hpp"

namespace TARN_NAMESPACE::detail {

template <class Heap>
class deferred_blocks {
 public:
  using driver_type = typename Heap::driver_type;

  explicit deferred_blocks(Heap& heap) : heap_(heap), uses_(heap.driver(), Heap::named) {}
  deferred_blocks& operator=(deferred_blocks&&) = delete;

  /// See recorded_streams::record(). @throws std::bad_alloc, cuda_error: nothing has changed
  void record(void* p, stream_ref stream, stream_id as) {
    stream = heap_.with_identity(stream);
    uses_.record(p, stream, as != stream_ref::unknown_id ? as : stream.id());
  }

  /// Returns false if no block has a recorded use, and there is no graph memory. One relaxed load.
  [[nodiscard]] TARN_ALWAYS_INLINE bool any_recorded() const noexcept { return uses_.any(); }
  /// Returns false if `p` has no recorded use. Takes no lock.
  [[nodiscard]] TARN_ALWAYS_INLINE bool may_hold(void const* p) const noexcept { return uses_.may_hold(p); }
  void count_graph_block(bool more) noexcept { uses_.count_graph_block(more); }

  /// Called when a block is freed: returns true if it is deferred for recorded uses. From here on the stream
  /// is known by its identity: when the block returns to the heap, the stream may be destroyed, its handle
  /// reused, and the calling thread a different one.
  TARN_NOINLINE bool defer(stream_id id, stream_ref stream, void* p, std::size_t bytes,
                           std::size_t alignment) noexcept {
    if (heap_.is_lost()) return true;
    if constexpr (Heap::has_tool) {
      if (heap_.tool().active() && id != neutral_id) heap_.tool().wait_if_live(p, bytes, stream);
    }
    // Count first: once the block is deferred, another thread may free it.
    count(bytes, alignment, 1);
    bool const deferred = uses_.defer(p, bytes, alignment, stream_ref::from(stream.handle(), id));
    if (!deferred) count(bytes, alignment, -1);
    return deferred;
  }

  /// As defer(), for a block freed on a destroyed stream: nothing can be ordered after that stream, so the
  /// block is deferred for all work. Returns false if the host waited for that work now.
  bool defer_for_all_work(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    count(bytes, alignment, 1);
    if (uses_.defer_for_all_work(p, bytes, alignment, stream)) return true;
    count(bytes, alignment, -1);
    return false;
  }

  /// Returns blocks whose uses are complete to the heap. `wait` makes the host wait for the uses.
  void release(growth_lock const&, bool const wait) noexcept {
    if (!uses_.any_deferred()) return;
    uses_.settle(wait);
    freed_block b;
    while (uses_.take_ready(b)) {
      count(b.bytes, b.alignment, -1);
      if (heap_.tool().active() && heap_.part_of(b.p) == common) {
        deallocate_under_tool(heap_, b.stream.id(), b.stream, b.p, b.bytes, b.alignment, reuse::at_once);
        continue;
      }
      heap_.count_given(rounded_bytes(b.bytes, b.alignment));
      heap_.put(b);
    }
  }

  [[nodiscard]] bool asks_for_device() const noexcept { return uses_.asks_for_device(); }
  [[nodiscard]] bool waits_for_capture() const noexcept { return uses_.waits_for_capture(); }
  void close() noexcept { uses_.close(); }

  /// Counts a block that is deferred for graphs. @param sign  1 when it is freed, -1 when it is given back
  void count_for_graphs(std::size_t bytes, std::size_t alignment, std::int64_t sign) noexcept {
    count(bytes, alignment, sign);
    bytes_for_graphs_.fetch_add(sign * static_cast<std::int64_t>(rounded_bytes(bytes, alignment)),
                                std::memory_order_relaxed);
  }

  // For statistics and inspection.
  [[nodiscard]] deferred_amount now() const noexcept { return count_.now(); }
  /// Those of them that are deferred for graphs, rounded bytes.
  [[nodiscard]] std::size_t bytes_for_graphs() const noexcept {
    std::int64_t const bytes = bytes_for_graphs_.load(std::memory_order_relaxed);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
  }
  [[nodiscard]] std::size_t host_bytes() const noexcept { return uses_.host_bytes(); }
  void attach(deferred_observer& observer) { count_.attach(observer); }
  void detach(deferred_observer& observer) noexcept { count_.detach(observer); }
  template <class F>
  void for_each(F const& f) const {
    uses_.for_each_deferred(f);
  }

 private:
  void count(std::size_t bytes, std::size_t alignment, std::int64_t sign) noexcept {
    count_.change(bytes <= class_limit, rounded_bytes(bytes, alignment), bytes, sign);
  }

  Heap& heap_;
  recorded_streams<driver_type> uses_;
  deferred_count count_;
  std::atomic<std::int64_t> bytes_for_graphs_{0};
};

}  // namespace TARN_NAMESPACE::detail
