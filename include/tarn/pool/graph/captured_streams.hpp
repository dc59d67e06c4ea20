// SPDX-License-Identifier: Apache-2.0
#pragma once
// captured_streams: the streams of open captures, which any thread looks up without a lock; captured_stream:
// what a pool knows of one.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tarn/core/config.hpp"
#include "tarn/core/graph_owner.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/pool/arena/range.hpp"
#include "tarn/pool/graph/graph_parts.hpp"

namespace TARN_NAMESPACE::detail {

/// The identities of the streams that are part of an open capture. A place is added to and cleared under a
/// mutex of the owner.
class captured_streams {
 public:
  static constexpr std::size_t most = 64;  ///< at a time, in all captures of a pool

  [[nodiscard]] bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  /// The place of a stream, `most` if it has none. A thread that uses a captured stream was ordered after the
  /// opening of the scope, so it finds the stream.
  [[nodiscard]] std::size_t find(stream_id stream) const noexcept {
    if (!any()) return most;
    for (std::size_t i = 0; i < most; ++i) {
      if (places_[i].load(std::memory_order_acquire) == stream) return i;
    }
    return most;
  }
  [[nodiscard]] bool has(stream_id stream) const noexcept { return find(stream) != most; }
  /// A place that is free; `most` if there is none.
  [[nodiscard]] std::size_t free_place() const noexcept {
    for (std::size_t i = 0; i < most; ++i) {
      if (places_[i].load(std::memory_order_relaxed) == 0) return i;
    }
    return most;
  }
  void set(std::size_t place, stream_id stream) noexcept {
    places_[place].store(stream, std::memory_order_release);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  void clear(std::size_t place) noexcept {
    count_.fetch_sub(1, std::memory_order_relaxed);
    places_[place].store(0, std::memory_order_release);
  }

 private:
  std::atomic<std::size_t> count_{0};
  std::atomic<stream_id> places_[most]{};
};

/// A stream of an open capture, and the identity under which it uses the part of its owner's captures.
struct captured_stream {
  stream_id captured_as = 0;  ///< 0: not captured
  capture_number capture = 0;
  graph_parts* owner = nullptr;  ///< null: of an unknown capture
  stream_id stream = 0;          ///< its own identity
  bool is_guess = false;         ///< the stream was not announced: `captured_as` orders nothing

  [[nodiscard]] bool is_captured() const noexcept { return captured_as != 0; }
  /// Whether a part is that of the capture, which may reuse its memory in the order of the stream.
  [[nodiscard]] bool may_reuse(part_ref part) const noexcept {
    return owner != nullptr && !is_guess && owner->captured == part;
  }
};

}  // namespace TARN_NAMESPACE::detail
