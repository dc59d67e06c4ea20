// SPDX-License-Identifier: Apache-2.0
#pragma once
// in_turn(): orders work on one stream after the earlier work of other streams and before their later work,
// on the device.

#include "tarn/core/error.hpp"
#include "tarn/raii/stream.hpp"

namespace TARN_NAMESPACE::detail {

/// A stream and the driver of its device.
template <class Driver>
struct driven_stream {
  Driver const& driver;
  stream_ref stream;
};

/// Calls `enqueue`, which puts work on `on`, behind all work enqueued so far on the other streams; their
/// later work waits for it. A stream equal to `on` costs nothing; any other costs two events. If one of the
/// others cannot be made to wait, the host waits for the work instead. @throws what enqueue throws;
/// cuda_error
template <class Driver, class Enqueue, class... Others>
void in_turn(driven_stream<Driver> on, Enqueue const& enqueue, source_location where,
             Others const&... others) {
  (order_streams(on.driver, on.stream, others.driver, others.stream, where), ...);
  enqueue();
  try {
    (order_streams(others.driver, others.stream, on.driver, on.stream, where), ...);
  } catch (...) {
    Driver const& driver = on.driver;
    (void)driver.synchronize_stream(on.stream);  // the memory's next users may not be ordered behind the work
    throw;
  }
}

}  // namespace TARN_NAMESPACE::detail
