// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads the data of a report page as its script does: base64, numbers of seven bits per byte, events, blocks.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tarn/report/snapshot.hpp"

namespace tarn_test {

/// The text between `id="NAME">` and the end of that element.
inline std::string_view part_of(std::string_view page, std::string const& name) {
  std::string const mark = "id=\"" + name + "\">";
  std::size_t const at = page.find(mark);
  if (at == page.npos) throw std::runtime_error("the page lacks " + name);
  page.remove_prefix(at + mark.size());
  return page.substr(0, page.find("</script>"));
}

inline std::vector<std::uint8_t> from_base64(std::string_view text) {
  std::vector<std::uint8_t> bytes;
  if (text.size() % 4 != 0) throw std::runtime_error("base64 with a length that is not a multiple of four");
  std::string_view const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t group = 0;
    std::size_t padded = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      std::size_t const digit = letters.find(text[i + k]);
      if (text[i + k] == '=') ++padded;
      if (digit == letters.npos && (text[i + k] != '=' || i + 4 != text.size())) {
        throw std::runtime_error("not a base64 character");
      }
      group = group << 6U | static_cast<std::uint32_t>(digit == letters.npos ? 0 : digit);
    }
    for (std::size_t k = 0; k < 3 - padded; ++k)
      bytes.push_back(static_cast<std::uint8_t>(group >> (16 - 8 * k)));
  }
  return bytes;
}

class page_reader {
 public:
  page_reader(std::string_view page, std::string const& part) : bytes_(from_base64(part_of(page, part))) {}

  std::uint64_t next() {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      std::uint8_t const byte = bytes_.at(at_++);
      value |= std::uint64_t{byte & 127U} << shift;
      if (byte < 128) return value;
    }
  }
  std::uint64_t step(std::uint64_t from) {
    std::uint64_t const value = next();
    return value % 2 != 0 ? from - (value + 1) / 2 : from + value / 2;
  }
  [[nodiscard]] bool ended() const { return at_ == bytes_.size(); }

 private:
  std::vector<std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

/// A number, or the numbers of a list of strings, in the page's JSON.
inline std::uint64_t number_in(std::string_view page, std::string const& name) {
  std::string_view const json = part_of(page, "tarn-info");
  std::string const mark = "\"" + name + "\":";
  std::size_t const at = json.find(mark);
  if (at == json.npos) throw std::runtime_error("the page has no number " + name);
  std::size_t const digits = json[at + mark.size()] == '"' ? 1 : 0;
  return std::stoull(std::string(json.substr(at + mark.size() + digits, 24)));
}
inline std::vector<std::uint64_t> streams_in(std::string_view page) {
  std::string_view json = part_of(page, "tarn-info");
  json.remove_prefix(json.find("\"streams\":[") + 11);
  json = json.substr(0, json.find(']'));
  std::vector<std::uint64_t> streams;
  for (std::size_t at = 0; (at = json.find('"', at)) != json.npos; at = json.find('"', at + 1) + 1) {
    streams.push_back(std::stoull(std::string(json.substr(at + 1, 24))));
  }
  return streams;
}

/// The events and segments of the page.
inline tarn::snapshot read_page(std::string_view page) {
  tarn::snapshot s;
  std::vector<std::uint64_t> const streams = streams_in(page);
  auto const base = static_cast<std::uintptr_t>(number_in(page, "base"));
  auto const shift = static_cast<unsigned>(number_in(page, "shift"));
  auto const address_of = [&](std::uint64_t units) -> std::uintptr_t {
    return units == 0 ? 0 : base + (static_cast<std::uintptr_t>(units - 1) << shift);
  };
  std::vector<tarn::snapshot_block> shapes(number_in(page, "shapes"));
  page_reader of_shapes(page, "tarn-shapes");
  for (tarn::snapshot_block& shape : shapes) {
    shape.bytes = of_shapes.next();
    shape.requested = of_shapes.next();
    shape.stream = streams.at(of_shapes.next());
    shape.tag = static_cast<std::uint32_t>(of_shapes.next());
    shape.location = static_cast<std::uint32_t>(of_shapes.next());
  }
  page_reader of_events(page, "tarn-events");
  std::uint64_t units = 0, time = 0;
  s.events.resize(number_in(page, "events"));
  for (std::size_t i = 0; i < s.events.size(); ++i) {
    using kind = tarn::snapshot_event_kind;
    constexpr kind kinds[] = {kind::allocate, kind::free,    kind::free,   kind::free,
                              kind::refused,  kind::reserve, kind::release};
    std::uint64_t const head = of_events.next(), code = head & 7U, what = head >> 3U;
    tarn::snapshot_event e;
    if (code == 1 || code == 2) {
      e = s.events.at(i - what);
      if (code == 2) e.stream = streams.at(of_events.next());
    } else {
      tarn::snapshot_block const& shape = shapes.at(what);
      units = of_events.step(units);
      e = {kind::free,   address_of(units), shape.bytes,    shape.requested,
           shape.stream, shape.tag,         shape.location, 0};
    }
    e.kind = kinds[code];
    e.time_ns = time = of_events.step(time);
    s.events[i] = e;
  }
  page_reader of_blocks(page, "tarn-blocks");
  units = time = 0;
  s.segments.resize(number_in(page, "segments"));
  for (tarn::snapshot_segment& segment : s.segments) {
    segment.address = address_of(units = of_blocks.step(units));
    segment.bytes = of_blocks.next();
    std::uint64_t const flags = of_blocks.next();
    segment.kind = static_cast<tarn::segment_kind>(flags & 3U);
    segment.is_small = (flags & 4U) != 0;
    segment.handles = static_cast<std::uint32_t>(of_blocks.next());
    segment.stream = streams.at(of_blocks.next());
    segment.blocks.resize(of_blocks.next());
    std::uintptr_t expected = segment.address;
    for (tarn::snapshot_block& b : segment.blocks) {
      std::uint64_t const head = of_blocks.next();
      b = shapes.at(head >> 3U);
      b.use = static_cast<tarn::block_use>(head & 3U);
      b.address = (head & 4U) != 0 ? of_blocks.step(expected) : expected;
      b.time_ns = time = of_blocks.step(time);
      expected = b.address + b.bytes;
    }
  }
  if (!of_shapes.ended() || !of_events.ended() || !of_blocks.ended())
    throw std::runtime_error("numbers left over");
  return s;
}

}  // namespace tarn_test
