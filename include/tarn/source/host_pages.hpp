// SPDX-License-Identifier: Apache-2.0
#pragma once
// host_pages: the host's own memory in pages: mapped, bound to a NUMA node and touched. System calls only, no
// libnuma.

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/host_page.hpp"
#include "tarn/core/min_max.hpp"

namespace TARN_NAMESPACE::detail {

inline constexpr std::size_t huge_page = 2_MiB;

/// A stretch of private memory in whole pages. Reports failures as a status, for a source to act on.
struct host_pages {
  std::size_t bytes = 0;
  std::size_t alignment = host_page_bytes();  ///< of the first page; a power of two

  /// Below this, bytes, one thread touches the pages: starting another costs as much as clearing 1 MiB.
  static constexpr std::size_t worth_threads = 64_MiB;
  /// Number of NUMA nodes that can be named.
  static constexpr int most_nodes = 1024;

  [[nodiscard]] status map(void*& p) const noexcept {
    // The host aligns only to its page: map more, and unmap the surplus before and after.
    std::size_t const spare = alignment > host_page_bytes() ? alignment : 0;
    void* const all =
        ::mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return failed("mmap", errno);
    auto const begin = reinterpret_cast<std::uintptr_t>(all);
    std::uintptr_t const aligned = align_up(begin, alignment);
    if (aligned != begin) (void)::munmap(all, aligned - begin);
    std::size_t const behind = begin + bytes + spare - (aligned + bytes);
    if (behind != 0) (void)::munmap(reinterpret_cast<void*>(aligned + bytes), behind);
    p = reinterpret_cast<void*>(aligned);
    return {};
  }
  /// Maps pages that the administrator reserved; they are aligned to their own size.
  [[nodiscard]] status map_reserved_huge(void*& p) const noexcept {
    constexpr int of_2_mib = 21 << MAP_HUGE_SHIFT;
    void* const all = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | of_2_mib, -1, 0);
    if (all == MAP_FAILED) return failed("mmap (too few reserved huge pages; raise vm.nr_hugepages)", errno);
    p = all;
    return {};
  }
  /// Requests huge pages; a host without them provides usual ones.
  void advise_huge(void* p) const noexcept { (void)::madvise(p, bytes, MADV_HUGEPAGE); }

  /// Binds the pages to one NUMA node; call it before they are touched.
  [[nodiscard]] status bind(void* p, int node) const noexcept {
    constexpr char const* call = "mbind (the NUMA node does not exist or is not permitted; omit numa_node)";
    constexpr int word = 8 * sizeof(unsigned long);
    if (node < 0 || node >= most_nodes) return {failure::unsupported, EINVAL, "EINVAL", call};
    unsigned long nodes[most_nodes / word]{};
    nodes[node / word] = 1UL << (node % word);
    constexpr int bind_policy = 2;  // MPOL_BIND of <linux/mempolicy.h>
    // The kernel reads one bit less than the given number.
    if (::syscall(SYS_mbind, p, bytes, bind_policy, nodes, most_nodes + 1UL, 0U) == 0) return {};
    return {failure::unsupported, errno, name_of_error(errno), call};
  }

  /// Makes the host provide every page now. @param threads  0: one per processor, up to 16
  [[nodiscard]] status touch(void* p, unsigned threads) const noexcept {
    auto* const first = static_cast<std::byte*>(p);
    std::atomic<int> error{0};
    auto const part = [first, &error](std::size_t from, std::size_t to) {
      if (int const e = populate(first + from, to - from); e != 0) error.store(e, std::memory_order_relaxed);
    };
    if (threads == 0) threads = min_of(max_of(std::thread::hardware_concurrency(), 1U), 16U);
    if (bytes < worth_threads) threads = 1;
    // Whole huge pages for each thread, so that no two threads wait for the same one to be cleared.
    std::size_t const share = align_up((bytes + threads - 1) / threads, huge_page);
    std::vector<std::thread> others;
    std::size_t from = share;
    try {
      others.reserve(threads);
      for (; from < bytes; from += share) others.emplace_back(part, from, min_of(from + share, bytes));
    } catch (...) {
      part(from, bytes);  // no further thread could start: this one touches the rest
    }
    part(0, min_of(share, bytes));
    for (std::thread& t : others) t.join();
    if (error == 0) return {};
    return {failure::out_of_memory, error, name_of_error(error),
            "madvise (the host or the NUMA node has no free page left)"};
  }

  void unmap(void* p) const noexcept { (void)::munmap(p, bytes); }

 private:
  /// Returns 0 or errno. Writing to a page that the host cannot provide would end the program (SIGBUS, when
  /// the reserved pages of a node run out); madvise reports it as an error instead, from Linux 5.14 on.
  [[nodiscard]] static int populate(std::byte* p, std::size_t length) noexcept {
    constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, which older headers lack
    int result = 0;
    do {
      result = ::madvise(p, length, populate_write);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) return 0;
    if (errno != EINVAL) return errno;
    for (std::size_t at = 0; at < length; at += host_page_bytes()) {
      *static_cast<std::byte volatile*>(p + at) = std::byte{};
    }
    return 0;
  }
  [[nodiscard]] static char const* name_of_error(int error) noexcept {
    return error == ENOMEM   ? "ENOMEM"
           : error == EINVAL ? "EINVAL"
           : error == EFAULT ? "EFAULT"
                             : "refused by the host";
  }
  [[nodiscard]] static status failed(char const* call, int error) noexcept {
    failure const kind = error == ENOMEM || error == EAGAIN ? failure::out_of_memory : failure::other;
    return {kind, error, name_of_error(error), call};
  }
};

}  // namespace TARN_NAMESPACE::detail
