// SPDX-License-Identifier: Apache-2.0
#pragma once
// A non-owning reference to a stream: the driver's handle and, if known, the stream's identity. And the
// device ordinal as a type.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

/// A device by its ordinal, as cudaSetDevice numbers them.
struct device_id {
  int value = 0;
  constexpr device_id() noexcept = default;
  constexpr device_id(int ordinal) noexcept : value(ordinal) {}  // NOLINT: an ordinal is a device
  friend constexpr bool operator==(device_id, device_id) noexcept = default;
};

}  // namespace TARN_NAMESPACE

struct CUstream_st;

namespace TARN_NAMESPACE {

namespace detail {
struct zero;  ///< never defined: a literal 0 converts to a pointer to it, a variable does not
/// A type with a get() that returns a cudaStream_t, other than tarn's own owners.
template <class Stream, class Ref>
concept hands_out_stream = requires(Stream const& s) {
  { s.get() } -> std::convertible_to<CUstream_st*>;
} && !requires(Stream const& s) {
  { s.ref() } -> std::same_as<Ref>;
};
}  // namespace detail

/// Identity of a stream. Handles are reused after cudaStreamDestroy; identities are not (cudaStreamGetId).
using stream_id = std::uint64_t;

/// Refers to a stream without owning it. Copy freely.
///
/// A bare handle converts implicitly (`cudaStream_t`, `cuda::stream_ref`, a simulated stream), and the pool
/// queries the driver for its identity at each call; `tarn::identified(resource, stream)` queries once and
/// keeps the result. A default-constructed stream_ref is the default stream.
class stream_ref {
 public:
  /// The identity is not known; the pool must query the driver.
  static constexpr stream_id unknown_id = 0;

  constexpr stream_ref() noexcept = default;
  /// From a cudaStream_t or nullptr. A template, so that an owner that converts to both is not ambiguous.
  template <class Handle>
    requires std::same_as<Handle, CUstream_st*> || std::same_as<Handle, std::nullptr_t>
  constexpr stream_ref(Handle handle) noexcept : handle_(handle) {}  // NOLINT: cudaStream_t is a stream
  stream_ref(detail::zero const*) = delete;  // no stream: write tarn::stream_ref{} for the default stream
  /// From any type whose get() returns a cudaStream_t: cuda::stream_ref, or RMM's view through value().
  /// tarn's own stream owners convert by themselves and keep the identity.
  template <class Stream>
    requires detail::hands_out_stream<Stream, stream_ref>
  constexpr stream_ref(Stream const& stream) noexcept : handle_(stream.get()) {}  // NOLINT

  /// Constructs from a driver's own handle, with the identity if the caller knows it.
  [[nodiscard]] static constexpr stream_ref from(void* handle, stream_id id = unknown_id) noexcept {
    stream_ref s;
    s.handle_ = handle;
    s.id_ = id;
    return s;
  }

  /// The driver's handle; null is the default stream.
  [[nodiscard]] constexpr void* handle() const noexcept { return handle_; }
  /// The handle as a cudaStream_t.
  [[nodiscard]] CUstream_st* get() const noexcept { return static_cast<CUstream_st*>(handle_); }
  /// The identity, or `unknown_id`.
  [[nodiscard]] constexpr stream_id id() const noexcept { return id_; }

  /// Compares the handles, as cuda::stream_ref does. One handle may name several streams: those of different
  /// devices or threads, if it is a default stream's, or one that was destroyed and the next one. Compare
  /// id() to distinguish them.
  friend constexpr bool operator==(stream_ref a, stream_ref b) noexcept { return a.handle_ == b.handle_; }

 private:
  void* handle_ = nullptr;
  stream_id id_ = unknown_id;
};

namespace detail {
/// The bytes of a call that names no stream. A braced {} does not convert, and a literal 0 converts to a
/// stream_ref as well, so that allocate(0, 256) does not compile.
struct byte_count {
  template <std::integral Bytes>
  constexpr byte_count(Bytes bytes) noexcept : value(static_cast<std::size_t>(bytes)) {}  // NOLINT

  std::size_t value;
};
}  // namespace detail

}  // namespace TARN_NAMESPACE
