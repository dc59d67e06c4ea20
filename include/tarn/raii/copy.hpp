// SPDX-License-Identifier: Apache-2.0
#pragma once
// Typed stream-ordered copies between host and device, in any direction, and in_turn(), which orders work on
// one stream after the earlier work of other streams and before their later work, on the device.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE::detail {

/// Calls `enqueue`, which puts work on `on`, behind all work enqueued so far on the other streams; their
/// later work waits for it. One that may be the default stream of any device is that of each device in use,
/// but for devices where a blocking stream is captured. A stream equal to `on` costs nothing; any other costs
/// two events. If one of the others cannot be made to wait, the host waits for the work instead. @throws what
/// enqueue throws; cuda_error
template <class Driver, class Enqueue, class... Others>
void in_turn(driven_stream<Driver> on, Enqueue const& enqueue, source_location where,
             Others const&... others) {
  auto const for_each_stream = [&](auto const& f) {
    (void)for_each_named(on, f, where);
    ((void)for_each_named(others, f, where), ...);
  };
  for_each_stream(
      [&](Driver const& there, stream_ref its) { order_streams(on.driver, on.stream, there, its, where); });
  enqueue();
  try {
    for_each_stream(
        [&](Driver const& there, stream_ref its) { order_streams(there, its, on.driver, on.stream, where); });
  } catch (...) {
    // The memory's next users may not be ordered behind the work.
    (void)wait_for_stream(on.driver, on.stream);
    throw;
  }
}

/// Sets `bytes` bytes at `p` to `value`, in turn as above. @throws cuda_error
template <class Driver>
void fill_in_turn(driven_stream<Driver> on, void* p, std::byte value, std::size_t bytes,
                  source_location where) {
  auto const byte = std::to_integer<unsigned char>(value);
  auto const fill_all = [&] { return fill_in_order(on.driver, on.stream, p, byte, bytes); };
  in_turn(
      on, [&] { must_succeed(on.driver, fill_all(), where); }, where);
}

/// Whether only its own device can access the memory.
template <class Resource>
inline constexpr bool is_devices_own =
    has_property<Resource, device_accessible> && !has_property<Resource, host_accessible>;

/// Copies bytes between the memory of two resources, behind the work of both streams and before their later
/// work: on the target's stream, except that a copy to host memory from another device runs on that device.
/// @throws cuda_error
template <class From, class To, class Driver>
void copy_in_turn(driven_stream<Driver> source, void const* from, driven_stream<Driver> target, void* to,
                  std::size_t bytes, source_location where) {
  bool const apart = source.driver.device() != target.driver.device();
  bool const is_sent = apart && has_property<To, host_accessible> && !has_property<From, host_accessible>;
  driven_stream<Driver> const& on = is_sent ? source : target;
  auto const enqueue = [&] {
    if constexpr (is_devices_own<From> && is_devices_own<To> &&
                  requires { on.driver.copy_from_device(on.stream, to, device_id{}, from, bytes); }) {
      if (apart) return on.driver.copy_from_device(on.stream, to, source.driver.device(), from, bytes);
    }
    return on.driver.copy(on.stream, to, from, bytes);
  };
  in_turn(
      on, [&] { must_succeed(on.driver, enqueue(), where); }, where, is_sent ? target : source);
}

/// @throws misuse  of kind `overlap`, with `what_to_do`, if the ranges share a byte
inline void require_no_overlap(void const* from, std::size_t from_bytes, void const* to, std::size_t to_bytes,
                               char const* what_to_do, source_location where) {
  auto const source = reinterpret_cast<std::uintptr_t>(from);
  auto const target = reinterpret_cast<std::uintptr_t>(to);
  if (source < target + to_bytes && target < source + from_bytes)
    throw at(where, misuse(misuse_kind::overlap, to, what_to_do));
}
/// @throws length_error  the numbers of elements differ
inline void require_same_size(char const* what, std::size_t from, std::size_t to, source_location where) {
  if (from == to) return;
  message<512> const text("tarn: ", what, " of ", from, " elements to a span of ", to,
                          "; take a subspan of the longer one");
  throw at(where, length_error(text.view()));
}

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

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
  detail::require_same_size("copy", from.size(), to.size(), where);
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
