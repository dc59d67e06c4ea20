// SPDX-License-Identifier: Apache-2.0
#include "tarn/source/registered_host.hpp"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "catch.hpp"
#include "contract/check_unsupported.hpp"
#include "contract/resource_contract.hpp"
#include "driver/faulty.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;
using tarn_test::check_unsupported;

namespace {

/// What the kernel reports about the mapping of an address; sizes in bytes.
struct mapping_facts {
  bool advised_huge = false;
  std::size_t resident = 0;
};
mapping_facts facts_of(void const* p) {
  mapping_facts facts;
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long from = 0;
    unsigned long long to = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2) {
      auto const at = reinterpret_cast<unsigned long long>(p);
      here = from <= at && at < to;
    } else if (here && line.starts_with("VmFlags:")) {
      facts.advised_huge = line.find(" hg") != std::string::npos;
    } else if (here && line.starts_with("Rss:")) {
      facts.resident = std::stoull(line.substr(4)) * 1024;
    }
  }
  return facts;
}

bool is_mapped(void const* p) {
  unsigned char resident = 0;
  return ::mincore(const_cast<void*>(p), 4096, &resident) == 0;
}

}  // namespace

TEST_CASE("registered_host meets the resource contract", "[source][registered_host]") {
  sim_options options;
  options.host_capacity = 4_GiB;
  sim_machine const machine(options);
  for (host_page_size const pages : {host_page_size::usual, host_page_size::huge}) {
    tarn_test::resource_contract(
        [&] { return sim_registered_host(machine.driver(), registered_options{.pages = pages}); });
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("registered_host touches and pins its memory and unmaps it at deallocation",
          "[source][registered_host][no_emulator]") {
  for (unsigned const threads : {1U, 3U}) {
    for (host_page_size const pages : {host_page_size::usual, host_page_size::huge}) {
      sim_machine const machine;
      sim_registered_host memory(machine.driver(), {.pages = pages, .threads = threads});
      std::size_t const bytes = 65_MiB + 1;  // enough for several threads, and not a whole number of pages
      void* const p = memory.allocate_sync(bytes);
      std::size_t const page = pages == host_page_size::huge ? 2_MiB : 4_KiB;
      CHECK(is_aligned(p, page));
      mapping_facts const facts = facts_of(p);
      CHECK(facts.resident >= bytes);  // all of it, before the first write
      CHECK(facts.advised_huge == (pages == host_page_size::huge));
      std::memset(p, 7, bytes);

      void* device = nullptr;
      REQUIRE(machine.driver().malloc_device(1_MiB, device).ok());
      basic_stream const stream(machine.driver());
      REQUIRE(machine.launch(stream, 1'000'000).ok());
      REQUIRE(machine.driver().copy(stream, device, p, 1_MiB).ok());
      CHECK(machine.pending() == 2);  // a copy from pageable memory would have waited
      stream.synchronize();
      REQUIRE(machine.driver().free_device(device).ok());

      memory.deallocate_sync(p, bytes);
      CHECK_FALSE(is_mapped(p));
      CHECK_FALSE(is_mapped(static_cast<char*>(p) + align_up(bytes, page) - page));
      CHECK(machine.leaks().blocks == 0);
    }
  }
}

TEST_CASE("registered_host honours alignments above its page size", "[source][registered_host]") {
  sim_machine const machine;
  sim_registered_host memory(machine.driver(), {.pages = host_page_size::usual});
  for (std::size_t alignment = 4_KiB; alignment <= 2_MiB; alignment *= 2) {
    void* const p = memory.allocate_sync(5000, alignment);
    CHECK(is_aligned(p, alignment));
    memory.deallocate_sync(p, 5000, alignment);
    CHECK_FALSE(is_mapped(p));
  }
}

TEST_CASE("registered_host refuses a missing numa_node and says what to do", "[source][registered_host]") {
  sim_machine const machine;
  for (int const node : {1023, 1'000'000, -7}) {
    sim_registered_host memory(machine.driver(), {.numa_node = node});
    check_unsupported([&] { (void)memory.allocate_sync(4_MiB); }, {"omit numa_node"});
  }
  CHECK(machine.leaks().total() == 0);
  sim_registered_host here(machine.driver(), {.numa_node = 0});
  try {
    here.deallocate_sync(here.allocate_sync(4_MiB), 4_MiB);
  } catch (cuda_error const& error) {
    WARN("skipped, this machine cannot bind memory to a NUMA node: " << error.what());
  }
}

TEST_CASE("registered_host refuses reserved_huge pages if none are reserved", "[source][registered_host]") {
  std::ifstream settings("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
  unsigned long reserved = 0;
  settings >> reserved;
  sim_machine const machine;
  sim_registered_host memory(machine.driver(), {.pages = host_page_size::reserved_huge});
  if (reserved == 0) {
    try {
      (void)memory.allocate_sync(4_MiB);
      FAIL("must not succeed");
    } catch (out_of_memory const& error) {
      CHECK(std::string_view(error.what()).find("hugepages-2048kB/nr_hugepages") != std::string_view::npos);
    }
  } else {
    void* const p = memory.allocate_sync(2_MiB);
    CHECK(is_aligned(p, 2_MiB));
    memory.deallocate_sync(p, 2_MiB);
  }
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("host_pages::touch returns out_of_memory instead of a signal if a page is missing",
          "[source][registered_host]") {
  unsigned const threads = GENERATE(1U, 4U);
  tarn::detail::host_pages const pages = {.bytes = 80_MiB, .alignment = 2_MiB};
  void* p = nullptr;
  REQUIRE(pages.map(p).ok());
  constexpr int populate_write = 23;
  if (::madvise(p, 4_KiB, populate_write) != 0) {
    WARN("skipped: Linux before 5.14 does not report missing pages");
  } else {
    CHECK(pages.touch(p, threads).ok());
    // An unmapped page cannot be written, like a page that the host cannot provide.
    REQUIRE(::munmap(static_cast<char*>(p) + 50_MiB, 4_KiB) == 0);
    status const s = pages.touch(p, threads);
    CHECK(s.kind == failure::out_of_memory);
    CHECK(std::string_view(s.call).find("no free page left") != std::string_view::npos);
  }
  pages.unmap(p);
}

TEST_CASE("registered_host unmaps and refuses memory that the driver does not register",
          "[source][registered_host]") {
  sim_options options;
  options.host_capacity = 16_MiB;
  sim_machine const machine(options);
  sim_registered_host memory(machine.driver());
  CHECK_THROWS_AS(memory.allocate_sync(17_MiB), out_of_memory);
  CHECK_THROWS_AS(memory.allocate_sync(max_request_bytes), out_of_memory);
  CHECK(machine.leaks().total() == 0);
  fault_plan const plan;
  basic_registered<faulty<sim_driver>> faulty_memory(faulty(machine.driver(), plan));
  plan.fail(driver_call::register_host, 1, {.kind = failure::other});
  CHECK_THROWS_AS(faulty_memory.allocate_sync(2_MiB), cuda_error);
  void* const p = faulty_memory.allocate_sync(2_MiB);
  plan.fail(driver_call::unregister_host, 1);
  faulty_memory.deallocate_sync(p, 2_MiB);
  CHECK(is_mapped(p));  // a device may still reach it
  REQUIRE(machine.driver().unregister_host(p).ok());
  REQUIRE(::munmap(p, 2_MiB) == 0);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("registered_host keeps memory that work uses, if a capture forbids to wait for that work",
          "[source][registered_host][stream]") {
  sim_options options;
  options.checks = sim_checks::stream_order;
  options.backing = sim_backing::host_backed;
  sim_machine const machine(options);
  sim_driver const driver = machine.driver();
  sim_registered_host memory(driver);
  void* const p = memory.allocate_sync(2_MiB);
  stream_ref captured;
  REQUIRE(machine.create_blocking_stream(device_id{0}, captured).ok());
  stream_ref user = default_stream(driver);  // which waits for blocking streams
  bool const is_destroyed = GENERATE(false, true);
  if (is_destroyed) {
    REQUIRE(driver.create_stream(user).ok());
    user = identified(driver, user);
  }
  REQUIRE(driver.launch(user, 1'000'000'000).ok());
  REQUIRE(driver.launch(user, 1000, {sim_reads(p, 2_MiB)}, [] {}).ok());
  REQUIRE(driver.begin_capture(captured).ok());
  if (is_destroyed) {
    REQUIRE(driver.destroy_stream(user).ok());
  }
  memory.deallocate(user, p, 2_MiB);
  sim_graph graph;
  (void)driver.end_capture(captured, graph);
  CHECK(driver.synchronize_device().ok());  // not an access to memory that is not registered
  CHECK(is_mapped(p));
  CHECK(machine.findings().empty());
  memory.deallocate_sync(p, 2_MiB);
}

TEST_CASE("registered_host sources compare equal if each may free the other's blocks",
          "[source][registered_host]") {
  sim_machine const machine;
  sim_registered_host const huge(machine.driver());
  CHECK(huge == sim_registered_host(machine.driver()));
  CHECK_FALSE(huge == sim_registered_host(machine.driver(), {.pages = host_page_size::usual}));
  CHECK_FALSE(huge == sim_registered_host(sim_machine{}.driver()));
}

TEST_CASE("register_host of sim_driver accepts whole host pages once and returns CUDA's error codes",
          "[driver][registered_host]") {
  sim_machine const machine;
  sim_driver const driver = machine.driver();
  void* const p = ::operator new(16_KiB, std::align_val_t{4096});
  auto const at = [p](std::size_t offset) { return static_cast<char*>(p) + offset; };
  CHECK(driver.register_host(nullptr, 4096).code == 1);
  CHECK(driver.register_host(at(1), 4096).code == 1);
  CHECK(driver.register_host(p, 0).code == 1);
  REQUIRE(driver.register_host(at(4096), 4096).ok());
  CHECK(driver.register_host(at(4096), 4096).code == 712);
  CHECK(driver.register_host(p, 8192).code == 712);
  CHECK(driver.unregister_host(p).code == 713);
  CHECK(driver.free_pinned(at(4096)).code == 1);
  CHECK(machine.leaks().blocks == 1);
  CHECK(driver.unregister_host(at(4096)).ok());
  CHECK(driver.unregister_host(nullptr).ok());
  CHECK(machine.leaks().total() == 0);
  ::operator delete(p, std::align_val_t{4096});
}
