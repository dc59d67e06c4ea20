// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies that change the element type: store in lower precision, compute in higher. On CUDA the file that
// converts must be compiled by nvcc; for the simulated device and plain host memory any compiler works.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/element.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/message.hpp"
#include "tarn/driver/no_driver.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"

#if TARN_HAS_CUDA
#include "tarn/driver/cuda_convert.hpp"
#endif

namespace TARN_NAMESPACE {

/// In plain host memory, at once.
template <class To, class From>
status no_driver::convert(stream_ref, To* to, From const* from, std::size_t count) const noexcept {
  if (count == 0) return {};
  if (to == nullptr || from == nullptr) return invalid(driver_call::convert);
  for (std::size_t i = 0; i < count; ++i) to[i] = element_cast<To>(from[i]);
  return {};
}

namespace detail {

[[noreturn]] inline void refuse_devices(void const* p, device_id from, device_id to, source_location where) {
  message<200> const text("elements of device ", from.value, " cannot be converted into a buffer of device ",
                          to.value, "; call convert() on one device and copy_from() between the devices");
  throw at(where, misuse(misuse_kind::wrong_device, p, text.view()));
}

}  // namespace detail

/// Copies elements to another type in the order of a stream of any device; each is rounded to nearest, ties
/// to even. The spans have the same number of elements and must not overlap: a buffer cannot be converted in
/// place, since many threads write at once. Both must be memory that the driver's device can access (device,
/// pinned or managed memory, not pageable host memory). Runs one memory-bound kernel, with 16-byte accesses
/// where both alignments allow. With equal types it is a plain copy.
/// @throws length_error  the sizes differ; nothing is converted
/// @throws misuse        of kind `overlap`
/// @throws cuda_error    the driver refused
template <stream_driver Driver, class From, element To>
  requires element<std::remove_const_t<From>>
void convert(Driver const& driver, std::span<From> from, std::span<To> to, stream_ref stream,
             source_location where = source_location::current()) {
  detail::require_same_size("conversion", from.size(), to.size(), where);
  if (from.empty()) return;
  detail::require_no_overlap(from.data(), from.size_bytes(), to.data(), to.size_bytes(),
                             "the target of a conversion overlaps its source; convert into separate memory",
                             where);
  if constexpr (std::is_same_v<std::remove_const_t<From>, To>) {
    tarn::copy(driver, from, to, stream, where);
  } else {
    auto const enqueue = [&](stream_ref on) {
      return driver.convert(on, to.data(), from.data(), from.size());
    };
    detail::must_succeed(driver, detail::enqueue_in_order(driver, stream, enqueue), where);
  }
}

/// Converts between buffers on one device, in the order of `stream`, of any device. `stream` first waits, on
/// the device, for the streams of both buffers; these wait for the conversion, so either buffer may be
/// changed or destroyed at once. If all three are the same stream, no event is used.
/// @throws length_error, cuda_error
/// @throws misuse  of kind `wrong_device`; `no_resource`: one of them was default-constructed
template <element From, class FromResource, element To, class ToResource>
  requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void convert(device_buffer<From, FromResource> const& from, device_buffer<To, ToResource>& to,
             stream_ref stream, source_location where = source_location::current()) {
  auto const& driver = detail::required(to.resource(), where).driver();
  auto const& theirs = detail::required(from.resource(), where).driver();
  if constexpr (detail::is_devices_own<FromResource> && detail::is_devices_own<ToResource>) {
    if (theirs.device() != driver.device()) {
      detail::refuse_devices(from.data(), theirs.device(), driver.device(), where);
    }
  }
  detail::require_same_size("conversion", from.size(), to.size(), where);
  if (from.empty()) return;
  // Use the device that can access both: a buffer of host memory may carry the driver of any device.
  auto const& on = detail::is_devices_own<ToResource> ? driver : theirs;
  using driver_type = typename ToResource::driver_type;
  stream = detail::is_devices_own<ToResource> ? identified(to.resource(), stream, where)
                                              : identified(from.resource(), stream, where);
  detail::in_turn(
      detail::driven_stream<driver_type>{on, stream},
      [&] { tarn::convert(on, from.span(), to.span(), stream, where); }, where,
      detail::stream_on(from.resource(), from.stream()), detail::stream_on(to.resource(), to.stream()));
}
/// Converts on the target's stream, or on the source's if only the source's device can access both.
template <element From, class FromResource, element To, class ToResource>
  requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void convert(device_buffer<From, FromResource> const& from, device_buffer<To, ToResource>& to,
             source_location where = source_location::current()) {
  bool const apart =
      detail::required(from.resource(), where).device() != detail::required(to.resource(), where).device();
  tarn::convert(from, to, apart && !detail::is_devices_own<ToResource> ? from.stream() : to.stream(), where);
}

/// Returns a new buffer of `memory` on `stream` that holds the elements of `from` converted to To: `auto half
/// = tarn::converted<tarn::float16>(pool, weights, stream)`. Both buffers exist until the old one is
/// destroyed, so the peak is the sum of their sizes.
/// @throws length_error, out_of_memory, misuse, cuda_error; nothing is held
template <element To, class Memory, element From, class FromResource>
  requires resource<Memory>
[[nodiscard]] device_buffer<To, Memory> converted(Memory memory,
                                                  device_buffer<From, FromResource> const& from,
                                                  stream_ref stream,
                                                  attribution call = attribution::current()) {
  device_buffer<To, Memory> to(std::move(memory), from.size(), stream, default_alignment, call);
  tarn::convert(from, to, call.where);
  return to;
}
/// Returns a converted buffer from the resource of `from`.
template <element To, element From, class Resource>
[[nodiscard]] device_buffer<To, Resource> converted(device_buffer<From, Resource> const& from,
                                                    stream_ref stream,
                                                    attribution call = attribution::current()) {
  return tarn::converted<To>(from.resource(), from, stream, call);
}
template <element To, element From, class Resource>
[[nodiscard]] device_buffer<To, Resource> converted(device_buffer<From, Resource> const& from,
                                                    attribution call = attribution::current()) {
  return tarn::converted<To>(from, from.stream(), call);
}

}  // namespace TARN_NAMESPACE
