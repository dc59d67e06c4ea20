// SPDX-License-Identifier: Apache-2.0
#pragma once
// The trace format: one line per event, readable by people and by tarn_replay.
//
//   a <id> <bytes> <stream>   allocate: requested bytes; stream is a number, 0 the first one seen
//   f <id>                    free
//   # ...                     a comment
//

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"

namespace TARN_NAMESPACE {

/// A line that is not an event. Reports the line number and the reason.
class trace_error : public detail::error_of<std::runtime_error, 448> {
 public:
  trace_error(std::uint64_t line, std::string_view reason) : line_(line) {
    begin_ = text_.add("line ").add_number(line).add(": ").size();
    text_.add(reason);
  }
  [[nodiscard]] std::uint64_t line() const noexcept { return line_; }
  /// What is wrong with the line, without its number.
  [[nodiscard]] std::string_view reason() const noexcept { return std::string_view(what()).substr(begin_); }

 private:
  std::uint64_t line_;
  std::size_t begin_ = 0;  ///< of the reason in the text
};

/// Streams that a trace can distinguish, including the default one. The limit of `traced` and of tarn_replay.
inline constexpr std::uint32_t most_trace_streams = 65535;

enum class trace_event_kind : std::uint8_t { comment, allocate, free };

struct trace_event {
  trace_event_kind kind = trace_event_kind::comment;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;   ///< allocate only
  std::uint64_t stream = 0;  ///< allocate only
};

/// Reads one line, without its line feed. Blank lines are comments.
/// @param number  of the line, for the error
/// @throws trace_error  anything else, including numbers that do not fit and extra words. O(length)
[[nodiscard]] inline trace_event parse_trace_line(std::string_view line, std::uint64_t number) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
    line.remove_suffix(1);
  auto const skip_blanks = [&] {
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  };
  auto const read = [&](auto& value, std::string_view what) {
    skip_blanks();
    using number_type = std::remove_reference_t<decltype(value)>;
    constexpr auto most = static_cast<number_type>(-1);
    message<96> reason;
    if (line.empty() || line.front() < '0' || line.front() > '9')
      throw trace_error(number, reason.add(what).add(" is missing or not a number").view());
    for (value = 0; !line.empty() && line.front() >= '0' && line.front() <= '9'; line.remove_prefix(1)) {
      auto const digit = static_cast<number_type>(line.front() - '0');
      if (value > most / 10 || value * 10 > most - digit) {
        throw trace_error(number, reason.add(what).add(" is too large").view());
      }
      value = value * 10 + digit;
    }
    if (!line.empty() && line.front() != ' ' && line.front() != '\t') {
      throw trace_error(number, reason.add(what).add(" is not a number").view());
    }
  };
  trace_event event;
  skip_blanks();
  if (line.empty() || line.front() == '#') return event;
  char const letter = line.front();
  if ((letter != 'a' && letter != 'f') || (line.size() > 1 && line[1] != ' ' && line[1] != '\t')) {
    throw trace_error(number, "no event; expected 'a <id> <bytes> <stream>', 'f <id>' or '# comment'");
  }
  line.remove_prefix(1);
  event.kind = letter == 'a' ? trace_event_kind::allocate : trace_event_kind::free;
  read(event.id, "the id");
  if (event.kind == trace_event_kind::allocate) {
    read(event.bytes, "the size");
    read(event.stream, "the stream");
  }
  if (!line.empty()) throw trace_error(number, "too many words");
  return event;
}

/// Formats one event as a line, including the line feed.
[[nodiscard]] inline message<72> format_trace_line(trace_event const& event) noexcept {
  message<72> line;
  if (event.kind == trace_event_kind::allocate) {
    line.add("a ").add_number(event.id).add(" ").add_number(event.bytes).add(" ");
    line.add_number(event.stream);
  } else if (event.kind == trace_event_kind::free) {
    line.add("f ").add_number(event.id);
  } else {
    line.add("#");
  }
  line.add("\n");
  return line;
}

}  // namespace TARN_NAMESPACE
