// SPDX-License-Identifier: Apache-2.0
#pragma once
// registered_host: pinned memory made of the host's own pages, which several threads touch before the driver
// registers them.

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tarn/core/bytes.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/host_page.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/source/block_source.hpp"
#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE {

namespace detail {

// The host's own memory in pages: mapped, bound to a NUMA node and touched. System calls only, no
// libnuma.

/// What huge blocks are multiples of, and the size of reserved pages. A host with pages of 64 KiB has such
/// pages, too, but its transparent ones of 512 MiB: a block gets one only where it has all of it.
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
  /// Maps pages of 2 MiB that the administrator reserved; they are aligned to their own size.
  [[nodiscard]] status map_reserved_huge(void*& p) const noexcept {
    constexpr int of_2_mib = 21 << MAP_HUGE_SHIFT;
    void* const all = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | of_2_mib, -1, 0);
    if (all == MAP_FAILED) {
      return failed("mmap (too few reserved pages of 2 MiB; raise hugepages-2048kB/nr_hugepages)", errno);
    }
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

}  // namespace detail

/// The pages of registered memory.
enum class host_page_size : std::uint8_t {
  usual,         ///< the host's own, mostly 4 KiB
  huge,          ///< 2 MiB if the host has them (transparent huge pages), usual ones otherwise
  reserved_huge  ///< 2 MiB from those that the administrator reserved (in
                 ///< /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages); refused if there are none
};

struct registered_options {
  host_page_size pages = host_page_size::huge;
  /// NUMA node that all pages come from; any_node leaves the choice to the host. The node that the device is
  /// attached to (nvidia-smi topo -m) copies fastest.
  int numa_node = any_node;
  /// Threads that touch the pages of blocks of 64 MiB and more; 0: as many as there are processors, up to 16.
  unsigned threads = 0;

  static constexpr int any_node = -1;
  friend bool operator==(registered_options const&, registered_options const&) = default;
};

/// mmap, madvise, mbind, and the driver's register_host.
struct registered_calls {
  using properties = property_set<device_accessible, host_accessible>;
  static constexpr char const* backend = "cudaHostRegister";
  static constexpr std::size_t block_alignment = max_alignment;
  static constexpr bool gives_at_once = true;
  registered_options options;

  template <registering_driver D>
  status take(D const& driver, std::size_t bytes, std::size_t alignment, void*& p) const noexcept {
    detail::host_pages const pages = {.bytes = mapped_bytes(bytes), .alignment = alignment_of(alignment)};
    void* mapped = nullptr;
    status s =
        options.pages == host_page_size::reserved_huge ? pages.map_reserved_huge(mapped) : pages.map(mapped);
    if (!s.ok()) return s;
    if (options.pages == host_page_size::huge) pages.advise_huge(mapped);
    if (options.numa_node != registered_options::any_node) s = pages.bind(mapped, options.numa_node);
    if (s.ok()) s = pages.touch(mapped, options.threads);
    if (s.ok()) s = driver.register_host(mapped, pages.bytes);
    if (s.ok()) {
      p = mapped;
    } else {
      pages.unmap(mapped);
    }
    return s;
  }
  /// Memory that the driver failed to unregister stays mapped: a device may still access it.
  template <registering_driver D>
  status give(D const& driver, void* p, std::size_t bytes, std::size_t) const noexcept {
    status const s = driver.unregister_host(p);
    if (s.ok() || s.kind == failure::unloading) detail::host_pages{.bytes = mapped_bytes(bytes)}.unmap(p);
    return s;
  }

 private:
  [[nodiscard]] std::size_t page_bytes() const noexcept {
    return options.pages == host_page_size::usual ? detail::host_page_bytes() : detail::huge_page;
  }
  [[nodiscard]] std::size_t mapped_bytes(std::size_t bytes) const noexcept {
    return align_up(bytes, page_bytes());
  }
  [[nodiscard]] std::size_t alignment_of(std::size_t alignment) const noexcept {
    return alignment > page_bytes() ? alignment : page_bytes();
  }
};

/// Pinned host memory, portable, in whole pages: with huge ones every block is a multiple of 2 MiB, so pool
/// it. Takes 168 ms per GiB with huge pages, where pinned_host takes 430 to 490: several threads clear the
/// pages, and fewer pages have to be pinned. Aligned to the page. Exhausted memory is reported as
/// out_of_memory; a node that is missing or not allowed as cuda_error of kind `unsupported`. Linux.
template <registering_driver D>
class basic_registered : public block_source<D, registered_calls> {
 public:
  using base = block_source<D, registered_calls>;
  basic_registered()
    requires std::default_initializable<D>
  = default;
  /// On one device.
  explicit basic_registered(device_id device, registered_options options = {})
    requires std::constructible_from<D, device_id>
      : base(D(device), registered_calls{options}) {}
  /// On the driver's default device, or on a given driver.
  explicit basic_registered(registered_options options)
    requires std::default_initializable<D>
      : base(D{}, registered_calls{options}) {}
  explicit basic_registered(D driver, registered_options options = {}) noexcept
      : base(std::move(driver), registered_calls{options}) {}
};

#if TARN_HAS_CUDA
using registered_host = basic_registered<cuda_driver>;
static_assert(resource<registered_host>);
#endif

}  // namespace TARN_NAMESPACE
