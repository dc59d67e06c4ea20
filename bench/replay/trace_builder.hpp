// SPDX-License-Identifier: Apache-2.0
#pragma once
// Builds a trace event by event: assigns slots to live blocks and reuses them after the free.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "replay/trace.hpp"

namespace tarn::bench {

/// A live block of a trace under construction.
struct trace_block {
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;
  std::uint16_t stream = 0;
};

/// One thread at a time.
class trace_builder {
 public:
  /// Appends a stream; returns its index.
  /// @param number  as the trace names it; not added before
  std::uint16_t add_stream(std::uint64_t number) {
    trace_.stream_numbers.push_back(number);
    return static_cast<std::uint16_t>(trace_.stream_numbers.size() - 1);
  }
  [[nodiscard]] std::size_t streams() const noexcept { return trace_.stream_numbers.size(); }
  /// Bytes of the blocks that are live now.
  [[nodiscard]] std::uint64_t live() const noexcept { return live_; }

  /// Appends an allocation.
  /// @param stream  an index that add_stream returned
  trace_block allocate(std::uint64_t bytes, std::uint16_t stream) {
    trace_block b{bytes, trace_.slots, stream};
    if (free_slots_.empty()) {
      ++trace_.slots;
    } else {
      b.slot = free_slots_.back();
      free_slots_.pop_back();
    }
    live_ += bytes;
    trace_.peak_live = std::max(trace_.peak_live, live_);
    ++trace_.allocations;
    trace_.events.push_back({bytes, b.slot, stream, operation::allocate});
    return b;
  }

  /// Appends the free of a live block, on the stream of its allocation.
  void release(trace_block const& b) {
    live_ -= b.bytes;
    free_slots_.push_back(b.slot);
    trace_.events.push_back({b.bytes, b.slot, b.stream, operation::free});
  }

  /// Returns the trace; call once, last. Live blocks stay live at its end.
  [[nodiscard]] trace finish(std::string name) && {
    trace_.name = std::move(name);
    return std::move(trace_);
  }

 private:
  trace trace_;
  std::uint64_t live_ = 0;
  std::vector<std::uint32_t> free_slots_;
};

}  // namespace tarn::bench
