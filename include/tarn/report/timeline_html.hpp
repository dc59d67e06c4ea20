// SPDX-License-Identifier: Apache-2.0
#pragma once
// A snapshot as one self-contained HTML file: live and reserved bytes over time, the peak and its composition, a map of the
// addresses, tables. It loads nothing; its content security policy (CSP) forbids it.

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "tarn/core/resource.hpp"
#include "tarn/report/html_data.hpp"
#include "tarn/report/script_text.hpp"
#include "tarn/report/snapshot.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/report/timeline_page.hpp"
#include "tarn/report/write_file.hpp"

namespace tarn {

/// The unit of the times in a snapshot.
enum class time_axis : std::uint8_t {
  nanoseconds,  ///< as a watched pool records them
  calls         ///< the number of the call, as in a replayed trace
};

struct timeline_html_options {
  time_axis time = time_axis::nanoseconds;
};

namespace detail {

/// Returns everything except the columns of numbers, as JSON.
[[nodiscard]] inline std::string html_info(snapshot const& s, html_data const& data, time_axis time) {
  std::string json = "{\"format\":1";
  auto const number = [&](char const* name, std::uint64_t value) {
    json.append(",\"").append(name).append("\":").append(std::to_string(value));
  };
  auto const list = [&](char const* name, auto const& items, auto write) {
    json.append(",\"").append(name).append("\":[");
    char const* comma = "";
    for (auto const& item : items) {
      json += comma;
      comma = ",";
      write(item);
    }
    json += ']';
  };
  auto const text = [&](char const* name, std::string_view value) {
    json.append(",\"").append(name).append("\":");
    add_script_string(json, value);
  };
  text("title", s.title);
  text("device", std::to_string(s.device));
  text("clock", time == time_axis::calls ? "calls" : "time");
  // Addresses and stream identities may need more than the 53 bits of a JavaScript number, so they are text.
  text("base", std::to_string(data.base()));
  text("nullStream", std::to_string(s.null_stream));
  number("shift", data.shift());
  number("started", s.started_ns);
  number("now", s.now_ns);
  number("events", s.events.size());
  number("forgotten", s.forgotten_events);
  number("segments", s.segments.size());
  number("shapes", data.shapes());
  list("streams", data.streams(),
       [&](stream_id id) { json.append("\"").append(std::to_string(id)).append("\""); });
  list("tags", s.tags, [&](history_tag const& tag) {
    json += "{\"name\":";
    add_script_string(json, tag.name);
    number("bytes", tag.bytes);
    number("peak", tag.peak_bytes);
    number("requested", tag.requested);
    number("blocks", tag.blocks);
    number("allocations", tag.allocations);
    json += '}';
  });
  list("locations", s.locations, [&](auto const& frames) {
    json += '[';
    char const* comma = "[";
    for (history_frame const& frame : frames) {
      json += comma;
      comma = ",[";
      add_script_string(json, frame.file);
      json.append(",").append(std::to_string(frame.line)).append(",");
      add_script_string(json, frame.function);
      json += ']';
    }
    json += ']';
  });
  list("counts", pool_numbers, [&](pool_number const& n) {
    json.append("\"").append(n.unit == number_unit::count ? n.name : "").append("\"");
  });
  json.append(R"(,"pool":{"reserved_small":)").append(std::to_string(s.pool.smaller.reserved.current));
  number("reserved_large", static_cast<std::uint64_t>(s.pool.larger.reserved.current));
  for (pool_number const& n : pool_numbers) number(n.name, s.pool.*n.value);
  json += "}}";
  return json;
}

}  // namespace detail

/// Writes a page that a browser opens from a file, without a network: some 80 KB, and 4 to 11 bytes per event. The curves pass
/// through what is live at `now_ns`: earlier events are undone from there, later ones applied. Without recorded calls
/// (with_history{.history = 100'000}) there is no curve of live bytes, and no peak.
/// @param out  its state shows whether everything was written: check it afterwards
/// @throws std::bad_alloc, and what `out` throws if its exceptions are enabled; part of the page has then been written
/// Only reads `s`. O(events + blocks), 1,000,000 events in some 0.6 s; besides the snapshot it uses a few words for each block
/// that is live at a time and each distinct (bytes, requested, stream, tag, location).
inline void write_timeline_html(std::ostream& out, snapshot const& s, timeline_html_options options = {}) {
  std::string title;
  detail::add_html_text(title, s.title);
  detail::html_data data(s);
  for (detail::html_part const& part : detail::html_page) {
    out << part.text;
    switch (part.then) {
      case detail::html_slot::title:
        out << title;
        break;
      case detail::html_slot::events:
        data.write_events(out);
        break;
      case detail::html_slot::blocks:
        data.write_blocks(out);
        break;
      case detail::html_slot::shapes:
        data.write_shapes(out);
        break;
      case detail::html_slot::info:
        out << detail::html_info(s, data, options.time);
        break;
      case detail::html_slot::none:
        break;
    }
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

}  // namespace tarn
