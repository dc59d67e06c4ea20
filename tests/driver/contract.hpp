// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver contract as tests: every promise of include/tarn/driver/driver.hpp that all drivers share, to be
// instantiated for each of them. A new driver joins with a bench:
//
//   struct my_bench {
//     my_driver driver();                      the driver under test; equal each time
//     bool keep_busy(tarn::stream_ref stream); puts work on the stream that lasts long after the call
//     returned;
//                                              false where work is done at once
//     bool can_touch();                        device memory has contents
//   };
//   TEST_CASE("my driver keeps the driver contract", "[driver]") { tarn::test::driver_contract(my_bench{}); }
//
// and, where the driver has graph capture, two more calls: bool begin_capture(stream), bool
// end_capture(stream). Each promise is a SECTION; what a driver says is unsupported is skipped.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/driver/driver.hpp"

namespace tarn::test {

/// A bench whose driver captures graphs.
template <class Bench>
concept capturing_bench = requires(Bench bench, stream_ref stream) {
  { bench.begin_capture(stream) } -> std::same_as<bool>;
  { bench.end_capture(stream) } -> std::same_as<bool>;
};

/// A stream owned by a test.
template <stream_driver D>
class scoped_stream {
 public:
  explicit scoped_stream(D driver) : driver_(driver) { REQUIRE(driver_.create_stream(stream_).ok()); }
  ~scoped_stream() { (void)driver_.destroy_stream(stream_); }
  scoped_stream(scoped_stream const&) = delete;
  scoped_stream& operator=(scoped_stream const&) = delete;
  operator stream_ref() const noexcept { return stream_; }
  /// The handle alone, as a user's cudaStream_t.
  [[nodiscard]] stream_ref bare() const noexcept { return stream_ref::from(stream_.handle()); }

 private:
  D driver_;
  stream_ref stream_;
};

/// An event owned by a test.
template <stream_driver D>
class scoped_event {
 public:
  explicit scoped_event(D driver) : driver_(driver) { REQUIRE(driver_.create_event(event_).ok()); }
  ~scoped_event() { (void)driver_.destroy_event(event_); }
  scoped_event(scoped_event const&) = delete;
  scoped_event& operator=(scoped_event const&) = delete;
  operator event_handle() const noexcept { return event_; }

 private:
  D driver_;
  event_handle event_ = nullptr;
};

template <stream_driver D>
stream_id id_of(D const& driver, stream_ref stream) {
  stream_id id = 0;
  REQUIRE(driver.identify(stream, id).ok());
  return id;
}

/// True if all bytes of a range on the device have one value.
template <stream_driver D>
bool holds(D const& driver, void const* p, std::size_t bytes, unsigned char value) {
  std::vector<unsigned char> host(bytes, static_cast<unsigned char>(~value));
  if (!driver.copy(stream_ref{}, host.data(), p, bytes).ok()) return false;
  if (!driver.synchronize_stream(stream_ref{}).ok()) return false;
  for (unsigned char const byte : host) {
    if (byte != value) return false;
  }
  return true;
}

template <class Bench>
void stream_contract(Bench bench) {
  auto const driver = bench.driver();

  SECTION("a copy of a driver is the same driver") {
    CHECK(driver == bench.driver());
  }

  SECTION("the handle of a stream determines its identity") {
    scoped_stream const stream(driver);
    CHECK(id_of(driver, stream.bare()) == id_of(driver, stream.bare()));
    CHECK(id_of(driver, stream) == id_of(driver, stream.bare()));
    CHECK(id_of(driver, stream) != stream_ref::unknown_id);
  }
  SECTION("two streams have two identities") {
    scoped_stream const a(driver), b(driver);
    CHECK(id_of(driver, a.bare()) != id_of(driver, b.bare()));
    CHECK(id_of(driver, a.bare()) != id_of(driver, stream_ref{}));
  }
  SECTION("an identity is never reused for a second stream, even if the handle is") {
    std::vector<stream_id> seen;
    for (int i = 0; i < 8; ++i) {
      scoped_stream const stream(driver);
      stream_id const id = id_of(driver, stream.bare());
      for (stream_id const earlier : seen) CHECK(id != earlier);
      seen.push_back(id);
    }
  }
  SECTION("a null handle denotes one default stream for all threads, or one per thread") {
    stream_ref const per_thread = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{2}));
    stream_ref const legacy = stream_ref::from(reinterpret_cast<void*>(std::uintptr_t{1}));
    stream_id const here[] = {id_of(driver, stream_ref{}), id_of(driver, legacy), id_of(driver, per_thread)};
    stream_id there[3]{};
    std::thread([&] {
      (void)driver.identify(stream_ref{}, there[0]);
      (void)driver.identify(legacy, there[1]);
      (void)driver.identify(per_thread, there[2]);
    }).join();
    CHECK(here[1] == there[1]);
    CHECK(here[2] != there[2]);
    CHECK(here[1] != here[2]);
    CHECK((here[0] == here[1] || here[0] == here[2]));
    CHECK((there[0] == there[1] || there[0] == there[2]));
  }
  SECTION("a stream is captured only after a capture has begun") {
    scoped_stream const stream(driver);
    bool capturing = true;
    REQUIRE(driver.is_capturing(stream, capturing).ok());
    CHECK_FALSE(capturing);
    capturing = true;
    REQUIRE(driver.is_capturing(stream_ref{}, capturing).ok());
    CHECK_FALSE(capturing);
  }
  SECTION("the work of a destroyed stream continues") {
    scoped_event const event(driver);
    stream_ref stream;
    REQUIRE(driver.create_stream(stream).ok());
    (void)bench.keep_busy(stream);
    REQUIRE(driver.record_event(event, stream).ok());
    REQUIRE(driver.destroy_stream(stream).ok());
    CHECK(driver.synchronize_event(event).ok());
    CHECK(driver.query_event(event).ok());
  }
}

template <class Bench>
void event_contract(Bench bench) {
  auto const driver = bench.driver();
  scoped_stream const a(driver), b(driver);
  scoped_event const event(driver);

  SECTION("an event that was never recorded is complete, and waiting for it returns at once") {
    CHECK(driver.query_event(event).ok());
    CHECK(driver.wait_event(a, event).ok());
    CHECK(driver.synchronize_event(event).ok());
  }
  SECTION("an event is ready only after the work that it marks") {
    bool const busy = bench.keep_busy(a);
    REQUIRE(driver.record_event(event, a).ok());
    if (busy) CHECK(driver.query_event(event).kind == failure::not_ready);
    REQUIRE(driver.synchronize_event(event).ok());
    CHECK(driver.query_event(event).ok());
  }
  SECTION("work of another stream does not change an event") {
    (void)bench.keep_busy(a);
    REQUIRE(driver.record_event(event, b).ok());
    REQUIRE(driver.synchronize_event(event).ok());
    CHECK(driver.query_event(event).ok());
  }
  SECTION("an event that is recorded again marks the later point") {
    REQUIRE(driver.record_event(event, a).ok());
    REQUIRE(driver.synchronize_stream(a).ok());
    CHECK(driver.query_event(event).ok());
    bool const busy = bench.keep_busy(a);
    REQUIRE(driver.record_event(event, a).ok());
    if (busy) CHECK(driver.query_event(event).kind == failure::not_ready);
    REQUIRE(driver.synchronize_stream(a).ok());
    CHECK(driver.query_event(event).ok());
  }
  SECTION("wait_event orders the stream after the mark without blocking the host") {
    bool const busy = bench.keep_busy(a);
    REQUIRE(driver.record_event(event, a).ok());
    REQUIRE(driver.wait_event(b, event).ok());
    scoped_event const after(driver);
    REQUIRE(driver.record_event(after, b).ok());
    if (busy) CHECK(driver.query_event(after).kind == failure::not_ready);
    REQUIRE(driver.synchronize_event(after).ok());
    CHECK(driver.query_event(event).ok());
  }
  SECTION("a wait uses the mark at the time of the call, whatever is recorded later") {
    REQUIRE(driver.record_event(event, a).ok());
    REQUIRE(driver.synchronize_event(event).ok());
    REQUIRE(driver.wait_event(b, event).ok());
    (void)bench.keep_busy(a);
    REQUIRE(driver.record_event(event, a).ok());
    scoped_event const after(driver);
    REQUIRE(driver.record_event(after, b).ok());
    REQUIRE(driver.synchronize_stream(b).ok());
    CHECK(driver.query_event(after).ok());
  }
  SECTION("synchronising a stream or the device completes the work") {
    (void)bench.keep_busy(a);
    REQUIRE(driver.record_event(event, a).ok());
    SECTION("the stream") {
      REQUIRE(driver.synchronize_stream(a).ok());
    }
    SECTION("the device") {
      REQUIRE(driver.synchronize_device().ok());
    }
    CHECK(driver.query_event(event).ok());
  }
}

template <class Bench>
void page_contract(Bench bench) {
  auto const driver = bench.driver();
  std::size_t granularity = 0;
  status const asked = driver.page_granularity(granularity);
  if (asked.kind == failure::unsupported) {
    WARN("skipped: the driver has no virtual memory management");
    return;
  }
  REQUIRE(asked.ok());
  CHECK(is_alignment(granularity));
  std::size_t const range = 8 * granularity;
  void* base = nullptr;
  REQUIRE(driver.reserve_range(range, granularity, base).ok());
  REQUIRE(is_aligned(base, granularity));
  auto const at = [&](std::size_t page) { return static_cast<char*>(base) + page * granularity; };

  SECTION("reserved ranges do not overlap") {
    void* other = nullptr;
    REQUIRE(driver.reserve_range(range, granularity, other).ok());
    auto const a = reinterpret_cast<std::uintptr_t>(base);
    auto const b = reinterpret_cast<std::uintptr_t>(other);
    CHECK((a + range <= b || b + range <= a));
    CHECK(driver.release_range(other, range).ok());
  }
  SECTION("mapped pages can be used; unmapped pages keep their contents when they are mapped elsewhere") {
    page_handle handle{};
    REQUIRE(driver.create_pages(2 * granularity, handle).ok());
    REQUIRE(driver.map_pages(at(0), 2 * granularity, handle).ok());
    REQUIRE(driver.fill(stream_ref{}, at(0), 0x5A, 2 * granularity).ok());
    REQUIRE(driver.synchronize_device().ok());
    if (bench.can_touch()) CHECK(holds(driver, at(0), 2 * granularity, 0x5A));
    REQUIRE(driver.unmap_pages(at(0), 2 * granularity).ok());
    REQUIRE(driver.map_pages(at(3), 2 * granularity, handle).ok());
    if (bench.can_touch()) CHECK(holds(driver, at(3), 2 * granularity, 0x5A));
    REQUIRE(driver.unmap_pages(at(3), 2 * granularity).ok());
    REQUIRE(driver.destroy_pages(handle).ok());
  }
  SECTION("a handle that is mapped twice shows the same memory twice") {
    page_handle handle{};
    REQUIRE(driver.create_pages(granularity, handle).ok());
    REQUIRE(driver.map_pages(at(0), granularity, handle).ok());
    REQUIRE(driver.map_pages(at(5), granularity, handle).ok());
    REQUIRE(driver.fill(stream_ref{}, at(0), 0x11, granularity).ok());
    REQUIRE(driver.synchronize_device().ok());
    if (bench.can_touch()) CHECK(holds(driver, at(5), granularity, 0x11));
    REQUIRE(driver.unmap_pages(at(0), granularity).ok());
    REQUIRE(driver.unmap_pages(at(5), granularity).ok());
    REQUIRE(driver.destroy_pages(handle).ok());
  }
  SECTION("handles mapped next to each other form one contiguous range") {
    page_handle first{}, second{};
    REQUIRE(driver.create_pages(granularity, first).ok());
    REQUIRE(driver.create_pages(granularity, second).ok());
    REQUIRE(driver.map_pages(at(0), granularity, first).ok());
    REQUIRE(driver.map_pages(at(1), granularity, second).ok());
    REQUIRE(driver.fill(stream_ref{}, at(0), 0x77, 2 * granularity).ok());
    REQUIRE(driver.synchronize_device().ok());
    if (bench.can_touch()) CHECK(holds(driver, at(0) + granularity / 2, granularity, 0x77));
    REQUIRE(driver.unmap_pages(at(0), granularity).ok());
    REQUIRE(driver.unmap_pages(at(1), granularity).ok());
    REQUIRE(driver.destroy_pages(first).ok());
    REQUIRE(driver.destroy_pages(second).ok());
  }
  SECTION("an address is mapped at most once at a time") {
    page_handle first{}, second{};
    REQUIRE(driver.create_pages(granularity, first).ok());
    REQUIRE(driver.create_pages(granularity, second).ok());
    REQUIRE(driver.map_pages(at(2), granularity, first).ok());
    CHECK_FALSE(driver.map_pages(at(2), granularity, second).ok());
    REQUIRE(driver.unmap_pages(at(2), granularity).ok());
    CHECK(driver.map_pages(at(2), granularity, second).ok());
    REQUIRE(driver.unmap_pages(at(2), granularity).ok());
    REQUIRE(driver.destroy_pages(first).ok());
    REQUIRE(driver.destroy_pages(second).ok());
  }
  SECTION("a request larger than the device fails with out_of_memory and changes nothing") {
    std::size_t free_before = 0, free_after = 0, total = 0;
    REQUIRE(driver.memory_info(free_before, total).ok());
    page_handle handle{};
    CHECK(driver.create_pages(align_up(total, granularity) + granularity, handle).kind ==
          failure::out_of_memory);
    REQUIRE(driver.memory_info(free_after, total).ok());
    CHECK(free_before == free_after);
  }
  SECTION("sizes that are not a multiple of the page size are refused") {
    page_handle handle{};
    CHECK_FALSE(driver.create_pages(granularity / 2, handle).ok());
    void* p = nullptr;
    CHECK_FALSE(driver.reserve_range(granularity + 1, granularity, p).ok());
  }
  CHECK(driver.release_range(base, range).ok());
}

template <class Bench>
void block_contract(Bench bench) {
  auto const driver = bench.driver();
  scoped_stream const stream(driver);
  constexpr std::size_t huge = std::size_t{1} << 50;

  SECTION("device blocks are aligned, separate and usable") {
    void* blocks[5]{};
    std::size_t const bytes[5] = {1, 256, 1000, 1_MiB, 3_MiB};
    for (int i = 0; i < 5; ++i) {
      REQUIRE(driver.malloc_device(bytes[i], blocks[i]).ok());
      REQUIRE(blocks[i] != nullptr);
      CHECK(is_aligned(blocks[i], default_alignment));
      REQUIRE(driver.fill(stream, blocks[i], i + 1, bytes[i]).ok());
    }
    REQUIRE(driver.synchronize_stream(stream).ok());
    for (int i = 0; i < 5; ++i) {
      if (bench.can_touch()) CHECK(holds(driver, blocks[i], bytes[i], static_cast<unsigned char>(i + 1)));
      CHECK(driver.free_device(blocks[i]).ok());
    }
  }
  SECTION("copies transfer bytes between blocks and the host, in both directions") {
    void *a = nullptr, *b = nullptr;
    REQUIRE(driver.malloc_device(4096, a).ok());
    REQUIRE(driver.malloc_device(4096, b).ok());
    std::vector<unsigned char> const sent(4096, 0x3C);
    REQUIRE(driver.copy(stream, a, sent.data(), sent.size()).ok());
    REQUIRE(driver.copy(stream, b, a, sent.size()).ok());
    REQUIRE(driver.synchronize_stream(stream).ok());
    if (bench.can_touch()) CHECK(holds(driver, b, sent.size(), 0x3C));
    CHECK(driver.copy(stream, b, a, 0).ok());
    CHECK(driver.fill(stream, a, 0, 0).ok());
    CHECK(driver.free_device(a).ok());
    CHECK(driver.free_device(b).ok());
  }
  SECTION("stream-ordered blocks can be used in the order of their stream") {
    void* p = nullptr;
    REQUIRE(driver.malloc_async(1_MiB, stream, p).ok());
    REQUIRE(p != nullptr);
    CHECK(is_aligned(p, default_alignment));
    REQUIRE(driver.fill(stream, p, 0x42, 1_MiB).ok());
    REQUIRE(driver.synchronize_stream(stream).ok());
    if (bench.can_touch()) CHECK(holds(driver, p, 1_MiB, 0x42));
    REQUIRE(driver.free_async(p, stream).ok());
    CHECK(driver.synchronize_stream(stream).ok());
  }
  SECTION("the host can access pinned and managed memory") {
    void* pinned = nullptr;
    void* managed = nullptr;
    REQUIRE(driver.malloc_pinned(64_KiB, pinned).ok());
    REQUIRE(driver.malloc_managed(64_KiB, managed).ok());
    CHECK(is_aligned(pinned, default_alignment));
    std::memset(pinned, 0x21, 64_KiB);
    REQUIRE(driver.copy(stream, managed, pinned, 64_KiB).ok());
    REQUIRE(driver.synchronize_stream(stream).ok());
    CHECK(std::memcmp(pinned, managed, 64_KiB) == 0);
    CHECK(driver.free_pinned(pinned).ok());
    CHECK(driver.free_managed(managed).ok());
  }
  SECTION("prefetch and advise take managed memory only, and change no contents") {
    if constexpr (migrating_driver<decltype(bench.driver())>) {
      void *managed = nullptr, *device = nullptr;
      REQUIRE(driver.malloc_managed(64_KiB, managed).ok());
      REQUIRE(driver.malloc_device(64_KiB, device).ok());
      std::memset(managed, 0x35, 64_KiB);
      status const moved = driver.prefetch(stream, managed, 64_KiB, driver.device());
      if (moved.kind != failure::unsupported) {  // some devices cannot move pages while they run
        CHECK(moved.ok());
        for (auto const advice : {memory_advice::read_mostly, memory_advice::preferred_location,
                                  memory_advice::accessed_by, memory_advice::not_accessed_by,
                                  memory_advice::no_preferred_location, memory_advice::not_read_mostly}) {
          CHECK(driver.advise(managed, 64_KiB, advice, driver.device()).ok());
        }
        CHECK(driver.advise(managed, 64_KiB, memory_advice::preferred_location, host_id).ok());
        CHECK(driver.prefetch(stream, managed, 64_KiB, host_id).ok());
      }
      CHECK(driver.prefetch(stream, nullptr, 0, driver.device()).ok());
      CHECK(driver.prefetch(stream, device, 64_KiB, driver.device()).kind == failure::unsupported);
      CHECK(driver.advise(device, 64_KiB, memory_advice::read_mostly, driver.device()).kind ==
            failure::unsupported);
      REQUIRE(driver.synchronize_stream(stream).ok());
      CHECK(static_cast<unsigned char*>(managed)[64_KiB - 1] == 0x35);
      CHECK(driver.free_device(device).ok());
      CHECK(driver.free_managed(managed).ok());
    }
  }
  SECTION("a request larger than the memory fails with out_of_memory") {
    void* p = nullptr;
    CHECK(driver.malloc_device(huge, p).kind == failure::out_of_memory);
    CHECK(driver.malloc_async(huge, stream, p).kind == failure::out_of_memory);
    CHECK(driver.malloc_pinned(huge, p).kind == failure::out_of_memory);
    CHECK(driver.malloc_device(1_MiB, p).ok());
    CHECK(driver.free_device(p).ok());
  }
  SECTION("freeing null does nothing") {
    CHECK(driver.free_device(nullptr).ok());
    CHECK(driver.free_pinned(nullptr).ok());
  }
  SECTION("the device reports its memory") {
    std::size_t free = 0, total = 0;
    REQUIRE(driver.memory_info(free, total).ok());
    CHECK(free > 0);
    CHECK(total >= free);
  }
}

template <class Bench>
void capture_contract(Bench bench) {
  if constexpr (capturing_bench<Bench>) {
    auto const driver = bench.driver();
    scoped_stream const captured(driver), other(driver);
    scoped_event const event(driver);
    REQUIRE(driver.record_event(event, other).ok());
    REQUIRE(driver.synchronize_event(event).ok());
    REQUIRE(bench.begin_capture(captured));
    bool capturing = false;
    SECTION("is_capturing is true of captured streams only") {
      REQUIRE(driver.is_capturing(captured, capturing).ok());
      CHECK(capturing);
      REQUIRE(driver.is_capturing(other, capturing).ok());
      CHECK_FALSE(capturing);
      CHECK(bench.end_capture(captured));
      REQUIRE(driver.is_capturing(captured, capturing).ok());
      CHECK_FALSE(capturing);
    }
    SECTION("calls on other streams keep a capture valid") {
      CHECK(driver.query_event(event).ok());
      CHECK(driver.record_event(event, other).ok());
      CHECK(driver.synchronize_event(event).ok());
      CHECK(driver.synchronize_stream(other).ok());
      void* p = nullptr;
      CHECK(driver.malloc_device(1_MiB, p).ok());
      std::size_t free = 0, total = 0;
      CHECK(driver.memory_info(free, total).ok());
      CHECK(bench.end_capture(captured));
      CHECK(driver.free_device(p).ok());
    }
    SECTION("synchronising a captured stream is refused") {
      CHECK_FALSE(driver.synchronize_stream(captured).ok());
      CHECK_FALSE(bench.end_capture(captured));
    }
  } else {
    (void)bench;
  }
}

/// The whole contract.
template <class Bench>
void driver_contract(Bench bench) {
  using driver_type = decltype(bench.driver());
  SECTION("streams") {
    stream_contract(bench);
  }
  SECTION("events") {
    event_contract(bench);
  }
  if constexpr (page_driver<driver_type>) {
    SECTION("pages") {
      page_contract(bench);
    }
  }
  if constexpr (block_driver<driver_type>) {
    SECTION("blocks") {
      block_contract(bench);
    }
  }
  SECTION("capture") {
    capture_contract(bench);
  }
}

}  // namespace tarn::test
