// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies that change the element type: store in lower precision, calculate in higher. On CUDA the file that converts must
// be compiled by nvcc; on the simulated device and on plain host memory any compiler does.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/element.hpp"
#include "tarn/core/message.hpp"
#include "tarn/driver/host_convert.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/in_turn.hpp"
#include "tarn/raii/require_apart.hpp"

#if TARN_HAS_CUDA
#include "tarn/driver/cuda_convert.hpp"
#endif

namespace tarn {

namespace detail {

[[noreturn]] inline void refuse_sizes(std::size_t from, std::size_t to) {
  message<160> text;
  text.add("tarn: conversion of ").add_number(std::uint64_t{from});
  text.add(" elements to ").add_number(std::uint64_t{to});
  throw length_error(text.add("; take a subspan of the longer one").c_str());
}
[[noreturn]] inline void refuse_devices(void const* p, device_id from, device_id to) {
  message<200> text;
  text.add("elements of device ").add_number(from.value).add(" cannot be converted into a buffer of device ");
  text.add_number(to.value).add("; convert() on one device and copy the smaller of the two by copy_from()");
  throw misuse(misuse_kind::wrong_device, p, text.view());
}

/// Memory that only its own device can touch.
template <class Resource>
inline constexpr bool is_devices_own =
    has_property<Resource, device_accessible> && !has_property<Resource, host_accessible>;

}  // namespace detail

/// Copies elements into another type in stream order, each rounded to the nearest, ties to even. The spans have the same
/// number of elements and do not overlap: a buffer cannot be converted in place, since many threads write at once. Both are
/// memory that the driver's device may touch (device, pinned or managed memory, not the host's own). One kernel that is
/// bound by memory: 16 bytes at a time where both sides' alignments allow. Same type: a copy.
/// @throws length_error  the sizes differ; nothing is converted
/// @throws misuse        of kind `overlap`
/// @throws cuda_error    the driver refused
template <stream_driver Driver, class From, element To>
requires element<std::remove_const_t<From>>
void convert(Driver const& driver, std::span<From> from, std::span<To> to, stream_ref stream) {
  if (from.size() != to.size()) detail::refuse_sizes(from.size(), to.size());
  if (from.empty()) return;
  detail::require_apart(from.data(), from.size_bytes(), to.data(), to.size_bytes(),
                        "a conversion's target overlaps its source; convert into memory of its own");
  if constexpr (std::is_same_v<std::remove_const_t<From>, To>) {
    tarn::copy(driver, from, to, stream);
  } else {
    status const s = driver.convert(stream, to.data(), from.data(), from.size());
    if (!s.ok()) throw cuda_error(s, driver.device().value);
  }
}

/// The same between buffers on one device, on `stream` of it, which first waits, on the device, for the streams of both; these
/// wait for the conversion, so either may be changed or destroyed at once. No events where all three are one stream.
/// @throws length_error, cuda_error
/// @throws misuse  of kind `wrong_device`
template <element From, class FromResource, element To, class ToResource>
requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void convert(device_buffer<From, FromResource> const& from, device_buffer<To, ToResource>& to,
             stream_ref stream) {
  auto const& driver = to.resource().driver();
  auto const& theirs = from.resource().driver();
  if constexpr (detail::is_devices_own<FromResource> && detail::is_devices_own<ToResource>) {
    if (theirs.device() != driver.device()) {
      detail::refuse_devices(from.data(), theirs.device(), driver.device());
    }
  }
  if (from.size() != to.size()) detail::refuse_sizes(from.size(), to.size());
  if (from.empty()) return;
  // The device that can touch both: a buffer of host memory may carry any device's driver.
  auto const& on = detail::is_devices_own<ToResource> ? driver : theirs;
  using driver_type = typename ToResource::driver_type;
  stream = identified(on, stream);
  detail::in_turn(
      detail::driven_stream<driver_type>{on, stream},
      [&] { tarn::convert(on, from.span(), to.span(), stream); },
      detail::driven_stream<driver_type>{theirs, from.stream()},
      detail::driven_stream<driver_type>{driver, to.stream()});
}
/// The same on the target's own stream; on the source's where only its device can touch both.
template <element From, class FromResource, element To, class ToResource>
requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void convert(device_buffer<From, FromResource> const& from, device_buffer<To, ToResource>& to) {
  bool const apart = from.resource().driver().device() != to.resource().driver().device();
  tarn::convert(from, to, apart && !detail::is_devices_own<ToResource> ? from.stream() : to.stream());
}

/// A new buffer of `memory` on `stream` with the elements of another, as To: `auto half =
/// tarn::converted<tarn::float16>(pool, weights, stream)`. Both exist until the old one is destroyed: at the peak their
/// bytes add up.
/// @throws length_error, out_of_memory, misuse, cuda_error; nothing is held
template <element To, class Memory, element From, class FromResource>
requires resource<Memory>
[[nodiscard]] device_buffer<To, Memory> converted(Memory memory,
                                                  device_buffer<From, FromResource> const& from,
                                                  stream_ref stream, place where = place::current()) {
  device_buffer<To, Memory> to(std::move(memory), from.size(), stream, default_alignment, where);
  tarn::convert(from, to);
  return to;
}
/// The same from the memory that the other buffer is of.
template <element To, element From, class Resource>
[[nodiscard]] device_buffer<To, Resource> converted(device_buffer<From, Resource> const& from,
                                                    stream_ref stream, place where = place::current()) {
  return tarn::converted<To>(from.resource(), from, stream, where);
}
template <element To, element From, class Resource>
[[nodiscard]] device_buffer<To, Resource> converted(device_buffer<From, Resource> const& from,
                                                    place where = place::current()) {
  return tarn::converted<To>(from, from.stream(), where);
}

}  // namespace tarn
