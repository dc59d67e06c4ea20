// SPDX-License-Identifier: Apache-2.0
#pragma once
// A logged call as a line of comma-separated values, built without allocating.

#include <cstddef>
#include <string_view>

#include "tarn/core/message.hpp"
#include "tarn/core/text.hpp"
#include "tarn/debug/logged.hpp"

namespace TARN_NAMESPACE {

/// The columns of format_log_line().
inline constexpr std::string_view log_line_header =
    "call,outcome,address,bytes,alignment,stream,tag,file,line,function";

namespace detail {

[[nodiscard]] constexpr std::string_view name_of(logged_call call) noexcept {
  constexpr std::string_view names[] = {"allocate", "deallocate", "allocate_sync", "deallocate_sync"};
  return names[static_cast<std::size_t>(call)];
}
[[nodiscard]] constexpr std::string_view name_of(call_outcome outcome) noexcept {
  constexpr std::string_view names[] = {"pending", "done", "refused", "failed"};
  return names[static_cast<std::size_t>(outcome)];
}
/// Adds a value that can be printed, in quotes if it contains a separator (RFC 4180).
template <std::size_t N>
void add_value(message<N>& line, std::string_view text) noexcept {
  bool const quoted = text.find_first_of(",\"\r\n") != std::string_view::npos;
  if (quoted) line.add("\"");
  put_printable(text, [&](std::string_view part) noexcept { line.add(part == "\"" ? "\"\"" : part); });
  if (quoted) line.add("\"");
}

}  // namespace detail

/// "allocate,done,0x7f..,1000,256,0x0,weights,train.cpp,42,step", without a line end, in the columns of
/// log_line_header. The stream is its handle. The file is cut to its last 63 bytes and the function to its
/// first 63, in whole characters, so that a line is never cut.
[[nodiscard]] inline message<640> format_log_line(call_record const& call) noexcept {
  constexpr std::size_t most = 63;
  message<640> line;
  line.add(detail::name_of(call.call)).add(",").add(detail::name_of(call.outcome)).add(",");
  line.add_hex(reinterpret_cast<std::uintptr_t>(call.address)).add(",").add_number(std::uint64_t{call.bytes});
  line.add(",").add_number(std::uint64_t{call.alignment}).add(",");
  line.add_hex(reinterpret_cast<std::uintptr_t>(call.stream.handle())).add(",");
  if (!(call.name == tag{})) detail::add_value(line, call.name.name());
  line.add(",");
  detail::add_value(line, detail::text_suffix(call.where.file, most));
  line.add(",").add_number(call.where.line).add(",");
  detail::add_value(line, detail::text_prefix(call.where.function, most));
  return line;
}

}  // namespace TARN_NAMESPACE
