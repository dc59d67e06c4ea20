// SPDX-License-Identifier: Apache-2.0
#pragma once
// file_error: why a file cannot be read or written.

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "tarn/core/error.hpp"
#include "tarn/core/text.hpp"

namespace TARN_NAMESPACE {

namespace detail {
// strerror_r returns a text (GNU) or a status (POSIX).
[[nodiscard]] inline char const* error_text(char const* text, char const*) noexcept {
  return text;
}
[[nodiscard]] inline char const* error_text(int failed, char const* text) noexcept {
  return failed == 0 ? text : "unknown error";
}
}  // namespace detail

/// Reports a file that cannot be read or written as requested: its path, the failed operation, and errno.
/// Where no system call failed, error() is 0 and code() is std::errc::invalid_argument. Of a long path, the
/// message has the end.
class file_error : public detail::error_of<std::system_error, 512> {
 public:
  file_error(std::string_view path, std::string_view what, int error)
      : error_of(std::in_place, std::error_code(error != 0 ? error : EINVAL, std::generic_category())),
        error_(error) {
    constexpr std::size_t longest = 200;
    text_.add("tarn: ").add(path.size() > longest ? "..." : "").add(detail::text_suffix(path, longest));
    text_.add(": ").add(what);
    if (error == 0) return;
    char reason[96] = "";
    text_.add(" (errno ").add_number(error).add(", ");
    text_.add(detail::error_text(::strerror_r(error, reason, sizeof reason), reason)).add(")");
  }
  [[nodiscard]] int error() const noexcept { return error_; }

 private:
  int error_;
};

}  // namespace TARN_NAMESPACE
