// SPDX-License-Identifier: Apache-2.0
// The translation of tarn's exceptions for other libraries.

#include "tarn/core/errors_as.hpp"

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "catch.hpp"

namespace {

/// As RMM's two: one is a std::bad_alloc, the other one of these.
struct their_bad_alloc : std::bad_alloc {
  explicit their_bad_alloc(char const* text) : what_(text) {}
  [[nodiscard]] char const* what() const noexcept override { return what_.c_str(); }
  std::string what_;
};
struct their_out_of_memory : their_bad_alloc {
  explicit their_out_of_memory(char const* text) : their_bad_alloc(text) {}
};
using theirs = tarn::errors_as<their_out_of_memory, their_bad_alloc>;

tarn::out_of_memory refusal() {
  tarn::memory_report report;
  report.asked = 1234;
  return tarn::out_of_memory(report);
}
tarn::cuda_error broken_call() {
  return tarn::cuda_error({tarn::failure::other, 700, "cudaErrorIllegalAddress", "cudaMalloc"});
}

template <class Errors, class Error>
void leave(Error const& error) {
  tarn::detail::translated<Errors>([&]() -> int { throw error; });
}

}  // namespace

TEST_CASE("errors_as throws the first type for out_of_memory, with its text, and nests tarn's error",
          "[core]") {
  tarn::out_of_memory const ours = refusal();
  try {
    leave<theirs>(ours);
    FAIL("must not return");
  } catch (their_out_of_memory const& error) {
    CHECK(std::string(error.what()) == ours.what());
    try {
      std::rethrow_if_nested(error);
      FAIL("has no nested error");
    } catch (tarn::out_of_memory const& inner) {
      CHECK(inner.asked() == 1234);
    }
  }
}

TEST_CASE("errors_as throws the second type, and never the first, for every other error of tarn's",
          "[core]") {
  auto const is_other = [](auto const& error) {
    try {
      leave<theirs>(error);
    } catch (their_out_of_memory const&) {
      return false;
    } catch (their_bad_alloc const& thrown) {
      return std::string(thrown.what()) == error.what();
    }
    return false;
  };
  CHECK(is_other(broken_call()));
  CHECK(is_other(tarn::bad_alignment(3, 256)));
  CHECK(is_other(tarn::length_error("too many elements")));
  CHECK(is_other(tarn::pool_asleep(100, 0)));
  CHECK(is_other(tarn::misuse(tarn::misuse_kind::capture, nullptr, "in a capture")));
  CHECK(is_other(std::bad_alloc()));
}

TEST_CASE("errors_as lets other exceptions pass, and those that are translated already", "[core]") {
  CHECK_THROWS_AS(leave<theirs>(std::runtime_error("a handler's")), std::runtime_error);
  CHECK_THROWS_AS(leave<theirs>(7), int);
  try {
    leave<theirs>(their_bad_alloc("first"));
  } catch (their_out_of_memory const&) {
    FAIL("changed its type");
  } catch (their_bad_alloc const& error) {
    CHECK(std::string(error.what()) == "first");
    CHECK(dynamic_cast<std::nested_exception const*>(&error) == nullptr);
  }
}

TEST_CASE("errors_as lets an error of tarn's pass that is one of its types already", "[core]") {
  using standard = tarn::errors_as<std::runtime_error, std::invalid_argument>;
  CHECK_THROWS_AS(leave<standard>(tarn::bad_alignment(3, 256)), tarn::bad_alignment);
  CHECK_THROWS_AS(leave<standard>(broken_call()), std::invalid_argument);
}

TEST_CASE("own_errors changes nothing, and translated returns what the call returns", "[core]") {
  CHECK_THROWS_AS(leave<tarn::own_errors>(refusal()), tarn::out_of_memory);
  CHECK(tarn::detail::translated<tarn::own_errors>([] { return 3; }) == 3);
  CHECK(tarn::detail::translated<theirs>([] { return 4; }) == 4);
}

TEST_CASE("errors_as with one type throws it for everything", "[core]") {
  using one = tarn::errors_as<their_bad_alloc>;
  CHECK_THROWS_AS(leave<one>(refusal()), their_bad_alloc);
  CHECK_THROWS_AS(leave<one>(broken_call()), their_bad_alloc);
}
