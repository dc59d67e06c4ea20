// SPDX-License-Identifier: Apache-2.0
#pragma once
// Translation of tarn's exceptions into those of another library, for the interop headers: errors_as<> names
// two exception types, and a class with a function of its own does anything else.

#include <concepts>
#include <exception>
#include <new>

#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"

namespace TARN_NAMESPACE {

/// How exceptions leave tarn for the code of another library.
///
/// | expression           | effect                                                                                    |
/// |----------------------|-------------------------------------------------------------------------------------------|
/// | `Errors::rethrow()`  | called in a catch block; throws the exception being handled, or another one in its place  |
///
/// rethrow() must not return. Calls come from any number of threads.
template <class Errors>
concept error_translation = requires {
  { Errors::rethrow() };
};

/// Passes every exception on as it is.
struct own_errors {
  [[noreturn]] static void rethrow() { throw; }
};

/// Throws OutOfMemory in place of tarn::out_of_memory, and Other in place of tarn's other exceptions and of a
/// std::bad_alloc of the host. Both are constructed from what(). Exceptions of other types, such as those of
/// a handler of the user's, pass unchanged, as do exceptions that are an OutOfMemory or an Other already.
///
/// tarn's exception stays reachable: catch the new one and call std::rethrow_if_nested on it, for the numbers
/// of its report.
template <class OutOfMemory, class Other = OutOfMemory>
  requires std::constructible_from<OutOfMemory, char const*> && std::constructible_from<Other, char const*>
struct errors_as {
  [[noreturn]] static void rethrow() {
    try {
      throw;
    } catch (out_of_memory const& error) {
      std::throw_with_nested(OutOfMemory(error.what()));
    } catch (std::bad_alloc const& error) {
      throw_other(error);
    } catch (any_error const& error) {
      throw_other(error);
    }
  }

 private:
  [[noreturn]] static void throw_other(auto const& error) {
    if (is_theirs<OutOfMemory>() || is_theirs<Other>()) throw;
    std::throw_with_nested(Other(error.what()));
  }
  /// Whether the exception being handled is a Theirs. Not a handler beside those above: the two types may be
  /// one.
  template <class Theirs>
  [[nodiscard]] static bool is_theirs() noexcept {
    try {
      throw;
    } catch (Theirs const&) {
      return true;
    } catch (...) {
      return false;
    }
  }
};

namespace detail {

/// Runs `call`; its exceptions leave as Errors has it. Costs nothing unless it throws.
template <error_translation Errors, class Call>
TARN_ALWAYS_INLINE decltype(auto) translated(Call const& call) {
  if constexpr (std::same_as<Errors, own_errors>) {
    return call();
  } else {
    try {
      return call();
    } catch (...) {
      Errors::rethrow();
      std::terminate();  // rethrow() has returned
    }
  }
}

}  // namespace detail

static_assert(error_translation<own_errors>);

}  // namespace TARN_NAMESPACE
