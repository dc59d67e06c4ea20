// SPDX-License-Identifier: Apache-2.0
#pragma once
// Work on one stream that touches what belongs to others: ordered behind them, and they behind it, on the device.

#include "tarn/core/error.hpp"
#include "tarn/raii/stream.hpp"

namespace tarn::detail {

/// A stream with the driver of its device.
template <class Driver>
struct driven_stream {
  Driver const& driver;
  stream_ref stream;
};

/// Runs `enqueue`, which puts work on `on`, behind all that the others have enqueued so far; their later work waits for
/// it. A stream that is `on` itself costs nothing; any other two events. Where an other cannot be made to wait, the host
/// waits for the work instead. @throws what enqueue throws; cuda_error
template <class Driver, class Enqueue, class... Others>
void in_turn(driven_stream<Driver> on, Enqueue const& enqueue, Others const&... others) {
  (order_streams(on.driver, on.stream, others.driver, others.stream), ...);
  enqueue();
  try {
    (order_streams(others.driver, others.stream, on.driver, on.stream), ...);
  } catch (...) {
    Driver const& driver = on.driver;
    (void)driver.synchronize_stream(on.stream);  // whoever uses the memory next may not be told to wait
    throw;
  }
}

}  // namespace tarn::detail
