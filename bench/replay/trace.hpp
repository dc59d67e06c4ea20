// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trace in memory, ready for replay: ids are resolved to slots, so a replay needs no lookup.

#include <cstdint>
#include <string>
#include <vector>

namespace tarn::bench {

/// A call of a program to its allocator.
enum class operation : std::uint8_t { allocate, free };

/// One line of a trace. A free has the bytes and the stream of its allocation: deallocation is sized.
struct event {
  std::uint64_t bytes;   ///< as requested, unrounded
  std::uint32_t slot;    ///< index among the live blocks; reused after the free
  std::uint16_t stream;  ///< dense index, in order of first use
  operation what;
};
static_assert(sizeof(event) == 16, "four events to a cache line: reading them must not be what is measured");

/// All calls of a program to its allocator, in order.
struct trace {
  std::string name;                           ///< file name without folders and .trace.gz
  std::vector<event> events;                  ///< every `a` and `f` line
  std::uint32_t slots = 0;                    ///< maximum of blocks live at once
  std::vector<std::uint64_t> stream_numbers;  ///< the file's stream number for each stream index
  std::uint64_t peak_live = 0;                ///< maximum of live bytes, as requested
  std::uint64_t allocations = 0;              ///< `a` lines
};

}  // namespace tarn::bench
