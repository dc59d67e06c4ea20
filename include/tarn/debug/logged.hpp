// SPDX-License-Identifier: Apache-2.0
#pragma once
// logged: passes each call to a hook, for any logging that a program uses; format_log_line() makes a line of
// it. `tracked` counts calls, `traced` writes them to a file, `tagged` names them.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/tag.hpp"
#include "tarn/core/text.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"

namespace TARN_NAMESPACE {

enum class logged_call : std::uint8_t {
  allocate,
  deallocate,
  allocate_sync,
  deallocate_sync,
  extend  ///< of a block that has become longer; `bytes` is its new size
};

enum class call_outcome : std::uint8_t {
  pending,  ///< the call is about to be made
  done,
  refused,  ///< out_of_memory
  failed    ///< another exception
};

/// One call, as passed to the hook.
struct call_record {
  logged_call call = logged_call::allocate;
  call_outcome outcome = call_outcome::pending;
  void* address = nullptr;  ///< null for an allocation that is pending, failed or empty
  std::size_t bytes = 0;    ///< as requested
  std::size_t alignment = 0;
  stream_ref stream;      ///< as given; the default stream for synchronous calls
  tag name;               ///< of an allocation
  source_location where;  ///< in the user's source
};

/// Which moments of a call are logged.
enum class log_moments {
  /// An allocation when its outcome is known, a deallocation (pending) before it is made: the records of an
  /// address are in an
  /// order that happened.
  once,
  /// Each call before it is made and after.
  both
};

namespace detail {
/// A C function and its context argument.
struct log_function {
  void (*function)(void* context, call_record const& call) = nullptr;
  void* context = nullptr;
  void operator()(call_record const& call) const { function(context, call); }
};
}  // namespace detail

/// `pool | tarn::logged{[](tarn::call_record const& c) { ... }}`, or `logged{function, context}` with a plain
/// function. Costs what the hook costs; a stack without this policy has no cost.
///
/// The hook may be called from several threads at once, and must not allocate or free through this memory. It
/// may throw. From a successful allocation its exception reaches the caller, after the block was given back:
/// nothing has changed. From a failed allocation the upstream's own exception is passed on instead. From a
/// deallocation, which never throws, and from a block that has become longer the hook's exception is dropped.
template <class Hook = detail::log_function>
  requires std::invocable<Hook&, call_record const&>
struct logged {
  Hook hook;
  log_moments moments = log_moments::once;

  explicit logged(Hook h, log_moments m = log_moments::once) : hook(std::move(h)), moments(m) {}
  logged(void (*function)(void* context, call_record const& call), void* context,
         log_moments m = log_moments::once)
    requires std::same_as<Hook, detail::log_function>
      : hook{function, context}, moments(m) {}

  template <class Upstream>
  using layer = around_layer<logged, Upstream>;
  /// Makes handles and owners record the place of a call for this layer, however many policies lie between.
  static constexpr bool records_places = true;

  void* around_allocate(request const& r, auto const& next) {
    call_record call = record_of(r.is_synchronous() ? logged_call::allocate_sync : logged_call::allocate, r);
    call.name = tag::current();
    if (moments == log_moments::both) hook(std::as_const(call));
    try {
      call.address = next.allocate(r);
    } catch (out_of_memory const&) {
      log_quietly(call, call_outcome::refused);
      throw;
    } catch (...) {
      log_quietly(call, call_outcome::failed);
      throw;
    }
    call.outcome = call_outcome::done;
    try {
      hook(std::as_const(call));
    } catch (...) {
      next.deallocate(r, call.address);
      throw;
    }
    return call.address;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    call_record call =
        record_of(r.is_synchronous() ? logged_call::deallocate_sync : logged_call::deallocate, r);
    call.address = p;
    log_quietly(call, call_outcome::pending);
    next.deallocate(r, p);
    if (moments == log_moments::both) log_quietly(call, call_outcome::done);
  }
  /// Logs only a block that has become longer.
  [[nodiscard]] bool around_extend(request const& r, void* p, std::size_t more, auto const& next) {
    if (!next.extend(r, p, more)) return false;
    call_record call = record_of(logged_call::extend, r);
    call.address = p;
    call.bytes += more;
    log_quietly(call, call_outcome::done);
    return true;
  }

 private:
  [[nodiscard]] static call_record record_of(logged_call which, request const& r) noexcept {
    return {which, call_outcome::pending,    nullptr, r.bytes, r.alignment, r.stream,
            {},    location_scope::current()};
  }
  void log_quietly(call_record& call, call_outcome outcome) noexcept {
    call.outcome = outcome;
    try {
      hook(std::as_const(call));
    } catch (...) {
    }
  }
};
logged(void (*)(void*, call_record const&), void*) -> logged<detail::log_function>;
logged(void (*)(void*, call_record const&), void*, log_moments) -> logged<detail::log_function>;

// A logged call as a line of comma-separated values, built without allocating.

/// The columns of format_log_line().
inline constexpr std::string_view log_line_header =
    "call,outcome,address,bytes,alignment,stream,tag,file,line,function";

namespace detail {

[[nodiscard]] constexpr std::string_view name_of(logged_call call) noexcept {
  constexpr std::string_view names[] = {"allocate", "deallocate", "allocate_sync", "deallocate_sync",
                                        "extend"};
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
