// SPDX-License-Identifier: Apache-2.0
#pragma once
// A snapshot as one self-contained HTML file: live and reserved bytes over time, the peak and its
// composition, a map of the addresses, tables. It loads nothing; its content security policy (CSP) forbids
// it.

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "tarn/core/resource.hpp"
#include "tarn/core/text.hpp"
#include "tarn/report/html_data.hpp"
#include "tarn/report/json_text.hpp"
#include "tarn/report/snapshot.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/report/timeline_page.hpp"
#include "tarn/report/write_file.hpp"

namespace TARN_NAMESPACE {

/// The unit of the times in a snapshot.
enum class time_axis : std::uint8_t {
  nanoseconds,  ///< as a watched pool records them
  calls         ///< the number of the call, as in a replayed trace
};

struct timeline_html_options {
  time_axis time = time_axis::nanoseconds;
};

namespace detail {

/// Writes everything except the columns of numbers, as JSON.
inline void write_html_info(std::ostream& out, snapshot const& s, html_data const& data, time_axis time) {
  json_text json(out, json_in::script);
  json.begin_object().field("format", 1).field("title", s.title).field("device", std::to_string(s.device));
  json.field("clock", time == time_axis::calls ? "calls" : "time");
  // Addresses and stream identities may need more than the 53 bits of a JavaScript number, so they are text.
  json.field("base", std::to_string(data.base())).field("nullStream", std::to_string(s.null_stream));
  json.field("shift", data.shift()).field("started", s.started_ns).field("now", s.now_ns);
  json.field("events", s.events.size()).field("forgotten", s.forgotten_events);
  json.field("segments", s.segments.size()).field("shapes", data.shapes());
  json.key("streams").begin_array();
  for (stream_id const id : data.streams()) json.text(std::to_string(id));
  json.end_array().key("tags").begin_array();
  for (history_tag const& t : s.tags) {
    json.begin_object().field("name", t.name).field("bytes", t.bytes).field("peak", t.peak_bytes);
    json.field("requested", t.requested).field("blocks", t.blocks).field("allocations", t.allocations);
    json.end_object();
  }
  json.end_array().key("locations").begin_array();
  for (auto const& frames : s.locations) {
    json.begin_array();
    for (history_frame const& f : frames) {
      json.begin_array().text(f.file).number(f.line).text(f.function).end_array();
    }
    json.end_array();
  }
  json.end_array().key("counts").begin_array();
  for (pool_number const& n : pool_numbers) json.text(n.unit == number_unit::count ? n.name : "");
  json.end_array().key("pool").begin_object().field("reserved_small", s.pool.smaller.reserved.current);
  json.field("reserved_large", s.pool.larger.reserved.current);
  for (pool_number const& n : pool_numbers) json.field(n.name, s.pool.*n.value);
  json.end_object().end_object().flush();
}

/// Appends text for an HTML element that contains only text, such as a title. @throws std::bad_alloc
inline void add_html_text(std::string& to, std::string_view text) {
  for (char const c : as_utf8(text)) {
    if (c == '<') {
      to += "&lt;";
    } else if (c == '>') {
      to += "&gt;";
    } else if (c == '&') {
      to += "&amp;";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      to += "\xEF\xBF\xBD";
    } else {
      to += c;
    }
  }
}

}  // namespace detail

/// Writes a page that a browser opens from a file, without a network: some 80 KB, and 4 to 11 bytes per
/// event. The curves pass through what is live at `now_ns`: earlier events are undone from there, later ones
/// applied. Without recorded calls (see with_history) there is no curve of live bytes, and no
/// peak.
/// @param out  its state shows whether everything was written: check it afterwards
/// @throws std::bad_alloc, and what `out` throws if its exceptions are enabled; part of the page has then
/// been written Only reads `s`. O(events + blocks), 1,000,000 events in some 0.6 s; besides the snapshot it
/// uses a few words for each block that is live at a time and each distinct (bytes, requested, stream, tag,
/// location).
inline void write_timeline_html(std::ostream& out, snapshot const& s, timeline_html_options options = {}) {
  std::string title;
  detail::add_html_text(title, s.title);
  detail::html_data data(s);
  for (detail::html_part const& part : detail::html_page) {
    out << part.text;
    if (part.then == detail::html_slot::title) out << title;
    if (part.then == detail::html_slot::events) data.write_events(out);
    if (part.then == detail::html_slot::blocks) data.write_blocks(out);
    if (part.then == detail::html_slot::shapes) data.write_shapes(out);
    if (part.then == detail::html_slot::info) detail::write_html_info(out, s, data, options.time);
  }
}

/// Writes the page to a file beside `path`, which then replaces an existing one.
/// @throws file_error  the file cannot be created or not completely written; an existing file is as it was
inline void save_timeline_html(snapshot const& s, std::string const& path, timeline_html_options options = {},
                               source_location where = source_location::current()) {
  detail::called_from(where, [&] {
    detail::write_file(path, "the page", [&](std::ostream& file) { write_timeline_html(file, s, options); });
  });
}
/// Saves the page of take_snapshot(memory).
template <has_driver Resource>
void save_timeline_html(Resource memory, std::string const& path, timeline_html_options options = {},
                        source_location where = source_location::current()) {
  save_timeline_html(take_snapshot(memory), path, options, where);
}

}  // namespace TARN_NAMESPACE
