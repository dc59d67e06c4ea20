// SPDX-License-Identifier: Apache-2.0
#pragma once
// graph_memory: owns the memory that captured CUDA graphs use; capture_scope: a scope in which captured work
// allocates from it.

#include <cstddef>
#include <utility>

#include "tarn/core/graph_owner.hpp"
#include "tarn/core/owned.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE {

class capture_scope;

/// Owns the memory of one graph, or of several graphs that are never replayed at the same time:
/// torch.cuda.graph_pool_handle as an owner. Inside a capture_scope, what captured work allocates from
/// `memory` or any copy of it belongs to the owner. Blocks that the capture frees are reused inside it in the
/// order of its streams, and by later captures of the same owner. Nothing else receives them until the owner
/// is destroyed, whatever other streams and threads do. The owner may outlive the scope, the stream and the
/// cudaGraphExec_t.
///
/// Destruction does not wait: the memory serves the pool again when the device has completed all work
/// submitted before (seen at a later allocation that needs memory, at trim() and at the pool's end). Before
/// CUDA 12.5 it waits for the device. Blocks that are still live stay valid. An owner is moved, not copied;
/// it keeps the pool alive. Threads may use one owner if one capture at a time is begun.
template <class Memory>
class graph_memory {
  static_assert(
      reachable<Memory, pool_call::new_graph_memory>,
      "tarn: graph_memory needs a pool, which keeps a graph's addresses apart: pages | tarn::pooled{}");

 public:
  /// Holds no memory until a capture allocates. Host memory 6 KiB, and as much for allocate() outside
  /// captures. At most 65,534 such parts live at once in a pool. @throws cuda_error, std::bad_alloc
  explicit graph_memory(Memory memory, source_location where = source_location::current())
      : memory_(std::move(memory)),
        owner_(detail::called_from(where, [&] { return nearest(memory_, pool_call::new_graph_memory{}); })) {}
  graph_memory(graph_memory&&) noexcept = default;
  graph_memory& operator=(graph_memory&& other) noexcept {
    owner_ = std::move(other.owner_);  // before the pool that it belongs to
    memory_ = std::move(other.memory_);
    return *this;
  }
  ~graph_memory() = default;

  /// Allocates a block of the owner for work on `stream`. Inside a capture of this owner, it is as any block
  /// of the capture. Elsewhere it is from memory that no capture of the owner received: a part of the pool
  /// that is kept apart (PyTorch's MemPool), such as the inputs of a graph. It is freed as any block, with
  /// resource().deallocate(), and is then reused by such calls of this owner, in the order of the stream, and
  /// by the owner's captures once it is complete; freed in a capture, it is reused by nothing until the owner
  /// of that capture has ended. On a stream that is captured for another owner, it is memory that every
  /// stream may use. For a pool, and for a pool under `tracked`, which counts the block; other policies would
  /// not see it.
  /// @throws out_of_memory, bad_alignment, cuda_error, std::bad_alloc: nothing has changed
  /// Thread-safe. No warm path: one lock more than an allocation that the calling thread's cache does not
  /// serve.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                               std::size_t alignment = default_alignment,
                               source_location where = source_location::current())
    requires detail::allocates_for_owners<Memory>
  {
    return detail::called_from(
        where, [&] { return detail::layer_of(memory_).allocate_for(*owner_, stream, bytes, alignment); });
  }

  /// The pool or stack that captures allocate from.
  [[nodiscard]] Memory const& resource() const noexcept { return memory_; }
  /// What the owner holds now, bytes; nothing after a move. O(1).
  [[nodiscard]] graph_state state() const {
    return owner_.get() != nullptr ? owner_->state() : graph_state{};
  }

 private:
  friend class capture_scope;
  Memory memory_;
  detail::owned<detail::graph_owner> owner_;
};

/// While it lives, what is allocated on `stream` belongs to the owner. Open it, begin the capture, end the
/// capture, close it: cudaStreamBeginCapture and cudaStreamEndCapture, in any capture mode. Work that is
/// launched on the stream inside the scope but outside the capture must be complete before the graph is
/// replayed on another stream.
///
/// A stream that joins the capture is recognised when the thread that opened the scope allocates on it. Name
/// it with join() before another thread uses it, if it only frees or is recorded, and if two scopes are
/// open. That thread captures nothing else meanwhile, and all its calls of the pool ask whether their stream
/// joined: a pair on a stream that did not costs 134 ns there, 65 without a scope (H200). Other threads use
/// the pool as before, at the same cost; a bare handle costs one driver call more (20 ns).
///
/// Bare handles may be used inside the capture: CUDA refuses to identify a captured stream, so the pool
/// remembers it. A stream that tarn did not make and that joined before it was named must be named in one way
/// only: by its handle, or by an identity that was queried before the capture. From the opening of the scope
/// until the capture has begun, no other thread names the stream: it could not know whether that is part of
/// the graph, and a bare handle is identified, which invalidates a capture that begins at that moment.
///
/// tarn makes no driver call meanwhile that invalidates a capture, on any thread: what would need one is done
/// after the scope. (fenced, poisoned and checked verify and poison nothing then that they would have to wait
/// for on the device.) Opening and closing it takes 0.9 us (H200), and longer with many threads. It waits for
/// a thread that grows the pool only where memory is not known to be ample. Must be destroyed before its
/// owner; any thread may do so.
class [[nodiscard]] capture_scope {
 public:
  /// @throws cuda_error  the driver does not know the stream, another scope is open for it, or 64 streams are
  /// captured already;
  ///                     std::bad_alloc
  template <class Memory>
  capture_scope(graph_memory<Memory>& memory, stream_ref stream,
                source_location where = source_location::current())
      : owner_(*memory.owner_), capture_(detail::called_from(where, [&] {
          return owner_.begin_capture(identified(memory.memory_, stream, where));
        })) {}
  capture_scope& operator=(capture_scope&&) = delete;
  ~capture_scope() { owner_.end_capture(capture_); }

  /// Names another stream of the capture. @throws cuda_error, nothing has changed
  void join(stream_ref stream, source_location where = source_location::current()) {
    detail::called_from(where, [&] { owner_.join_capture(capture_, stream); });
  }

 private:
  detail::graph_owner& owner_;
  detail::capture_number capture_;
};

}  // namespace TARN_NAMESPACE
