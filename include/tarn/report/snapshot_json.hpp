// SPDX-License-Identifier: Apache-2.0
#pragma once
// A snapshot as JSON, for other programs.
//
//   {"format": "tarn snapshot", "version": 1, "title", "device", "started_ns", "now_ns", "null_stream", "forgotten_events",
//    "pool":     {"live", ...},                                               the numbers of pool_state, by their names there
//    "tags":     [{"name", "bytes", "peak_bytes", "requested", "blocks", "allocations"}],    the first is "untagged"
//    "locations":   [[{"file", "line", "function"}]],                      innermost frame first; the first has no frames
//    "segments": [{"address", "bytes", "kind": "pages" | "view" | "upstream", "small", "handles", "stream",
//                  "graph_memory",                                            of memory of captured graphs only, from 1
//                  "pieces": [{"address", "bytes"}],                                                 of a view only
//                  "blocks": [{"address", "bytes", "requested", "use": "live" | "deferred" | "cached",
//                              "stream", "tag", "location", "time_ns",
//                              "graph_memory"}]}],                          of a block deferred for a graph only, from 1
//    "events":   [{"kind": "allocate" | "free" | "refused" | "reserve" | "release",
//                  "address", "bytes", "requested", "stream", "tag", "location", "time_ns"}]}
//
// Bytes, counts, streams and times are numbers; a time is nanoseconds since started_ns, which is nanoseconds
// since 1970. Addresses are strings ("0x7f0000000000"), since many readers keep 53 bits of a number. `tag`
// and `location` are indices. Text is UTF-8; invalid bytes become U+FFFD. Each block of a segment and each
// event is one line.

#include <ostream>

#include "tarn/report/json_text.hpp"
#include "tarn/report/snapshot.hpp"

namespace TARN_NAMESPACE {

namespace detail {

[[nodiscard]] constexpr char const* name_of(block_use use) noexcept {
  if (use == block_use::cached) return "cached";
  return use == block_use::live ? "live" : "deferred";
}
[[nodiscard]] constexpr char const* name_of(segment_kind kind) noexcept {
  if (kind == segment_kind::pages) return "pages";
  return kind == segment_kind::view ? "view" : "upstream";
}
[[nodiscard]] constexpr char const* name_of(snapshot_event_kind kind) noexcept {
  constexpr char const* names[] = {"allocate", "free", "refused", "reserve", "release"};
  return names[static_cast<std::size_t>(kind)];
}

inline void write_pool(json_text& json, pool_state const& p) {
  json.line().key("pool").begin_object();
  for (pool_number const& n : pool_numbers) json.field(n.name, p.*n.value);
  json.end_object();
}

inline void write_names(json_text& json, snapshot const& s) {
  json.line().key("tags").begin_array();
  for (history_tag const& t : s.tags) {
    json.line()
        .begin_object()
        .field("name", t.name)
        .field("bytes", t.bytes)
        .field("peak_bytes", t.peak_bytes);
    json.field("requested", t.requested)
        .field("blocks", t.blocks)
        .field("allocations", t.allocations)
        .end_object();
  }
  json.end_array().line().key("locations").begin_array();
  for (auto const& frames : s.locations) {
    json.line().begin_array();
    for (history_frame const& f : frames) {
      json.begin_object()
          .field("file", f.file)
          .field("line", f.line)
          .field("function", f.function)
          .end_object();
    }
    json.end_array();
  }
  json.end_array();
}

inline void write_segment(json_text& json, snapshot_segment const& s) {
  json.line().begin_object().key("address").address(s.address).field("bytes", s.bytes);
  json.field("kind", name_of(s.kind)).key("small").boolean(s.is_small);
  json.field("handles", s.handles).field("stream", s.stream);
  if (s.graph_memory != 0) json.field("graph_memory", s.graph_memory);
  if (s.kind == segment_kind::view) {
    json.key("pieces").begin_array();
    for (snapshot_piece const& p : s.pieces)
      json.begin_object().key("address").address(p.address).field("bytes", p.bytes).end_object();
    json.end_array();
  }
  json.key("blocks").begin_array();
  for (snapshot_block const& b : s.blocks) {
    json.line().begin_object().key("address").address(b.address).field("bytes", b.bytes);
    json.field("requested", b.requested).field("use", name_of(b.use)).field("stream", b.stream);
    json.field("tag", b.tag).field("location", b.location).field("time_ns", b.time_ns);
    if (b.graph_memory != 0) json.field("graph_memory", b.graph_memory);
    json.end_object();
  }
  json.end_array().end_object();
}

}  // namespace detail

/// Writes a snapshot as JSON. Errors are reported by the stream's state. Host memory: 64 KiB for any
/// snapshot. Some 150 bytes per event.
inline void write_json(std::ostream& out, snapshot const& s) {
  detail::json_text json(out);
  json.begin_object().field("format", "tarn snapshot").field("version", 1).field("title", s.title);
  json.field("device", s.device).field("started_ns", s.started_ns).field("now_ns", s.now_ns);
  json.field("null_stream", s.null_stream).field("forgotten_events", s.forgotten_events);
  detail::write_pool(json, s.pool);
  detail::write_names(json, s);
  json.line().key("segments").begin_array();
  for (snapshot_segment const& segment : s.segments) detail::write_segment(json, segment);
  json.end_array().line().key("events").begin_array();
  for (snapshot_event const& e : s.events) {
    json.line().begin_object().field("kind", detail::name_of(e.kind)).key("address").address(e.address);
    json.field("bytes", e.bytes).field("requested", e.requested).field("stream", e.stream);
    json.field("tag", e.tag).field("location", e.location).field("time_ns", e.time_ns).end_object();
  }
  json.end_array().end_object().line();
  json.flush();
  out << '\n';
}

}  // namespace TARN_NAMESPACE
