// SPDX-License-Identifier: Apache-2.0
#pragma once
// graph_owner: what a pool gives to graph_memory (raii/graph_memory.hpp): the ownership of the memory that
// captured graphs use.

#include <cstddef>
#include <cstdint>

#include "tarn/core/stream.hpp"

namespace TARN_NAMESPACE {

/// The memory of one graph_memory at one moment, bytes.
struct graph_state {
  std::size_t reserved = 0;   ///< held from the driver for its graphs alone
  std::size_t allocated = 0;  ///< handed out inside captures and not freed since, rounded to block sizes
  std::size_t kept = 0;       ///< blocks of the pool itself that were freed inside a capture, rounded
  std::uint64_t number = 0;   ///< of the owner, as in snapshot_segment::graph_memory
};

namespace detail {

/// Identifies one open capture of an owner.
using capture_number = std::uint64_t;

/// Destruction ends the ownership: the memory is given back when the device has completed all work submitted
/// before.
class graph_owner {
 public:
  graph_owner() = default;
  graph_owner(graph_owner const&) = delete;
  graph_owner& operator=(graph_owner const&) = delete;
  virtual ~graph_owner() = default;

  /// What is allocated on `stream` from now on is the owner's. The identity of `stream` is known.
  /// @throws cuda_error, std::bad_alloc: nothing has changed
  [[nodiscard]] virtual capture_number begin_capture(stream_ref stream) = 0;
  /// The same for another stream of that capture. @throws as above
  virtual void join_capture(capture_number capture, stream_ref stream) = 0;
  virtual void end_capture(capture_number capture) noexcept = 0;
  [[nodiscard]] virtual graph_state state() const = 0;
};

}  // namespace detail
}  // namespace TARN_NAMESPACE
