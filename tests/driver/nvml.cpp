// SPDX-License-Identifier: Apache-2.0
// NVML, called through a library that the test simulates, and through one that it loads.

#include "tarn/driver/nvml.hpp"

#include <new>
#include <string>
#include <vector>

#include "catch.hpp"

using namespace tarn;
using detail::nvml_calls;
using detail::nvml_process;

namespace {

constexpr unsigned no_instance = 0xFFFFFFFF;
constexpr unsigned long long not_available = ~0ULL;
constexpr unsigned me = 42;

/// The results of the simulated library; codes are NVML's, 0 is success.
struct played {
  int init = 0, uuid = 0, pci = 0, memory = 0, memory_v2 = 0, compute = 0, graphics = 0, mps = 3;
  unsigned mig = 0;
  int open = 0, sessions = 0;
  std::string mig_uuid, asked_pci;
  std::vector<std::string> asked_uuids;
  std::vector<nvml_process> in_compute{{me, 500, no_instance, no_instance}};
  std::vector<nvml_process> in_graphics;
  std::vector<unsigned> rooms;  /// < sizes of the lists that it was asked to fill
};
played* library = nullptr;

int fill(std::vector<nvml_process> const& list, unsigned* count, nvml_process* out) {
  library->rooms.push_back(*count);
  unsigned const room = *count;
  *count = static_cast<unsigned>(list.size());
  if (room < list.size()) return detail::nvml_insufficient_size;
  for (std::size_t i = 0; i < list.size(); ++i) out[i] = list[i];
  return 0;
}

nvml_calls all_calls() {
  nvml_calls c;
  c.init = [] {
    ++library->sessions;
    if (library->init == 0) ++library->open;
    return library->init;
  };
  c.shutdown = [] { return --library->open, 0; };
  c.device_by_uuid = [](char const* uuid, void** device) {
    library->asked_uuids.emplace_back(uuid);
    bool const is_mig = std::string(uuid).starts_with("MIG-");
    if (is_mig ? library->mig_uuid != uuid : library->uuid != 0) return 6;
    *device = library;
    return 0;
  };
  c.device_by_pci_bus_id = [](char const* id, void** device) {
    library->asked_pci = id;
    *device = library;
    return library->pci;
  };
  c.mig_mode = [](void*, unsigned* current, unsigned*) { return *current = library->mig, 0; };
  c.memory = [](void*, detail::nvml_memory* m) {
    *m = {10'000, 1, 2};
    return library->memory;
  };
  c.memory_v2 = [](void*, detail::nvml_memory_v2* m) {
    if (m->version != 0x2000028U) return 25;  // NVML_STRUCT_VERSION(Memory, 2)
    *m = {m->version, 10'000, 600, 1, 2};
    return library->memory_v2;
  };
  c.compute_processes = [](void*, unsigned* n, nvml_process* out) {
    return library->compute != 0 ? library->compute : fill(library->in_compute, n, out);
  };
  c.graphics_processes = [](void*, unsigned* n, nvml_process* out) {
    return library->graphics != 0 ? library->graphics : fill(library->in_graphics, n, out);
  };
  c.mps_processes = [](void*, unsigned*, nvml_process*) { return library->mps; };
  return c;
}

detail::nvml_question question() {
  detail::nvml_question q;
  for (unsigned char i = 0; i < 16; ++i) q.uuid[i] = static_cast<unsigned char>(i + 1);
  for (char const* c = "0000:1B:00.0"; *c != '\0'; ++c) q.pci_bus_id[c - "0000:1B:00.0"] = *c;
  q.pid = me;
  return q;
}
constexpr char const* number = "01020304-0506-0708-090a-0b0c0d0e0f10";

struct answer {
  status outcome;
  device_account account;
};
answer ask(played& p, nvml_calls const& calls, detail::nvml_question const& q = question()) {
  library = &p;
  answer a;
  a.outcome = detail::nvml_account(calls, q, a.account);
  CHECK(p.open == 0);  // every session that was started has ended
  return a;
}

bool nothing_reported(answer const& a) {
  return a.outcome.kind == failure::unsupported && a.account.total == device_account::unknown &&
         a.account.this_process == device_account::unknown && std::string(a.outcome.name).size() > 3;
}

}  // namespace

TEST_CASE("nvml names this process, other processes and reserved memory", "[driver][nvml]") {
  played p;
  p.in_compute.push_back({7, 30, no_instance, no_instance});
  p.in_graphics = {{8, 5, no_instance, no_instance}};
  auto const [outcome, account] = ask(p, all_calls());
  REQUIRE(outcome.ok());
  CHECK(account.total == 10'000);
  CHECK(account.free == 1);
  CHECK(account.set_aside == 600);
  CHECK(account.this_process == 500);
  CHECK(account.other_processes == 35);
  CHECK(std::string(account.source) == "NVML");
  CHECK(std::string(account.gap).empty());
  CHECK(p.asked_uuids.back() == std::string("GPU-") + number);
}

TEST_CASE("nvml fills in a process's figures from the list that has them", "[driver][nvml]") {
  played p;
  p.in_compute.push_back({7, not_available, no_instance, no_instance});
  p.in_graphics = {{7, 30, no_instance, no_instance}, {me, not_available, no_instance, no_instance}};
  auto const [outcome, account] = ask(p, all_calls());
  REQUIRE(outcome.ok());
  CHECK(account.this_process == 500);
  CHECK(account.other_processes == 30);
}

TEST_CASE("nvml counts a process with both compute and graphics once", "[driver][nvml]") {
  played p;
  p.in_compute.push_back({7, 30, no_instance, no_instance});
  p.in_graphics = {{7, 30, no_instance, no_instance}, {me, 500, no_instance, no_instance}};
  auto const [outcome, account] = ask(p, all_calls());
  REQUIRE(outcome.ok());
  CHECK(account.this_process == 500);
  CHECK(account.other_processes == 30);
}

TEST_CASE("nvml retries with a larger buffer if a list grows between two calls", "[driver][nvml]") {
  played p;
  for (unsigned i = 0; i < 1000; ++i) p.in_compute.push_back({100'000 + i, 2, no_instance, no_instance});
  auto const [outcome, account] = ask(p, all_calls());
  REQUIRE(outcome.ok());
  CHECK(account.other_processes == 2000);
  REQUIRE(p.rooms.size() == 3);  // too small, large enough, and the list of graphics processes
  CHECK(p.rooms[1] >= 1001);
}

TEST_CASE("nvml gives up on a list that never fits", "[driver][nvml]") {
  played p;
  p.compute = detail::nvml_insufficient_size;
  auto const [outcome, account] = ask(p, all_calls());
  REQUIRE(outcome.ok());
  CHECK(account.this_process == device_account::unknown);
  CHECK(std::string(account.gap).find("does not list") != std::string::npos);
}

TEST_CASE("nvml reports unknown processes in a container with its own process numbers", "[driver][nvml]") {
  played p;
  bool const empty = GENERATE(true, false);
  p.in_compute =
      empty ? std::vector<nvml_process>{} : std::vector<nvml_process>{{7, 30, no_instance, no_instance}};
  auto const [outcome, account] = ask(p, all_calls());
  REQUIRE(outcome.ok());
  CHECK(account.total == 10'000);
  CHECK(account.set_aside == 600);
  CHECK(account.this_process == device_account::unknown);
  CHECK(account.other_processes == device_account::unknown);  // this process may be one of them
  CHECK(std::string(account.gap).find("container") != std::string::npos);
}

TEST_CASE("nvml reports a process without a memory figure as unknown, never as zero", "[driver][nvml]") {
  played p;
  SECTION("another process") {
    p.in_compute.push_back({7, not_available, no_instance, no_instance});
    auto const [outcome, account] = ask(p, all_calls());
    REQUIRE(outcome.ok());
    CHECK(account.this_process == 500);
    CHECK(account.other_processes == device_account::unknown);
    CHECK(std::string(account.gap).find("another process") != std::string::npos);
  }
  SECTION("this process") {
    p.in_compute = {{me, not_available, no_instance, no_instance}, {7, 30, no_instance, no_instance}};
    auto const [outcome, account] = ask(p, all_calls());
    REQUIRE(outcome.ok());
    CHECK(account.this_process == device_account::unknown);
    CHECK(account.other_processes == 30);
    CHECK(std::string(account.gap).find("this process") != std::string::npos);
  }
}

TEST_CASE("nvml finds a MIG instance by its own number and reports it as one", "[driver][nvml]") {
  played p;
  p.uuid = 6;
  p.mig = 1;
  p.mig_uuid = std::string("MIG-") + number;
  p.in_compute = {{me, 500, 3, 0}};
  auto const [outcome, account] = ask(p, all_calls());
  REQUIRE(outcome.ok());
  CHECK(account.this_process == 500);
  CHECK(std::string(account.source).find("MIG instance") != std::string::npos);
}

TEST_CASE("nvml never reports the whole card in place of a MIG instance", "[driver][nvml]") {
  played p;
  p.mig = 1;
  p.uuid = GENERATE(0, 6);  // found by the card's number, or by its bus
  CHECK(nothing_reported(ask(p, all_calls())));
}

TEST_CASE("nvml finds a device with an unknown number by its bus", "[driver][nvml]") {
  played p;
  p.uuid = 6;
  auto const [outcome, account] = ask(p, all_calls());
  REQUIRE(outcome.ok());
  CHECK(p.asked_pci == "0000:1B:00.0");
  CHECK(account.this_process == 500);
  CHECK(std::string(account.source) == "NVML");
}

TEST_CASE("an older nvml reports only the total", "[driver][nvml]") {
  played p;
  auto calls = all_calls();
  bool const lacks_it = GENERATE(true, false);
  if (lacks_it) calls.memory_v2 = nullptr;
  p.memory_v2 = 25;
  auto const [outcome, account] = ask(p, calls);
  REQUIRE(outcome.ok());
  CHECK(account.total == 10'000);
  CHECK(account.free == 1);
  CHECK(account.set_aside == device_account::unknown);
  CHECK(account.this_process == 500);
}

TEST_CASE("a failed or missing nvml call makes only its own figures unknown", "[driver][nvml]") {
  played p;
  auto calls = all_calls();
  SECTION("the library is missing") {
    CHECK(nothing_reported(ask(p, nvml_calls{})));
  }
  SECTION("initialisation fails") {
    p.init = GENERATE(1, 2, 3, 4, 6, 7, 9, 12, 13, 15, 18, 999);
    auto const a = ask(p, calls);
    CHECK(nothing_reported(a));
    CHECK(a.outcome.code == p.init);
  }
  SECTION("the library does not know the device") {
    p.uuid = p.pci = 6;
    CHECK(nothing_reported(ask(p, calls)));
  }
  SECTION("the library has no function to find a device") {
    calls.device_by_uuid = nullptr;
    calls.device_by_pci_bus_id = nullptr;
    CHECK(nothing_reported(ask(p, calls)));
  }
  SECTION("the library reports no memory") {
    p.memory = p.memory_v2 = 3;
    auto const a = ask(p, calls);
    CHECK(a.outcome.ok());
    CHECK(a.account.total == device_account::unknown);
    CHECK(a.account.this_process == 500);
  }
  SECTION("the library lists no processes") {
    if (GENERATE(true, false)) {
      calls.compute_processes = nullptr;
    } else {
      p.compute = 4;
    }
    auto const a = ask(p, calls);
    CHECK(a.outcome.ok());
    CHECK(a.account.total == 10'000);
    CHECK(a.account.other_processes == device_account::unknown);
    CHECK(std::string(a.account.gap).find("does not list") != std::string::npos);
  }
  SECTION("host memory is exhausted while the processes are listed") {
    calls.compute_processes = [](void*, unsigned*, nvml_process*) -> int { throw std::bad_alloc(); };
    auto const a = ask(p, calls);
    CHECK(a.outcome.ok());
    CHECK(a.account.total == 10'000);
    CHECK(a.account.this_process == device_account::unknown);
    CHECK(std::string(a.account.gap).find("host memory") != std::string::npos);
  }
  SECTION("the library does not list graphics processes") {
    calls.graphics_processes = nullptr;
    auto const a = ask(p, calls);
    CHECK(a.account.this_process == 500);
    CHECK(std::string(a.account.gap).empty());
  }
}

TEST_CASE("nvml loading rejects a missing library and a library that is not NVML", "[driver][nvml]") {
  CHECK_FALSE(detail::find_nvml("libtarn-no-such-library.so.1").is_there());
  CHECK_FALSE(detail::find_nvml("libm.so.6").is_there());
}

TEST_CASE("nvml loading finds a library by its symbols, including those of older drivers", "[driver][nvml]") {
#if defined(TARN_FAKE_NVML)
  nvml_calls const calls = detail::find_nvml(TARN_FAKE_NVML);
  REQUIRE(calls.is_there());
  device_account account;
  REQUIRE(detail::nvml_account(calls, question(), account).ok());
  CHECK(account.total == 1000);
  CHECK(account.set_aside == 60);
  CHECK(account.this_process == 100);
  CHECK(account.other_processes == 30);
#else
  WARN("skipped, nothing was loaded: built without the library that has NVML's symbols");
#endif
}
