// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is held on the device, by cudaMemGetInfo, from a thread that looks again and again.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>

namespace tarn_clients {

[[nodiscard]] inline std::size_t free_on_device() {
  std::size_t free = 0;
  std::size_t total = 0;
  (void)cudaMemGetInfo(&free, &total);
  return free;
}

/// Watches free memory from its construction to stop(), every 100 us. Use it outside what is timed:
/// cudaMemGetInfo takes the driver's lock.
class memory_watch {
 public:
  memory_watch() : least_(free_on_device()), thread_([this] { run(); }) {}
  memory_watch(memory_watch const&) = delete;
  memory_watch& operator=(memory_watch const&) = delete;
  ~memory_watch() { stop(); }

  /// Returns the least free memory that was seen, bytes.
  std::size_t stop() {
    if (thread_.joinable()) {
      stopped_ = true;
      thread_.join();
      least_ = std::min(least_, free_on_device());
    }
    return least_;
  }

 private:
  void run() {
    while (!stopped_) {
      least_ = std::min(least_, free_on_device());
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  std::size_t least_;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

}  // namespace tarn_clients
