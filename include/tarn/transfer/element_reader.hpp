// SPDX-License-Identifier: Apache-2.0
#pragma once
// element_reader<T>: reads single elements of device buffers back to the host, through pinned memory.

#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/pinned_host.hpp"
#include "tarn/transfer/pinned_slots.hpp"

namespace TARN_NAMESPACE {

/// Returns elements as RMM's device_uvector::element() and PyTorch's Tensor.item() do, for a loss or a
/// counter in a loop: `tarn::element_reader<float> reader; float loss = reader.element(losses, 0);`. It owns
/// one element of pinned memory, in which the driver writes directly: to read the element into a local
/// variable, the driver stages it in pinned memory of its own first. Allocates only when it is made. One
/// thread at a time.
template <class T, class Pinned = basic_pinned<detail::default_driver<T>>>
class element_reader {
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: only trivially copyable elements can be copied between host and device");

 public:
  /// Takes pinned memory of any device. @throws out_of_memory
  explicit element_reader(Pinned memory = {}) : slots_(std::move(memory), 1, 1) {}

  /// Returns the element, as it is after the work of the buffer's stream; waits on the host for that stream.
  /// Two driver calls. Not while the stream is captured.
  /// @throws length_error  the buffer has no such element; no driver call was made
  /// @throws cuda_error
  template <class Resource>
  [[nodiscard]] T element(device_buffer<T, Resource> const& buffer, std::size_t index,
                          source_location where = source_location::current()) {
    return element(buffer, index, buffer.stream(), where);
  }
  /// Returns the element, as it is after the work of `stream` and of the buffer's stream; waits for `stream`,
  /// which first waits, on the device, for the buffer's stream if that is another one. A stream without an
  /// identity is the one that identified(buffer.resource(), stream) returns.
  template <class Resource>
  [[nodiscard]] T element(device_buffer<T, Resource> const& buffer, std::size_t index, stream_ref stream,
                          source_location where = source_location::current()) {
    if (index >= buffer.size()) {
      message<160> const text("tarn: there is no element ", index, " in a buffer of ", buffer.size());
      throw detail::at(where, length_error(text.view()));
    }
    auto const& memory = buffer.resource();
    stream = identified(memory, stream, where);
    detail::order_streams(memory, stream, buffer.stream(), where);
    auto const& driver = memory.driver();
    try {
      tarn::copy_sync(driver, buffer.span().subspan(index, 1), slots_[0], stream, where);
    } catch (cuda_error const&) {
      // The copy may still write, over the element of a later call.
      (void)detail::wait_for_stream(driver, stream);
      throw;
    }
    return slots_[0][0];
  }

 private:
  detail::pinned_slots<T, Pinned> slots_;
};

}  // namespace TARN_NAMESPACE
