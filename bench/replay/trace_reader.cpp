// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_reader.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "replay/input.hpp"

namespace tarn::bench {

namespace {

/// Longest line that is kept whole: three 20-digit numbers and some blanks; a longer one is a comment or
/// invalid.
constexpr std::size_t longest_line = 1024;

/// Above any device of this decade.
constexpr std::uint64_t largest_block = std::uint64_t{1} << 50;
/// Of all blocks that are live at once: sums of rounded sizes do not overflow.
constexpr std::uint64_t largest_sum = std::uint64_t{1} << 60;

std::string shown(std::string_view line) {
  std::string text;
  for (char const c : line.substr(0, 40)) {
    text += c >= ' ' && c <= '~' ? c : '?';  // keeps control characters of binary files off the terminal
  }
  return '\'' + text + (line.size() > 40 ? "...'" : "'");
}

std::string name_of(std::string const& path) {
  if (path == "-") return "stdin";
  std::string name = path.substr(path.find_last_of('/') + 1);
  for (std::string_view const ending : {".gz", ".trace", ".txt"}) {
    if (name.size() > ending.size() && name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

}  // namespace

trace_parser::trace_parser(std::string file) : file_(std::move(file)) {}

void trace_parser::fail(std::string const& what) const {
  throw trace_error(file_, line_, what);
}

std::uint16_t trace_parser::stream_index(std::uint64_t number) {
  if (auto const found = streams_.find(number); found != streams_.end()) return found->second;
  static_assert(most_trace_streams <= std::numeric_limits<std::uint16_t>::max());
  if (built_.streams() == most_trace_streams) fail("more than 65,535 streams");
  std::uint16_t const index = built_.add_stream(number);
  streams_.emplace(number, index);
  return index;
}

void trace_parser::take(std::string_view line) {
  ++line_;
  trace_event e;
  try {
    e = parse_trace_line(line, line_);
  } catch (tarn::trace_error const& error) {
    fail(std::string(error.reason()) + ": " + shown(line));
  }
  if (e.kind == trace_event_kind::comment) return;
  if (line.size() > longest_line) fail("the line is too long: " + shown(line));
  if (e.kind == trace_event_kind::allocate) return allocate(e);
  release(e.id);
}

void trace_parser::allocate(trace_event const& e) {
  auto const [kind, id, bytes, stream] = e;
  if (bytes > largest_block) fail("no device has " + std::to_string(bytes) + " bytes");
  if (built_.live() + bytes > largest_sum)
    fail("no device has " + std::to_string(built_.live() + bytes) + " bytes, which are live at once");
  block& b = blocks_[id];
  if (b.live) {
    fail("id " + std::to_string(id) + " is still live: it was allocated at line " + std::to_string(b.line));
  }
  b.placed = built_.allocate(bytes, stream_index(stream));
  b.line = line_;
  b.live = true;
}

void trace_parser::release(std::uint64_t id) {
  auto const found = blocks_.find(id);
  if (found == blocks_.end()) fail("unknown id " + std::to_string(id) + ": it was never allocated");
  block& b = found->second;
  if (!b.live) {
    fail("double free of id " + std::to_string(id) + ": it was freed at line " + std::to_string(b.line));
  }
  b.live = false;
  b.line = line_;
  built_.release(b.placed);
}

trace trace_parser::finish() && {
  return std::move(built_).finish(name_of(file_));
}

trace read_trace(std::string const& path) {
  std::string const file = path == "-" ? "stdin" : path;
  trace_parser parser(file);
  bool is_open = false;
  try {
    input source(path);
    is_open = true;
    std::vector<char> buffer(1 << 18);
    std::string left_over;  // the start of a line that ends in the next buffer
    for (;;) {
      std::size_t const n = source.read(std::span(buffer));
      if (n == 0) break;
      std::string_view bytes(buffer.data(), n);
      for (std::size_t end = bytes.find('\n'); end != bytes.npos; end = bytes.find('\n')) {
        if (left_over.empty()) {
          parser.take(bytes.substr(0, end));
        } else {
          parser.take(left_over.append(bytes.substr(0, end)));
          left_over.clear();
        }
        bytes.remove_prefix(end + 1);
      }
      if (left_over.size() <= longest_line) left_over.append(bytes);  // the rest cannot matter
    }
    if (!left_over.empty()) parser.take(left_over);
  } catch (input_error const& error) {
    throw trace_error(file, is_open ? parser.lines() + 1 : 0, error.what());
  }
  return std::move(parser).finish();
}

}  // namespace tarn::bench
