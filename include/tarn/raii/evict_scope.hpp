// SPDX-License-Identifier: Apache-2.0
#pragma once
// evict_scope: device buffers whose elements wait in pinned host memory for the length of a scope.
//
//   stream A (a buffer's own)   S (the scope's)                     the device memory
//   work on it
//            --- event --->     copy to the host
//                               freed ------------------------->    another's, at once on S
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
#include "tarn/core/misuse.hpp"
#include "tarn/core/shared.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/retire.hpp"
#include "tarn/raii/stream.hpp"

namespace tarn {

/// Elements that an evict_scope could not bring back at its end.
struct lost_elements {
  std::size_t index = 0;  ///< which of the scope's buffers, from 0
  std::span<std::byte const>
      bytes;  ///< the elements; valid during the call. Empty where the device failed before it had
              ///< copied them
  std::exception_ptr why;  ///< what bring_back() threw
};

/// Moves the elements of device buffers to pinned host memory, frees their device memory, and brings them back at the end.
/// `tarn::evict_scope evicted{pinned, stream, optimizer_state, embeddings};`
///
/// All in the order of `stream`: the constructor and bring_back() make it wait for the buffers' own streams, and those for
/// it; the host waits for nothing. The freed memory is reusable at once by later work on `stream`. During the scope the
/// buffers are empty (what one is given meanwhile is freed when its elements come back); they must outlive the scope at
/// their place, as must all streams. Afterwards they are the same objects with equal elements, the same size, stream and
/// resource, at another address: pointers and spans taken before are stale. Spare capacity is not brought back.
///
/// Elements are never lost silently. bring_back() throws where the device has no room, changes nothing then, and may be
/// called again. The destructor calls it, too; if that fails, it waits for the copies and hands what is left to the handler
/// named by when_lost(); where none is named it reports misuse (contents_lost), which ends the program unless a misuse
/// handler returns. So call bring_back() yourself where an error can be dealt with. Once the driver has gone at the
/// process's end nothing is done.
///
/// Host memory: as many bytes as the buffers have elements, from `pinned`: pool it, since pinning costs 460 ms per GiB and
/// a bare source waits for the stream when it frees; so does the scope where `pinned` is another device's. One thread at a
/// time.
template <class Pinned, class... Buffers>
class evict_scope {
  static_assert(sizeof...(Buffers) != 0, "tarn: name the buffers to evict");
  static_assert(has_property<Pinned, host_accessible>,
                "tarn: evict_scope needs host memory to move to; give pinned_host or a pool over it first");
  static_assert(
      ((!has_property<typename Buffers::resource_type, host_accessible>)&&...),
      "tarn: evict_scope frees device memory; a buffer of pinned or managed memory has none to free");

 public:
  using handler = std::function<void(lost_elements const&)>;

  /// Moves the elements out. @param stream  of the buffers' device
  /// @throws misuse         (capture) `stream` or a buffer's own is being captured into a graph
  /// @throws out_of_memory  the host has no room for all of them; nothing has changed
  /// @throws cuda_error     nothing has changed
  evict_scope(Pinned pinned, stream_ref stream, Buffers&... buffers)
      : pinned_(std::move(pinned)),
        slots_(slot<Buffers>{&buffers, nullptr, 0}...),
        stream_(identified(driver(), stream)) {
    refuse_capture();
    try {
      require(driver().create_event(copied_));
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
    (detail::give_back_on(buffers, stream_), ...);
  }
  evict_scope(evict_scope const&) = delete;
  evict_scope& operator=(evict_scope const&) = delete;
  /// Brings back what is not back. Never throws; see above for what happens where there is no room.
  ~evict_scope() {
    try {
      bring_back();
    } catch (cuda_error const& error) {
      if (error.kind() != failure::unloading) tell_lost();
    } catch (...) {
      tell_lost();
    }
    give_host_memory();
    forget_event();
  }

  /// Brings all elements back, in stream order. Does nothing once they are. Where the device has no room, the caches of the
  /// buffers' pools are given back to the driver and it is tried once more.
  /// @throws out_of_memory, cuda_error  nothing has changed: the elements are on the host, and it may be called again
  void bring_back() {
    if (evicted_bytes() == 0) return;
    refuse_capture();
    try {
      bring_all(std::index_sequence_for<Buffers...>{});
    } catch (out_of_memory const&) {
      if (!clear_caches()) throw;
      bring_all(std::index_sequence_for<Buffers...>{});
    }
  }

  /// The elements of the i-th buffer on the host, while they are there: waits for the copy. Empty once they are back.
  /// @throws cuda_error
  template <std::size_t I>
  [[nodiscard]] auto host_copy() const {
    auto const& s = std::get<I>(slots_);
    using element = typename std::remove_reference_t<decltype(s)>::element;
    if (s.host == nullptr) return std::span<element const>();
    require(driver().synchronize_event(copied_));
    return std::span<element const>(s.data(), s.count);
  }

  /// Names who takes the elements that the destructor cannot bring back: called once for each such buffer, after the copies
  /// to the host are done. An exception of the handler ends the program.
  void when_lost(handler h) { handler_ = std::move(h); }

  /// Bytes on the host now.
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
    void* host;
    std::size_t count;
    [[nodiscard]] element* data() const noexcept { return static_cast<element*>(host); }
    [[nodiscard]] std::size_t bytes() const noexcept { return count * sizeof(element); }
  };

  template <class F>
  void each(F const& f) {
    std::apply([&](auto&... s) { (f(s), ...); }, slots_);
  }
  template <class F>
  void each(F const& f) const {
    std::apply([&](auto const&... s) { (f(s), ...); }, slots_);
  }
  template <class Slot>
  [[nodiscard]] static constexpr std::size_t alignment_of(Slot const&) noexcept {
    return detail::larger_of(default_alignment, alignof(typename Slot::element));
  }

  /// The one that orders the streams: pinned memory may be any device's.
  [[nodiscard]] auto driver() const noexcept { return std::get<0>(slots_).buffer->resource().driver(); }
  void require(status const& s) const {
    if (!s.ok()) throw cuda_error(s, driver().device().value);
  }
  /// Streams of the buffers' device say nothing to a pool of another's.
  [[nodiscard]] bool is_anothers() const noexcept { return pinned_.driver().device() != driver().device(); }
  template <class Slot>
  [[nodiscard]] void* host_memory_for(Slot const& s) {
    if (is_anothers()) return pinned_.allocate_sync(s.buffer->bytes(), alignment_of(s));
    return pinned_.allocate(stream_, s.buffer->bytes(), alignment_of(s));
  }

  /// A copy recorded into a graph would happen when that is launched, and not now; and a wait for a buffer's stream that is
  /// captured makes the scope's stream part of that capture.
  void refuse_capture() const {
    refuse_capture_of(stream_);
    each([&](auto const& s) { refuse_capture_of(s.buffer->stream()); });
  }
  void refuse_capture_of(stream_ref stream) const {
    bool capturing = false;
    require(driver().is_capturing(stream, capturing));
    if (capturing) {
      throw misuse(
          misuse_kind::capture, nullptr,
          "evict_scope on a stream that is being captured, or of buffers of one; begin and end it outside of "
          "the capture");
    }
  }

  void copy_out() {
    try {
      each([&](auto& s) {
        using element = typename std::remove_reference_t<decltype(s)>::element;
        if (s.host == nullptr) return;
        tarn::copy(s.buffer->resource().driver(), std::span<element const>(s.buffer->span()),
                   std::span<element>(s.data(), s.count), stream_);
      });
      require(driver().record_event(copied_, stream_));
    } catch (...) {
      (void)finish();  // the buffers' next users do not know of the copies that run
      throw;
    }
  }

  /// Makes new blocks on stream_, fills them, lets the buffers' streams wait; only then are the buffers changed.
  template <std::size_t... I>
  void bring_all(std::index_sequence<I...>) {
    std::tuple<Buffers...> back(block_for(std::get<I>(slots_))...);
    (copy_in(std::get<I>(slots_), std::get<I>(back)), ...);
    (std::get<I>(back).set_stream(std::get<I>(slots_).buffer->stream()), ...);
    (put_back(std::get<I>(slots_), std::get<I>(back)), ...);
  }
  template <class Slot>
  [[nodiscard]] auto block_for(Slot const& s) const {
    std::size_t const count = s.host != nullptr ? s.count : 0;
    return typename Slot::buffer_type(s.buffer->resource(), count, stream_, s.buffer->alignment());
  }
  template <class Slot, class Buffer>
  void copy_in(Slot const& s, Buffer& b) {
    if (s.host != nullptr) b.copy_from(std::span<typename Slot::element const>(s.data(), s.count));
  }
  template <class Slot, class Buffer>
  void put_back(Slot& s, Buffer& b) noexcept {
    if (s.host == nullptr) return;
    *s.buffer = std::move(b);
    give(s);
  }

  /// True where a pool gave anything back.
  [[nodiscard]] bool clear_caches() {
    std::size_t given = 0;
    each([&](auto& s) {
      typename std::remove_reference_t<decltype(s)>::buffer_type::resource_type memory = s.buffer->resource();
      auto const trim = [](auto& layer) -> decltype(layer.trim(std::size_t{})) {
        return layer.trim(std::size_t{});
      };
      if constexpr (reachable<decltype(memory), decltype(trim)>) given += nearest(memory, trim);
    });
    return given != 0;
  }

  /// In the order of stream_, behind the copies.
  template <class Slot>
  void give(Slot& s) noexcept {
    if (s.host == nullptr) return;
    void* const host = std::exchange(s.host, nullptr);
    if (!is_anothers()) return pinned_.deallocate(stream_, host, s.bytes(), alignment_of(s));
    if (!finish()) (void)finish();
    pinned_.deallocate_sync(host, s.bytes(), alignment_of(s));
  }
  void give_host_memory() noexcept {
    each([&](auto& s) { give(s); });
  }
  /// Waits on the host for the scope's copies. A stream that is being captured must not be waited for: nothing was brought
  /// back then, and for the copies to the host tell_lost() has waited.
  [[nodiscard]] bool finish() const noexcept {
    bool capturing = false;
    (void)driver().is_capturing(stream_, capturing);
    return capturing || driver().synchronize_stream(stream_).ok();
  }
  void forget_event() noexcept {
    if (copied_ != nullptr) (void)driver().destroy_event(std::exchange(copied_, nullptr));
  }

  /// In the handler of what bring_back() threw.
  void tell_lost() noexcept {
    bool const copied = driver().synchronize_event(copied_).ok();
    if (!handler_) {
      report_misuse(misuse(
          misuse_kind::contents_lost, std::get<0>(slots_).buffer,
          "evict_scope ended, and the elements of its buffers cannot be brought back; call bring_back() "
          "to get the error, or name a handler by when_lost()"));
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
  event_handle copied_ = nullptr;  ///< the elements are on the host
  handler handler_;
};

template <class Pinned, class... Buffers>
evict_scope(Pinned, stream_ref, Buffers&...) -> evict_scope<Pinned, Buffers...>;

}  // namespace tarn
