// SPDX-License-Identifier: Apache-2.0
#pragma once
// Typed stream-ordered copies between host and device, in any direction.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/driver/driver.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// @throws misuse  of kind `overlap`, with `what_to_do`, if the ranges share a byte
inline void require_no_overlap(void const* from, std::size_t from_bytes, void const* to, std::size_t to_bytes,
                               char const* what_to_do, source_location where) {
  auto const source = reinterpret_cast<std::uintptr_t>(from);
  auto const target = reinterpret_cast<std::uintptr_t>(to);
  if (source < target + to_bytes && target < source + from_bytes)
    throw at(where, misuse(misuse_kind::overlap, to, what_to_do));
}

}  // namespace detail

/// Copies elements in stream order. The spans have the same number of elements and must not overlap.
/// Asynchronous if both sides are device or pinned memory; otherwise the driver may wait. Keep pinned host
/// memory alive until the stream has completed the copy.
/// @throws length_error  the sizes differ; nothing is copied
/// @throws cuda_error    the driver refused
template <stream_driver Driver, class From, class To>
  requires std::is_same_v<std::remove_const_t<From>, To>
void copy(Driver const& driver, std::span<From> from, std::span<To> to, stream_ref stream,
          source_location where = source_location::current()) {
  static_assert(std::is_trivially_copyable_v<To>,
                "tarn: only trivially copyable elements can be copied between host and device");
  if (from.size() != to.size()) {
    message<320> text;
    text.add("tarn: copy of ").add_number(static_cast<std::uint64_t>(from.size()));
    text.add(" elements to a span of ").add_number(static_cast<std::uint64_t>(to.size()));
    text.add("; take a subspan of the longer one");
    throw detail::at(where, length_error(text.view()));
  }
  if (from.empty()) return;
  detail::must_succeed(driver, driver.copy(stream, to.data(), from.data(), from.size_bytes()), where);
}

/// Copies as copy() does, then waits on the host for the stream.
template <stream_driver Driver, class From, class To>
  requires std::is_same_v<std::remove_const_t<From>, To>
void copy_sync(Driver const& driver, std::span<From> from, std::span<To> to, stream_ref stream,
               source_location where = source_location::current()) {
  tarn::copy(driver, from, to, stream, where);
  detail::must_succeed(driver, driver.synchronize_stream(stream), where);
}

}  // namespace TARN_NAMESPACE
