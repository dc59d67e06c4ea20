// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trace in memory, ready to be replayed: ids are resolved to slots, so that a replay looks nothing up.

#include <cstdint>
#include <string>
#include <vector>

namespace tarn::bench {

/// What a program did with its allocator.
enum class operation : std::uint8_t { allocate, free };

/// One line of a trace. A free repeats the bytes and the stream of its allocation: deallocation is sized.
struct event {
  std::uint64_t bytes;   ///< as requested, unrounded
  std::uint32_t slot;    ///< which of the live blocks; used again after the free
  std::uint16_t stream;  ///< dense index, in order of first use
  operation what;
};
static_assert(sizeof(event) == 16, "four events to a cache line: reading them must not be what is measured");

/// All that a program asked of its allocator, in order.
struct trace {
  std::string name;                           ///< file name without folders and .trace.gz
  std::vector<event> events;                  ///< every `a` and `f` line
  std::uint32_t slots = 0;                    ///< the most blocks live at once
  std::vector<std::uint64_t> stream_numbers;  ///< the file's number of each stream index
  std::uint64_t peak_live = 0;                ///< bytes, requested, the most at any time
  std::uint64_t allocations = 0;              ///< `a` lines
};

}  // namespace tarn::bench
