// SPDX-License-Identifier: Apache-2.0
// The order checker: what it must report, and what it must not report.

#include "tarn/driver/sim/sim_order.hpp"

#include <string>
#include <thread>

#include "catch.hpp"
#include "driver/contract.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

using namespace tarn;
using test::scoped_event;
using test::scoped_stream;

namespace {

/// A block on a checked machine that a test passes from owner to owner.
struct checked {
  explicit checked(sim_checks checks = sim_checks::stream_order)
      : machine(sim_options{.backing = sim_backing::address_only, .checks = checks}) {
    REQUIRE(driver.malloc_device(1_MiB, p).ok());
  }
  sim_machine machine;
  sim_driver driver = machine.driver();
  void* p = nullptr;
  scoped_stream<sim_driver> a{driver}, b{driver};
  scoped_event<sim_driver> event{driver};

  void write(stream_ref stream, std::size_t from = 0, std::size_t bytes = 1_MiB) {
    REQUIRE(machine.launch(stream, 100'000, {sim_writes(static_cast<char*>(p) + from, bytes)}).ok());
  }
  void read(stream_ref stream) { REQUIRE(machine.launch(stream, 100'000, {sim_reads(p, 1_MiB)}).ok()); }
  void give(stream_ref stream) { machine.allocated(p, 1_MiB, stream); }
  void take(stream_ref stream) { machine.freed(p, 1_MiB, stream); }
  std::size_t found() const { return machine.findings().size(); }
  /// True if there is one finding whose text contains all of these.
  bool found_one(std::initializer_list<std::string> parts) const {
    auto const findings = machine.findings();
    if (findings.size() != 1) return false;
    for (auto const& part : parts) {
      if (findings[0].find(part) == std::string::npos) {
        UNSCOPED_INFO(findings[0]);
        return false;
      }
    }
    return true;
  }
};

std::string name(stream_ref stream) {
  return "stream " + std::to_string(stream.id());
}

}  // namespace

TEST_CASE("sim_order accepts reuse on the same stream", "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  t.write(t.a);
  t.take(t.a);
  t.give(t.a);
  t.write(t.a);
  t.read(t.a);
  CHECK(t.found() == 0);
}

TEST_CASE("sim_order reports unordered reuse on another stream, with the history", "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  t.write(t.a);
  t.take(t.a);
  t.give(t.b);
  SECTION("a write") {
    t.write(t.b);
    CHECK(t.found_one({"write not ordered after an earlier owner's write", "by " + name(t.b), "1 MiB at 0x",
                       "Now: block 2", "allocated on " + name(t.b), "Before: block 1",
                       "freed on " + name(t.a), "Missing: an event recorded on " + name(t.a)}));
  }
  SECTION("a read") {
    t.read(t.b);
    CHECK(t.found_one({"read not ordered after an earlier owner's write"}));
  }
  SECTION("a copy by the driver") {
    REQUIRE(t.driver.fill(t.b, t.p, 0, 1).ok());
    CHECK(t.found_one({"write not ordered"}));
  }
}

TEST_CASE("sim_order sees what a conversion reads and writes", "[driver][sim][order]") {
  checked t;
  void* other = nullptr;
  REQUIRE(t.driver.malloc_device(1_MiB, other).ok());
  t.give(t.a);
  t.write(t.a);
  t.take(t.a);
  t.give(t.b);
  SECTION("a write") {
    REQUIRE(t.driver.convert(t.b, static_cast<float16*>(t.p), static_cast<float const*>(other), 100).ok());
    CHECK(t.found_one({"write not ordered after an earlier owner's write", "200 B at"}));
  }
  SECTION("a read") {
    REQUIRE(t.driver.convert(t.b, static_cast<float16*>(other), static_cast<float const*>(t.p), 100).ok());
    CHECK(t.found_one({"read not ordered after an earlier owner's write", "400 B at"}));
  }
}

TEST_CASE("a sim_order finding names the block's history and the missing event", "[driver][sim][order]") {
  checked t;
  t.give(t.b);  // block 1
  t.take(t.b);
  t.give(t.a);  // block 2
  t.take(t.a);
  t.give(t.a);  // block 3
  t.write(t.a);
  t.write(t.a);
  t.take(t.a);
  std::string const a = name(t.a), b = name(t.b);
  std::string const missing =
      "Missing: an event recorded on " + a + " after its last use, operation 2, that " + b + " waits for. ";
  auto const use_on_b = [&] {
    t.give(t.b);  // block 4
    t.write(t.b);
  };
  SECTION("none was recorded") {
    use_on_b();
    CHECK(t.found_one({missing + "None of its work is known there; no event was ever recorded on it."}));
  }
  SECTION("one was recorded, but no stream waited for it") {
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    use_on_b();
    CHECK(t.found_one(
        {missing + "None of its work is known there; an event covers it, but was not waited for."}));
  }
  SECTION("one was recorded too early") {
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    REQUIRE(t.driver.wait_event(t.b, t.event).ok());
    t.give(t.a);
    t.write(t.a);
    t.take(t.a);
    use_on_b();
    CHECK(t.found_one({"operation 3, that " + b,
                       "Known there: up to operation 2; its last event covers up to operation 2."}));
  }
  SECTION("the owners of the bytes, latest first, with the stream that freed each") {
    use_on_b();
    CHECK(t.found_one(
        {"Now: block 4", "allocated on " + b + " after its operation 0, not freed)", ". Before: block 3",
         "allocated on " + a + " after its operation 0, freed on " + a + " after its operation 2)",
         ". Before that: block 2", ". Before that: block 1", "freed on " + b + " after its operation 0)"}));
  }
}

TEST_CASE("sim_order reports double allocations and double frees with the owner", "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  SECTION("allocated twice") {
    t.give(t.b);
    CHECK(t.found_one(
        {"bytes allocated twice", "by " + name(t.b), "Now: block 1", "allocated on " + name(t.a)}));
  }
  SECTION("freed twice") {
    t.write(t.a);
    t.take(t.a);
    t.take(t.b);
    CHECK(t.found_one({"freed bytes that no block owns", "by " + name(t.b), "block 1",
                       "freed on " + name(t.a) + " after its operation 1"}));
  }
}

TEST_CASE("sim_order tracks memory that changes owner on a destroyed stream", "[driver][sim][order]") {
  checked t;
  stream_ref gone, again;
  REQUIRE(t.driver.create_stream(gone).ok());
  t.give(gone);
  t.write(gone);
  REQUIRE(t.driver.destroy_stream(gone).ok());
  bool const reused = GENERATE(false, true);
  if (reused) REQUIRE(t.driver.create_stream(again).ok());
  t.take(gone);
  t.give(t.b);  // not allocated twice
  CHECK(t.found() == 0);
  t.write(t.b);
  CHECK(t.found_one({"freed on " + name(gone), "Missing: an event recorded on " + name(gone)}));
  if (reused) REQUIRE(t.driver.destroy_stream(again).ok());
}

TEST_CASE("sim_order requires order for a write after an earlier owner's read, not for a read",
          "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  t.read(t.a);
  t.take(t.a);
  t.give(t.b);
  t.read(t.b);
  CHECK(t.found() == 0);
  t.write(t.b);
  CHECK(t.found_one({"write not ordered after an earlier owner's read"}));
}

TEST_CASE("sim_order recognizes every way of ordering", "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  t.write(t.a);
  t.take(t.a);
  SECTION("an event and a wait") {
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    REQUIRE(t.driver.wait_event(t.b, t.event).ok());
  }
  SECTION("through a third stream") {
    scoped_stream const c(t.driver);
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    REQUIRE(t.driver.wait_event(c, t.event).ok());
    scoped_event const second(t.driver);
    REQUIRE(t.driver.record_event(second, c).ok());
    REQUIRE(t.driver.wait_event(t.b, second).ok());
  }
  SECTION("the host waits for the stream") {
    REQUIRE(t.driver.synchronize_stream(t.a).ok());
  }
  SECTION("the host waits for the device") {
    REQUIRE(t.driver.synchronize_device().ok());
  }
  SECTION("the host waits for an event") {
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    REQUIRE(t.driver.synchronize_event(t.event).ok());
  }
  SECTION("the host sees that an event is done") {
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    t.machine.advance(1'000'000);
    REQUIRE(t.driver.query_event(t.event).ok());
  }
  SECTION("cudaFree of another block") {
    void* other = nullptr;
    REQUIRE(t.driver.malloc_device(1, other).ok());
    REQUIRE(t.driver.free_device(other).ok());
  }
  CHECK(t.machine.is_ordered(t.a, t.b));
  t.give(t.b);
  t.write(t.b);
  CHECK(t.found() == 0);
}

TEST_CASE("sim_order rejects what only looks like an order", "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  t.write(t.a);
  t.take(t.a);
  SECTION("time has passed, but no call has observed completion") {
    t.machine.advance(1'000'000);
  }
  SECTION("an event was queried and was not ready") {
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    REQUIRE(t.driver.query_event(t.event).kind == failure::not_ready);
  }
  SECTION("an event recorded too early") {
    scoped_event const early(t.driver);
    REQUIRE(t.driver.record_event(early, t.a).ok());
    REQUIRE(t.driver.wait_event(t.b, early).ok());
    t.give(t.a);
    t.write(t.a);
    t.take(t.a);
  }
  SECTION("an event recorded, but not waited for") {
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
  }
  SECTION("a wait before the record") {
    REQUIRE(t.driver.wait_event(t.b, t.event).ok());
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
  }
  SECTION("a wait by another stream") {
    scoped_stream const c(t.driver);
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    REQUIRE(t.driver.wait_event(c, t.event).ok());
  }
  SECTION("an event of another stream") {
    REQUIRE(t.driver.record_event(t.event, t.b).ok());
    REQUIRE(t.driver.wait_event(t.b, t.event).ok());
  }
  SECTION("another device's synchronisation") {
    scoped_stream const c(t.driver);
    REQUIRE(t.driver.synchronize_stream(c).ok());
  }
  CHECK_FALSE(t.machine.is_ordered(t.a, t.b));
  t.give(t.b);
  t.write(t.b);
  CHECK(t.found() == 1);
}

TEST_CASE("sim_order knows that the legacy default stream orders only blocking streams",
          "[driver][sim][order]") {
  checked t;
  stream_ref blocking;
  REQUIRE(t.machine.create_blocking_stream(0, blocking).ok());
  t.give(blocking);
  t.write(blocking);
  t.take(blocking);
  t.give({});
  t.write({});
  t.take({});
  t.give(blocking);
  t.write(blocking);
  CHECK(t.found() == 0);
  t.take(blocking);
  t.give(t.a);
  t.write(t.a);
  CHECK(t.found() == 1);
  REQUIRE(t.driver.destroy_stream(blocking).ok());
}

TEST_CASE("a recreated stream inherits nothing from its handle's former stream in sim_order",
          "[driver][sim][order]") {
  checked t;
  stream_ref first, second;
  REQUIRE(t.driver.create_stream(first).ok());
  t.give(first);
  t.write(first);
  t.take(first);
  REQUIRE(t.driver.destroy_stream(first).ok());
  REQUIRE(t.driver.create_stream(second).ok());
  REQUIRE(first.handle() == second.handle());
  t.give(second);
  t.write(second);
  CHECK(t.found() == 1);
  REQUIRE(t.driver.destroy_stream(second).ok());
}

TEST_CASE("sim_order reports a stored handle that now belongs to another stream", "[driver][sim][order]") {
  checked t;
  stream_ref first, second;
  REQUIRE(t.driver.create_stream(first).ok());
  REQUIRE(t.driver.destroy_stream(first).ok());
  REQUIRE(t.driver.create_stream(second).ok());
  CHECK(t.driver.record_event(t.event, first).ok());  // as on a GPU: it marks the wrong stream
  CHECK(t.found_one(
      {"record_event with the handle of destroyed " + name(first), "it is " + name(second) + " now"}));
  REQUIRE(t.driver.destroy_stream(second).ok());
}

TEST_CASE("sim_order reports a call on a destroyed stream if the caller knew its identity",
          "[driver][sim][order]") {
  checked t;
  stream_ref gone;
  REQUIRE(t.driver.create_stream(gone).ok());
  REQUIRE(t.driver.destroy_stream(gone).ok());
  bool capturing = false;
  CHECK_FALSE(t.driver.is_capturing(stream_ref::from(gone.handle()), capturing).ok());  // as a user's mistake
  CHECK(t.found() == 0);
  CHECK_FALSE(t.driver.is_capturing(gone, capturing).ok());
  CHECK(t.found_one({"is_capturing with the handle of " + name(gone), "destroyed"}));
}

TEST_CASE("sim_order ignores races within one owner", "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  t.write(t.a);
  t.write(t.b);
  t.read(t.a);
  CHECK(t.found() == 0);
}

TEST_CASE("sim_order reports at the reuse a second stream's use that the free does not cover",
          "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  t.write(t.b);
  t.take(t.a);
  t.give(t.a);
  t.write(t.a);
  CHECK(t.found_one({"Missing: an event recorded on " + name(t.b)}));
}

TEST_CASE("sim_order remembers an unordered user from before the last owner", "[driver][sim][order]") {
  checked t;
  t.give(t.b);
  t.write(t.b);
  t.take(t.b);
  t.give(t.a);  // never touched
  t.take(t.a);
  t.give(t.a);
  t.write(t.a);
  CHECK(t.found_one({"Missing: an event recorded on " + name(t.b)}));
}

TEST_CASE("sim_order checks each byte separately", "[driver][sim][order]") {
  checked t;
  char* const base = static_cast<char*>(t.p);
  t.give(t.a);
  t.write(t.a, 0, 512_KiB);
  t.take(t.a);
  t.machine.allocated(base + 512_KiB, 512_KiB, t.b);  // the half that was not touched
  t.write(t.b, 512_KiB, 512_KiB);
  CHECK(t.found() == 0);
  t.machine.allocated(base + 256_KiB, 256_KiB, t.b);
  t.write(t.b, 512_KiB - 1, 1);
  CHECK(t.found() == 1);
}

TEST_CASE("sim_order reports an access to several blocks once", "[driver][sim][order]") {
  checked t;
  char* const base = static_cast<char*>(t.p);
  auto const give_halves = [&](stream_ref on) {
    for (std::size_t const from : {0_KiB, 512_KiB}) t.machine.allocated(base + from, 512_KiB, on);
  };
  auto const take_halves = [&] {
    for (std::size_t const from : {0_KiB, 512_KiB}) t.machine.freed(base + from, 512_KiB, t.a);
  };
  auto const write_after_reuse = [&] {
    take_halves();
    give_halves(t.b);
    t.write(t.b);
  };
  give_halves(t.a);
  SECTION("that were freed") {
    take_halves();
    t.write(t.a);
    CHECK(t.found_one({"write to freed bytes"}));
  }
  SECTION("that were written before") {
    t.write(t.a);
    write_after_reuse();
    CHECK(t.found_one({"write not ordered after an earlier owner's write"}));
  }
  SECTION("that were read before") {
    t.read(t.a);
    write_after_reuse();
    CHECK(t.found_one({"write not ordered after an earlier owner's read"}));
  }
  SECTION("that are others than in the capture") {
    sim_graph graph;
    REQUIRE(t.machine.begin_capture(t.a).ok());
    t.write(t.a);
    REQUIRE(t.machine.end_capture(t.a, graph).ok());
    take_halves();
    give_halves(t.a);
    REQUIRE(t.machine.launch(t.a, graph).ok());
    CHECK(t.found_one({"write by a replay to bytes that got another owner after the capture"}));
  }
}

TEST_CASE("sim_order findings on some bytes do not affect their neighbours", "[driver][sim][order]") {
  checked t;
  char* const base = static_cast<char*>(t.p);
  void* next = nullptr;
  REQUIRE(t.driver.malloc_device(1_MiB, next).ok());
  t.give(t.a);
  t.write(t.a);
  t.write(t.a, 256_KiB, 256_KiB);
  t.machine.freed(base + 128_KiB, 256_KiB, t.a);
  t.machine.allocated(next, 1_MiB, t.b);
  REQUIRE(t.machine.launch(t.b, 100, {sim_writes(next, 1_MiB)}).ok());
  t.write(t.a, 0, 128_KiB);
  t.write(t.a, 384_KiB, 640_KiB);
  CHECK(t.found() == 0);
  t.write(t.a, 128_KiB, 1);
  t.write(t.a, 384_KiB - 1, 1);
  CHECK(t.found() == 2);
}

TEST_CASE("sim_order drops records of memory that is gone", "[driver][sim][order]") {
  sim_options const options{.capacity = 64_MiB, .taken = 0, .backing = sim_backing::address_only};
  detail::sim_memory memory(options);
  detail::sim_order order;
  memory.watch_gone();
  auto const agent = order.add_agent("stream", 1);
  for (int i = 0; i < 3; ++i) {
    void* p = nullptr;
    REQUIRE(memory.allocate(0, 1_MiB, detail::sim_kind::device, p) == detail::sim_code::ok);
    order.access(memory, sim_writes(static_cast<char*>(p) + 1_KiB, 1_KiB), agent);
    order.access(memory, sim_writes(p, 1_MiB), agent);
    CHECK(order.stretches() == 3);
    REQUIRE(memory.release(p, detail::sim_kind::device) == detail::sim_code::ok);
    memory.drain_gone([&](detail::sim_memory::piece piece) { order.forget(piece.key, piece.bytes); });
    CHECK(order.stretches() == 0);
  }
}

TEST_CASE("sim_order reports accesses to freed bytes", "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  t.take(t.a);
  SECTION("a write") {
    t.write(t.a, 1_MiB - 1, 1);
    CHECK(t.found_one({"write to freed bytes"}));
  }
  SECTION("a read") {
    t.read(t.a);
    CHECK(t.found_one({"read of freed bytes"}));
  }
  SECTION("a launch of a graph that was captured before") {
    checked u;
    u.give(u.a);
    REQUIRE(u.machine.begin_capture(u.a).ok());
    u.write(u.a);
    sim_graph graph;
    REQUIRE(u.machine.end_capture(u.a, graph).ok());
    REQUIRE(u.machine.launch(u.a, graph).ok());
    CHECK(u.found() == 0);
    u.take(u.a);
    REQUIRE(u.machine.launch(u.a, graph).ok());
    CHECK(u.found_one({"write to freed bytes"}));
  }
}

TEST_CASE("sim_order reports bytes that are allocated or freed twice", "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  SECTION("allocated twice, overlapping by one byte") {
    t.machine.allocated(static_cast<char*>(t.p) + 1_MiB - 1, 1, t.b);
    CHECK(t.found_one({"bytes allocated twice"}));
  }
  SECTION("freed twice") {
    t.take(t.a);
    t.take(t.a);
    CHECK(t.found_one({"freed bytes that no block owns"}));
  }
}

TEST_CASE("sim_order does not check memory without a reported owner", "[driver][sim][order]") {
  checked t;
  t.write(t.a);
  t.write(t.b);
  CHECK(t.found() == 0);
}

TEST_CASE("sim_order keeps a page's history when it is mapped at another address",
          "[driver][sim][order][pages]") {
  checked t;
  void* base = nullptr;
  page_handle handle{};
  REQUIRE(t.driver.reserve_range(8_MiB, 0, base).ok());
  REQUIRE(t.driver.create_pages(2_MiB, handle).ok());
  REQUIRE(t.driver.map_pages(base, 2_MiB, handle).ok());
  t.machine.allocated(base, 2_MiB, t.a);
  REQUIRE(t.machine.launch(t.a, 100, {sim_writes(base, 2_MiB)}).ok());
  t.machine.freed(base, 2_MiB, t.a);
  char* const elsewhere = static_cast<char*>(base) + 4_MiB;
  REQUIRE(t.driver.map_pages(elsewhere, 2_MiB, handle).ok());
  t.machine.allocated(elsewhere, 2_MiB, t.b);
  REQUIRE(t.machine.launch(t.b, 100, {sim_writes(elsewhere, 2_MiB)}).ok());
  CHECK(t.found_one({"write not ordered"}));
}

TEST_CASE("sim_order accepts unmapping an address whose page is in use but not through it",
          "[driver][sim][order][pages]") {
  checked t;
  void* base = nullptr;
  page_handle handle{};
  REQUIRE(t.driver.reserve_range(8_MiB, 0, base).ok());
  REQUIRE(t.driver.create_pages(2_MiB, handle).ok());
  REQUIRE(t.driver.map_pages(base, 2_MiB, handle).ok());
  char* const elsewhere = static_cast<char*>(base) + 4_MiB;
  REQUIRE(t.driver.map_pages(elsewhere, 2_MiB, handle).ok());
  REQUIRE(t.machine.launch(t.a, 100, {sim_writes(base, 2_MiB)}).ok());
  REQUIRE(t.driver.unmap_pages(elsewhere, 2_MiB).ok());
  CHECK(t.found() == 0);
  REQUIRE(t.driver.unmap_pages(base, 2_MiB).ok());
  CHECK(t.found_one({"unmapped while in use", "recorded on " + name(t.a)}));
}

TEST_CASE("sim_order reports unmapping a page whose work has not been waited for",
          "[driver][sim][order][pages]") {
  checked t;
  void* base = nullptr;
  page_handle handle{};
  REQUIRE(t.driver.reserve_range(4_MiB, 0, base).ok());
  REQUIRE(t.driver.create_pages(4_MiB, handle).ok());
  REQUIRE(t.driver.map_pages(base, 4_MiB, handle).ok());
  REQUIRE(t.machine.launch(t.a, 100, {sim_reads(static_cast<char*>(base) + 3_MiB, 1)}).ok());
  SECTION("immediately") {
    REQUIRE(t.driver.unmap_pages(base, 4_MiB).ok());
    CHECK(t.found_one({"unmapped while in use", "by host", "recorded on " + name(t.a)}));
  }
  SECTION("while a write is running") {
    REQUIRE(t.driver.synchronize_stream(t.a).ok());
    REQUIRE(t.machine.launch(t.b, 100, {sim_writes(base, 1)}).ok());
    REQUIRE(t.driver.unmap_pages(base, 4_MiB).ok());
    CHECK(t.found_one({"unmapped while in use", "recorded on " + name(t.b)}));
  }
  SECTION("after time has passed") {
    t.machine.advance(1'000'000);
    REQUIRE(t.driver.unmap_pages(base, 4_MiB).ok());
    CHECK(t.found() == 1);
  }
  SECTION("after waiting there is no finding") {
    REQUIRE(t.driver.synchronize_stream(t.a).ok());
    REQUIRE(t.driver.unmap_pages(base, 4_MiB).ok());
    CHECK(t.found() == 0);
  }
  SECTION("an order between streams does not order the host") {
    REQUIRE(t.driver.record_event(t.event, t.a).ok());
    REQUIRE(t.driver.wait_event(t.b, t.event).ok());
    REQUIRE(t.driver.unmap_pages(base, 4_MiB).ok());
    CHECK(t.found() == 1);
  }
}

TEST_CASE("sim_order accepts removing a mapping while its page is used through another",
          "[driver][sim][order][pages]") {
  checked t;
  void* base = nullptr;
  page_handle handle{};
  REQUIRE(t.driver.reserve_range(8_MiB, 0, base).ok());
  REQUIRE(t.driver.create_pages(4_MiB, handle).ok());
  char* const here = static_cast<char*>(base);
  char* const there = here + 4_MiB;
  REQUIRE(t.driver.map_pages(here, 4_MiB, handle).ok());
  REQUIRE(t.driver.map_pages(there, 4_MiB, handle).ok());
  REQUIRE(t.machine.launch(t.a, 100, {sim_writes(here + 1_MiB, 1_MiB)}).ok());
  REQUIRE(t.driver.synchronize_stream(t.a).ok());
  REQUIRE(t.machine.launch(t.b, 100, {sim_writes(there + 1_MiB, 1_MiB)}).ok());
  REQUIRE(t.driver.unmap_pages(here, 4_MiB).ok());
  CHECK(t.found() == 0);
  REQUIRE(t.driver.unmap_pages(there, 4_MiB).ok());
  CHECK(t.found_one({"unmapped while in use", "an event recorded on " + name(t.b)}));
  REQUIRE(t.driver.map_pages(here, 4_MiB, handle).ok());
  REQUIRE(t.driver.unmap_pages(here, 4_MiB).ok());
  CHECK(t.found() == 1);  // a new mapping at an old address has no users
}

TEST_CASE("sim_order gives new physical memory no history", "[driver][sim][order]") {
  checked t;
  t.give(t.a);
  t.write(t.a);
  t.take(t.a);
  void* const before = t.p;
  REQUIRE(t.driver.free_device(t.p).ok());
  REQUIRE(t.driver.malloc_device(1_MiB, t.p).ok());
  REQUIRE(t.p == before);
  t.write(t.b);
  CHECK(t.found() == 0);
}

TEST_CASE("sim_order records that a block is freed while only its end has physical memory",
          "[driver][sim][order][pages]") {
  sim_machine const machine(
      sim_options{.backing = sim_backing::address_only, .checks = sim_checks::stream_order});
  sim_driver const driver = machine.driver();
  scoped_stream<sim_driver> s(driver);
  void* p = nullptr;
  page_handle first{}, second{};
  REQUIRE(driver.reserve_range(4_MiB, 2_MiB, p).ok());
  REQUIRE(driver.create_pages(2_MiB, first).ok());
  REQUIRE(driver.create_pages(2_MiB, second).ok());
  REQUIRE(driver.map_pages(p, 2_MiB, first).ok());
  char* const q = static_cast<char*>(p) + 2_MiB;
  REQUIRE(driver.map_pages(q, 2_MiB, second).ok());
  machine.allocated(p, 4_MiB, s);
  REQUIRE(driver.unmap_pages(p, 2_MiB).ok());
  REQUIRE(driver.destroy_pages(first).ok());
  machine.freed(p, 4_MiB, s);
  machine.allocated(q, 1_MiB, s);
  CHECK(machine.findings().empty());
  CHECK_FALSE(machine.is_accessible(p, 4_MiB));
  CHECK(machine.is_accessible(q, 2_MiB));
  CHECK_FALSE(machine.is_accessible(q, 2_MiB + 1));
  REQUIRE(driver.unmap_pages(q, 2_MiB).ok());
  REQUIRE(driver.destroy_pages(second).ok());
  REQUIRE(driver.release_range(p, 4_MiB).ok());
}

TEST_CASE("sim_order accepts reuse by malloc_async", "[driver][sim][order][memory_pools]") {
  checked t;
  void *p = nullptr, *q = nullptr;
  REQUIRE(t.driver.malloc_async(1_MiB, t.a, p).ok());
  t.machine.allocated(p, 1_MiB, t.a);
  REQUIRE(t.machine.launch(t.a, 100, {sim_writes(p, 1_MiB)}).ok());
  t.machine.freed(p, 1_MiB, t.a);
  REQUIRE(t.driver.free_async(p, t.a).ok());
  t.machine.advance(1'000'000);
  REQUIRE(t.driver.malloc_async(1_MiB, t.b, q).ok());
  REQUIRE(q == p);
  t.machine.allocated(q, 1_MiB, t.b);
  REQUIRE(t.machine.launch(t.b, 100, {sim_writes(q, 1_MiB)}).ok());
  CHECK(t.found() == 0);
}

TEST_CASE("sim_order shares a thread's waits with all, or with each_thread only if published",
          "[driver][sim][order]") {
  bool const watched = GENERATE(false, true);
  checked t(watched ? sim_checks::each_thread : sim_checks::stream_order);
  t.give(t.a);
  t.write(t.a);
  t.take(t.a);
  int token = 0;
  bool const published = watched && GENERATE(false, true);
  std::thread([&] {
    (void)t.driver.synchronize_stream(t.a);
    if (published) t.machine.publish(&token);
  }).join();
  if (published) t.machine.observe(&token);
  t.give(t.b);
  t.write(t.b);
  CHECK(t.found() == (watched && !published ? 1 : 0));
}

TEST_CASE("sim_machine keeps no records without order checks", "[driver][sim][order]") {
  checked t(sim_checks::off);
  t.give(t.a);
  t.give(t.b);
  t.write(t.a);
  CHECK(t.found() == 0);
  CHECK_FALSE(t.machine.is_ordered(t.a, t.a));
}
