// SPDX-License-Identifier: Apache-2.0
// The simulated GPU's memory: capacity to the byte, CUDA's rules for pages, backing, blocks.

#include "tarn/driver/sim/sim_memory.hpp"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

#if defined(__linux__)
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace tarn;

namespace {

sim_machine small_machine(std::size_t capacity, sim_backing backing = sim_backing::address_only) {
  return sim_machine{sim_options{.capacity = capacity, .taken = 0, .backing = backing}};
}

std::size_t free_bytes(sim_driver const& driver) {
  std::size_t free = 0, total = 0;
  REQUIRE(driver.memory_info(free, total).ok());
  return free;
}

page_handle make_pages(sim_driver const& driver, std::size_t bytes) {
  page_handle handle{};
  REQUIRE(driver.create_pages(bytes, handle).ok());
  return handle;
}

char* make_range(sim_driver const& driver, std::size_t bytes, std::size_t alignment = 0) {
  void* p = nullptr;
  REQUIRE(driver.reserve_range(bytes, alignment, p).ok());
  return static_cast<char*>(p);
}

bool invalid(status s) {
  return s.kind == failure::other && s.code == 1;
}

#if defined(__linux__)
/// True if touching an address ends the process. The access runs in a child process.
template <class F>
bool dies(F const& touch) {
  ::pid_t const child = ::fork();
  if (child == 0) {
    (void)::signal(SIGSEGV, SIG_DFL);  // the fault is expected: do not report it
    (void)::signal(SIGBUS, SIG_DFL);
    touch();
    ::_exit(0);
  }
  int outcome = 0;
  REQUIRE(::waitpid(child, &outcome, 0) == child);
  return !(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);
}
#endif

}  // namespace

TEST_CASE("sim_machine enforces a device's capacity to the byte", "[driver][sim][memory][pages]") {
  auto const machine = small_machine(64_MiB);
  auto const driver = machine.driver();
  CHECK(free_bytes(driver) == 64_MiB);
  page_handle const half = make_pages(driver, 32_MiB);
  page_handle refused{};
  CHECK(driver.create_pages(34_MiB, refused).kind == failure::out_of_memory);
  CHECK(free_bytes(driver) == 32_MiB);
  void* block = nullptr;
  REQUIRE(driver.malloc_device(32_MiB, block).ok());
  CHECK(free_bytes(driver) == 0);
  void* more = nullptr;
  CHECK(driver.malloc_device(1, more).kind == failure::out_of_memory);
  CHECK(more == nullptr);
  CHECK(machine.usage().page_bytes == 32_MiB);
  CHECK(machine.usage().block_bytes == 32_MiB);
  REQUIRE(driver.free_device(block).ok());
  REQUIRE(driver.destroy_pages(half).ok());
  CHECK(free_bytes(driver) == 64_MiB);
  CHECK(machine.usage().page_bytes == 0);
  CHECK(machine.usage().block_bytes == 0);
  CHECK(machine.usage().peak_used == 64_MiB);
  machine.reset_peak();
  CHECK(machine.usage().peak_used == 0);
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sim_machine keeps the memory of its devices separate", "[driver][sim][memory][pages]") {
  sim_machine const machine{sim_options{.devices = 2, .capacity = 8_MiB, .taken = 0}};
  page_handle const all = make_pages(machine.driver(0), 8_MiB);
  CHECK(free_bytes(machine.driver(0)) == 0);
  CHECK(free_bytes(machine.driver(1)) == 8_MiB);
  CHECK(machine.driver(0).destroy_pages(all).ok());
}

TEST_CASE("sim_machine lets other processes take device memory", "[driver][sim][memory][pages]") {
  auto const machine = small_machine(64_MiB);
  auto const driver = machine.driver();
  page_handle const ours = make_pages(driver, 16_MiB);
  machine.take_memory(0, 40_MiB);
  CHECK(free_bytes(driver) == 8_MiB);
  page_handle refused{};
  CHECK(driver.create_pages(10_MiB, refused).kind == failure::out_of_memory);
  machine.take_memory(0, 64_MiB);
  CHECK(free_bytes(driver) == 0);
  machine.take_memory(0, 0);
  machine.set_capacity(0, 8_MiB);
  CHECK(free_bytes(driver) == 0);
  machine.set_capacity(0, 20_MiB);
  CHECK(free_bytes(driver) == 4_MiB);
  REQUIRE(driver.destroy_pages(ours).ok());
}

TEST_CASE("sim_driver create_pages accepts only multiples of the granularity",
          "[driver][sim][memory][pages]") {
  auto const driver = small_machine(64_MiB).driver();
  page_handle handle{};
  CHECK(invalid(driver.create_pages(0, handle)));
  CHECK(invalid(driver.create_pages(1_MiB, handle)));
  CHECK(invalid(driver.create_pages(3_MiB, handle)));
  void* p = nullptr;
  CHECK(invalid(driver.reserve_range(0, 0, p)));
  CHECK(invalid(driver.reserve_range(3_MiB, 0, p)));
  CHECK(invalid(driver.reserve_range(4_MiB, 3, p)));
  handle = make_pages(driver, 2_MiB);
  char* const base = make_range(driver, 8_MiB);
  CHECK(invalid(driver.map_pages(base + 1_MiB, 2_MiB, handle)));
  CHECK(invalid(driver.map_pages(base, 1_MiB, handle)));
  CHECK(driver.map_pages(base + 2_MiB, 2_MiB, handle).ok());
}

TEST_CASE("sim_driver reserve_range honours the alignment", "[driver][sim][memory][pages]") {
  for (auto const backing : {sim_backing::address_only, sim_backing::host_backed}) {
    auto const driver = small_machine(64_MiB, backing).driver();
    for (std::size_t const alignment : {2_MiB, 64_MiB, 1_GiB}) {
      CHECK(is_aligned(make_range(driver, 2_MiB, alignment), alignment));
    }
  }
}

TEST_CASE("sim_driver map_pages accepts only whole handles in reserved, unmapped addresses",
          "[driver][sim][memory][pages]") {
  auto const driver = small_machine(64_MiB).driver();
  char* const base = make_range(driver, 16_MiB);
  page_handle const handle = make_pages(driver, 4_MiB);
  CHECK(invalid(driver.map_pages(base, 2_MiB, handle)));           // part of it
  CHECK(invalid(driver.map_pages(base, 6_MiB, handle)));           // more than the whole
  CHECK(invalid(driver.map_pages(base + 14_MiB, 4_MiB, handle)));  // over the end of the range
  CHECK(invalid(driver.map_pages(base + 16_MiB, 4_MiB, handle)));  // past the end
  CHECK(invalid(driver.map_pages(base - 4_MiB, 4_MiB, handle)));   // before the start
  CHECK(invalid(driver.map_pages(base, 4_MiB, handle + 100)));     // no such handle
  REQUIRE(driver.map_pages(base + 4_MiB, 4_MiB, handle).ok());
  CHECK(invalid(driver.map_pages(base + 4_MiB, 4_MiB, handle)));  // already mapped
  CHECK(invalid(driver.map_pages(base + 2_MiB, 4_MiB, handle)));  // overlaps its first half
  CHECK(invalid(driver.map_pages(base + 6_MiB, 4_MiB, handle)));  // overlaps its second half
  CHECK(driver.map_pages(base, 4_MiB, handle).ok());              // directly before it
  CHECK(driver.map_pages(base + 8_MiB, 4_MiB, handle).ok());      // directly after it
}

TEST_CASE("sim_driver treats adjacent reservations as separate ranges", "[driver][sim][memory][pages]") {
  auto const driver = small_machine(64_MiB).driver();
  char* a = make_range(driver, 2_MiB);
  char* b = make_range(driver, 2_MiB);
  if (b < a) std::swap(a, b);
  REQUIRE(b == a + 2_MiB);  // best fit makes them adjacent
  page_handle const handle = make_pages(driver, 4_MiB);
  CHECK(invalid(driver.map_pages(a, 4_MiB, handle)));
}

TEST_CASE("sim_driver unmap_pages undoes exactly one map", "[driver][sim][memory][pages]") {
  auto const driver = small_machine(64_MiB).driver();
  char* const base = make_range(driver, 16_MiB);
  page_handle const a = make_pages(driver, 4_MiB), b = make_pages(driver, 4_MiB);
  REQUIRE(driver.map_pages(base, 4_MiB, a).ok());
  REQUIRE(driver.map_pages(base + 4_MiB, 4_MiB, b).ok());
  CHECK(invalid(driver.unmap_pages(base, 2_MiB)));
  CHECK(invalid(driver.unmap_pages(base + 2_MiB, 2_MiB)));
  CHECK(invalid(driver.unmap_pages(base, 8_MiB)));
  CHECK(invalid(driver.unmap_pages(base + 8_MiB, 4_MiB)));
  CHECK(driver.unmap_pages(base, 4_MiB).ok());
  CHECK(invalid(driver.unmap_pages(base, 4_MiB)));
  CHECK(driver.unmap_pages(base + 4_MiB, 4_MiB).ok());
}

TEST_CASE("sim_driver keeps a destroyed handle's memory until its last unmap",
          "[driver][sim][memory][pages]") {
  auto const machine = small_machine(64_MiB);
  auto const driver = machine.driver();
  char* const base = make_range(driver, 16_MiB);
  page_handle const handle = make_pages(driver, 4_MiB);
  REQUIRE(driver.map_pages(base, 4_MiB, handle).ok());
  REQUIRE(driver.map_pages(base + 8_MiB, 4_MiB, handle).ok());
  REQUIRE(driver.destroy_pages(handle).ok());
  CHECK(invalid(driver.destroy_pages(handle)));
  CHECK(invalid(driver.map_pages(base + 4_MiB, 4_MiB, handle)));
  CHECK(machine.usage().used == 4_MiB);
  REQUIRE(driver.unmap_pages(base, 4_MiB).ok());
  CHECK(machine.usage().used == 4_MiB);
  CHECK(machine.leaks().handles == 1);
  REQUIRE(driver.unmap_pages(base + 8_MiB, 4_MiB).ok());
  CHECK(machine.usage().used == 0);
  CHECK(machine.leaks().handles == 0);
  CHECK(invalid(driver.destroy_pages(handle)));
}

#if defined(__linux__)
TEST_CASE("sim_machine charges memory until each handle of it is gone, imported ones included",
          "[driver][sim][memory][pages]") {
  sim_machine const machine{sim_options{.capacity = 64_MiB,
                                        .taken = 0,
                                        .backing = sim_backing::host_backed,
                                        .sharing = sim_sharing::descriptors}};
  auto const driver = machine.driver();
  page_handle made{}, imported[2] = {};
  page_export exported;
  exported.type = allocation_handle_type::posix_file_descriptor;
  REQUIRE(driver.create_pages(4_MiB, exported.type, made).ok());
  REQUIRE(driver.export_pages(made, exported).ok());
  for (page_handle& handle : imported) REQUIRE(driver.import_pages(exported, handle).ok());
  CHECK(::close(exported.descriptor) == 0);
  page_handle ended{};
  char* const base = make_range(driver, 2_MiB);
  REQUIRE(driver.create_pages(2_MiB, exported.type, ended).ok());
  REQUIRE(driver.map_pages(base, 2_MiB, ended).ok());
  REQUIRE(driver.destroy_pages(ended).ok());
  CHECK(invalid(driver.export_pages(ended, exported)));  // it lives while it is mapped, but has no handle
  REQUIRE(driver.unmap_pages(base, 2_MiB).ok());
  CHECK(invalid(driver.export_pages(ended, exported)));
  for (page_handle const handle : {made, imported[0], imported[1]}) {
    CHECK(machine.usage().used == 4_MiB);
    REQUIRE(driver.destroy_pages(handle).ok());
  }
  CHECK(machine.usage().used == 0);
}
#endif

TEST_CASE("sim_driver releases only whole, unmapped ranges", "[driver][sim][memory][pages]") {
  auto const machine = small_machine(64_MiB);
  auto const driver = machine.driver();
  char* const base = make_range(driver, 16_MiB);
  page_handle const handle = make_pages(driver, 2_MiB);
  REQUIRE(driver.map_pages(base + 2_MiB, 2_MiB, handle).ok());
  CHECK(invalid(driver.release_range(base, 16_MiB)));
  REQUIRE(driver.unmap_pages(base + 2_MiB, 2_MiB).ok());
  CHECK(invalid(driver.release_range(base, 8_MiB)));
  CHECK(invalid(driver.release_range(base + 8_MiB, 8_MiB)));
  CHECK(machine.leaks().ranges == 1);
  REQUIRE(driver.release_range(base, 16_MiB).ok());
  CHECK(invalid(driver.release_range(base, 16_MiB)));
  CHECK(invalid(driver.map_pages(base, 2_MiB, handle)));
  REQUIRE(driver.destroy_pages(handle).ok());
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sim_driver frees a block once, by the call of its kind", "[driver][sim][memory][memory_pools]") {
  auto const machine = small_machine(64_MiB);
  auto const driver = machine.driver();
  void *device = nullptr, *async = nullptr, *pinned = nullptr, *managed = nullptr;
  REQUIRE(driver.malloc_device(1000, device).ok());
  REQUIRE(driver.malloc_async(1000, {}, async).ok());
  REQUIRE(driver.malloc_pinned(1000, pinned).ok());
  REQUIRE(driver.malloc_managed(1000, managed).ok());
  CHECK(machine.leaks().blocks == 4);
  int foreign = 0;
  CHECK(invalid(driver.free_device(pinned)));
  CHECK(invalid(driver.free_device(static_cast<char*>(device) + 256)));
  CHECK(invalid(driver.free_device(&foreign)));
  CHECK(invalid(driver.free_pinned(device)));
  CHECK(invalid(driver.free_managed(pinned)));
  CHECK(invalid(driver.free_async(device, {})));
  CHECK(driver.unregister_host(pinned).code == 713);
  REQUIRE(driver.free_device(device).ok());
  CHECK(invalid(driver.free_device(device)));
  REQUIRE(driver.free_async(async, {}).ok());
  CHECK(invalid(driver.free_async(async, {})));
  REQUIRE(driver.free_pinned(pinned).ok());
  REQUIRE(driver.free_managed(managed).ok());
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sim_driver aligns small device blocks to 256 bytes and no more", "[driver][sim][memory]") {
  auto const driver = small_machine(64_MiB).driver();
  for (std::size_t const bytes : {1_KiB, 64_KiB, 1_MiB}) {
    void* p = nullptr;
    REQUIRE(driver.malloc_device(bytes, p).ok());
    CHECK(is_aligned(p, 256));
    CHECK_FALSE(is_aligned(p, 512));
  }
  void* p = nullptr;
  REQUIRE(driver.malloc_device(4_MiB, p).ok());
  CHECK(is_aligned(p, 2_MiB));
}

TEST_CASE("sim_driver returns null and uses no memory for zero bytes",
          "[driver][sim][memory][memory_pools]") {
  auto const machine = small_machine(64_MiB);
  int something = 0;
  void* p = &something;
  CHECK(machine.driver().malloc_device(0, p).ok());
  CHECK(p == nullptr);
  p = &something;
  CHECK(machine.driver().malloc_async(0, {}, p).ok());
  CHECK(p == nullptr);
  CHECK(machine.usage().used == 0);
}

TEST_CASE("sim_driver limits pinned and managed memory separately, as host memory", "[driver][sim][memory]") {
  sim_machine const machine{sim_options{.capacity = 2_MiB, .taken = 0, .host_capacity = 8_MiB}};
  auto const driver = machine.driver();
  void *a = nullptr, *b = nullptr, *c = nullptr;
  REQUIRE(driver.malloc_pinned(4_MiB, a).ok());
  REQUIRE(driver.malloc_managed(4_MiB, b).ok());
  CHECK(driver.malloc_pinned(1, c).kind == failure::out_of_memory);
  CHECK(driver.malloc_managed(1, c).kind == failure::out_of_memory);
  CHECK(free_bytes(driver) == 2_MiB);
  REQUIRE(driver.free_pinned(a).ok());
  CHECK(driver.malloc_managed(4_MiB, c).ok());
  REQUIRE(driver.free_managed(b).ok());
  REQUIRE(driver.free_managed(c).ok());
}

TEST_CASE("sim_driver reports out of memory for sizes near the end of size_t",
          "[driver][sim][memory][pages][memory_pools]") {
  for (auto const backing : {sim_backing::address_only, sim_backing::host_backed}) {
    auto const driver = small_machine(64_MiB, backing).driver();
    std::size_t const most = ~std::size_t{0};
    void* p = nullptr;
    page_handle handle{};
    CHECK(driver.malloc_device(most, p).kind == failure::out_of_memory);
    CHECK(driver.malloc_async(most, {}, p).kind == failure::out_of_memory);
    CHECK(driver.malloc_pinned(most, p).kind == failure::out_of_memory);
    CHECK(driver.create_pages(most - 2_MiB + 1, handle).kind == failure::out_of_memory);
    CHECK(driver.reserve_range(most - 2_MiB + 1, 0, p).kind == failure::out_of_memory);
    CHECK(driver.reserve_range(2_MiB, std::size_t{1} << 63, p).kind == failure::out_of_memory);
  }
}

TEST_CASE("sim_machine reserves 140 GiB and thousands of handles without host memory",
          "[driver][sim][memory][pages]") {
  sim_machine const machine{sim_options{.backing = sim_backing::address_only, .costs = sim_costs::nothing()}};
  auto const driver = machine.driver();
  char* const base = make_range(driver, 1_TiB);
  std::vector<page_handle> handles;
  std::size_t at = 0;
  bool all = true;
  for (page_handle handle{}; driver.create_pages(2_MiB, handle).ok(); at += 2_MiB) {
    all = driver.map_pages(base + at, 2_MiB, handle).ok() && all;
    handles.push_back(handle);
  }
  CHECK(at == 139_GiB);
  std::vector<char*> ranges;
  for (int i = 0; i < 1000; ++i) ranges.push_back(make_range(driver, 512_MiB));
  for (char* const range : ranges) all = driver.release_range(range, 512_MiB).ok() && all;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    all = driver.unmap_pages(base + i * 2_MiB, 2_MiB).ok() && driver.destroy_pages(handles[i]).ok() && all;
  }
  CHECK(all);
  REQUIRE(driver.release_range(base, 1_TiB).ok());
  CHECK(machine.leaks().total() == 0);
}

TEST_CASE("sim_machine returns its address ranges when it is destroyed", "[driver][sim][memory][pages]") {
  for (int i = 0; i < 200; ++i) {
    auto const driver = small_machine(64_MiB).driver();
    (void)make_range(driver, 4_TiB);  // 800 TiB in total, of 37
  }
}

#if defined(__linux__)

TEST_CASE("sim_machine host-backed pages keep their bytes when remapped", "[driver][sim][memory][pages]") {
  auto const driver = small_machine(64_MiB, sim_backing::host_backed).driver();
  char* const base = make_range(driver, 16_MiB);
  page_handle const handle = make_pages(driver, 2_MiB);
  REQUIRE(driver.map_pages(base, 2_MiB, handle).ok());
  REQUIRE(driver.map_pages(base + 4_MiB, 2_MiB, handle).ok());
  std::memset(base, 0x6B, 2_MiB);
  CHECK(base[4_MiB] == 0x6B);
  CHECK(base[6_MiB - 1] == 0x6B);
  base[4_MiB + 77] = 1;
  CHECK(base[77] == 1);
  REQUIRE(driver.unmap_pages(base, 2_MiB).ok());
  REQUIRE(driver.map_pages(base + 2_MiB, 2_MiB, handle).ok());
  CHECK(base[2_MiB + 77] == 1);
}

TEST_CASE("sim_machine gives each handle its own memory", "[driver][sim][memory][pages]") {
  auto const driver = small_machine(64_MiB, sim_backing::host_backed).driver();
  char* const base = make_range(driver, 16_MiB);
  for (std::size_t i = 0; i < 8; ++i) {
    REQUIRE(driver.map_pages(base + i * 2_MiB, 2_MiB, make_pages(driver, 2_MiB)).ok());
    std::memset(base + i * 2_MiB, static_cast<int>(i) + 1, 2_MiB);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(base[i * 2_MiB] == static_cast<char>(i + 1));
    CHECK(base[i * 2_MiB + 2_MiB - 1] == static_cast<char>(i + 1));
  }
}

TEST_CASE("sim_machine clears new pages", "[driver][sim][memory][pages]") {
  auto const driver = small_machine(2_MiB, sim_backing::host_backed).driver();
  char* const base = make_range(driver, 2_MiB);
  for (int round = 0; round < 2; ++round) {
    page_handle const handle = make_pages(driver, 2_MiB);
    REQUIRE(driver.map_pages(base, 2_MiB, handle).ok());
    CHECK(base[1000] == 0);
    base[1000] = 9;
    REQUIRE(driver.unmap_pages(base, 2_MiB).ok());
    REQUIRE(driver.destroy_pages(handle).ok());
  }
}

TEST_CASE("touching unmapped sim_machine memory faults", "[driver][sim][memory][pages]") {
  auto const driver = small_machine(64_MiB, sim_backing::host_backed).driver();
  char volatile* const base = make_range(driver, 16_MiB);
  page_handle const handle = make_pages(driver, 2_MiB);
  REQUIRE(driver.map_pages(const_cast<char*>(base), 2_MiB, handle).ok());
  CHECK_FALSE(dies([&] { base[0] = 1; }));
  CHECK_FALSE(dies([&] { base[2_MiB - 1] = 1; }));
  CHECK(dies([&] { base[2_MiB] = 1; }));
  REQUIRE(driver.unmap_pages(const_cast<char*>(base), 2_MiB).ok());
  CHECK(dies([&] { base[0] = 1; }));

  void* block = nullptr;
  REQUIRE(driver.malloc_device(1_MiB, block).ok());
  char volatile* const bytes = static_cast<char*>(block);
  CHECK_FALSE(dies([&] { bytes[1_MiB - 1] = 1; }));
  REQUIRE(driver.free_device(block).ok());
  CHECK(dies([&] { bytes[0] = 1; }));

  void* invented = nullptr;
  REQUIRE(small_machine(64_MiB).driver().malloc_device(1_MiB, invented).ok());
  char volatile* const nothing = static_cast<char*>(invented);
  CHECK(dies([&] { nothing[0] = 1; }));
}

#endif

TEST_CASE("sim_machine numbers physical bytes and reports those that are released", "[driver][sim][memory]") {
  sim_options const options{.capacity = 64_MiB, .taken = 0, .backing = sim_backing::address_only};
  detail::sim_memory memory(options);
  memory.watch_gone();
  void *p = nullptr, *q = nullptr, *base = nullptr;
  page_handle handle{};
  REQUIRE(memory.allocate(0, 1_MiB, detail::sim_kind::device, p) == detail::sim_code::ok);
  REQUIRE(memory.reserve(4_MiB, 0, base) == detail::sim_code::ok);
  REQUIRE(memory.create(0, 2_MiB, allocation_handle_type::none, handle) == detail::sim_code::ok);
  REQUIRE(memory.map(base, 2_MiB, handle) == detail::sim_code::ok);
  REQUIRE(memory.allocate(0, 1_MiB, detail::sim_kind::device, q) == detail::sim_code::ok);
  std::vector<detail::sim_memory::piece> pieces;
  auto const note = [&](detail::sim_memory::piece piece) { pieces.push_back(piece); };
  REQUIRE(memory.each_piece(p, 1_MiB, note));
  REQUIRE(memory.each_piece(base, 2_MiB, note));
  REQUIRE(memory.each_piece(q, 1_MiB, note));
  REQUIRE(pieces.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      bool const apart = pieces[i].key >= pieces[j].key + pieces[j].bytes ||
                         pieces[j].key >= pieces[i].key + pieces[i].bytes;
      CHECK(apart);
    }
  }
  std::size_t gone = 0;
  auto const count = [&](detail::sim_memory::piece piece) { gone += piece.bytes; };
  memory.drain_gone(count);
  CHECK(gone == 0);
  REQUIRE(memory.release(p, detail::sim_kind::device) == detail::sim_code::ok);
  REQUIRE(memory.destroy(handle) == detail::sim_code::ok);
  memory.drain_gone(count);
  CHECK(gone == 1_MiB);
  REQUIRE(memory.unmap(base, 2_MiB) == detail::sim_code::ok);
  memory.drain_gone(count);
  CHECK(gone == 3_MiB);
}

// Under a sanitizer the host's memory cannot be limited.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TARN_TEST_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#undef TARN_TEST_SANITIZED
#define TARN_TEST_SANITIZED
#endif
#if defined(__linux__) && !defined(TARN_TEST_SANITIZED)
namespace {
/// The host has no memory meanwhile.
class no_host_memory {
 public:
  no_host_memory() {
    REQUIRE(::getrlimit(RLIMIT_AS, &before_) == 0);
    rlimit const low{1, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_AS, &low) == 0);
    for (std::size_t bytes = 1_MiB; bytes >= sizeof(void*); bytes = bytes > 1024 ? bytes / 2 : bytes - 8) {
      while (void* const p = std::malloc(bytes)) taken_ = ::new (p) void*(taken_);
    }
  }
  no_host_memory(no_host_memory const&) = delete;
  no_host_memory& operator=(no_host_memory const&) = delete;
  ~no_host_memory() {
    while (taken_ != nullptr) std::free(std::exchange(taken_, *static_cast<void**>(taken_)));
    (void)::setrlimit(RLIMIT_AS, &before_);
  }

 private:
  rlimit before_{};
  void* taken_ = nullptr;
};
}  // namespace

TEST_CASE("sim_driver frees a block where the host has no memory", "[driver][sim][memory][no_emulator]") {
  sim_machine const machine = small_machine(1_GiB);
  sim_driver const driver = machine.driver();
  void* blocks[3]{};
  for (void*& p : blocks) REQUIRE(driver.malloc_device(1_MiB, p).ok());
  bool freed = true;
  {
    no_host_memory const none;
    for (int const i : {1, 0, 2}) freed = driver.free_device(blocks[i]).ok() && freed;
  }
  CHECK(freed);
  CHECK(free_bytes(driver) == 1_GiB);
  CHECK(machine.leaks().blocks == 0);
}
#endif
