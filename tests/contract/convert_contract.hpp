// SPDX-License-Identifier: Apache-2.0
#pragma once
// The contract of a conversion on any device: each element equals the host's result, for all types, lengths
// and alignments.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"
#include "tarn/transfer/convert.hpp"

namespace tarn_test {

/// Elements that are hard to round: special values, the limits of each format, midpoints between its numbers,
/// any bits.
template <class T>
std::vector<T> hard_elements(std::size_t count) {
  std::vector<double> values{0.0,      1.0,     0.1,     1.0 / 3,        448,       464,
                             465,      57344,   61440,   65504,          65519.99,  65520,
                             3e38,     3.4e38,  0x1p-9,  0x1p-10,        0x1.8p-10, 0x1p-16,
                             0x1p-17,  0x1p-24, 0x1p-25, 0x1.000002p-25, 0x1p-133,  0x1p-134,
                             0x1p-149, 1e300,   1e-300,  INFINITY,       NAN};
  for (unsigned bits = 0; bits < 256; ++bits) {
    auto const e4m3 = static_cast<double>(tarn::float8_e4m3::from_bits(static_cast<std::uint8_t>(bits)));
    auto const e5m2 = static_cast<double>(tarn::float8_e5m2::from_bits(static_cast<std::uint8_t>(bits)));
    for (double const x : {e4m3, e5m2}) {
      for (double const half : {1.0, 1.0625, 1.125, 1 + 0x1p-11, 1 + 0x1p-8, 1 + 0x1p-11 + 0x1p-40})
        values.push_back(x * half);
    }
  }
  for (unsigned bits = 0; bits < 0x8000; bits += 7) {
    values.push_back(static_cast<double>(tarn::float16::from_bits(static_cast<std::uint16_t>(bits))));
    values.push_back(static_cast<double>(tarn::bfloat16::from_bits(static_cast<std::uint16_t>(bits))));
  }
  std::vector<T> elements;
  std::mt19937_64 random(5);
  for (double const x : values) {
    elements.push_back(tarn::element_cast<T>(x));
    elements.push_back(tarn::element_cast<T>(-x));
  }
  while (elements.size() < count) {
    std::uint64_t const bits = random();
    T any;
    std::memcpy(static_cast<void*>(&any), &bits, sizeof any);
    elements.push_back(any);
  }
  return elements;
}

/// Bitwise equal, except that any NaN equals any other: devices keep different payloads.
template <class T>
bool is_same_element(T a, T b) {
  bool const both_nan = std::isnan(static_cast<double>(a)) && std::isnan(static_cast<double>(b));
  return both_nan || std::memcmp(&a, &b, sizeof a) == 0;
}

/// Elements that differ from the host's conversion of the source.
template <class To, class From, class Pool>
std::size_t wrong_conversions(Pool pool, tarn::stream_ref stream, std::vector<From> const& source,
                              std::size_t skip_from, std::size_t skip_to, std::size_t count) {
  auto const from = tarn::make_device_buffer<From>(pool, std::span<From const>(source), stream);
  auto to = tarn::make_device_buffer<To>(pool, skip_to + count + 8, stream);
  to.fill(std::byte{0x5a});
  tarn::convert(pool.driver(), from.span().subspan(skip_from, count), to.span().subspan(skip_to, count),
                stream);
  std::vector<To> seen(to.size());
  to.copy_to_sync(seen);
  To untouched;
  std::memset(static_cast<void*>(&untouched), 0x5a, sizeof untouched);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    bool const inside = i >= skip_to && i < skip_to + count;
    To const expected = inside ? tarn::element_cast<To>(source[skip_from + i - skip_to]) : untouched;
    if (!is_same_element(seen[i], expected)) ++wrong;
  }
  return wrong;
}

/// Every pair of types, `count` elements each.
template <class Pool>
void every_pair_converts(Pool pool, tarn::stream_ref stream, std::size_t count) {
  for (std::size_t f = 0; f < tarn::element_type_count; ++f) {
    tarn::with_element(static_cast<tarn::element_type>(f), [&](auto from) {
      auto const source = hard_elements<decltype(from)>(count);
      for (std::size_t t = 0; t < tarn::element_type_count; ++t) {
        tarn::with_element(static_cast<tarn::element_type>(t), [&](auto to) {
          using to_type = decltype(to);
          INFO("from " << name_of(static_cast<tarn::element_type>(f)) << " to "
                       << name_of(static_cast<tarn::element_type>(t)));
          CHECK(wrong_conversions<to_type>(pool, stream, source, 0, 0, source.size()) == 0);
        });
      }
    });
  }
}

/// Every offset of both sides within 16 elements, and every length around the steps of 16 bytes.
template <class To, class From, class Pool>
void every_alignment_converts(Pool pool, tarn::stream_ref stream) {
  auto const source = hard_elements<From>(5000);
  std::size_t wrong = 0;
  for (std::size_t skip_from = 0; skip_from < 17; ++skip_from) {
    for (std::size_t skip_to = 0; skip_to < 17; skip_to += skip_from % 3 == 0 ? 1 : 5)
      wrong += wrong_conversions<To>(pool, stream, source, skip_from, skip_to, 200 + skip_from);
  }
  for (std::size_t count = 1; count < 70; ++count)
    wrong += wrong_conversions<To>(pool, stream, source, count % 9, count % 5, count);
  CHECK(wrong == 0);
}

}  // namespace tarn_test
