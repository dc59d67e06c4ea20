// SPDX-License-Identifier: Apache-2.0
#pragma once
// The contract of free_on(), evict_scope and scratch, on any device. Contents are compared, with streams kept
// busy so that a missing wait shows.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "catch.hpp"
#include "tarn/transfer/evict_scope.hpp"
#include "tarn/transfer/free_on.hpp"
#include "tarn/transfer/scratch.hpp"

namespace tarn_test {

template <class T, class Buffer>
std::vector<T> elements_of(Buffer const& b) {
  std::vector<T> v(b.size());
  b.copy_to_sync(v);
  return v;
}
template <class T>
std::vector<T> counted_elements(std::size_t n, T from) {
  std::vector<T> v(n);
  std::iota(v.begin(), v.end(), from);
  return v;
}

/// @param memory  a pool of device memory
/// @param pinned  a pool of pinned memory
/// @param busy    busy(stream) puts work on it that continues long after the call has returned
template <class Memory, class Pinned, class Busy>
void free_on_contract(Memory memory, Pinned pinned, Busy const& busy) {
  using namespace tarn;
  std::size_t const n = 700'000;
  basic_stream const a(memory.driver());
  basic_stream const b(memory.driver());
  std::vector<std::uint32_t> const ones(n, 0x01010101);

  // A still reads the memory when it is reused for B's later work, which must not overwrite it before.
  auto buffer = make_device_buffer<std::uint32_t>(memory, n, a);
  auto array = make_device<std::uint32_t[]>(memory, n, a);
  pinned_buffer<std::uint32_t, Pinned> seen(pinned, n, elements::value_initialised, a);
  pinned_buffer<std::uint32_t, Pinned> seen_array(pinned, n, elements::value_initialised, a);
  buffer.fill(std::byte{1});
  REQUIRE(memory.driver().fill(a, array.get(), 1, n * 4).ok());
  a.synchronize();
  busy(a);
  buffer.copy_to(seen);
  REQUIRE(memory.driver().copy(a, seen_array.data(), array.get(), n * 4).ok());
  free_on(b, std::move(buffer), std::move(array));
  CHECK((buffer.empty() && buffer.capacity() == 0 && !array));  // NOLINT: such owners are empty
  CHECK(buffer.stream() == stream_ref(a));
  auto next = make_device_buffer<std::uint32_t>(memory, n, b);
  auto next_array = make_device_buffer<std::uint32_t>(memory, n, b);
  next.fill(std::byte{2});
  next_array.fill(std::byte{2});
  b.synchronize();
  a.synchronize();
  CHECK(std::equal(ones.begin(), ones.end(), seen.begin()));
  CHECK(std::equal(ones.begin(), ones.end(), seen_array.begin()));

  // Pinned memory that B reads last: no thread may write it before.
  busy(b);
  next.copy_from(std::span<std::uint32_t const>(seen));
  free_on(std::move(seen), b);
  CHECK(seen.empty());  // NOLINT: such owners are empty
  {
    pinned_buffer<std::uint32_t, Pinned> later(pinned, n, elements::uninitialised, a);
    for (auto& word : later) word = 3;
    CHECK((elements_of<std::uint32_t>(next) == ones));
  }
  buffer.resize(10);  // such an owner can be used again
  CHECK(buffer.size() == 10);
}

template <class Memory, class Pinned, class Busy>
void evict_contract(Memory memory, Pinned pinned, Busy const& busy) {
  using namespace tarn;
  std::size_t const n = 600'000;
  basic_stream const a(memory.driver());
  basic_stream const b(memory.driver());
  basic_stream const s(memory.driver());
  auto const words = counted_elements<std::uint32_t>(n, 1);
  auto const halves = counted_elements<std::uint16_t>(n + 7, 5);
  auto first = make_device_buffer<std::uint32_t>(memory, n, a);
  auto second = make_device_buffer<std::uint16_t>(memory, n + 7, b);
  auto third = make_device_buffer<double>(memory, 0, a);
  auto const source = make_device_buffer<std::uint32_t>(memory, words, a);
  auto const other_source = make_device_buffer<std::uint16_t>(memory, halves, b);
  a.synchronize();
  b.synchronize();
  for (bool const early : {false, true}) {
    first.zero();
    second.zero();
    busy(a);
    busy(b);
    first.copy_from(source);  // not done when the scope begins
    second.copy_from(other_source);
    {
      evict_scope evicted{pinned, s, first, second, third};
      CHECK((first.data() == nullptr && first.empty() && second.empty()));
      CHECK(evicted.evicted_bytes() == n * 4 + (n + 7) * 2);
      // The freed memory is reused immediately, on the scope's stream.
      auto other = make_device_buffer<std::uint32_t>(memory, n, s);
      auto another = make_device_buffer<std::uint16_t>(memory, n + 7, s);
      other.fill(std::byte{9});
      another.fill(std::byte{9});
      if (early) {
        auto const there = evicted.template host_copy<0>();
        CHECK(std::equal(words.begin(), words.end(), there.begin(), there.end()));
        evicted.bring_back();
        CHECK(evicted.evicted_bytes() == 0);
        CHECK(evicted.template host_copy<1>().empty());
        CHECK((elements_of<std::uint32_t>(first) == words));
      }
      s.synchronize();  // copies to the host are complete; copies back are not
      busy(s);
    }
    {
      // Host memory that the copies back still read is not reused for the host.
      pinned_buffer<std::uint32_t, Pinned> later(pinned, n, elements::uninitialised, a);
      for (auto& word : later) word = 3;
    }
    CHECK((first.stream() == stream_ref(a) && second.stream() == stream_ref(b)));
    CHECK((elements_of<std::uint32_t>(first) == words));
    CHECK((elements_of<std::uint16_t>(second) == halves));
    CHECK(third.empty());
  }
}

template <class Memory, class Busy>
void scratch_contract(Memory memory, Busy const& busy) {
  using namespace tarn;
  basic_stream const a(memory.driver());
  basic_stream const b(memory.driver());
  std::size_t const n = 500'000;
  scratch arena{memory, 1'000'000, a};
  std::vector<std::uint32_t> seen(n);
  std::uint32_t* before = nullptr;
  for (int round = 0; round < 3; ++round) {
    rewind_scope const layer{arena};
    auto* const kept = arena.template take<std::uint32_t>(n);
    if (round > 0) CHECK(kept == before);
    before = kept;
    REQUIRE(memory.driver().fill(a, kept, round + 1, n * 4).ok());
    for (int inner = 0; inner < 2; ++inner) {
      rewind_scope const step{arena};
      auto* const temporary = arena.template take<std::uint32_t>(n);
      REQUIRE(temporary != kept);
      REQUIRE(memory.driver().fill(a, temporary, 99, n * 4).ok());
    }
    REQUIRE(memory.driver().copy(a, seen.data(), kept, n * 4).ok());
    a.synchronize();
    CHECK((seen == std::vector<std::uint32_t>(n, 0x01010101U * static_cast<std::uint32_t>(round + 1))));
  }
  // The chunks are freed after the work of the stream to which they have moved.
  auto* const last = arena.template take<std::uint32_t>(n);
  auto const target = make_device_buffer<std::uint32_t>(memory, n, a);
  REQUIRE(memory.driver().fill(a, last, 7, n * 4).ok());
  a.synchronize();
  busy(a);
  arena.set_stream(b);
  REQUIRE(memory.driver().copy(b, const_cast<std::uint32_t*>(target.data()), last, n * 4).ok());
  b.synchronize();
  CHECK((elements_of<std::uint32_t>(target) == std::vector<std::uint32_t>(n, 0x07070707)));
}

}  // namespace tarn_test
