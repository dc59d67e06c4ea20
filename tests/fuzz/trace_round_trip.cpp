// SPDX-License-Identifier: Apache-2.0
// Decodes bytes to calls on recorded memory. The recording must contain the calls in their order, and the
// replay must accept it. Events with any numbers must survive writing and reading.

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/choices.hpp"
#include "fuzz/promise.hpp"
#include "replay/trace_reader.hpp"
#include "tarn/policy/traced.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn_fuzz;

namespace {

struct called {
  tarn::trace_event_kind kind;
  std::size_t bytes;
  std::size_t stream;
  std::size_t block;  ///< the number of the allocation
};

void any_event_survives(choices& input) {
  tarn::trace_event e;
  e.kind = input.below(2) == 0 ? tarn::trace_event_kind::allocate : tarn::trace_event_kind::free;
  e.id = input.number(8);
  if (e.kind == tarn::trace_event_kind::allocate) {
    e.bytes = input.number(8);
    e.stream = input.number(8);
  }
  auto const text = tarn::format_trace_line(e);
  std::string_view const line = text.view();
  promise(line.ends_with('\n'), "a line ends");
  auto const back = tarn::parse_trace_line(line.substr(0, line.size() - 1), 1);
  promise(back.kind == e.kind && back.id == e.id && back.bytes == e.bytes && back.stream == e.stream,
          "the reader returns the written events", std::string(line));
}

template <class Memory>
std::vector<called> call(Memory memory, std::array<tarn::stream_ref, 4> const& streams, choices& input) {
  struct block {
    void* p;
    std::size_t bytes, stream, number;
  };
  std::vector<block> live;
  std::vector<called> calls;
  std::size_t number = 0;
  auto const free_one = [&](std::size_t at) {
    block const b = live[at];
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    if (b.p != nullptr) calls.push_back({tarn::trace_event_kind::free, b.bytes, b.stream, b.number});
    memory.deallocate(streams[b.stream], b.p, b.bytes);
  };
  while (!input.empty()) {
    std::size_t const s = input.below(streams.size());
    switch (input.below(4)) {
      case 0:
      case 1: {
        std::size_t const bytes = input.size(18);
        void* const p =
            s == 0 && input.below(2) == 0 ? memory.allocate_sync(bytes) : memory.allocate(streams[s], bytes);
        live.push_back({p, bytes, s, ++number});
        if (p != nullptr) calls.push_back({tarn::trace_event_kind::allocate, bytes, s, number});
        break;
      }
      default:
        if (!live.empty()) free_one(input.below(live.size()));
    }
  }
  if (number % 2 == 0) {
    while (!live.empty()) free_one(live.size() - 1);
  } else {  // a recording may end while blocks live, but they must be freed to their memory
    for (block const& b : live) memory->upstream().deallocate(streams[b.stream], b.p, b.bytes, 256);
  }
  return calls;
}

void check(std::FILE* file, std::vector<called> const& calls) {
  std::rewind(file);
  tarn::bench::trace_parser parser("recorded");
  std::vector<std::uint64_t> ids;  // of the n-th allocation
  std::vector<std::size_t> numbers;
  std::vector<std::pair<std::size_t, std::uint64_t>> streams;
  std::size_t at = 0;
  char buffer[256];
  while (std::fgets(buffer, sizeof buffer, file) != nullptr) {
    std::string_view line(buffer);
    promise(line.ends_with('\n'), "every line of a recording ends");
    line.remove_suffix(1);
    parser.take(line);
    auto const e = tarn::parse_trace_line(line, parser.lines());
    if (e.kind == tarn::trace_event_kind::comment) continue;
    promise(at < calls.size(), "only calls are recorded");
    called const& c = calls[at++];
    promise(e.kind == c.kind, "calls are recorded in their order");
    if (e.kind == tarn::trace_event_kind::allocate) {
      promise(e.bytes == c.bytes, "requested bytes are recorded");
      ids.push_back(e.id);
      numbers.push_back(c.block);
      bool known = false;
      for (auto const& [ours, theirs] : streams) {
        known |= ours == c.stream;
        promise((ours == c.stream) == (theirs == e.stream), "each stream has its own number");
      }
      if (!known) streams.emplace_back(c.stream, e.stream);
    } else {
      bool found = false;
      for (std::size_t i = 0; i < ids.size(); ++i) found |= ids[i] == e.id && numbers[i] == c.block;
      promise(found, "a free names its allocation");
    }
  }
  promise(at == calls.size(), "every call is recorded");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  choices input(data, size);
  any_event_survives(input);
  static std::FILE* const file = std::tmpfile();
  promise(file != nullptr, "the test can create a file");
  std::rewind(file);
  promise(ftruncate(fileno(file), 0) == 0, "the test can empty a file");
  tarn::sim_options o;
  o.backing = tarn::sim_backing::address_only;
  tarn::sim_machine const machine(o);
  std::array<tarn::stream_ref, 4> streams;
  for (std::size_t i = 1; i < streams.size(); ++i) (void)machine.driver().create_stream(streams[i]);
  auto memory = tarn::sim_malloc(machine.driver()) | tarn::traced(file);
  auto const calls = call(memory, streams, input);
  promise(memory->flush(), "a recording can be flushed");
  check(file, calls);
  return 0;
}
