// SPDX-License-Identifier: Apache-2.0
#pragma once
// any_error: what every error of tarn is, and the place that it names. The errors are in core/error.hpp and
// beside what throws them.

#include <cstddef>
#include <string_view>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/source_location.hpp"

namespace TARN_NAMESPACE {

/// What every error of tarn is, beside its standard exception type: `catch (tarn::any_error const& error)`
/// handles all of them and nothing else. Not a std::exception itself, so that each error is one only once.
/// One thread at a time per object.
class any_error {
 public:
  virtual ~any_error() = default;
  /// The message, which ends with the place if it is known: " [solver.cpp:42]". Valid as long as the error.
  [[nodiscard]] virtual char const* what() const noexcept = 0;
  /// The line of the user's program whose call failed; line 0: unknown.
  [[nodiscard]] source_location where() const noexcept { return where_; }
  /// Replaces the place, in what() too: for functions that know which line of the user's program called them.
  /// Line 0: unknown.
  void set_where(source_location where) noexcept {
    if (is_placed_) return;
    where_ = where;
    write_place();
  }
  /// Keeps the place from now on: for errors that pass through another call of the library.
  void keep_where() noexcept { is_placed_ = true; }

 protected:
  any_error() = default;
  any_error(any_error const&) = default;
  any_error& operator=(any_error const&) = default;

 private:
  /// Ends the message with where().
  virtual void write_place() noexcept = 0;

  source_location where_;
  bool is_placed_ = false;
};

namespace detail {

/// Replaces the last `replaced` characters by " [solver.cpp:42]", or by nothing for an unknown place; returns
/// how many follow. Of a long path the end is kept; a text that is too long loses its own end.
template <std::size_t Capacity>
[[nodiscard]] std::size_t end_with_place(message<Capacity>& text, std::size_t replaced,
                                         source_location const& where) noexcept {
  text.truncate(text.size() - replaced);
  if (where.line == 0) return 0;
  constexpr std::size_t longest = 100;
  std::string_view file = where.file;
  message<256> place;
  place.add(" [");
  if (file.size() > longest) {
    file.remove_prefix(file.size() - longest);
    place.add("...");
  }
  place.add(file).add(":").add_number(where.line).add("]");
  static_assert(Capacity > sizeof place);
  text.truncate(Capacity - 1 - place.size());
  text.add(place.view());
  return place.size();
}

template <class Standard>
concept nothrow_default = requires {
  { Standard() } noexcept;
};

/// The base of each error of tarn: its standard type, any_error, and a text of bounded size that is built
/// without allocating.
template <class Standard, std::size_t Capacity>
class error_of : public Standard, public any_error {
 public:
  [[nodiscard]] char const* what() const noexcept final { return text_.c_str(); }

 protected:
  error_of() noexcept  // NOLINT(modernize-use-equals-delete): it is defaulted
    requires nothrow_default<Standard>
  = default;
  /// A standard type that keeps a text of its own keeps an empty one.
  error_of() : Standard("") {}
  template <class... Arguments>
  explicit error_of(std::in_place_t, Arguments const&... of_standard) : Standard(of_standard...) {}

  /// Replaces the text by what write() adds to text_; it then ends with the place again.
  template <class Write>
  void rewrite_text(Write const& write) noexcept {
    text_.truncate(0);
    place_size_ = 0;
    write();
    write_place();
  }

  message<Capacity> text_;

 private:
  void write_place() noexcept final { place_size_ = end_with_place(text_, place_size_, where()); }

  std::size_t place_size_ = 0;  ///< characters at the end of the text
};

/// Called while an exception is handled: throws it again; an error of tarn names the place of the user's
/// call. Takes the parts of a source_location: in registers, they cost the caller no stack.
[[noreturn]] TARN_NOINLINE inline void rethrow_from(char const* file, int line, char const* function) {
  try {
    throw;
  } catch (any_error& error) {
    error.set_where({file, line, function});
    throw;
  }
}
/// Calls a function of the user's; its errors keep their places.
template <class Call>
decltype(auto) call_user(Call const& call) {
  try {
    return call();
  } catch (any_error& error) {
    error.keep_where();
    throw;
  }
}

/// Returns the error with a place: `throw at(where, out_of_memory(report));`.
template <class Error>
[[nodiscard]] Error at(source_location where, Error error) noexcept {
  error.set_where(where);
  return error;
}

/// Runs `call`; the errors that it throws name the place of the user's call. Costs nothing unless it throws.
template <class Call>
TARN_ALWAYS_INLINE decltype(auto) called_from(source_location const& where, Call const& call) {
  try {
    return call();
  } catch (...) {
    rethrow_from(where.file, where.line, where.function);
  }
}

}  // namespace detail

}  // namespace TARN_NAMESPACE
