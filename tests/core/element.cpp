// SPDX-License-Identifier: Apache-2.0

#include "tarn/core/element.hpp"

#include <cstring>
#include <limits>

#include "catch.hpp"

using namespace tarn;

static_assert(element<float> && element<double> && element<float8_e5m2> && !element<int> &&
              !element<float const>);

TEST_CASE("with_element, element_type_of, bytes_of and name_of agree for each element_type",
          "[core][element]") {
  for (std::size_t i = 0; i < element_type_count; ++i) {
    auto const type = static_cast<element_type>(i);
    with_element(type, [&](auto value) {
      CHECK(element_type_of<decltype(value)> == type);
      CHECK(bytes_of(type) == sizeof value);
    });
    for (std::size_t j = 0; j < i; ++j)
      CHECK(std::strcmp(name_of(type), name_of(static_cast<element_type>(j))) != 0);
  }
  CHECK(std::strcmp(name_of(element_type::bf16), "bfloat16") == 0);
}

TEST_CASE("bytes_of and items_in count by element_type", "[core][element]") {
  CHECK(bytes_of(1000, element_type::f32) == 4000);
  CHECK(bytes_of(1000, element_type::f8_e4m3) == 1000);
  CHECK(items_in(4001, element_type::f16) == 2000);
  CHECK(items_in(7, element_type::f64) == 0);
  CHECK_THROWS_AS(bytes_of(std::numeric_limits<std::size_t>::max() / 2, element_type::f32), length_error);
}

TEST_CASE("element_cast rounds once between any two types", "[core][element]") {
  CHECK(element_cast<float16>(1.0 + 0x1p-11 + 0x1p-40).bits() == 0x3c01);
  CHECK(element_cast<float>(0.1) == 0.1F);
  CHECK(element_cast<double>(float8_e4m3(0.5F)) == 0.5);
  CHECK(element_cast<float8_e5m2>(float16(1e-3F)).bits() ==
        float8_e5m2(static_cast<float>(float16(1e-3F))).bits());
  CHECK(element_cast<bfloat16>(bfloat16::from_bits(0x8000)).bits() == 0x8000);
}
