// SPDX-License-Identifier: Apache-2.0
#pragma once
// backtrace_stacks: glibc's call stacks for `with_history`. Opt-in: it needs glibc, and links with -ldl
// before glibc 2.34. Link the program with -rdynamic to get the names of its own functions; otherwise
// addresses are offsets in their file, for addr2line.

#include "tarn/debug/memory_history.hpp"

#if defined(__has_include)
#if __has_include(<execinfo.h>) && __has_include(<dlfcn.h>) && __has_include(<cxxabi.h>)
#define TARN_HAS_BACKTRACE 1
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "tarn/core/message.hpp"
#endif
#endif
#ifndef TARN_HAS_BACKTRACE
#define TARN_HAS_BACKTRACE 0
#endif

namespace TARN_NAMESPACE {

#if TARN_HAS_BACKTRACE
namespace detail {

inline std::size_t walk_stack(void** frames, std::size_t most) {
  int const found = ::backtrace(frames, static_cast<int>(most));
  return found > 0 ? static_cast<std::size_t>(found) : 0;
}

/// Fills in the demangled function, or its offset in the file such as "+0x12f0"; and the file.
inline void name_frame(void* frame, history_frame& out) {
  ::Dl_info info{};
  if (::dladdr(frame, &info) == 0 || info.dli_fname == nullptr) {
    message<24> address;
    out.function = address.add_hex(reinterpret_cast<std::uintptr_t>(frame)).c_str();
    return;
  }
  out.file = info.dli_fname;
  if (info.dli_sname == nullptr) {
    auto const base = reinterpret_cast<std::uintptr_t>(info.dli_fbase);
    message<24> offset;
    out.function = offset.add("+").add_hex(reinterpret_cast<std::uintptr_t>(frame) - base).c_str();
    return;
  }
  int status = 0;
  std::unique_ptr<char, decltype(&std::free)> const spelt(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  out.function = status == 0 && spelt != nullptr ? spelt.get() : info.dli_sname;
}

}  // namespace detail
#endif

/// For `with_history{.stacks = tarn::backtrace_stacks()}`. A walk costs microseconds. Without glibc: no
/// stacks.
[[nodiscard]] inline stack_hooks backtrace_stacks() noexcept {
#if TARN_HAS_BACKTRACE
  return {&detail::walk_stack, &detail::name_frame};
#else
  return {};
#endif
}

}  // namespace TARN_NAMESPACE
