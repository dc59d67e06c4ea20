// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes and reads a resource's memory through its own driver, so that one test serves host, simulated and
// real devices.

#include <cstddef>
#include <vector>

#include "tarn/core/stream.hpp"

namespace tarn_test {

/// Sets bytes on a stream and waits; returns true on success.
template <class Resource>
bool write(Resource const& memory, tarn::stream_ref stream, void* p, int byte, std::size_t bytes) {
  return memory.driver().fill(stream, p, byte, bytes).ok() && memory.driver().synchronize_stream(stream).ok();
}

/// True if every byte has the value.
template <class Resource>
bool holds(Resource const& memory, tarn::stream_ref stream, void const* p, int byte, std::size_t bytes) {
  std::vector<unsigned char> seen(bytes, static_cast<unsigned char>(~byte));
  if (!memory.driver().copy(stream, seen.data(), p, bytes).ok()) return false;
  if (!memory.driver().synchronize_stream(stream).ok()) return false;
  for (unsigned char const b : seen) {
    if (b != static_cast<unsigned char>(byte)) return false;
  }
  return true;
}

/// True if the whole block can be written and read: all of a small one, both ends of a large one.
template <class Resource>
bool is_usable(Resource const& memory, tarn::stream_ref stream, void* p, std::size_t bytes) {
  constexpr std::size_t most = std::size_t{1} << 22;
  auto* const begin = static_cast<unsigned char*>(p);
  std::size_t const part = bytes <= most ? bytes : most / 2;
  auto* const last = begin + (bytes - part);
  return write(memory, stream, begin, 0xa5, part) && holds(memory, stream, begin, 0xa5, part) &&
         write(memory, stream, last, 0x5a, part) && holds(memory, stream, last, 0x5a, part);
}

/// A stream of a driver, for the duration of a test.
template <class Driver>
class test_stream {
 public:
  explicit test_stream(Driver driver) : driver_(driver), made_(driver_.create_stream(stream_).ok()) {}
  ~test_stream() {
    if (made_) (void)driver_.destroy_stream(stream_);
  }
  test_stream(test_stream const&) = delete;
  test_stream& operator=(test_stream const&) = delete;
  [[nodiscard]] bool made() const noexcept { return made_; }
  operator tarn::stream_ref() const noexcept { return stream_; }  // NOLINT: it stands for its stream

 private:
  Driver driver_;
  tarn::stream_ref stream_;
  bool made_;
};

}  // namespace tarn_test
