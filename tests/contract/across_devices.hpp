// SPDX-License-Identifier: Apache-2.0
#pragma once
// The contract of copies between devices and of partitioned buffers, on any devices: simulated ones on any
// schedule, or GPUs.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "catch.hpp"
#include "tarn/transfer/partitioned_buffer.hpp"
#include "tarn/transfer/peer_copy.hpp"

namespace tarn_test {

using words = std::vector<std::uint32_t>;

inline words counted_words(std::size_t n, std::uint32_t first = 1) {
  words w(n);
  std::iota(w.begin(), w.end(), first);
  return w;
}
// Compared in double parentheses: a message with thousands of words is useless and takes Catch2 minutes.
template <class Buffer>
words words_of(Buffer const& b) {
  words w(b.size());
  b.copy_to_sync(w);
  return w;
}

/// Copies pieces of a buffer to another device's buffer and back. Each side's stream is busy; the memory is
/// changed and freed immediately.
/// @param busy  puts long work on a stream (of a device)
template <class Near, class Far, class Busy>
void pieces_travel(Near near, Far far, Busy const& busy) {
  using driver = typename Near::driver_type;
  tarn::basic_stream<driver> const a{near.driver()};
  tarn::basic_stream<driver> const b{far.driver()};
  std::size_t const n = 10'000;
  words const original = counted_words(n);
  std::optional from(
      tarn::make_device_buffer<std::uint32_t>(near, std::span<std::uint32_t const>(original), a));
  auto to = tarn::make_device_buffer<std::uint32_t>(far, n, b);
  busy(0, a);
  busy(1, b);
  to.zero();
  tarn::peer_copy(*from, 100, to, 5000, 4000);
  from->zero();  // ordered after the copy, though on the other device's stream
  tarn::peer_copy(to, 5000, *from, 0, 4000);
  to.zero();
  words expected(n);
  std::copy_n(original.begin() + 100, 4000, expected.begin());
  CHECK((words_of(*from) == expected));
  busy(0, a);
  tarn::peer_copy(*from, to);
  from.reset();
  auto reused = tarn::make_device_buffer<std::uint32_t>(near, n, a);
  reused.fill(std::byte{0x77});
  CHECK((words_of(to) == expected));
}

/// Fills, reads, redivides and frees a partitioned buffer while its streams are busy.
template <class Pools, class Busy>
void parts_travel(Pools& pools, std::vector<tarn::device_id> const& devices, Busy const& busy) {
  using pool = typename Pools::pool_type;
  using buffer = tarn::partitioned_buffer<std::uint32_t, pool>;
  std::size_t const n = 10'007;
  words const original = counted_words(n, 7);
  buffer whole(pools, devices, n);
  CHECK(whole.size() == n);
  CHECK(whole.parts() == devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i) {
    CHECK(whole.device(i) == devices[i]);
    CHECK(whole.part(i).resource().device() == devices[i]);
    CHECK(whole.part(i).size() == whole.layout().size(i));
    CHECK(whole.part(i).stream() == whole.stream(i));
    busy(devices[i].value, whole.stream(i));
  }
  whole.zero();
  whole.scatter(original);
  words seen(n);
  whole.gather_sync(seen);
  CHECK((seen == original));

  std::vector<double> weights;
  for (std::size_t i = 0; i < devices.size(); ++i) weights.push_back(static_cast<double>(i) * 1.5);
  weights.back() += 1;
  std::vector<tarn::device_id> reversed(devices.rbegin(), devices.rend());
  {
    buffer otherwise(pools, reversed, tarn::partition_layout::weighted(n, weights, 16));
    for (std::size_t i = 0; i < reversed.size(); ++i) busy(reversed[i].value, otherwise.stream(i));
    otherwise.copy_from(whole);
    whole.zero();
    whole.copy_from(otherwise);
    otherwise.zero();
  }
  words back(n);
  whole.gather(back);  // into pageable memory: complete when it returns
  whole.synchronize();
  CHECK((back == original));

  std::size_t next = 0;
  std::size_t at = 0;
  whole.for_each_part([&](auto const& part) {
    CHECK(part.index == next++);
    CHECK(part.first == at);
    CHECK(part.stream == whole.stream(part.index));
    CHECK(&part.elements == &whole.part(part.index));
    at += part.elements.size();
    part.elements.fill(static_cast<std::byte>(part.index + 1));
  });
  CHECK(at == n);
  whole.gather_sync(back);
  unsigned wrong = 0;
  for (std::size_t i = 0; i < n; ++i)
    wrong += back[i] == 0x01010101U * (whole.layout().part_of(i) + 1) ? 0U : 1U;
  CHECK(wrong == 0);
}

}  // namespace tarn_test
