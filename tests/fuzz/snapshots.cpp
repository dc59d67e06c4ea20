// SPDX-License-Identifier: Apache-2.0
// Decodes bytes to a snapshot: any segments, blocks, names and events, including impossible ones. Its pickle
// must be readable, its history must be undone as PyTorch's viewer does, and an independent reader must read
// both JSON formats.

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "fuzz/choices.hpp"
#include "fuzz/promise.hpp"
#include "report/undo.hpp"
#include "report/unpickle.hpp"
#include "tarn/report/perfetto.hpp"
#include "tarn/report/pickle.hpp"
#include "tarn/report/snapshot_json.hpp"

using namespace tarn_fuzz;

namespace {

std::string any_text(choices& input) {
  std::string text;
  for (std::size_t left = input.below(8); left != 0; --left) text += static_cast<char>(input.byte());
  return text;
}

tarn::snapshot_segment any_segment(choices& input, std::uintptr_t& at, std::size_t which) {
  tarn::snapshot_segment s;
  at += 4096 * input.below(4);
  s.address = at;
  s.kind = static_cast<tarn::segment_kind>(which < 3 ? which : input.below(3));
  s.is_small = input.below(2) == 0;
  for (std::size_t left = 1 + input.below(5); left != 0; --left) {
    tarn::snapshot_block b;
    b.address = at;
    b.bytes = 512 * (1 + input.below(16));
    b.use = static_cast<tarn::block_use>(input.below(3));
    b.requested = b.use == tarn::block_use::live ? input.below(b.bytes) : 0;
    b.stream = input.number(1);
    b.tag = static_cast<std::uint32_t>(input.below(4));
    b.location = static_cast<std::uint32_t>(input.below(4));
    s.blocks.push_back(b);
    at += b.bytes;
  }
  s.bytes = at - s.address;
  if (s.kind == tarn::segment_kind::view) {  // its physical memory is mapped nowhere else
    for (std::size_t left = s.bytes; left != 0;) {
      std::size_t const bytes = input.below(2) == 0 ? left : 512;
      at += 512 * input.below(2);
      s.pieces.push_back({at, bytes});
      at += bytes;
      left -= bytes;
    }
  }
  return s;
}

tarn::snapshot any_snapshot(choices& input) {
  tarn::snapshot s;
  s.title = any_text(input);
  s.device = static_cast<int>(input.below(4)) - 1;
  s.started_ns = input.number(8) / 2;
  s.null_stream = input.number(1);
  s.tags.resize(1 + input.below(3));
  for (auto& t : s.tags) t.name = any_text(input);
  s.locations.resize(1 + input.below(3));
  for (auto& frames : s.locations) {
    for (std::size_t left = input.below(3); left != 0; --left)
      frames.push_back({any_text(input), static_cast<int>(input.number(4)), any_text(input)});
  }
  std::uintptr_t at = 0x100000;
  std::size_t const which = input.below(5);  // one kind of segment, or all
  for (std::size_t left = input.below(6); left != 0; --left) {
    s.segments.push_back(any_segment(input, at, which));
    s.pool.reserved += s.segments.back().bytes;
  }
  while (!input.empty()) {
    tarn::snapshot_event e;
    e.kind = static_cast<tarn::snapshot_event_kind>(input.below(5));
    e.address = 0x100000 + 512 * (input.number(2) % ((at - 0x100000) / 512 + 16));
    if (!s.segments.empty() && input.below(2) == 0) {  // fits a segment or a block
      auto const& segment = s.segments[input.below(s.segments.size())];
      auto const& block = segment.blocks[input.below(segment.blocks.size())];
      bool const is_call = e.kind < tarn::snapshot_event_kind::refused;
      e.address = is_call ? block.address : segment.address;
      e.bytes = is_call ? block.bytes : segment.bytes;
    } else {
      e.bytes = 512 * input.below(20);
    }
    e.requested = input.below(2) == 0 ? e.bytes : e.bytes / 2;
    e.stream = input.number(1);
    e.tag = static_cast<std::uint32_t>(input.below(4));
    e.location = static_cast<std::uint32_t>(input.below(4));
    e.time_ns = s.now_ns += input.byte();
    s.events.push_back(e);
  }
  return s;
}

/// In the trace `size` is the requested bytes; the viewer undoes blocks of that size.
void check_pickle(tarn::snapshot const& s) {
  std::ostringstream out;
  tarn::write_pickle(out, s);
  try {
    auto const read = tarn_test::unpickler(out.str()).read();
    promise(read->at("segments").items.size() == s.segments.size(), "every segment is there");
    std::size_t const device = s.device < 0 ? 0 : static_cast<std::size_t>(s.device);
    promise(read->at("device_traces").items.size() == device + 1, "the device has a trace");
    tarn_test::undone_history const undone(*read, device);
    promise(undone.mistake().empty(), "the history can be undone", undone.mistake());
    for (std::size_t i = 0; i < s.tags.size() && i < 1; ++i)
      promise(read->at("allocator_settings").at("allocator").text == tarn::detail::as_utf8(s.title),
              "names survive");
  } catch (std::runtime_error const& error) {
    promise(false, "a pickle can be read", error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  choices input(data, size);
  tarn::snapshot const s = any_snapshot(input);
  check_pickle(s);
  std::ostringstream json;
  tarn::write_json(json, s);
  auto const read = nlohmann::json::parse(json.str(), nullptr, false);
  promise(!read.is_discarded(), "JSON can be read");
  promise(read["title"] == tarn::detail::as_utf8(s.title), "names survive in JSON");
  promise(read["events"].size() == s.events.size() && read["segments"].size() == s.segments.size(),
          "the snapshot is complete");
  std::ostringstream trace;
  tarn::write_perfetto(trace, s, {.least_slice_bytes = 1024});
  auto const events = nlohmann::json::parse(trace.str(), nullptr, false);
  promise(!events.is_discarded(), "a trace can be read");
  std::size_t begun = 0;
  std::size_t ended = 0;
  for (auto const& e : events["traceEvents"]) {
    begun += e["ph"] == "b";
    ended += e["ph"] == "e";
  }
  promise(begun == ended, "every begin has an end");
  return 0;
}
