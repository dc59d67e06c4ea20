// SPDX-License-Identifier: Apache-2.0
#pragma once
// A snapshot: the state of a pool at one moment and its history, as plain data. Writers turn it into files:
// pickle (PyTorch's memory_viz), timeline_html, perfetto, snapshot_json.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tarn/debug/memory_history.hpp"
#include "tarn/pool/inspection/snapshot_segment.hpp"
#include "tarn/pool/pool_state.hpp"

namespace TARN_NAMESPACE {

/// Calls, and what the pool reserved from and released to the driver, in one order.
enum class snapshot_event_kind : std::uint8_t { allocate, free, refused, reserve, release };

struct snapshot_event {
  snapshot_event_kind kind = snapshot_event_kind::allocate;
  std::uintptr_t address = 0;
  std::size_t bytes = 0;      ///< size of the block or handle; of a refused request its size
  std::size_t requested = 0;  ///< of allocate, free and refused
  stream_id stream = 0;
  std::uint32_t tag = 0;
  std::uint32_t location = 0;
  std::uint64_t time_ns = 0;
};

struct snapshot {
  std::string title = "tarn";
  int device = 0;
  std::uint64_t started_ns = 0;  ///< since 1970
  std::uint64_t now_ns = 0;      ///< since started_ns
  std::uint64_t steady_ns = 0;   ///< the steady clock at started_ns; 0 with a user's clock
  stream_id null_stream = 0;     ///< identity of the default stream, 0 if the driver does not report it
  pool_state pool;
  std::vector<snapshot_segment> segments;             ///< by address
  std::vector<snapshot_event> events;                 ///< oldest first
  std::uint64_t forgotten_events = 0;                 ///< number of events before the first of `events`
  std::vector<history_tag> tags;                      ///< tags[0] is "untagged"
  std::vector<std::vector<history_frame>> locations;  ///< innermost frame first; locations[0] is empty
};

}  // namespace TARN_NAMESPACE
