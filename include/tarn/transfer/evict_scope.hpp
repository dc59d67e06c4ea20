// SPDX-License-Identifier: Apache-2.0
#pragma once
// evict_scope: keeps the elements of device buffers in pinned host memory during a scope.
//
//   stream A (a buffer's own)   S (the scope's)                     the device memory
//   work on it
//            --- event --->     copy to the host
//                               freed ------------------------->    reusable at once on S
//                               ...
//                               allocated, copied back
//            <-- event ---
//   work on it again

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/misuse.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/transfer/free_on.hpp"

namespace TARN_NAMESPACE {

/// Elements that an evict_scope could not bring back when it ended.
struct lost_elements {
  std::size_t index = 0;  ///< index of the buffer in the scope, from 0
  std::span<std::byte const>
      bytes;  ///< the elements, valid during the call; empty if the device failed before copying them
  std::exception_ptr why;  ///< the exception of bring_back()
};

/// Moves the elements of device buffers to pinned host memory, frees their device memory, and restores them
/// at the end. `tarn::evict_scope evicted{pinned, stream, optimizer_state, embeddings};`
///
/// Everything is ordered on `stream`: the constructor and bring_back() make it wait for the buffers' streams,
/// and those for it; the host does not wait. Later work on `stream` can reuse the freed memory at once.
/// During the scope the buffers are empty (memory assigned to one meanwhile is freed when its elements
/// return). The buffers must outlive the scope and must not move; all streams must outlive it, too.
/// Afterwards they are the same objects with equal elements, size, stream and resource, but at another
/// address: earlier pointers and spans are invalid. Spare capacity is not restored.
///
/// Elements are never lost silently. bring_back() throws if the device has too little memory; it then changes
/// nothing and may be called again. The destructor also calls it. If that fails, it waits for the copies and
/// passes the remaining elements to the handler set by when_lost(); without a handler it reports misuse
/// (contents_lost), which ends the program unless a misuse handler returns. Call bring_back() explicitly
/// where an error can be handled. Once the driver is unloaded at process exit, nothing is done.
///
/// Host memory: as many bytes as the buffers have elements, from `pinned`. Use a pool: pinning costs 460 ms
/// per GiB, and a bare source waits for the stream when it frees. `pinned` may belong to another device. One
/// thread at a time.
template <class Pinned, class... Buffers>
class evict_scope {
  static_assert(sizeof...(Buffers) != 0,
                "tarn: evict_scope has no buffers to evict; pass them after the host memory");
  static_assert(has_property<Pinned, host_accessible>,
                "tarn: evict_scope needs host memory as a target; pass pinned_host or a pool over it first");
  static_assert(
      ((!has_property<typename Buffers::resource_type, host_accessible>)&&...),
      "tarn: evict_scope frees device memory; a buffer of pinned or managed memory uses no device memory");

 public:
  using handler = std::function<void(lost_elements const&)>;

  /// Moves the elements to the host. @param stream  a stream of the buffers' device
  /// @throws misuse         (capture) `stream` or a buffer's own is being captured into a graph;
  /// (no_resource) the first buffer has none
  /// @throws out_of_memory  the host has too little memory for all of them; nothing has changed
  /// @throws cuda_error     nothing has changed
  evict_scope(Pinned pinned, detail::stream_at stream, Buffers&... buffers)
      : pinned_(std::move(pinned)),
        slots_(slot<Buffers>{&buffers, buffers.resource(), buffers.stream(), buffers.alignment(), nullptr,
                             0}...),
        stream_(identified(detail::required(std::get<0>(slots_).memory, stream.where), stream.stream,
                           stream.where)) {
    detail::called_from(stream.where, [&] { evict(buffers...); });
    (detail::free_block_on(buffers, stream_), ...);
  }
  evict_scope& operator=(evict_scope&&) = delete;
  /// Restores what is still on the host. Never throws; see above for failures.
  ~evict_scope() {
    try {
      bring_back();
    } catch (cuda_error const& error) {
      if (error.kind() != failure::unloading && error.kind() != failure::forked) report_lost();
    } catch (...) {
      report_lost();
    }
    give_host_memory();
    forget_event();
  }

  /// Restores all elements, in stream order. Does nothing if they are already restored. If the device has too
  /// little memory, the caches of the buffers' pools are trimmed and it is tried once more.
  /// @throws out_of_memory, cuda_error  nothing has changed: the elements stay on the host, and it may be
  /// called again
  void bring_back(source_location where = source_location::current()) {
    if (evicted_bytes() == 0) return;
    detail::called_from(where, [&] {
      refuse_capture();
      try {
        bring_all(std::index_sequence_for<Buffers...>{});
      } catch (out_of_memory const&) {
        if (!clear_caches()) throw;
        bring_all(std::index_sequence_for<Buffers...>{});
      }
    });
  }

  /// Returns the i-th buffer's elements on the host after waiting for the copy. Empty once they are restored.
  /// @throws cuda_error
  template <std::size_t N>
  [[nodiscard]] auto host_copy(source_location where = source_location::current()) const {
    auto const& s = std::get<N>(slots_);
    using element = typename std::remove_reference_t<decltype(s)>::element;
    if (s.host == nullptr) return std::span<element const>();
    detail::called_from(where, [&] { detail::must_succeed(driver(), driver().synchronize_event(copied_)); });
    return std::span<element const>(s.data(), s.count);
  }

  /// Sets the handler for elements that the destructor cannot restore. It is called once for each such
  /// buffer, after the copies to the host have completed. An exception thrown by the handler ends the
  /// program.
  void when_lost(handler h) { handler_ = std::move(h); }

  /// Returns the bytes currently on the host.
  [[nodiscard]] std::size_t evicted_bytes() const noexcept {
    std::size_t bytes = 0;
    each([&](auto const& s) { bytes += s.host != nullptr ? s.bytes() : 0; });
    return bytes;
  }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }

 private:
  template <class Buffer>
  struct slot {
    using buffer_type = Buffer;
    using element = typename Buffer::value_type;
    Buffer* buffer;
    // Of the elements; the buffer may be given others.
    typename Buffer::resource_type memory;
    stream_ref stream;
    std::size_t alignment;
    void* host;
    std::size_t count;
    [[nodiscard]] element* data() const noexcept { return static_cast<element*>(host); }
    [[nodiscard]] std::size_t bytes() const noexcept { return count * sizeof(element); }
  };

  /// Copies the elements to the host; the buffers keep their memory.
  void evict(Buffers&... buffers) {
    refuse_capture();
    try {
      detail::must_succeed(driver(), driver().create_event(copied_));
      each([&](auto& s) {
        if (!s.buffer->empty()) s.host = host_memory_for(s);
        s.count = s.buffer->size();
      });
      detail::order_behind(stream_, buffers...);
      copy_out();
    } catch (...) {
      give_host_memory();
      forget_event();
      throw;
    }
  }

  template <class F>
  void each(F const& f) {
    std::apply([&](auto&... s) { (f(s), ...); }, slots_);
  }
  template <class F>
  void each(F const& f) const {
    std::apply([&](auto const&... s) { (f(s), ...); }, slots_);
  }
  /// Returns the driver that orders the streams. Not pinned_.driver(): pinned memory may belong to any
  /// device.
  [[nodiscard]] auto driver() const noexcept { return std::get<0>(slots_).memory.driver(); }
  template <class Slot>
  [[nodiscard]] void* host_memory_for(Slot const& s) {
    return pinned_.allocate(stream_, s.buffer->bytes(), detail::alignment_of<typename Slot::element>);
  }

  /// A copy captured into a graph would run when the graph is launched, not now; and waiting for a buffer's
  /// capturing stream would make the scope's stream part of that capture.
  void refuse_capture() const {
    auto const refuse = [&](stream_ref stream) {
      detail::refuse_capture(driver(), stream,
                             "evict_scope cannot use a stream that is being captured, or buffers of one; "
                             "begin and end it outside the capture");
    };
    refuse(stream_);
    each([&](auto const& s) { refuse(s.stream); });
  }

  void copy_out() {
    try {
      each([&](auto& s) {
        using element = typename std::remove_reference_t<decltype(s)>::element;
        if (s.host == nullptr) return;
        tarn::copy(s.memory.driver(), std::span<element const>(s.buffer->span()),
                   std::span<element>(s.data(), s.count), stream_);
      });
      detail::must_succeed(driver(), driver().record_event(copied_, stream_));
    } catch (...) {
      // The buffers' next users are not ordered behind the running copies.
      (void)detail::wait_for_stream(driver(), stream_);
      throw;
    }
  }

  /// Allocates new blocks on stream_, fills them and makes the buffers' streams wait. The buffers are changed
  /// only after that.
  template <std::size_t... N>
  void bring_all(std::index_sequence<N...>) {
    std::tuple<Buffers...> back(block_for(std::get<N>(slots_))...);
    (copy_in(std::get<N>(slots_), std::get<N>(back)), ...);
    (put_back(std::get<N>(slots_), std::get<N>(back)), ...);
  }
  template <class Slot>
  [[nodiscard]] auto block_for(Slot const& s) const {
    using buffer_type = typename Slot::buffer_type;
    if (s.host == nullptr) return buffer_type(s.memory, stream_, s.alignment);
    return buffer_type(s.memory, s.count, stream_, s.alignment);
  }
  template <class Slot, class Buffer>
  void copy_in(Slot const& s, Buffer& b) {
    if (s.host == nullptr) return;
    b.copy_from(std::span<typename Slot::element const>(s.data(), s.count));
    b.set_stream(s.stream);
  }
  template <class Slot, class Buffer>
  void put_back(Slot& s, Buffer& b) noexcept {
    if (s.host == nullptr) return;
    *s.buffer = std::move(b);
    give(s);
  }

  /// Returns whether any pool released memory.
  [[nodiscard]] bool clear_caches() {
    std::size_t given = 0;
    each([&](auto& s) {
      if (s.host != nullptr) given += detail::nearest_or(s.memory, pool_call::trim{}, std::size_t{});
    });
    return given != 0;
  }

  /// Frees a slot's host memory in the order of stream_, behind the copies.
  template <class Slot>
  void give(Slot& s) noexcept {
    if (s.host == nullptr) return;
    void* const host = detail::exchange(s.host, nullptr);
    detail::free_block(pinned_, stream_, host, s.bytes(), detail::alignment_of<typename Slot::element>);
  }
  void give_host_memory() noexcept {
    each([&](auto& s) { give(s); });
  }
  void forget_event() noexcept {
    if (copied_ != nullptr) (void)driver().destroy_event(detail::exchange(copied_, nullptr));
  }

  /// Reports lost elements. Called inside the catch block of what bring_back() threw.
  void report_lost() noexcept {
    bool const copied = driver().synchronize_event(copied_).ok();
    if (!handler_) {
      report_misuse(misuse(misuse_kind::contents_lost, std::get<0>(slots_).buffer,
                           "evict_scope ended, but the elements of its buffers could not be restored; call "
                           "bring_back() to get the error, or set a handler with when_lost()"));
      return;
    }
    std::size_t index = 0;
    each([&](auto& s) {
      lost_elements lost{index++, {}, std::current_exception()};
      if (s.host == nullptr) return;
      if (copied) lost.bytes = std::as_bytes(std::span(s.data(), s.count));
      handler_(lost);
    });
  }

  Pinned pinned_;
  std::tuple<slot<Buffers>...> slots_;
  stream_ref stream_;
  event_handle copied_ = nullptr;  ///< recorded when the elements are on the host
  handler handler_;
};

template <class Pinned, class... Buffers>
evict_scope(Pinned, stream_ref, Buffers&...) -> evict_scope<Pinned, Buffers...>;

}  // namespace TARN_NAMESPACE
