// SPDX-License-Identifier: Apache-2.0
#pragma once
// The current CUDA device, for one tarn pool.

#include <cstdint>
#include <vector>

#include "peers/counted_driver.hpp"
#include "peers/cuda_streams.hpp"
#include "peers/peer.hpp"
#include "tarn/driver/cuda_driver.hpp"

namespace tarn::bench {

/// The device, accessed through tarn's own driver.
class cuda_device {
 public:
  using driver_type = cuda_driver;
  static constexpr place_of_memory where = place_of_memory::cuda;

  explicit cuda_device(setup const& s) : streams_(s.streams) {}

  [[nodiscard]] driver_type driver() const noexcept { return {}; }
  /// Returns a bare handle, as programs have it: the pool queries its identity at each call.
  [[nodiscard]] stream_ref stream(std::size_t index) const noexcept { return streams_[index]; }
  [[nodiscard]] std::uint64_t driver_calls() const noexcept { return 0; }
  [[nodiscard]] std::uint64_t driver_ns() const noexcept { return 0; }

 private:
  cuda_streams streams_;
};

/// As cuda_device, with its calls counted.
class counted_cuda_device : public cuda_device {
 public:
  using driver_type = counted_driver<cuda_driver>;
  using cuda_device::cuda_device;

  [[nodiscard]] driver_type driver() noexcept { return {cuda_driver{}, count_}; }
  [[nodiscard]] std::uint64_t driver_calls() const noexcept { return count_.made.load(); }

 private:
  call_count count_;
};

/// Either of them, with tarn's streams, which contain their identity. The pool asks at each deallocation
/// whether they are captured.
template <class Device>
class with_known_streams : public Device {
 public:
  explicit with_known_streams(setup const& s) : Device(s), known_(s.streams) {
    for (stream_ref& stream : known_) (void)cuda_driver{}.create_stream(stream);
  }
  with_known_streams(with_known_streams const&) = delete;
  with_known_streams& operator=(with_known_streams const&) = delete;
  ~with_known_streams() {
    for (stream_ref const stream : known_) (void)cuda_driver{}.destroy_stream(stream);
  }
  [[nodiscard]] stream_ref stream(std::size_t index) const noexcept { return known_[index]; }

 private:
  std::vector<stream_ref> known_;
};

}  // namespace tarn::bench
