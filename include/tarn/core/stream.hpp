// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stream by reference: the handle that the driver knows and, where known, the stream's identity.

#include <concepts>
#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace tarn {

/// Identity of a stream. Handles are reused after cudaStreamDestroy, identities are not (cudaStreamGetId).
using stream_id = std::uint64_t;

/// Names a stream; does not own it. Copy freely.
///
/// A bare handle converts implicitly (`cudaStream_t`, `cuda::stream_ref`, a simulated stream) and the pool
/// asks the driver for its identity at each call; `tarn::identified(resource, stream)` asks once and keeps
/// it. A default stream_ref is the default stream.
class stream_ref {
 public:
  /// "The pool must ask the driver."
  static constexpr stream_id unknown_id = 0;

  constexpr stream_ref() noexcept = default;
  /// From a cudaStream_t or nullptr. A template, so that an owner that converts to both is not ambiguous.
  template <class Handle>
  requires std::same_as<Handle, CUstream_st*> || std::same_as<Handle, std::nullptr_t>
  constexpr stream_ref(Handle handle) noexcept : handle_(handle) {}  // NOLINT: cudaStream_t is a stream
  stream_ref(int) = delete;                                          ///< so that allocate(0, 256) means bytes
  /// From anything that hands out a cudaStream_t by get(): cuda::stream_ref, RMM's view through value(). Owners of tarn convert
  /// by themselves, with the identity that they know.
  template <class Stream>
  requires requires(Stream const& s) {
    { s.get() } -> std::convertible_to<CUstream_st*>;
  } &&(!requires(Stream const& s) {
    { s.ref() } -> std::same_as<stream_ref>;
  }) constexpr stream_ref(Stream const& stream) noexcept
      : handle_(stream.get()) {
  }  // NOLINT

  /// From a driver's own handle, with the identity if the caller knows it.
  [[nodiscard]] static constexpr stream_ref from(void* handle, stream_id id = unknown_id) noexcept {
    stream_ref s;
    s.handle_ = handle;
    s.id_ = id;
    return s;
  }

  /// The driver's handle; null is the default stream.
  [[nodiscard]] constexpr void* handle() const noexcept { return handle_; }
  /// The handle as CUDA spells it.
  [[nodiscard]] CUstream_st* get() const noexcept { return static_cast<CUstream_st*>(handle_); }
  /// The identity, or `unknown_id`.
  [[nodiscard]] constexpr stream_id id() const noexcept { return id_; }

  /// The same handle names the same stream unless one of them was destroyed; identities, where known, decide.
  friend constexpr bool operator==(stream_ref a, stream_ref b) noexcept {
    if (a.id_ != unknown_id && b.id_ != unknown_id) return a.id_ == b.id_;
    return a.handle_ == b.handle_;
  }

 private:
  void* handle_ = nullptr;
  stream_id id_ = unknown_id;
};

}  // namespace tarn
