// SPDX-License-Identifier: Apache-2.0
// Memory on a host with pages of 64 KiB, as some with ARM processors have: this program defines the system
// calls, which refuse there what is not a multiple of a page. A program of its own, since all of it has such
// pages.
#include "tarn/core/host_page.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "catch.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/registered_host.hpp"

namespace {

constexpr std::size_t page = 64 * 1024;
std::atomic<unsigned> refused{0};
std::atomic<std::int64_t> mapped{0};  // bytes
std::atomic<int> reserved_size{
    0};  // of the reserved pages that were asked for last: its logarithm, or 0 for the host's default

bool is_page(std::uintptr_t value) {
  if (value % page == 0) return true;
  ++refused;
  errno = EINVAL;
  return false;
}
std::size_t whole(std::size_t length) {
  return (length + page - 1) / page * page;
}
void unmap(std::uintptr_t begin, std::size_t length) {
  if (length != 0) (void)::syscall(SYS_munmap, begin, length);
}

}  // namespace

extern "C" long sysconf(int name) noexcept {
  if (name == _SC_PAGESIZE) return static_cast<long>(page);
  static auto* const real = reinterpret_cast<long (*)(int)>(::dlsym(RTLD_NEXT, "sysconf"));
  return real(name);
}
extern "C" void* mmap(void* at, std::size_t length, int protection, int flags, int file,
                      off_t offset) noexcept {
  if (!is_page(static_cast<std::uintptr_t>(offset))) return MAP_FAILED;
  if ((flags & MAP_HUGETLB) != 0) {
    reserved_size = flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK;
    errno = ENOMEM;
    return MAP_FAILED;
  }
  bool const fixed = (flags & MAP_FIXED) != 0;
  if (fixed && !is_page(reinterpret_cast<std::uintptr_t>(at))) return MAP_FAILED;
  length = whole(length);
  std::size_t const spare = fixed ? 0 : page;
  long const made = ::syscall(SYS_mmap, at, length + spare, protection, flags, file, offset);
  if (made == -1) return MAP_FAILED;
  auto const begin = static_cast<std::uintptr_t>(made);
  std::uintptr_t const first = whole(begin);
  unmap(begin, first - begin);
  unmap(first + length, begin + spare - first);
  if (!fixed) mapped += static_cast<std::int64_t>(length);
  return reinterpret_cast<void*>(first);
}
extern "C" int munmap(void* at, std::size_t length) noexcept {
  if (!is_page(reinterpret_cast<std::uintptr_t>(at))) return -1;
  mapped -= static_cast<std::int64_t>(whole(length));
  return static_cast<int>(::syscall(SYS_munmap, at, whole(length)));
}
extern "C" int madvise(void* at, std::size_t length, int advice) noexcept {
  if (!is_page(reinterpret_cast<std::uintptr_t>(at))) return -1;
  return static_cast<int>(::syscall(SYS_madvise, at, length, advice));
}

using namespace tarn;

TEST_CASE("registered_host maps and unmaps whole pages of 64 KiB", "[source][registered_host][host_page]") {
  REQUIRE(tarn::detail::host_page_bytes() == page);
  sim_machine const machine;
  for (host_page_size const pages : {host_page_size::usual, host_page_size::huge}) {
    sim_registered_host memory(machine.driver(), registered_options{.pages = pages});
    for (std::size_t const bytes : {std::size_t{5000}, std::size_t{65_MiB} + 1}) {
      for (std::size_t alignment = 256; alignment <= 2_MiB; alignment *= 2) {
        std::int64_t const before = mapped;
        void* const p = memory.allocate_sync(bytes, alignment);
        CHECK(is_aligned(p, alignment));
        CHECK(is_aligned(p, page));
        std::memset(p, 1, bytes);
        memory.deallocate_sync(p, bytes, alignment);
        CHECK(mapped == before);
      }
    }
  }
  CHECK(machine.leaks().total() == 0);
  CHECK(refused == 0);
}

// Its default size is 512 MiB.
TEST_CASE("registered_host asks for reserved pages of 2 MiB on a host with pages of 64 KiB",
          "[source][registered_host][host_page]") {
  sim_machine const machine;
  sim_registered_host memory(machine.driver(), registered_options{.pages = host_page_size::reserved_huge});
  CHECK_THROWS_AS(memory.allocate_sync(3_MiB), out_of_memory);
  CHECK(reserved_size == 21);
  CHECK(refused == 0);
}

TEST_CASE("simulated devices have memory on a host with pages of 64 KiB", "[driver][sim][host_page]") {
  std::int64_t const before = mapped;
  {
    sim_machine const machine;
    auto const use = [&](auto memory) {
      std::vector<unsigned char*> blocks;
      for (std::size_t const bytes : {1U, 300U, 5000U, 70'000U, 3'000'000U}) {
        blocks.push_back(static_cast<unsigned char*>(memory.allocate_sync(bytes)));
        std::memset(blocks.back(), static_cast<int>(blocks.size()), bytes);
      }
      std::size_t wrong = 0, at = 0;
      for (std::size_t const bytes : {1U, 300U, 5000U, 70'000U, 3'000'000U}) {
        unsigned char const* const p = blocks[at++];
        wrong += p[0] != at || p[bytes - 1] != at ? 1U : 0U;
        memory.deallocate_sync(blocks[at - 1], bytes);
      }
      CHECK(wrong == 0);
    };
    use(sim_malloc{machine.driver()});
    use(sim_pinned_host{machine.driver()});
    use(sim_pages{machine.driver()} | pooled{});
    CHECK(machine.leaks().blocks == 0);
  }
  CHECK(mapped == before);
  CHECK(refused == 0);
}
