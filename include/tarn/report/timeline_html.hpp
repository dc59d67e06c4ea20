// SPDX-License-Identifier: Apache-2.0
#pragma once
// A snapshot as one self-contained HTML file: live and reserved bytes over time, the peak and its
// composition, a map of the addresses, tables. It loads nothing; its content security policy (CSP) forbids
// it.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tarn/core/resource.hpp"
#include "tarn/core/text.hpp"
#include "tarn/report/json_text.hpp"
#include "tarn/report/snapshot.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/report/timeline_page.hpp"
#include "tarn/report/viewer_history.hpp"
#include "tarn/report/write_file.hpp"

namespace TARN_NAMESPACE {

namespace detail {

// The events and blocks of a snapshot as numbers for the HTML page (the reader is
// timeline/model.js).
//
//   shapes   combinations shared by many blocks, each written once: bytes, requested, stream, tag, location
//   events   a head, what << 3 | code, then: for an allocation (what: its shape) the address and time differences; for the free
//            of a listed allocation (what: the number of events since) the time difference
//   blocks   per segment: address difference, bytes, kind, handles, stream, number of blocks; per block a head,
//            shape << 3 | gap << 2 | use, the size of the gap before it, if any, and the time difference
//
// Addresses are relative to the lowest one, in units of their common alignment; 0 means none.
//
// Encodes numbers for the page: LEB128 (seven bits per byte, low bits first, the top bit set if more bytes
// follow) in base64, which is plain text in HTML. An event takes 4 to 8 characters; as JSON it would take
// 100.

/// Writes numbers to a stream incrementally with a 4 KiB buffer. Call finish() last.
class html_numbers {
 public:
  explicit html_numbers(std::ostream& out) noexcept : out_(out) {}
  html_numbers& operator=(html_numbers&&) = delete;

  void add(std::uint64_t number) {
    for (; number > 127; number >>= 7U) add_byte(static_cast<std::uint8_t>(number | 128U));
    add_byte(static_cast<std::uint8_t>(number));
  }
  /// Writes the signed difference of two numbers in zigzag encoding: small if they are close.
  void add_step(std::uint64_t from, std::uint64_t to) {
    add(to >= from ? (to - from) << 1U : ((from - to) << 1U) - 1);
  }
  void finish() {
    if (bytes_ != 0) {
      std::size_t const real = bytes_ + 1;
      while (bytes_ != 0) add_byte(0);
      for (std::size_t i = real; i < 4; ++i) text_[size_ - 4 + i] = '=';
    }
    flush();
  }

 private:
  void add_byte(std::uint8_t byte) {
    group_ = group_ << 8U | byte;
    if (++bytes_ < 3) return;
    constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (size_ == sizeof text_) flush();
    for (unsigned shift = 24; shift != 0;) {
      shift -= 6;
      text_[size_++] = letters[group_ >> shift & 63U];
    }
    group_ = 0;
    bytes_ = 0;
  }
  void flush() {
    out_.write(text_, static_cast<std::streamsize>(size_));
    size_ = 0;
  }

  std::ostream& out_;
  std::uint32_t group_ = 0;
  std::size_t bytes_ = 0;
  std::size_t size_ = 0;
  char text_[4096]{};
};

/// The properties that many blocks have in common.
struct html_shape {
  std::uint64_t bytes = 0;
  std::uint64_t requested = 0;
  std::uint32_t stream = 0;  ///< index into html_data::streams()
  std::uint32_t tag = 0;
  std::uint32_t location = 0;
  friend bool operator==(html_shape const&, html_shape const&) = default;
};

struct html_shape_hash {
  std::size_t operator()(html_shape const& s) const noexcept {
    std::size_t h = 0;
    for (std::uint64_t const part :
         {s.bytes, s.requested, std::uint64_t{s.stream}, std::uint64_t{s.tag}, std::uint64_t{s.location}}) {
      h = (h ^ static_cast<std::size_t>(part)) * 0x9E3779B97F4A7C15U;
      h ^= h >> 29U;
    }
    return h;
  }
};

/// Writes the parts of one snapshot. Write events and blocks first: they collect the shapes and streams.
class html_data {
 public:
  explicit html_data(snapshot const& of) : of_(of), history_(of) {
    for_each_address(
        [&](std::uintptr_t address) { base_ = base_ == 0 ? address : (std::min)(base_, address); });
    std::uintptr_t bits = 0;
    for_each_address([&](std::uintptr_t address) { bits |= address - base_; });
    shift_ = bits == 0 ? 0 : static_cast<unsigned>(std::countr_zero(bits));
  }

  /// The kind of an event in its head, three bits.
  enum class code : std::uint8_t { allocate, free, free_elsewhere, free_unlisted, refused, reserve, release };

  void write_events(std::ostream& out) {
    html_numbers numbers(out);
    // address to the index, among those written, and the stream of the allocating event
    std::unordered_map<std::uintptr_t, std::pair<std::size_t, stream_id>> live;
    std::uint64_t address = 0;
    std::uint64_t time = 0;
    for (std::size_t i = 0; i < of_.events.size(); ++i) {
      if (history_.contradicts(i)) continue;
      snapshot_event const& e = of_.events[i];
      auto const head = [&](std::uint64_t what, code c) {
        numbers.add(what << 3U | static_cast<std::uint64_t>(c));
      };
      auto const found = e.kind == snapshot_event_kind::free ? live.find(e.address) : live.end();
      if (found != live.end()) {
        auto const [index, stream] = found->second;
        bool const same = stream == e.stream;
        head(events_ - index, same ? code::free : code::free_elsewhere);
        if (!same) numbers.add(stream_index(e.stream));
        live.erase(found);
      } else {
        head(shape_index(e.bytes, e.requested, e.stream, e.tag, e.location), code_of(e.kind));
        if (e.kind == snapshot_event_kind::allocate) live[e.address] = {events_, e.stream};
        numbers.add_step(address, units(e.address));
        address = units(e.address);
      }
      numbers.add_step(time, e.time_ns);
      time = e.time_ns;
      ++events_;
    }
    numbers.finish();
  }

  void write_blocks(std::ostream& out) {
    html_numbers numbers(out);
    std::uint64_t address = 0;
    std::uint64_t time = 0;
    for (snapshot_segment const& s : of_.segments) {
      numbers.add_step(address, units(s.address));
      address = units(s.address);
      numbers.add(s.bytes);
      numbers.add(static_cast<std::uint64_t>(s.kind) | (s.is_small ? 4U : 0U));
      numbers.add(s.handles);
      numbers.add(stream_index(s.stream));
      numbers.add(s.blocks.size());
      std::uintptr_t expected = s.address;
      for (snapshot_block const& b : s.blocks) {
        bool const gap = b.address != expected;
        numbers.add(std::uint64_t{shape_index(b.bytes, b.requested, b.stream, b.tag, b.location)} << 3U |
                    (gap ? 4U : 0U) | static_cast<std::uint64_t>(b.use));
        if (gap) numbers.add_step(expected, b.address);
        numbers.add_step(time, b.time_ns);
        time = b.time_ns;
        expected = b.address + b.bytes;
      }
    }
    numbers.finish();
  }

  void write_shapes(std::ostream& out) const {
    html_numbers numbers(out);
    for (html_shape const& s : shapes_) {
      for (std::uint64_t const part : {s.bytes, s.requested}) numbers.add(part);
      for (std::uint32_t const part : {s.stream, s.tag, s.location}) numbers.add(part);
    }
    numbers.finish();
  }

  /// Number of events written.
  [[nodiscard]] std::size_t events() const noexcept { return events_; }
  [[nodiscard]] std::size_t shapes() const noexcept { return shapes_.size(); }
  [[nodiscard]] std::vector<stream_id> const& streams() const noexcept { return streams_; }
  [[nodiscard]] std::uintptr_t base() const noexcept { return base_; }
  [[nodiscard]] unsigned shift() const noexcept { return shift_; }

 private:
  template <class F>
  void for_each_address(F f) const {
    for (snapshot_event const& e : of_.events) {
      if (e.address != 0) f(e.address);
    }
    for (snapshot_segment const& s : of_.segments) {
      if (s.address != 0) f(s.address);
    }
  }
  [[nodiscard]] std::uint64_t units(std::uintptr_t address) const noexcept {
    return address == 0 ? 0 : ((address - base_) >> shift_) + 1;
  }
  static code code_of(snapshot_event_kind kind) noexcept {
    constexpr code codes[] = {code::allocate, code::free_unlisted, code::refused, code::reserve,
                              code::release};
    return codes[static_cast<std::size_t>(kind)];
  }
  std::uint32_t stream_index(stream_id id) {
    auto const [at, added] = stream_at_.try_emplace(id, static_cast<std::uint32_t>(streams_.size()));
    if (added) streams_.push_back(id);
    return at->second;
  }
  std::uint32_t shape_index(std::uint64_t bytes, std::uint64_t requested, stream_id stream, std::uint32_t tag,
                            std::uint32_t location) {
    // An out-of-range index must not break the page: it becomes 0, "unknown".
    html_shape const shape{bytes, requested, stream_index(stream), tag < of_.tags.size() ? tag : 0,
                           location < of_.locations.size() ? location : 0};
    auto const [at, added] = shape_at_.try_emplace(shape, static_cast<std::uint32_t>(shapes_.size()));
    if (added) shapes_.push_back(shape);
    return at->second;
  }

  snapshot const& of_;
  viewer_history history_;
  std::size_t events_ = 0;
  std::uintptr_t base_ = 0;
  unsigned shift_ = 0;
  std::vector<html_shape> shapes_;
  std::unordered_map<html_shape, std::uint32_t, html_shape_hash> shape_at_;
  std::vector<stream_id> streams_;
  std::unordered_map<stream_id, std::uint32_t> stream_at_;
};

}  // namespace detail

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
  json.field("events", data.events()).field("forgotten", s.forgotten_events);
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
/// applied. An allocation or a free that contradicts what is live then is omitted: see viewer_history.hpp.
/// Without recorded calls (see with_history) there is no curve of live bytes, and no
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
