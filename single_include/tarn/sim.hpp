// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/sim.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/sim.hpp
// The simulated device, for tests and for machines without a GPU. Opt-in, since it takes long to compile. In
// a program that is compiled without CUDA, device_pool, stream, cuda_pages and the other names of CUDA's
// types mean the simulated device.

// ---- tarn/source/sim_sources.hpp
// The sources on the simulated device: the same code as on CUDA, on a driver in plain C++. They are in a
// header of their own, since the simulated device is slow to compile.

// ---- tarn/driver/sim/sim_driver.hpp
// The driver of one simulated device: the whole contract in plain C++, deterministic, with CUDA's rules and
// error numbers.
//
// Over 400 lines: one short function for each call of the driver contract (driver.hpp).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

// ---- tarn/driver/meminfo.hpp
#ifndef TARN_SINGLE_DRIVER_MEMINFO_HPP
#define TARN_SINGLE_DRIVER_MEMINFO_HPP
// The free memory of an integrated GPU, which shares the host's memory: what the host reports as available in
// /proc/meminfo.

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#endif

#include <cstddef>
#include <string_view>

namespace TARN_NAMESPACE::detail {

/// Corrects what the driver of an integrated GPU reports as free: it counts the host's page cache as used,
/// though an allocation gets that memory. Takes the line MemAvailable of `meminfo`, at most `total`. Leaves
/// `free` as it is if there is no such line or it is not a number of kB.
constexpr void use_available(std::string_view meminfo, std::size_t total, std::size_t& free) noexcept {
  constexpr std::string_view name = "\nMemAvailable:";
  std::size_t at = meminfo.find(name);
  if (at == std::string_view::npos) return;
  at = meminfo.find_first_not_of(' ', at + name.size());
  std::size_t const digits = at;
  std::size_t const most = total / 1024;  // a larger number is not read on, so that it cannot overflow
  std::size_t kib = 0;
  for (; at < meminfo.size() && meminfo[at] >= '0' && meminfo[at] <= '9'; ++at) {
    if (kib <= most) kib = kib * 10 + static_cast<std::size_t>(meminfo[at] - '0');
  }
  if (at == digits || !meminfo.substr(at).starts_with(" kB\n")) return;
  free = kib <= most ? kib * 1024 : total;
}

/// The same with the system's /proc/meminfo; leaves `free` as it is where there is none, as in some
/// containers. Opens and reads the file. Not the limit of a container's own memory, which the kernel keeps
/// elsewhere.
inline void use_available([[maybe_unused]] std::size_t total, [[maybe_unused]] std::size_t& free) noexcept {
#if defined(__linux__)
  int const file = ::open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  char text[512];  // the line is the third
  auto const length = ::read(file, text, sizeof text);
  (void)::close(file);
  if (length > 0) use_available({text, static_cast<std::size_t>(length)}, total, free);
#endif
}

}  // namespace TARN_NAMESPACE::detail
#endif  // TARN_SINGLE_DRIVER_MEMINFO_HPP
// ---- tarn/driver/sim/sim_account.hpp
// The simulated NVML: a device's memory by process.

#include <cstddef>

// ---- tarn/driver/sim/sim_memory.hpp
// The simulated GPU's memory: capacity to the byte, blocks, and pages under the rules of CUDA's virtual
// memory management. Independent of time and streams.
//
// Over 400 lines: one function for each of CUDA's memory calls, over one map of addresses.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

// ---- tarn/core/host_page.hpp
#ifndef TARN_SINGLE_CORE_HOST_PAGE_HPP
#define TARN_SINGLE_CORE_HOST_PAGE_HPP
// host_page_bytes(): the size of the host's pages.

#include <unistd.h>

#include <cstddef>

namespace TARN_NAMESPACE::detail {

/// Bytes: 4 KiB on most hosts, 16 or 64 KiB on some with ARM processors. System calls refuse addresses that
/// are not multiples.
[[nodiscard]] inline std::size_t host_page_bytes() noexcept {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace TARN_NAMESPACE::detail
#endif  // TARN_SINGLE_CORE_HOST_PAGE_HPP
// ---- tarn/driver/sim/sim_backing.hpp
// Address space and memory of the simulated GPU: invented addresses that must not be accessed, or reserved
// address space of this process that is backed by real pages on demand.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <new>
#include <set>
#include <string_view>
#include <utility>
#include <vector>
#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

// ---- tarn/core/descriptor.hpp
#ifndef TARN_SINGLE_CORE_DESCRIPTOR_HPP
#define TARN_SINGLE_CORE_DESCRIPTOR_HPP
// unique_descriptor: a unique owner of a file descriptor.

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace TARN_NAMESPACE {

/// Owns a file descriptor and closes it. Move-only; a moved-from owner is empty.
class unique_descriptor {
 public:
  unique_descriptor() noexcept = default;
  explicit unique_descriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  unique_descriptor(unique_descriptor&& other) noexcept : descriptor_(other.release()) {}
  unique_descriptor& operator=(unique_descriptor&& other) noexcept {
    unique_descriptor(std::move(other)).swap(*this);
    return *this;
  }
  ~unique_descriptor() {
    if (descriptor_ >= 0) (void)::close(descriptor_);
  }

  void swap(unique_descriptor& other) noexcept { std::swap(descriptor_, other.descriptor_); }
  /// -1 if it owns none.
  [[nodiscard]] int get() const noexcept { return descriptor_; }
  /// Releases ownership without closing.
  [[nodiscard]] int release() noexcept { return detail::exchange(descriptor_, -1); }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  /// A program that this process starts does not get the descriptor.
  void close_on_exec() const noexcept {
    if (descriptor_ >= 0) (void)::fcntl(descriptor_, F_SETFD, FD_CLOEXEC);
  }

 private:
  int descriptor_ = -1;
};

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_CORE_DESCRIPTOR_HPP

namespace TARN_NAMESPACE {

/// The backing of simulated device memory.
enum class sim_backing : std::uint8_t {
  /// None: addresses that must not be dereferenced. 140 GiB and more cost nothing on any machine.
  address_only,
  /// Memory of this host, committed on first access. On Linux, pages alias as on a GPU (a handle mapped at
  /// two addresses is the
  /// same memory) and unmapped addresses fault; other systems have blocks only.
  host_backed
};

namespace detail {

#if defined(__linux__)
inline constexpr bool sim_can_map = true;
#else
inline constexpr bool sim_can_map = false;
#endif

/// Free ranges of integers (addresses, file offsets): best fit, coalescing. O(log n), plus the ranges skipped
/// because of alignment.
class sim_ranges {
 public:
  /// Takes `bytes` at a multiple of `alignment`; returns false if no range fits.
  bool take(std::size_t bytes, std::size_t alignment, std::uintptr_t& begin) {
    for (auto it = by_size_.lower_bound({bytes, 0}); it != by_size_.end(); ++it) {
      auto const [size, start] = *it;
      std::uintptr_t const aligned = align_up(start, alignment);
      if (aligned - start > size - bytes) continue;
      by_size_.erase(it);
      by_begin_.erase(start);
      if (aligned != start) insert(start, aligned - start);
      if (aligned + bytes != start + size) insert(aligned + bytes, start + size - aligned - bytes);
      begin = aligned;
      return true;
    }
    return false;
  }

  /// Frees a range, or adds a new one.
  void give(std::uintptr_t begin, std::size_t bytes) noexcept {
    auto next = by_begin_.lower_bound(begin);
    if (next != by_begin_.begin()) {
      if (auto before = std::prev(next); before->first + before->second == begin) {
        begin = before->first;
        bytes += before->second;
        by_size_.erase({before->second, before->first});
        by_begin_.erase(before);
      }
    }
    if (next != by_begin_.end() && begin + bytes == next->first) {
      bytes += next->second;
      by_size_.erase({next->second, next->first});
      by_begin_.erase(next);
    }
    insert(begin, bytes);
  }

 private:
  /// Without host memory the addresses are lost: what frees them must not fail.
  void insert(std::uintptr_t begin, std::size_t bytes) noexcept {
    try {
      by_begin_.emplace(begin, bytes);
      by_size_.emplace(bytes, begin);
    } catch (...) {
      by_begin_.erase(begin);
    }
  }
  std::map<std::uintptr_t, std::size_t> by_begin_;
  std::set<std::pair<std::size_t, std::uintptr_t>> by_size_;
};

/// The process's invented addresses, shared by all simulated machines so that no two use an address at the
/// same time: 37 TiB in which no 64-bit system places programs, stacks or mmap, nor sanitizers their shadow
/// memory (so an access faults under them, too). Never destroyed.
struct sim_invented_space {
  fork_mutex mutex;
  sim_ranges free;
  sim_invented_space() {
    free.give(std::uintptr_t{0x2000} << 32, std::size_t{0x1000} << 32);
    free.give(std::uintptr_t{0x4000} << 32, std::size_t{0x1500} << 32);
  }
  static sim_invented_space& of_process() {
    static auto* const space = new sim_invented_space;
    return *space;
  }
};

/// Address space of one kind, grown in chunks and released on destruction.
class sim_addresses {
 public:
  explicit sim_addresses(sim_backing backing) noexcept : backing_(backing) {}
  sim_addresses& operator=(sim_addresses&&) = delete;
  ~sim_addresses() {
    for (auto const& [begin, bytes] : chunks_) give_back_chunk(begin, bytes);
  }

  /// Takes addresses without backing; returns false if the process has no more.
  bool take(std::size_t bytes, std::size_t alignment, std::uintptr_t& begin) {
    if (bytes > max_span || alignment > max_span) return false;
    if (!is_mapped()) return take_block(bytes, alignment, begin);
    if (free_.take(bytes, alignment, begin)) return true;
    std::size_t chunk = bytes + alignment;
    if (chunk < smallest_chunk) chunk = smallest_chunk;
    return grow(align_up(chunk, 2_MiB)) && free_.take(bytes, alignment, begin);
  }
  void give(std::uintptr_t begin, std::size_t bytes, [[maybe_unused]] std::size_t alignment) {
    if (is_mapped()) {
      free_.give(begin, bytes);
    } else {
      ::operator delete(reinterpret_cast<void*>(begin), std::align_val_t{alignment});
    }
  }

  /// Backs addresses with private zeroed memory; returns false if the process has none.
  bool commit([[maybe_unused]] std::uintptr_t begin, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__)
    if (backing_ == sim_backing::host_backed) {
      return place(begin, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
#endif
    return true;
  }
  /// Maps `bytes` of a file at addresses, shared with every other mapping of the same bytes.
  bool show([[maybe_unused]] std::uintptr_t begin, [[maybe_unused]] std::size_t bytes,
            [[maybe_unused]] int file, [[maybe_unused]] std::uintptr_t offset) noexcept {
#if defined(__linux__)
    if (backing_ == sim_backing::host_backed) {
      return place(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<::off_t>(offset));
    }
#endif
    return true;
  }
  /// Removes the backing of addresses: an access faults.
  void decommit([[maybe_unused]] std::uintptr_t begin, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__)
    if (backing_ == sim_backing::host_backed) {
      (void)place(begin, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
#endif
  }

 private:
  static constexpr std::size_t smallest_chunk = 64_GiB;
  static constexpr std::size_t max_span = 32_TiB;

  /// Returns false if addresses are heap blocks, allocated and freed whole.
  [[nodiscard]] bool is_mapped() const noexcept {
    return sim_can_map || backing_ == sim_backing::address_only;
  }
  static bool take_block(std::size_t bytes, std::size_t alignment, std::uintptr_t& begin) noexcept {
    void* const p = ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
    begin = reinterpret_cast<std::uintptr_t>(p);
    return p != nullptr;
  }

  bool grow(std::size_t bytes) {
    chunks_.reserve(chunks_.size() + 1);
    std::uintptr_t begin = 0;
    if (backing_ == sim_backing::address_only) {
      auto& space = sim_invented_space::of_process();
      scoped_lock const lock(space.mutex);
      if (!space.free.take(bytes, 2_MiB, begin)) return false;
    } else {
#if defined(__linux__)
      void* const p = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) return false;
      begin = reinterpret_cast<std::uintptr_t>(p);
#endif
    }
    chunks_.emplace_back(begin, bytes);
    free_.give(begin, bytes);
    return true;
  }
  void give_back_chunk(std::uintptr_t begin, std::size_t bytes) noexcept {
    if (backing_ == sim_backing::address_only) {
      auto& space = sim_invented_space::of_process();
      scoped_lock const lock(space.mutex);
      space.free.give(begin, bytes);
    } else {
#if defined(__linux__)
      (void)::munmap(reinterpret_cast<void*>(begin), bytes);
#endif
    }
  }

#if defined(__linux__)
  static bool place(std::uintptr_t begin, std::size_t bytes, int protection, int flags, int file,
                    ::off_t offset) noexcept {
    void* const at = reinterpret_cast<void*>(begin);
    return ::mmap(at, bytes, protection, flags | MAP_FIXED | MAP_NORESERVE, file, offset) == at;
  }
#endif

  sim_backing backing_;
  sim_ranges free_;
  std::vector<std::pair<std::uintptr_t, std::size_t>> chunks_;
};

/// The memory of one page handle that other processes can import: a file of its own, so that it lives as long
/// as a process has a descriptor or a mapping of it. Sparse, so with address_only backing it costs a
/// descriptor and no memory.
class sim_shared_file {
 public:
  /// Returns false if the host has no descriptor left.
  bool create([[maybe_unused]] std::size_t bytes) noexcept {
#if defined(__linux__)
    file_ = unique_descriptor(::memfd_create("tarn_sim_pages", MFD_CLOEXEC));
    if (!file_ || ::ftruncate(file_.get(), static_cast<::off_t>(bytes)) != 0) return false;
    struct ::stat facts {};
    if (::fstat(file_.get(), &facts) == 0) identity_ = facts.st_ino;
#endif
    return exists();
  }
  /// Opens a descriptor from another process, which stays the caller's; returns false if it is not one of
  /// such a file.
  bool open([[maybe_unused]] int descriptor, [[maybe_unused]] std::size_t& bytes) noexcept {
#if defined(__linux__)
    char link[32];
    (void)std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    char target[64];
    ::ssize_t const length = ::readlink(link, target, sizeof target);
    std::string_view const name(target, length < 0 ? 0 : static_cast<std::size_t>(length));
    struct ::stat facts {};
    if (!name.starts_with("/memfd:tarn_sim_pages") || ::fstat(descriptor, &facts) != 0) return false;
    file_ = unique_descriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    identity_ = facts.st_ino;
    bytes = static_cast<std::size_t>(facts.st_size);
#endif
    return exists();
  }
  /// A new descriptor, which the caller closes; -1 if the host has none left.
  [[nodiscard]] int duplicate() const noexcept {
#if defined(__linux__)
    return ::fcntl(descriptor(), F_DUPFD_CLOEXEC, 0);
#else
    return -1;
#endif
  }
  /// The same number for all descriptors of one file; 0: there is none.
  [[nodiscard]] std::uint64_t identity() const noexcept { return identity_; }
  [[nodiscard]] bool exists() const noexcept { return static_cast<bool>(file_); }
  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }

 private:
  unique_descriptor file_;
  std::uint64_t identity_ = 0;
};

/// The memory of page handles: one sparse memory file that can be mapped at several addresses. With
/// address_only backing it only counts.
class sim_file {
 public:
  explicit sim_file(sim_backing backing) noexcept : backing_(backing) {}

  /// Allocates space; returns false if the host has none.
  bool take(std::size_t bytes, std::uintptr_t& offset) {
    if (free_.take(bytes, 1, offset)) return true;
#if defined(__linux__)
    if (backing_ == sim_backing::host_backed) {
      if (!file_) file_ = unique_descriptor(::memfd_create("tarn_sim", MFD_CLOEXEC));
      if (!file_ || ::ftruncate(file_.get(), static_cast<::off_t>(end_ + bytes)) != 0) return false;
    }
#endif
    offset = end_;
    end_ += bytes;
    return true;
  }
  /// Frees space, and the host memory behind it.
  void give(std::uintptr_t offset, std::size_t bytes) {
#if defined(__linux__)
    if (file_) {
      (void)::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<::off_t>(offset),
                        static_cast<::off_t>(bytes));
    }
#endif
    free_.give(offset, bytes);
  }
  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }

 private:
  sim_backing backing_;
  sim_ranges free_;
  std::uintptr_t end_ = 0;
  unique_descriptor file_;
};

}  // namespace detail

}  // namespace TARN_NAMESPACE
// ---- tarn/driver/sim/sim_memory_tool.hpp
// A simulated memory tool, which plays the role of compute-sanitizer. It is notified of heaps and of the
// regions allocated from them, and reports work that accesses other bytes of a heap. Under AddressSanitizer
// it poisons those bytes if they are host memory, so that accesses by the host are reported, too.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#if TARN_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace TARN_NAMESPACE {

/// Whether a tool tracks a simulated machine's memory.
enum class sim_tool : std::uint8_t { absent, attached };

/// The notifications that the tool has received.
struct sim_tool_counts {
  std::uint64_t calls = 0;
  std::size_t heaps = 0;         ///< currently registered
  std::size_t regions = 0;       ///< currently registered
  std::size_t region_bytes = 0;  ///< in the registered regions
};

namespace detail {

/// Callers hold the machine's lock. Unregistering a heap removes its regions.
class sim_memory_tool {
 public:
  enum class bytes_are : std::uint8_t { invented, of_the_host };

  explicit sim_memory_tool(bytes_are kind) noexcept : kind_(kind) {}
  sim_memory_tool& operator=(sim_memory_tool&&) = delete;
  /// Unpoisons all heaps: their addresses may be reused for anything.
  ~sim_memory_tool() {
    for (auto const& [begin, bytes] : heaps_) allow(begin, bytes);
  }

  /// The memory that a heap lies in; compute-sanitizer 2025.3.1 accepts only cudaMalloc blocks and parts of
  /// them.
  enum class heap_in : std::uint8_t { device_block, other_memory };

  /// Registers a heap, identified by its start address. Returns null if it is rejected.
  void* register_heap(void const* p, std::size_t bytes, heap_in where) {
    ++calls_;
    if (where == heap_in::other_memory) {
      wrong_notification("a heap over memory that is not cudaMalloc's", address(p));
      return nullptr;
    }
    if (auto const other = first_in(heaps_, address(p), bytes); other != heaps_.end())
      wrong_notification("a heap over another", address(p));
    heaps_[address(p)] = bytes;
    forbid(address(p), bytes);
    return reinterpret_cast<void*>(address(p));
  }
  void unregister_heap(void* heap) {
    ++calls_;
    auto const it = heaps_.find(address(heap));
    if (it == heaps_.end()) return wrong_notification("the end of an unknown heap", address(heap));
    regions_.erase(regions_.lower_bound(it->first), regions_.lower_bound(it->first + it->second));
    allow(it->first, it->second);
    heaps_.erase(it);
  }
  void register_region(void* heap, void const* p, std::size_t bytes) {
    ++calls_;
    auto const it = heaps_.find(address(heap));
    std::uintptr_t const at = address(p);
    if (it == heaps_.end() || at < it->first || at + bytes > it->first + it->second)
      return wrong_notification("a region outside its heap", at);
    if (first_in(regions_, at, bytes) != regions_.end())
      return wrong_notification("a region over another", at);
    regions_[at] = bytes;
    allow(at, bytes);
  }
  void unregister_region(void const* p) {
    ++calls_;
    auto const it = regions_.find(address(p));
    if (it == regions_.end()) return wrong_notification("the end of an unknown region", address(p));
    forbid(it->first, it->second);
    regions_.erase(it);
  }

  /// Reports the first byte of an access that lies in a heap but in no region.
  void check_access(void const* p, std::size_t bytes, char const* what) {
    std::uintptr_t at = address(p);
    std::uintptr_t const end = at + bytes;
    while (at < end) {
      auto const heap = first_in(heaps_, at, end - at);
      if (heap == heaps_.end()) return;
      if (at < heap->first) at = heap->first;
      auto const region = first_in(regions_, at, 1);
      if (region == regions_.end()) {
        message<160> const text("invalid ", what, " at ", reinterpret_cast<void*>(at),
                                ": no allocated block contains this byte; ", at - address(p),
                                " bytes into an access of ", bytes, " bytes");
        findings_.emplace_back(text.view());
        return;
      }
      at = region->first + region->second;
    }
  }

  [[nodiscard]] std::vector<std::string> const& findings() const noexcept { return findings_; }
  [[nodiscard]] std::size_t heaps() const noexcept { return heaps_.size(); }
  [[nodiscard]] std::size_t regions() const noexcept { return regions_.size(); }
  /// Bytes in heaps that may be accessed.
  [[nodiscard]] std::size_t region_bytes() const noexcept {
    std::size_t sum = 0;
    for (auto const& [begin, bytes] : regions_) sum += bytes;
    return sum;
  }
  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_; }

 private:
  using stretches = std::map<std::uintptr_t, std::size_t>;

  static std::uintptr_t address(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  /// Returns the first range that overlaps [begin, begin + bytes).
  static stretches::iterator first_in(stretches& all, std::uintptr_t begin, std::size_t bytes) {
    auto it = all.upper_bound(begin);
    if (it != all.begin()) {
      auto const before = std::prev(it);
      if (before->first + before->second > begin) return before;
    }
    return it != all.end() && it->first < begin + bytes ? it : all.end();
  }
  void wrong_notification(char const* what, std::uintptr_t at) {
    message<96> const text("wrong notification: ", what, " at ", reinterpret_cast<void*>(at));
    findings_.emplace_back(text.view());
  }

  [[nodiscard]] bool watched_by_asan() const noexcept { return kind_ == bytes_are::of_the_host; }
  void forbid([[maybe_unused]] std::uintptr_t begin, [[maybe_unused]] std::size_t bytes) const noexcept {
#if TARN_ASAN
    if (watched_by_asan()) __asan_poison_memory_region(reinterpret_cast<void*>(begin), bytes);
#endif
  }
  void allow([[maybe_unused]] std::uintptr_t begin, [[maybe_unused]] std::size_t bytes) const noexcept {
#if TARN_ASAN
    if (watched_by_asan()) __asan_unpoison_memory_region(reinterpret_cast<void*>(begin), bytes);
#endif
  }

  bytes_are kind_;
  stretches heaps_;
  stretches regions_;
  std::vector<std::string> findings_;
  std::uint64_t calls_ = 0;
};

}  // namespace detail

}  // namespace TARN_NAMESPACE
// ---- tarn/driver/sim/sim_options.hpp
// Options of a simulated machine, and its counters.

#include <cstddef>
#include <cstdint>

// ---- tarn/driver/sim/sim_cost.hpp
// The costs of simulated GPU calls, in nanoseconds of virtual time. Measured on one H200 (bench/results)
// unless noted otherwise.

#include <cstddef>
#include <cstdint>

namespace TARN_NAMESPACE {

/// A duration in virtual time, nanoseconds.
using sim_nanoseconds = std::uint64_t;

/// A cost that depends on size: linear between measured points, constant below the first, with the last slope
/// beyond the last.
struct sim_cost_curve {
  struct point {
    std::size_t bytes;
    sim_nanoseconds ns;
  };
  point points[4];

  [[nodiscard]] constexpr sim_nanoseconds at(std::size_t bytes) const noexcept {
    if (bytes <= points[0].bytes) return points[0].ns;
    std::size_t i = 1;
    while (i < 3 && bytes > points[i].bytes) ++i;
    point const a = points[i - 1];
    point const b = points[i];
    double const slope =
        (static_cast<double>(b.ns) - static_cast<double>(a.ns)) / static_cast<double>(b.bytes - a.bytes);
    double const ns = static_cast<double>(a.ns) + slope * static_cast<double>(bytes - a.bytes);
    return ns <= 0 ? 0 : static_cast<sim_nanoseconds>(ns);
  }
};

/// The costs of all calls. Change a field to model another machine; sim_costs::nothing() makes every call
/// free, so that only the test advances time.
struct sim_costs {
  // Streams and events. Event costs are for one thread; eight concurrent threads pay 2,453 ns per record.
  sim_nanoseconds look = 30;           ///< cudaStreamGetId, cudaStreamIsCapturing; estimated
  sim_nanoseconds create_event = 115;  ///< create and destroy together: 230
  sim_nanoseconds destroy_event = 115;
  sim_nanoseconds record_event = 249;
  sim_nanoseconds query_event = 263;
  sim_nanoseconds wait_event = 231;
  sim_nanoseconds synchronize = 1'000;    ///< excluding the wait itself; estimated
  sim_nanoseconds create_stream = 5'000;  ///< estimated, as is the next
  sim_nanoseconds destroy_stream = 5'000;
  sim_nanoseconds launch = 3'900;       ///< host time to launch an empty kernel
  sim_nanoseconds copy = 2'000;         ///< host time to enqueue a copy or fill; estimated
  sim_nanoseconds memory_info = 5'000;  ///< estimated, as is the next
  sim_nanoseconds memory_account = 20'000'000;

  // Pages, per handle. Mapping includes both cuMemMap and cuMemSetAccess.
  sim_nanoseconds page_granularity = 100;  ///< estimated
  sim_cost_curve reserve_range{{{2_MiB, 5'000}, {1_GiB, 10'000}, {140_GiB, 40'000}, {1_TiB, 77'000}}};
  sim_nanoseconds release_range = 5'000;  ///< estimated
  sim_cost_curve create_pages{{{2_MiB, 9'800}, {20_MiB, 10'400}, {200_MiB, 13'000}, {1_GiB, 17'000}}};
  sim_cost_curve destroy_pages{{{2_MiB, 15'000}, {20_MiB, 16'000}, {200_MiB, 76'000}, {1_GiB, 338'000}}};
  sim_cost_curve map_pages{{{2_MiB, 25'600}, {20_MiB, 26'700}, {200_MiB, 34'700}, {1_GiB, 61'800}}};
  sim_nanoseconds share_pages = 25'000;  ///< one more cuMemSetAccess; estimated
  sim_nanoseconds export_pages = 5'000;  ///< estimated, as is the next
  sim_nanoseconds import_pages = 10'000;
  sim_cost_curve unmap_pages{{{2_MiB, 16'500}, {20_MiB, 16'500}, {200_MiB, 20'000}, {1_GiB, 29'000}}};

  // Blocks.
  sim_cost_curve malloc_device{{{2_MiB, 58'000}, {64_MiB, 70'000}, {1_GiB, 123'000}, {8_GiB, 509'000}}};
  sim_cost_curve free_device{{{2_MiB, 40'000}, {64_MiB, 70'000}, {1_GiB, 371'000}, {8_GiB, 2'565'000}}};
  sim_nanoseconds malloc_async_warm = 335;  ///< with its free: 670
  sim_nanoseconds free_async = 335;
  sim_cost_curve malloc_async_cold{{{1_MiB, 10'000}, {64_MiB, 88'000}, {1_GiB, 982'000}, {8_GiB, 8'133'000}}};
  sim_cost_curve malloc_pinned{
      {{4_KiB, 2'000}, {1_MiB, 449'000}, {1_GiB, 460'000'000}, {8_GiB, 3'680'000'000}}};
  sim_cost_curve free_pinned{{{4_KiB, 1'000}, {1_MiB, 113'000}, {1_GiB, 116'000'000}, {8_GiB, 928'000'000}}};
  /// The rest of registered_host's 168 ms per GiB once the host has touched the pages; estimated, as is the
  /// next.
  sim_cost_curve register_host{{{4_KiB, 2'000}, {1_MiB, 60'000}, {1_GiB, 60'000'000}, {8_GiB, 480'000'000}}};
  sim_cost_curve unregister_host{
      {{4_KiB, 1'000}, {1_MiB, 30'000}, {1_GiB, 30'000'000}, {8_GiB, 240'000'000}}};
  sim_nanoseconds malloc_managed = 60'000;  ///< estimated from cudaMalloc, as is the next
  sim_nanoseconds free_managed = 40'000;

  // Device work, bytes per nanosecond (GB/s); 0 takes no time.
  // The first two are from the data sheet's 4.8 TB/s of HBM3e: a copy reads and writes each byte, a fill
  // writes it.
  double on_device_rate = 2'000;
  double fill_rate = 4'000;
  double pinned_rate = 53;  ///< host to device or back, chunks of 4 MiB
  /// between devices with peer access: one direction of NVLink 4, from its data sheet
  double peer_rate = 450;
  double staged_rate = 25;  ///< between devices without it, through the host: half of pinned_rate; estimated
  double pageable_rate = 8.4;

  /// Every call is free, and device work other than kernels takes no time.
  [[nodiscard]] static constexpr sim_costs nothing() noexcept {
    constexpr sim_cost_curve level{{{1, 0}, {2, 0}, {3, 0}, {4, 0}}};
    sim_costs c;
    c.look = c.create_event = c.destroy_event = c.record_event = c.query_event = c.wait_event = 0;
    c.synchronize = c.create_stream = c.destroy_stream = c.launch = c.copy = c.memory_info = 0;
    c.memory_account = 0;
    c.export_pages = c.import_pages = 0;
    c.page_granularity = c.share_pages = c.release_range = c.malloc_async_warm = c.free_async = 0;
    c.malloc_managed = c.free_managed = 0;
    c.reserve_range = c.create_pages = c.destroy_pages = c.map_pages = c.unmap_pages = level;
    c.malloc_device = c.free_device = c.malloc_async_cold = c.malloc_pinned = c.free_pinned = level;
    c.register_host = c.unregister_host = level;
    c.on_device_rate = c.fill_rate = c.pinned_rate = c.peer_rate = c.staged_rate = c.pageable_rate = 0;
    return c;
  }
};

namespace detail {
/// Returns the nanoseconds to transfer `bytes` at a rate in bytes per nanosecond; 0 for a rate of 0.
[[nodiscard]] constexpr sim_nanoseconds sim_transfer(std::size_t bytes, double rate) noexcept {
  return rate <= 0 ? 0 : static_cast<sim_nanoseconds>(static_cast<double>(bytes) / rate);
}
}  // namespace detail

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE {

/// Whether simulated devices support virtual memory management; some virtual GPUs do not.
enum class sim_paging : std::uint8_t { available, missing };

/// Whether simulated devices have memory pools, which cudaMallocAsync needs; some virtual GPUs and Jetson
/// devices do not.
enum class sim_memory_pools : std::uint8_t { available, missing };

/// Whether simulated devices can move pages of managed memory while they run (concurrentManagedAccess); those
/// of Windows and some Jetsons cannot.
enum class sim_migration : std::uint8_t { available, missing };

/// Whether simulated devices can access each other's pages, as over NVLink. Copies between them do not need
/// it.
enum class sim_peers : std::uint8_t { reachable, apart };

/// How simulated pages can be exported. A page handle that can is a memory file of its own: another process
/// that receives the descriptor and imports it into its own machine has the same memory, and keeps it if this
/// process ends.
enum class sim_sharing : std::uint8_t {
  none,
  descriptors,            ///< allocation_handle_type::posix_file_descriptor; Linux only
  descriptors_and_fabric  ///< and fabric, within one machine
};

/// Where a device's memory is.
enum class sim_placement : std::uint8_t {
  discrete,   ///< in a card, apart from the host's
  integrated  ///< it is the host's, as of a Jetson; pinned and managed memory then count for the device, too
};

/// Whether the order checker is active (sim_order.hpp). It costs time and memory per access.
enum class sim_checks : std::uint8_t {
  off,
  stream_order,  ///< host threads share one timeline: a wait by one counts for all
  each_thread    ///< threads must also be ordered, by publish() and observe()
};

/// What the simulated management library reports.
enum class sim_accounting : std::uint8_t {
  reported,
  hidden,  ///< sums, but no processes, as in a container with its own process ids
  missing  ///< there is no library
};

/// The configuration of a simulated machine. The default is one H200, backed by host memory as it is touched.
struct sim_options {
  int devices = 1;
  static constexpr std::size_t usual = ~std::size_t{0};
  std::size_t capacity = 140_GiB;  ///< of each device, bytes
  /// Of it, in use from the start: the context, other processes. Usual is a 140th of the capacity, at most 1
  /// GiB, or the parts below, if they are more. The machine's options() have the number.
  std::size_t taken = usual;
  std::size_t context = 0;  ///< part of `taken`: this process's context and modules, for memory_account()
  std::size_t other_processes = 0;  ///< part of `taken`; so is what take_memory() takes later
  std::size_t set_aside = 0;        ///< part of `taken`, by driver and firmware; the rest is unowned
  sim_accounting accounting = sim_accounting::reported;
  sim_placement placement = sim_placement::discrete;
  /// The host's page cache, which the driver counts as used. An integrated device gives it to who allocates.
  std::size_t page_cache = 0;
  std::size_t host_capacity = 64_GiB;  ///< for pinned and managed memory together
  std::size_t granularity = 2_MiB;     ///< of pages
  sim_backing backing = sim_backing::host_backed;
  sim_paging paging = sim_paging::available;
  sim_memory_pools memory_pools = sim_memory_pools::available;
  sim_migration migration = sim_migration::available;
  sim_peers peers = sim_peers::reachable;
  sim_sharing sharing = sim_sharing::none;  ///< not the default: each handle would take a file descriptor
  sim_checks checks = sim_checks::off;
  sim_tool tool = sim_tool::absent;  ///< attached: a pool's allocations are tracked, which costs time
  sim_costs costs{};
  std::uint64_t seed = 0;            ///< selects a schedule; 0: work takes exactly the requested time
  sim_nanoseconds jitter = 100'000;  ///< with a seed, work may take up to this much longer
  /// With a seed: out of a thousand streams this many are slow, and each of their operations takes up to
  /// `slowness` longer. With a slowness of a second and more they appear never to end until a thread waits.
  unsigned slow_streams = 0;
  sim_nanoseconds slowness = 1'000'000'000;
  sim_nanoseconds late_events = 0;  ///< with a seed, an event may be reached up to this much later
};

namespace detail {
[[nodiscard]] constexpr sim_options resolved(sim_options o) noexcept {
  if (o.taken != sim_options::usual) return o;
  std::size_t const least = o.context + o.other_processes + o.set_aside;
  o.taken = max_of(least, min_of(1_GiB, o.capacity / 140 / 2_MiB * 2_MiB));
  return o;
}
}  // namespace detail

/// Counts of each driver call, and their cost in virtual time.
struct sim_calls {
  std::uint64_t counts[driver_call_count]{};
  std::uint64_t driver_ns = 0;  ///< modelled nanoseconds inside the driver, excluding waits

  [[nodiscard]] std::uint64_t operator[](driver_call call) const noexcept {
    return counts[static_cast<std::size_t>(call)];
  }
  /// All calls.
  [[nodiscard]] std::uint64_t total() const noexcept {
    return sum([](driver_call) { return true; });
  }
  /// Calls that allocate, map or free memory.
  [[nodiscard]] std::uint64_t memory() const noexcept { return sum(changes_memory); }
  /// Calls that order or move something: all but those that only inspect a stream.
  [[nodiscard]] std::uint64_t acting() const noexcept {
    return sum([](driver_call call) { return !only_looks(call); });
  }

 private:
  template <class Select>
  [[nodiscard]] std::uint64_t sum(Select const& select) const noexcept {
    std::uint64_t n = 0;
    for (std::size_t i = 0; i < driver_call_count; ++i) {
      if (select(driver_call_at(i))) n += counts[i];
    }
    return n;
  }
};

/// Objects not yet released; all zero if nothing leaked.
struct sim_leaks {
  std::size_t ranges = 0;   ///< reserved address ranges
  std::size_t maps = 0;     ///< mapped pages
  std::size_t handles = 0;  ///< page handles
  std::size_t blocks = 0;   ///< of all kinds, except blocks cached by cudaMallocAsync
  std::size_t streams = 0;
  std::size_t events = 0;
  [[nodiscard]] std::size_t total() const noexcept {
    return ranges + maps + handles + blocks + streams + events;
  }
};

}  // namespace TARN_NAMESPACE
// ---- tarn/driver/sim/sim_status.hpp
// Error numbers of the simulated GPU and their conversion to a status.

namespace TARN_NAMESPACE::detail {

/// Error numbers of the simulated GPU, with the values of cudaError_t.
enum class sim_code : int {
  ok = 0,
  invalid_value = 1,
  out_of_memory = 2,
  forked = 3,
  unloading = 4,
  invalid_device = 101,
  operating_system = 304,
  invalid_handle = 400,
  not_ready = 600,
  illegal_address = 700,
  already_registered = 712,
  not_registered = 713,
  not_permitted = 800,
  not_supported = 801,
  capture_unsupported = 900,
  capture_invalidated = 901,
  capture_merge = 902,
  capture_unmatched = 903,
  capture_unjoined = 904,
  capture_isolation = 905,
  capture_implicit = 906,
  captured_event = 907
};

struct sim_error {
  sim_code code;
  failure kind;
  char const* name;
};
inline constexpr sim_error sim_errors[] = {
    {sim_code::invalid_value, failure::other, "cudaErrorInvalidValue"},
    {sim_code::out_of_memory, failure::out_of_memory, "cudaErrorMemoryAllocation"},
    {sim_code::forked, failure::forked, "cudaErrorInitializationError"},
    {sim_code::unloading, failure::unloading, "cudaErrorCudartUnloading"},
    {sim_code::invalid_device, failure::no_device, "cudaErrorInvalidDevice"},
    {sim_code::operating_system, failure::other, "cudaErrorOperatingSystem"},
    {sim_code::invalid_handle, failure::other, "cudaErrorInvalidResourceHandle"},
    {sim_code::not_ready, failure::not_ready, "cudaErrorNotReady"},
    {sim_code::illegal_address, failure::other, "cudaErrorIllegalAddress"},
    {sim_code::already_registered, failure::other, "cudaErrorHostMemoryAlreadyRegistered"},
    {sim_code::not_registered, failure::other, "cudaErrorHostMemoryNotRegistered"},
    {sim_code::not_permitted, failure::other, "cudaErrorNotPermitted"},
    {sim_code::not_supported, failure::unsupported, "cudaErrorNotSupported"},
    {sim_code::capture_unsupported, failure::other, "cudaErrorStreamCaptureUnsupported"},
    {sim_code::capture_invalidated, failure::other, "cudaErrorStreamCaptureInvalidated"},
    {sim_code::capture_merge, failure::other, "cudaErrorStreamCaptureMerge"},
    {sim_code::capture_unmatched, failure::other, "cudaErrorStreamCaptureUnmatched"},
    {sim_code::capture_unjoined, failure::other, "cudaErrorStreamCaptureUnjoined"},
    {sim_code::capture_isolation, failure::other, "cudaErrorStreamCaptureIsolation"},
    {sim_code::capture_implicit, failure::other, "cudaErrorStreamCaptureImplicit"},
    {sim_code::captured_event, failure::other, "cudaErrorCapturedEvent"},
};

/// Converts a code to a status of the driver contract.
[[nodiscard]] constexpr status sim_status(sim_code code, char const* call) noexcept {
  if (code == sim_code::ok) return {};
  for (sim_error const& e : sim_errors) {
    if (e.code == code) return {e.kind, static_cast<int>(code), e.name, call};
  }
  return {failure::other, static_cast<int>(code), "cudaErrorUnknown", call};
}

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

namespace detail {

/// The kind of a block; each kind has its own free call.
enum class sim_kind : std::uint8_t {
  device,
  pinned,
  managed,
  registered,
  async,  ///< as the next two, of cudaMallocAsync's pools
  async_pinned,
  async_managed
};

}  // namespace detail

/// What calls have said of a page of managed memory. `nowhere` as CUDA's cudaInvalidDeviceId.
struct sim_managed_page {
  static constexpr device_id nowhere{-2};
  device_id prefetched_to = nowhere;  ///< by the last prefetch that was enqueued, complete or not
  device_id preferred_location = nowhere;
  bool read_mostly = false;
  std::vector<device_id> accessed_by{};
};

/// Memory use of a simulated device, bytes and counts.
struct sim_usage {
  std::size_t capacity = 0;     ///< of the device
  std::size_t taken = 0;        ///< by others: the context, other processes
  std::size_t used = 0;         ///< allocated through this machine: pages and device blocks
  std::size_t peak_used = 0;    ///< high-water mark of `used`
  std::size_t page_bytes = 0;   ///< part of `used` in page handles
  std::size_t block_bytes = 0;  ///< part of `used` in blocks, cached async blocks included
  std::size_t handles = 0;      ///< page handles not destroyed, or destroyed but still mapped
  std::size_t blocks = 0;       ///< allocated device and async blocks
  [[nodiscard]] std::size_t free_bytes() const noexcept {
    return used + taken >= capacity ? 0 : capacity - taken - used;
  }
};

namespace detail {

/// All memory of a simulated machine. Callers hold the machine's lock.
class sim_memory {
 public:
  /// Part of one physical allocation: `key` numbers its bytes and is never reused.
  struct piece {
    std::uint64_t key;
    std::size_t bytes;
    std::uintptr_t mapping = 0;  ///< start of the mapping it was reached through; 0: none
  };

  explicit sim_memory(sim_options const& options)
      : options_(options),
        devices_(static_cast<std::size_t>(options.devices)),
        device_space_(options.backing),
        host_space_(sim_backing::host_backed),
        pages_(options.backing) {
    for (auto& d : devices_) {
      d.capacity = options.capacity;
      d.taken = options.taken;
    }
  }

  [[nodiscard]] sim_usage& usage(int device) noexcept { return devices_[static_cast<std::size_t>(device)]; }
  [[nodiscard]] std::size_t ranges() const noexcept { return ranges_.size(); }
  [[nodiscard]] std::size_t maps() const noexcept { return maps_.size(); }
  [[nodiscard]] std::size_t host_blocks() const noexcept { return host_blocks_; }
  [[nodiscard]] std::size_t granularity() const noexcept { return options_.granularity; }

  /// Attaches the memory tool. tool() is null without one.
  void attach_tool() {
    tool_ = std::make_unique<sim_memory_tool>(options_.backing == sim_backing::host_backed
                                                  ? sim_memory_tool::bytes_are::of_the_host
                                                  : sim_memory_tool::bytes_are::invented);
  }
  [[nodiscard]] sim_memory_tool* tool() const noexcept { return tool_.get(); }

  /// Records freed physical memory from now on, for drain_gone().
  void watch_gone() noexcept { watched_ = true; }
  template <class Visit>
  void drain_gone(Visit const& visit) {
    for (piece const& p : gone_) visit(p);
    gone_.clear();
  }

  sim_code reserve(std::size_t bytes, std::size_t alignment, void*& p) {
    if (bytes == 0 || bytes % options_.granularity != 0) return sim_code::invalid_value;
    if (alignment != 0 && !is_alignment(alignment)) return sim_code::invalid_value;
    if (alignment < options_.granularity) alignment = options_.granularity;
    std::uintptr_t begin = 0;
    if (!device_space_.take(bytes, alignment, begin)) return sim_code::out_of_memory;
    ranges_.emplace(begin, range{bytes, 0});
    p = reinterpret_cast<void*>(begin);
    return sim_code::ok;
  }

  sim_code release(void* p, std::size_t bytes) {
    auto const it = ranges_.find(address(p));
    if (it == ranges_.end() || it->second.bytes != bytes || it->second.maps != 0) {
      return sim_code::invalid_value;
    }
    device_space_.give(it->first, bytes, options_.granularity);
    ranges_.erase(it);
    return sim_code::ok;
  }

  sim_code create(int device, std::size_t bytes, allocation_handle_type type, page_handle& handle) {
    if (bytes == 0 || bytes % options_.granularity != 0) return sim_code::invalid_value;
    if (bytes > usage(device).free_bytes()) return sim_code::out_of_memory;
    page_piece made{bytes, device, 0, next_key_, 0, false, type, {}, false};
    bool const taken =
        type == allocation_handle_type::none ? pages_.take(bytes, made.offset) : made.file.create(bytes);
    if (!taken) return sim_code::out_of_memory;
    physical_.emplace(next_handle_, std::move(made));
    handle = next_handle_++;
    next_key_ += bytes;
    charge_pages(device, bytes);
    ++usage(device).handles;
    return sim_code::ok;
  }
  /// As cuMemExportToShareableHandle: with the type of the creation only.
  sim_code export_pages(page_handle handle, page_export& exported) {
    auto const it = physical_.find(handle);
    if (it == physical_.end() || it->second.destroyed) return sim_code::invalid_value;
    if (exported.type == allocation_handle_type::none || it->second.type != exported.type)
      return sim_code::invalid_value;
    if (exported.type == allocation_handle_type::fabric) {
      fabric_token const token{this, handle};
      std::memcpy(exported.fabric.data(), &token, sizeof token);
      return sim_code::ok;
    }
    int const descriptor = it->second.file.duplicate();
    if (descriptor < 0) return sim_code::operating_system;
    exported.descriptor = descriptor;
    return sim_code::ok;
  }
  /// As cuMemImportFromShareableHandle. Memory of this machine keeps its identity, and its charge passes to
  /// the import if the handle that it came from is destroyed first; memory of another machine is not charged.
  sim_code import_pages(int device, page_export const& exported, page_handle& handle) {
    page_piece made{0, device, 0, 0, 0, false, exported.type, {}, true};
    if (exported.type == allocation_handle_type::fabric) {
      fabric_token token{};
      std::memcpy(&token, exported.fabric.data(), sizeof token);
      auto const it = token.of == this ? physical_.find(token.handle) : physical_.end();
      if (it == physical_.end()) return sim_code::invalid_value;
      std::size_t bytes = 0;
      if (!made.file.open(it->second.file.descriptor(), bytes)) return sim_code::operating_system;
      made.bytes = bytes;
    } else if (exported.type != allocation_handle_type::posix_file_descriptor ||
               !made.file.open(exported.descriptor, made.bytes)) {
      return sim_code::invalid_value;
    }
    if (made.bytes == 0 || made.bytes % options_.granularity != 0) return sim_code::invalid_value;
    auto const same = find_same(made, 0);
    if (same != physical_.end() && same->second.device != device) return sim_code::invalid_device;
    made.key = same != physical_.end() ? same->second.key : next_key_;
    if (same == physical_.end()) next_key_ += made.bytes;
    physical_.emplace(next_handle_, std::move(made));
    handle = next_handle_++;
    ++usage(device).handles;
    return sim_code::ok;
  }

  /// As cuMemRelease: memory that is still mapped is freed at its last unmap.
  sim_code destroy(page_handle handle) {
    auto const it = physical_.find(handle);
    if (it == physical_.end() || it->second.destroyed) return sim_code::invalid_value;
    it->second.destroyed = true;
    drop_if_unused(it);
    return sim_code::ok;
  }

  sim_code map(void* p, std::size_t bytes, page_handle handle) {
    std::uintptr_t const begin = address(p);
    auto const behind = physical_.find(handle);
    if (behind == physical_.end() || behind->second.destroyed) return sim_code::invalid_value;
    if (bytes != behind->second.bytes || begin % options_.granularity != 0) return sim_code::invalid_value;
    auto const reserved = containing(ranges_, begin);
    if (reserved == ranges_.end() || bytes > reserved->second.bytes - (begin - reserved->first)) {
      return sim_code::invalid_value;
    }
    auto const next = maps_.lower_bound(begin);
    if (next != maps_.end() && next->first < begin + bytes) return sim_code::invalid_value;
    if (next != maps_.begin()) {
      auto const before = std::prev(next);
      if (before->first + before->second.bytes > begin) return sim_code::invalid_value;
    }
    auto const it = maps_.emplace_hint(next, begin, mapping{bytes, handle, {}});
    page_piece const& shown = behind->second;
    int const file = shown.file.exists() ? shown.file.descriptor() : pages_.descriptor();
    if (!device_space_.show(begin, bytes, file, shown.offset)) {
      maps_.erase(it);
      return sim_code::out_of_memory;
    }
    ++behind->second.maps;
    ++reserved->second.maps;
    return sim_code::ok;
  }

  sim_code unmap(void* p, std::size_t bytes) {
    auto const it = maps_.find(address(p));
    if (it == maps_.end() || it->second.bytes != bytes) return sim_code::invalid_value;
    device_space_.decommit(it->first, bytes);
    --containing(ranges_, it->first)->second.maps;
    auto const behind = physical_.find(it->second.handle);
    --behind->second.maps;
    maps_.erase(it);
    drop_if_unused(behind);
    return sim_code::ok;
  }

  /// Allocates a block. Device blocks of at least a page start at a page boundary, as on a GPU; smaller ones
  /// are aligned to 256 bytes and never to more, which is all that cudaMalloc guarantees.
  sim_code allocate(int device, std::size_t bytes, sim_kind kind, void*& p) {
    p = nullptr;
    if (bytes == 0) return sim_code::ok;
    if (bytes > max_request_bytes) return sim_code::out_of_memory;
    bool const host = on_host(kind);
    std::size_t const charged = align_up(bytes, block_granularity);
    std::size_t const room = host && !is_integrated() ? host_room() : usage(device).free_bytes();
    if (charged > room) return sim_code::out_of_memory;
    bool const whole_pages = bytes >= options_.granularity;
    std::size_t const shift = host || whole_pages ? 0 : default_alignment;
    std::size_t const span = align_up(bytes + shift, host_page_bytes());
    std::size_t const alignment = whole_pages && !host ? options_.granularity : host_page_bytes();
    auto& space = host ? host_space_ : device_space_;
    std::uintptr_t begin = 0;
    if (!space.take(span, alignment, begin)) return sim_code::out_of_memory;
    if (!space.commit(begin, span)) {
      space.give(begin, span, alignment);
      return sim_code::out_of_memory;
    }
    blocks_.emplace(begin + shift, block{bytes, charged, span, shift, alignment, next_key_, device, kind});
    next_key_ += charged;
    if (host) {
      host_used_ += charged;
      ++host_blocks_;
      if (is_integrated()) charge(usage(device), charged);
    } else {
      auto& d = usage(device);
      charge(d, charged);
      d.block_bytes += charged;
      ++d.blocks;
    }
    p = reinterpret_cast<void*>(begin + shift);
    return sim_code::ok;
  }

  sim_code release(void* p, sim_kind kind) {
    if (p == nullptr) return sim_code::ok;
    auto const it = blocks_.find(address(p));
    if (it == blocks_.end() || it->second.kind != kind) return sim_code::invalid_value;
    block const gone = std::move(it->second);  // a copy of its map could fail
    auto& space = on_host(kind) ? host_space_ : device_space_;
    std::uintptr_t const begin = it->first - gone.shift;
    blocks_.erase(it);
    space.decommit(begin, gone.span);
    space.give(begin, gone.span, gone.alignment);
    note_gone(gone.key, gone.charged);
    if (on_host(kind)) {
      host_used_ -= gone.charged;
      --host_blocks_;
      if (is_integrated()) usage(gone.device).used -= gone.charged;
    } else {
      auto& d = usage(gone.device);
      d.used -= gone.charged;
      d.block_bytes -= gone.charged;
      --d.blocks;
    }
    return sim_code::ok;
  }

  /// Registers existing host memory as pinned: whole pages that overlap no block.
  sim_code adopt(int device, void* p, std::size_t bytes) {
    std::uintptr_t const begin = address(p);
    if (bytes == 0 || begin == 0 || begin % host_page_bytes() != 0) return sim_code::invalid_value;
    if (bytes > max_request_bytes || bytes > host_room()) return sim_code::out_of_memory;
    auto const next = blocks_.lower_bound(begin);
    bool const overlaps =
        (next != blocks_.end() && next->first < begin + bytes) || containing(blocks_, begin) != blocks_.end();
    if (overlaps) return sim_code::already_registered;
    blocks_.emplace(
        begin, block{bytes, bytes, bytes, 0, host_page_bytes(), next_key_, device, sim_kind::registered});
    next_key_ += bytes;
    host_used_ += bytes;
    ++host_blocks_;
    return sim_code::ok;
  }
  sim_code let_go(void* p) {
    auto const it = blocks_.find(address(p));
    if (it == blocks_.end() || it->second.kind != sim_kind::registered) return sim_code::not_registered;
    note_gone(it->second.key, it->second.charged);
    host_used_ -= it->second.charged;
    --host_blocks_;
    blocks_.erase(it);
    return sim_code::ok;
  }

  /// Returns the requested bytes of the block that starts at `p`, if it is of that kind.
  [[nodiscard]] bool find_block(void const* p, sim_kind kind, std::size_t& bytes) const noexcept {
    auto const it = blocks_.find(address(p));
    if (it == blocks_.end() || it->second.kind != kind) return false;
    bytes = it->second.bytes;
    return true;
  }

  /// Returns true if the whole range lies in one block of that kind.
  [[nodiscard]] bool in_block(void const* p, std::size_t bytes, sim_kind kind) const noexcept {
    auto const it = containing(blocks_, address(p));
    return it != blocks_.end() && it->second.kind == kind &&
           bytes <= it->second.bytes - (address(p) - it->first);
  }

  /// Returns true if the first byte belongs to the machine: mapped, reserved or in a block.
  [[nodiscard]] bool knows(void const* p) const noexcept {
    return containing(blocks_, address(p)) != blocks_.end() ||
           containing(ranges_, address(p)) != ranges_.end();
  }
  /// Returns true if device work may access the whole range.
  [[nodiscard]] bool accessible(void const* p, std::size_t bytes) const {
    return each_piece(p, bytes, [](piece) {});
  }
  /// Returns true if real memory backs the address: false only for device memory that is just addresses. Host
  /// memory unknown to the machine is real.
  [[nodiscard]] bool is_real(void const* p) const noexcept {
    if (options_.backing == sim_backing::host_backed || !knows(p)) return true;
    auto const it = containing(blocks_, address(p));
    return it != blocks_.end() && on_host(it->second.kind);
  }

  /// Calls change(page, bytes) for the pages of managed memory behind a range, once for those that are alike.
  template <class Change>
  sim_code change_managed(void const* p, std::size_t bytes, Change const& change) {
    if (!in_block(p, bytes, sim_kind::managed) && !in_block(p, bytes, sim_kind::async_managed))
      return sim_code::invalid_value;
    auto const it = containing(blocks_, address(p));
    auto& pages = it->second.pages;
    std::size_t const begin = align_down(address(p) - it->first, host_page_bytes());
    std::size_t const end = align_up(address(p) - it->first + bytes, host_page_bytes());
    for (std::size_t const cut : {begin, end}) pages.emplace(cut, std::prev(pages.upper_bound(cut))->second);
    for (auto at = pages.find(begin); at->first != end; ++at)
      change(at->second, std::next(at)->first - at->first);
    return sim_code::ok;
  }
  /// Returns what holds of a page of managed memory, or of none.
  [[nodiscard]] sim_managed_page managed_page(void const* p) const {
    auto const it = containing(blocks_, address(p));
    if (it == blocks_.end()) return {};
    return std::prev(it->second.pages.upper_bound(address(p) - it->first))->second;
  }
  /// Returns true for pinned, registered and managed memory.
  [[nodiscard]] bool is_on_host(void const* p) const noexcept {
    auto const it = containing(blocks_, address(p));
    return it != blocks_.end() && on_host(it->second.kind);
  }
  /// As cuMemSetAccess for another device: requires whole mappings without a gap.
  sim_code share(void* p, std::size_t bytes, int device) {
    std::uintptr_t const begin = address(p);
    auto const first = maps_.find(begin);
    auto it = first;
    std::uintptr_t at = begin;
    for (; at - begin < bytes && it != maps_.end() && it->first == at; ++it) at += it->second.bytes;
    if (bytes == 0 || at - begin != bytes) return sim_code::invalid_value;
    for (auto shared = first; shared != it; ++shared) shared->second.others.push_back(device);
    return sim_code::ok;
  }

  /// Returns the device that owns the memory; -1 for host memory and for addresses without memory.
  [[nodiscard]] int device_of(void const* p) const noexcept {
    if (auto const it = containing(blocks_, address(p)); it != blocks_.end()) {
      return on_host(it->second.kind) ? -1 : it->second.device;
    }
    auto const it = containing(maps_, address(p));
    return it == maps_.end() ? -1 : physical_.find(it->second.handle)->second.device;
  }
  /// Returns true if work of `device` may access the memory at `p`: pages are accessible to their own device
  /// and those they were shared with.
  [[nodiscard]] bool is_reachable(void const* p, int device) const noexcept {
    auto const it = containing(maps_, address(p));
    if (it == maps_.end() || physical_.find(it->second.handle)->second.device == device) return true;
    for (int const other : it->second.others) {
      if (other == device) return true;
    }
    return false;
  }
  /// Returns the bytes of a page handle; 0 if it does not exist.
  [[nodiscard]] std::size_t page_bytes_of(page_handle handle) const noexcept {
    auto const it = physical_.find(handle);
    return it == physical_.end() ? 0 : it->second.bytes;
  }

  /// Visits the physical pieces behind a range in order. Skips what has no backing, and then returns false.
  template <class Visit>
  bool each_piece(void const* p, std::size_t bytes, Visit const& visit) const {
    std::uintptr_t at = address(p);
    if (bytes > max_request_bytes) return false;
    std::uintptr_t const end = at + bytes;
    if (auto const it = containing(blocks_, at); it != blocks_.end()) {
      std::size_t const offset = at - it->first;
      if (bytes > it->second.bytes - offset) return false;
      visit(piece{it->second.key + offset, bytes});
      return true;
    }
    bool all = true;
    auto it = maps_.upper_bound(at);
    if (it != maps_.begin()) --it;
    for (; at < end && it != maps_.end() && it->first < end; ++it) {
      std::uintptr_t const map_end = it->first + it->second.bytes;
      if (map_end <= at) continue;
      if (it->first > at) {
        all = false;
        at = it->first;
      }
      std::size_t const part = (map_end < end ? map_end : end) - at;
      visit(piece{physical_.find(it->second.handle)->second.key + (at - it->first), part, it->first});
      at += part;
    }
    return all && at == end;
  }

 private:
  /// Blocks are charged in multiples of this, bytes; the smallest allocation unit of cudaMalloc.
  static constexpr std::size_t block_granularity = 512;

  struct range {
    std::size_t bytes;
    std::size_t maps;
  };
  struct mapping {
    std::size_t bytes;
    page_handle handle;
    std::vector<int> others{};  ///< other devices with access
  };
  struct page_piece {
    std::size_t bytes;
    int device;
    std::uintptr_t offset;
    std::uint64_t key;
    std::size_t maps;
    bool destroyed;
    allocation_handle_type type;
    sim_shared_file
        file;       ///< exists if the pages can be exported; otherwise they are in the file of all pages
    bool imported;  ///< the memory is charged to another handle, or to another process
  };
  struct block {
    std::size_t bytes;
    std::size_t charged;
    std::size_t span;
    std::size_t shift;
    std::size_t alignment;
    std::uint64_t key;
    int device;
    sim_kind kind;
    /// Of managed memory, by the offset of the first of those that are alike.
    std::map<std::size_t, sim_managed_page> pages{{0, {}}};
  };
  using block_map = std::map<std::uintptr_t, block>;

  static std::uintptr_t address(void const* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
  static bool on_host(sim_kind kind) noexcept { return kind != sim_kind::device && kind != sim_kind::async; }
  [[nodiscard]] bool is_integrated() const noexcept {
    return options_.placement == sim_placement::integrated;
  }
  [[nodiscard]] std::size_t host_room() const noexcept {
    return host_used_ >= options_.host_capacity ? 0 : options_.host_capacity - host_used_;
  }
  static void charge(sim_usage& d, std::size_t bytes) noexcept {
    d.used += bytes;
    if (d.used > d.peak_used) d.peak_used = d.used;
  }
  /// The entry whose bytes contain an address, or the end.
  template <class Map>
  [[nodiscard]] static auto containing(Map& map, std::uintptr_t at) noexcept -> decltype(map.end()) {
    auto it = map.upper_bound(at);
    if (it == map.begin()) return map.end();
    --it;
    return at - it->first < it->second.bytes ? it : map.end();
  }
  void note_gone(std::uint64_t key, std::size_t bytes) {
    if (watched_) gone_.push_back({key, bytes});
  }
  void drop_if_unused(std::unordered_map<page_handle, page_piece>::iterator it) {
    if (!it->second.destroyed || it->second.maps != 0) return;
    page_piece const& gone = it->second;
    --usage(gone.device).handles;
    auto const same = find_same(gone, it->first);
    if (!gone.imported && same != physical_.end()) {
      same->second.imported = false;
    } else if (!gone.imported) {
      usage(gone.device).used -= gone.bytes;
      usage(gone.device).page_bytes -= gone.bytes;
    }
    if (!gone.file.exists()) pages_.give(gone.offset, gone.bytes);
    if (same == physical_.end()) note_gone(gone.key, gone.bytes);
    physical_.erase(it);
  }
  void charge_pages(int device, std::size_t bytes) noexcept {
    auto& d = usage(device);
    charge(d, bytes);
    d.page_bytes += bytes;
  }
  /// Another handle of the same memory.
  std::unordered_map<page_handle, page_piece>::iterator find_same(page_piece const& of,
                                                                  page_handle but) noexcept {
    std::uint64_t const identity = of.file.identity();
    if (identity == 0) return physical_.end();
    for (auto it = physical_.begin(); it != physical_.end(); ++it) {
      if (it->first != but && it->second.file.identity() == identity) return it;
    }
    return physical_.end();
  }

  struct fabric_token {
    sim_memory const* of;
    page_handle handle;
  };

  sim_options const& options_;
  std::vector<sim_usage> devices_;
  std::size_t host_used_ = 0;
  std::size_t host_blocks_ = 0;
  sim_addresses device_space_;
  sim_addresses host_space_;
  sim_file pages_;
  std::map<std::uintptr_t, range> ranges_;
  std::map<std::uintptr_t, mapping> maps_;
  std::unordered_map<page_handle, page_piece> physical_;
  block_map blocks_;
  page_handle next_handle_ = 1;
  std::uint64_t next_key_ = 1;
  bool watched_ = false;
  std::vector<piece> gone_;
  std::unique_ptr<sim_memory_tool> tool_;  ///< must be destroyed before the address spaces
};

}  // namespace detail

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE::detail {

/// The parts never exceed the memory taken: options named first are served first.
[[nodiscard]] inline device_account sim_account(sim_options const& options, sim_usage const& usage) noexcept {
  std::size_t left = usage.taken;
  auto const part = [&](std::size_t wanted) {
    std::size_t const got = min_of(wanted, left);
    left -= got;
    return got;
  };
  device_account account;
  account.source = "the simulated NVML";
  std::size_t const context = part(options.context);
  std::size_t const set_aside = part(options.set_aside);
  if (options.placement == sim_placement::discrete) {  // of an integrated GPU NVML says "not supported"
    account.total = usage.capacity;
    account.free = usage.free_bytes();
    account.set_aside = set_aside;
  }
  std::size_t const came_later = usage.taken > options.taken ? usage.taken - options.taken : 0;
  std::size_t const others = part(options.other_processes + came_later);
  if (options.accounting == sim_accounting::hidden) {
    account.gap = "its list does not contain this process: process ids in a container differ from the host's";
    return account;
  }
  account.this_process = context + usage.used;
  account.other_processes = others;
  return account;
}

}  // namespace TARN_NAMESPACE::detail
// ---- tarn/driver/sim/sim_machine.hpp
// A simulated host with GPUs. Holds the options, the controls for tests (launch work, advance time, take
// memory away, capture) and the results (calls, usage, findings). driver/sim_driver provides drivers for its
// devices.

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// ---- tarn/driver/sim/sim_async.hpp
// The simulated cudaMallocAsync. Freed blocks are cached and reused in stream order, and return to the device
// at the next synchronisation (release threshold 0, CUDA's default).

#include <cstddef>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

// ---- tarn/driver/sim/sim_streams.hpp
// The simulated GPU's streams: queues in virtual time, events, default streams, capture. Deterministic: see
// sim_timeline.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

// ---- tarn/driver/sim/sim_capture.hpp
// What a captured stream records: a graph of work, where a node starts after the nodes that it depends on.
//
//   work on S       a node that depends on the leaves of S, and is the only leaf of S from now on
//   record(E, S)    E keeps the leaves of S           wait(S, E)    the leaves of E become leaves of S, too
//
// Every node belongs to a branch: a chain of nodes, each an ancestor of the next. Branch 0 begins with the
// first node.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

// ---- tarn/driver/sim/sim_tsan.hpp
// The simulated GPU under ThreadSanitizer: each stream is a separate thread, and only what orders streams and
// the host on a GPU orders them here. Without ThreadSanitizer these are empty types.
//
//   the host enqueues work    the work is ordered after this thread's past and the stream's past
//   record(E, S)              E keeps the stream's past          wait(S, E)              E's past is added to S's
//   synchronize(S or E)       this thread is ordered after it    query(E) = done         likewise

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#if TARN_TSAN
#include <sanitizer/tsan_interface.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <map>
#include <new>
#include <vector>

extern "C" void AnnotateIgnoreReadsBegin(char const* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(char const* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(char const* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(char const* file, int line);
#endif

namespace TARN_NAMESPACE::detail {

#if TARN_TSAN

/// A stream's own context. The machine's lock creates no order in it: a real driver's locks are invisible to
/// the program.
///
/// Its work runs on a stack of its own. On the stack of the thread that runs it, it would write where that
/// thread has written before, and ThreadSanitizer would report a race: of all local variables at -O0, of a
/// few with optimisation.
class sim_fiber {
 public:
  static constexpr std::size_t stack_bytes = std::size_t{1} << 20;

  sim_fiber()
      : stack_(mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0)) {
    if (stack_ == MAP_FAILED) throw std::bad_alloc();
    handle_ = __tsan_create_fiber(0);
  }
  sim_fiber& operator=(sim_fiber&&) = delete;
  ~sim_fiber() {
    __tsan_destroy_fiber(handle_);
    (void)munmap(stack_, stack_bytes);
  }
  [[nodiscard]] void* handle() const noexcept { return handle_; }
  [[nodiscard]] void* stack() const noexcept { return stack_; }

 private:
  void* stack_;
  void* handle_ = nullptr;
};

/// An action that runs as another thread, which is ordered after some moments and releases one.
struct sim_fiber_call {
  void* fiber;
  void* const* after;
  std::size_t count;
  void* makes;
  void (*act)(void*);
  void* what;
  ucontext_t host = {};
  ucontext_t own = {};
};

// Neither is instrumented: they read host data, and must not create an order between the two.

/// The first function on the fiber's stack. makecontext() passes integers: the halves of the address of a
/// sim_fiber_call.
__attribute__((no_sanitize("thread"))) TARN_NOINLINE inline void start_fiber_call(unsigned high,
                                                                                  unsigned low) {
  auto* const call = reinterpret_cast<sim_fiber_call*>(static_cast<std::uintptr_t>(high) << 32U |
                                                       low);  // NOLINT: an address
  void* const host = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(call->fiber, __tsan_switch_to_fiber_no_sync);
  for (std::size_t i = 0; i < call->count; ++i) __tsan_acquire(call->after[i]);
  call->act(call->what);
  __tsan_release(call->makes);
  __tsan_switch_to_fiber(host, __tsan_switch_to_fiber_no_sync);
  (void)swapcontext(&call->own, &call->host);
}
__attribute__((no_sanitize("thread"))) TARN_NOINLINE inline void run_in_fiber(sim_fiber_call& call,
                                                                              void* stack) {
  (void)getcontext(&call.own);
  call.own.uc_stack.ss_sp = stack;
  call.own.uc_stack.ss_size = sim_fiber::stack_bytes;
  auto const address = reinterpret_cast<std::uintptr_t>(&call);
  makecontext(&call.own, reinterpret_cast<void (*)()>(start_fiber_call), 2,
              static_cast<unsigned>(address >> 32U), static_cast<unsigned>(address));
  (void)swapcontext(&call.host, &call.own);
}

/// The start and the end of one operation, identified by their addresses.
struct sim_moment {
  char begun = 0;
  char over = 0;
};

/// The latest operation of each stream that something is ordered after.
class sim_past {
 public:
  void join(sim_past const& other) {
    for (auto const& [stream, moment] : other.latest_) add(stream, moment);
  }
  /// Orders the calling thread after all of it.
  void observe() const {
    for (auto const& [stream, moment] : latest_) __tsan_acquire(&moment.second->over);
  }

 private:
  template <class Work>
  friend class sim_ordered_work;
  using numbered = std::pair<std::uint64_t, std::shared_ptr<sim_moment>>;
  void add(stream_id stream, numbered const& moment) {
    numbered& known = latest_[stream];
    if (known.first < moment.first) known = moment;
  }
  std::map<stream_id, numbered> latest_;
};

/// The fiber that runs a stream's work; created with the stream's first work.
class sim_context {
 public:
  [[nodiscard]] std::shared_ptr<sim_fiber> const& fiber() {
    if (!fiber_) fiber_ = std::make_shared<sim_fiber>();
    return fiber_;
  }

 private:
  std::shared_ptr<sim_fiber> fiber_;
};

/// One enqueued operation. The stream that ran it also destroys it, since the stream has accessed its
/// contents.
template <class Work>
class sim_ordered_work {
 public:
  /// Adds this work to `past`, which belongs to the stream.
  sim_ordered_work(std::shared_ptr<Work> work, sim_context& context, sim_past& past, stream_id stream,
                   std::uint64_t number)
      : fiber_(context.fiber()),
        before_(past),
        moment_(std::make_shared<sim_moment>()),
        held_(std::make_unique<std::shared_ptr<Work>>(std::move(work))) {
    __tsan_release(&moment_->begun);
    past.add(stream, {number, moment_});
  }
  /// Lets the host inspect the work, which the stream destroys, without creating an order between the two.
  template <class Look>
  [[nodiscard]] auto look(Look const& f) const noexcept {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    auto const seen = f(**held_);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    return seen;
  }
  void run() {
    std::vector<void*> after{&moment_->begun};
    for (auto const& [stream, moment] : before_.latest_) after.push_back(&moment.second->over);
    auto const act = [](void* held) {
      auto* const work = static_cast<std::shared_ptr<Work>*>(held);
      (*work)->act();
      delete work;
    };
    sim_fiber_call call{fiber_->handle(), after.data(), after.size(), &moment_->over, act, held_.release()};
    run_in_fiber(call, fiber_->stack());
  }

 private:
  std::shared_ptr<sim_fiber> fiber_;
  sim_past before_;
  std::shared_ptr<sim_moment> moment_;
  std::unique_ptr<std::shared_ptr<Work>> held_;
};

/// Destroys what streams have read, such as the work of a graph, without creating an order between them and
/// this thread.
template <class Held>
void drop_unordered(Held& held) noexcept {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  held = {};
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}

#else

template <class Held>
void drop_unordered(Held&) noexcept {}
struct sim_past {
  constexpr void join(sim_past const&) const noexcept {}
  constexpr void observe() const noexcept {}
};
struct sim_context {};
template <class Work>
class sim_ordered_work {
 public:
  sim_ordered_work(std::shared_ptr<Work> work, sim_context&, sim_past&, stream_id, std::uint64_t) noexcept
      : work_(std::move(work)) {}
  template <class Look>
  [[nodiscard]] auto look(Look const& f) const noexcept {
    return f(*work_);
  }
  void run() { work_->act(); }

 private:
  std::shared_ptr<Work> work_;
};

#endif

}  // namespace TARN_NAMESPACE::detail
// ---- tarn/driver/sim/sim_work.hpp
// Operations of simulated streams: kernels, copies and fills, with the bytes that each reads or writes.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

// ---- tarn/core/element.hpp
#ifndef TARN_SINGLE_CORE_ELEMENT_HPP
#define TARN_SINGLE_CORE_ELEMENT_HPP
// Element types that convert into each other, with their names, sizes and conversion.

#include <concepts>
#include <cstddef>
#include <cstdint>

// ---- tarn/core/small_float.hpp
#ifndef TARN_SINGLE_CORE_SMALL_FLOAT_HPP
#define TARN_SINGLE_CORE_SMALL_FLOAT_HPP
// float16, bfloat16, float8_e4m3, float8_e5m2: storage types for numbers, without arithmetic. The conversions
// work on bit patterns: rounding to nearest even to a narrower format, and exact widening.

#include <cstdint>
#include <type_traits>

namespace TARN_NAMESPACE {

/// The meaning of a format's largest exponent.
enum class top_exponent : std::uint8_t {
  infinity_and_nan,  ///< as in IEEE 754
  numbers_and_nan    ///< numbers, except the last pattern, which is NaN: the OCP formats marked FN
};

/// The result of converting a value that is too large, infinities included.
enum class overflow : std::uint8_t {
  to_infinity,
  to_largest  ///< the largest number of the same sign, as cuda_fp8's types do (__NV_SATFINITE)
};

/// What a format consists of: a sign, an exponent, and a mantissa without its leading bit.
template <class Bits, int ExponentBits, int MantissaBits, overflow OnOverflow = overflow::to_infinity,
          top_exponent Top = top_exponent::infinity_and_nan>
struct float_format {
  using bits_type = Bits;
  static constexpr int exponent_bits = ExponentBits;
  static constexpr int mantissa_bits = MantissaBits;
  static constexpr overflow on_overflow = OnOverflow;
  static constexpr top_exponent top = Top;
};

/// IEEE 754 binary32, the format of float.
struct binary32 : float_format<std::uint32_t, 8, 23> {};
/// IEEE 754 binary64, the format of double.
struct binary64 : float_format<std::uint64_t, 11, 52> {};
/// IEEE 754 binary16: 11 significant bits, up to 65,504.
struct binary16 : float_format<std::uint16_t, 5, 10> {};
/// The upper half of a binary32: 8 significant bits, the range of float.
struct brain16 : float_format<std::uint16_t, 8, 7> {};
/// OCP E4M3 (FN): 4 significant bits, up to 448, no infinities.
struct ocp_e4m3 : float_format<std::uint8_t, 4, 3, overflow::to_largest, top_exponent::numbers_and_nan> {};
/// OCP E5M2: 3 significant bits, up to 57,344. It has infinities, but no conversion produces one.
struct ocp_e5m2 : float_format<std::uint8_t, 5, 2, overflow::to_largest> {};

namespace detail {

/// Constants derived from a format.
template <class Format>
struct format_of {
  using bits_type = typename Format::bits_type;
  static constexpr int sign_at = Format::exponent_bits + Format::mantissa_bits;
  static constexpr int bias = (1 << (Format::exponent_bits - 1)) - 1;
  static constexpr int top_field = (1 << Format::exponent_bits) - 1;
  static constexpr bool has_infinity = Format::top == top_exponent::infinity_and_nan;
  static constexpr std::uint64_t mantissa_mask = (std::uint64_t{1} << Format::mantissa_bits) - 1;
  static constexpr std::uint64_t infinity = std::uint64_t{top_field} << Format::mantissa_bits;
  static constexpr std::uint64_t largest = has_infinity ? infinity - 1 : (infinity | mantissa_mask) - 1;
  /// The NaN that conversions produce, all bits set except the sign, as in CUDA.
  static constexpr std::uint64_t nan = (std::uint64_t{1} << sign_at) - 1;
};

/// Returns the pattern of To nearest to a pattern of From, ties to even. Every NaN becomes To's single NaN.
template <class To, class From>
[[nodiscard]] TARN_HOST_DEVICE constexpr typename To::bits_type narrowed(
    typename From::bits_type bits) noexcept {
  using to = format_of<To>;
  using from = format_of<From>;
  using word = typename From::bits_type;
  static_assert(To::mantissa_bits < From::mantissa_bits && To::exponent_bits <= From::exponent_bits);
  constexpr int m = From::mantissa_bits;
  constexpr int dropped = m - To::mantissa_bits;
  auto const sign = static_cast<word>(bits >> from::sign_at);
  auto const field = static_cast<int>((bits >> m) & static_cast<word>(from::top_field));
  auto mantissa = static_cast<word>(bits & static_cast<word>(from::mantissa_mask));
  auto const signed_as = [sign](word magnitude) {
    return static_cast<typename To::bits_type>(magnitude | static_cast<word>(sign << to::sign_at));
  };
  if (field == from::top_field) {
    if (mantissa != 0) return static_cast<typename To::bits_type>(to::nan);
    return signed_as(
        static_cast<word>(To::on_overflow == overflow::to_infinity ? to::infinity : to::largest));
  }
  // The value is mantissa * 2^(exponent - m); `steps` is the distance of the exponent from To's smallest one.
  if (field != 0) mantissa = static_cast<word>(mantissa | word{1} << m);
  int const exponent = (field != 0 ? field : 1) - from::bias;
  int const steps = exponent - (1 - to::bias);
  int shift = dropped;
  if (steps < 0)
    shift = -steps < m + 2 - dropped ? dropped - steps : m + 2;  // larger shifts also round to zero
  auto const half = static_cast<word>(word{1} << (shift - 1));
  auto const kept = static_cast<word>(mantissa >> shift);
  auto rounded = static_cast<word>((mantissa + (half - 1) + (kept & 1U)) >> shift);
  // A carry into the exponent is correct, and so is adding the leading one of a normal number.
  if (steps > 0) rounded = static_cast<word>(rounded + (static_cast<word>(steps) << To::mantissa_bits));
  if (rounded > static_cast<word>(to::largest)) {
    rounded = static_cast<word>(To::on_overflow == overflow::to_infinity ? to::infinity : to::largest);
  }
  return signed_as(rounded);
}

/// Returns the binary32 pattern with exactly this value. A NaN keeps its sign and payload and becomes quiet.
template <class From>
[[nodiscard]] TARN_HOST_DEVICE constexpr std::uint32_t widened(typename From::bits_type bits) noexcept {
  using from = format_of<From>;
  constexpr int m = From::mantissa_bits;
  constexpr int up = binary32::mantissa_bits - m;
  auto const word = static_cast<std::uint32_t>(bits);
  std::uint32_t const sign = word >> from::sign_at << 31;
  std::uint32_t mantissa = word & static_cast<std::uint32_t>(from::mantissa_mask);
  int const field = static_cast<int>(word >> m) & from::top_field;
  constexpr std::uint32_t top = 0x7f80'0000;
  constexpr std::uint32_t quiet = 0x0040'0000;
  bool const is_nan = from::has_infinity ? field == from::top_field && mantissa != 0
                                         : (word & static_cast<std::uint32_t>(from::nan)) == from::nan;
  if (is_nan) return sign | top | quiet | mantissa << up;
  if (from::has_infinity && field == from::top_field) return sign | top;
  constexpr int rebias = format_of<binary32>::bias - from::bias;
  if (field != 0 || rebias == 0)
    return sign | static_cast<std::uint32_t>(field + rebias) << 23 | mantissa << up;
  if (mantissa == 0) return sign;
  int exponent = rebias + 1;
  while ((mantissa >> m) == 0) {  // at most m steps: subnormal in From, normal in binary32
    mantissa <<= 1;
    --exponent;
  }
  return sign | static_cast<std::uint32_t>(exponent) << 23 |
         (mantissa & static_cast<std::uint32_t>(from::mantissa_mask)) << up;
}

}  // namespace detail

/// A number stored in 1 or 2 bytes, on host and device; bit-compatible with CUDA's type of the same format
/// (__half,
/// __nv_bfloat16, __nv_fp8_e4m3, __nv_fp8_e5m2). Convert to float, calculate, convert back: both conversions
/// are explicit. Rounds to nearest even, from double in one step; keeps -0.0, subnormals and NaN (one NaN per
/// format; its sign and payload are lost). Values that are too large, including infinities, become infinity
/// in the 16-bit formats and the largest number in the 8-bit ones. Trivially copyable; uninitialised by
/// default, zero when value-initialised.
template <class Format>
class basic_float {
 public:
  using format = Format;
  using bits_type = typename Format::bits_type;

  basic_float() = default;
  TARN_HOST_DEVICE explicit constexpr basic_float(float value) noexcept
      : bits_(detail::narrowed<Format, binary32>(__builtin_bit_cast(std::uint32_t, value))) {}
  /// A template, so that integers convert through float without ambiguity.
  template <class Double>
    requires std::is_same_v<Double, double>
  TARN_HOST_DEVICE explicit constexpr basic_float(Double value) noexcept
      : bits_(detail::narrowed<Format, binary64>(__builtin_bit_cast(std::uint64_t, value))) {}
  /// Converts from another of these formats, with one rounding.
  template <class Other>
  TARN_HOST_DEVICE explicit constexpr basic_float(basic_float<Other> other) noexcept
      : basic_float(static_cast<float>(other)) {}

  /// Returns the number with this bit pattern.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float from_bits(bits_type bits) noexcept {
    basic_float made{};
    made.bits_ = bits;
    return made;
  }
  [[nodiscard]] TARN_HOST_DEVICE constexpr bits_type bits() const noexcept { return bits_; }

  /// Exact conversion.
  [[nodiscard]] TARN_HOST_DEVICE explicit constexpr operator float() const noexcept {
    return __builtin_bit_cast(float, detail::widened<Format>(bits_));
  }
  [[nodiscard]] TARN_HOST_DEVICE explicit constexpr operator double() const noexcept {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// The largest number.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float largest() noexcept {
    return from_bits(static_cast<bits_type>(detail::format_of<Format>::largest));
  }
  /// The smallest positive number, which is subnormal.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float smallest() noexcept { return from_bits(1); }
  /// The smallest positive number with full precision.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr basic_float smallest_normal() noexcept {
    return from_bits(static_cast<bits_type>(1U << Format::mantissa_bits));
  }
  /// Distance from 1 to the next larger number; the relative rounding error is at most half of it.
  [[nodiscard]] TARN_HOST_DEVICE static constexpr float epsilon() noexcept {
    return 1.0F / static_cast<float>(1U << Format::mantissa_bits);
  }

  /// Compares as numbers: NaN is unequal to everything, and both zeros are equal.
  [[nodiscard]] friend TARN_HOST_DEVICE constexpr bool operator==(basic_float a, basic_float b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }

 private:
  bits_type bits_;
};

using float16 = basic_float<binary16>;
using bfloat16 = basic_float<brain16>;
using float8_e4m3 = basic_float<ocp_e4m3>;
using float8_e5m2 = basic_float<ocp_e5m2>;

static_assert(std::is_trivially_copyable_v<float16> && std::is_trivially_default_constructible_v<float16>);
static_assert(sizeof(float16) == 2 && sizeof(bfloat16) == 2 && sizeof(float8_e4m3) == 1 &&
              sizeof(float8_e5m2) == 1);

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_CORE_SMALL_FLOAT_HPP

namespace TARN_NAMESPACE {

namespace detail {
template <class T>
inline constexpr bool is_basic_float = false;
template <class Format>
inline constexpr bool is_basic_float<basic_float<Format>> = true;
}  // namespace detail

/// double, float and the formats of small_float.hpp.
template <class T>
concept element = std::same_as<T, double> || std::same_as<T, float> || detail::is_basic_float<T>;

/// Converts one element, rounding once to nearest even. double to float uses the processor's conversion.
template <element To, element From>
[[nodiscard]] TARN_HOST_DEVICE constexpr To element_cast(From value) noexcept {
  return static_cast<To>(value);
}

/// An element type as a value, for settings, tables and budgets; largest first.
enum class element_type : std::uint8_t { f64, f32, f16, bf16, f8_e4m3, f8_e5m2 };
inline constexpr std::size_t element_type_count = 6;

/// The enumerator of a type: `element_type_of<tarn::float16>`.
template <element T>
inline constexpr element_type element_type_of = std::same_as<T, double>        ? element_type::f64
                                                : std::same_as<T, float>       ? element_type::f32
                                                : std::same_as<T, float16>     ? element_type::f16
                                                : std::same_as<T, bfloat16>    ? element_type::bf16
                                                : std::same_as<T, float8_e4m3> ? element_type::f8_e4m3
                                                                               : element_type::f8_e5m2;

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t bytes_of(element_type type) noexcept {
  constexpr std::uint8_t sizes[element_type_count] = {8, 4, 2, 2, 1, 1};
  return sizes[static_cast<std::size_t>(type)];
}
/// Bytes of `count` elements. @throws length_error  the result does not fit in size_t
[[nodiscard]] constexpr std::size_t bytes_of(std::size_t count, element_type type) {
  return checked_bytes(count, bytes_of(type));
}
/// Returns the number of elements that fit into `bytes`.
[[nodiscard]] constexpr std::size_t items_in(std::size_t bytes, element_type type) noexcept {
  return bytes / bytes_of(type);
}
/// Returns the type's name; static storage.
[[nodiscard]] constexpr char const* name_of(element_type type) noexcept {
  constexpr char const* names[element_type_count] = {"float64",  "float32",     "float16",
                                                     "bfloat16", "float8_e4m3", "float8_e5m2"};
  return names[static_cast<std::size_t>(type)];
}

/// Calls `call` with a value of the type that `type` names, to get from a runtime setting to a static type.
template <class Call>
constexpr decltype(auto) with_element(element_type type, Call const& call) {
  switch (type) {
    case element_type::f64:
      return call(double{});
    case element_type::f32:
      return call(float{});
    case element_type::f16:
      return call(float16{});
    case element_type::bf16:
      return call(bfloat16{});
    case element_type::f8_e4m3:
      return call(float8_e4m3{});
    case element_type::f8_e5m2:
      break;
  }
  return call(float8_e5m2{});
}

}  // namespace TARN_NAMESPACE
#endif  // TARN_SINGLE_CORE_ELEMENT_HPP

namespace TARN_NAMESPACE {

/// Whether simulated work reads or writes.
enum class sim_use : std::uint8_t { reads, writes };

/// Bytes that simulated work accesses.
struct sim_access {
  void const* p = nullptr;
  std::size_t bytes = 0;
  sim_use use = sim_use::reads;
};
[[nodiscard]] constexpr sim_access sim_reads(void const* p, std::size_t bytes) noexcept {
  return {p, bytes, sim_use::reads};
}
[[nodiscard]] constexpr sim_access sim_writes(void const* p, std::size_t bytes) noexcept {
  return {p, bytes, sim_use::writes};
}

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE::detail {

/// True while the calling thread runs a simulated kernel, where driver calls are not permitted. Atomic only
/// because ThreadSanitizer treats the kernel as another thread.
inline thread_local std::atomic<bool> sim_inside_work{false};

/// Passes an access to the tool, if there is one.
inline void show_tool(sim_memory const& memory, sim_access const& a) noexcept {
  if (memory.tool() == nullptr) return;
  try {
    memory.tool()->check_access(a.p, a.bytes, a.use == sim_use::reads ? "read" : "write");
  } catch (...) {  // without host memory for its finding the tool reports nothing
  }
}

/// The effect of an operation when it becomes due. Shared by the replays of a graph.
struct sim_work {
  virtual ~sim_work() = default;
  /// Checks that the accessed memory exists, and passes the accesses to the tool.
  virtual sim_code check_access(sim_memory& memory) noexcept {
    for (sim_access const& a : touched) {
      if (!memory.accessible(a.p, a.bytes)) return sim_code::illegal_address;
      show_tool(memory, a);
    }
    return sim_code::ok;
  }
  /// Performs the operation, after check_access() succeeded.
  virtual void act() noexcept = 0;

  std::vector<sim_access> touched;  ///< for the order checker, too
};

/// A kernel: the bytes that it declares to access, and its effect on the host.
template <class F>
struct sim_kernel final : sim_work {
  sim_kernel(std::initializer_list<sim_access> what, F f) : body(std::move(f)) { touched = what; }
  void act() noexcept override { body(); }
  F body;
};

/// An operation on elements, which has no effect unless all of them are real.
struct sim_element_work : sim_work {
  sim_code check_access(sim_memory& memory) noexcept override {
    if (!memory.is_real(to) || !memory.is_real(from)) real.store(false, std::memory_order_relaxed);
    return sim_work::check_access(memory);
  }
  void act() noexcept final {
    if (real.load(std::memory_order_relaxed)) write();
  }
  virtual void write() noexcept = 0;

  void* to = nullptr;
  void const* from = nullptr;
  std::atomic<bool> real{true};  ///< atomic for the same reason as sim_inside_work
};

/// A copy, or a fill if there is no source.
struct sim_transfer_work final : sim_element_work {
  void write() noexcept override {
    if (from != nullptr) {
      std::memmove(to, from, bytes);
    } else {
      std::memset(to, byte, bytes);
    }
  }
  int byte = 0;
  std::size_t bytes = 0;
};

// Element conversion as simulated work: a kernel whose reads and writes the order checker records.

template <class To, class From>
class sim_conversion final : public sim_element_work {
 public:
  sim_conversion(To* target, From const* source, std::size_t count, int device)
      : count_(count), device_(device) {
    to = target;
    from = source;
    touched = {sim_reads(from, count * sizeof(From)), sim_writes(to, count * sizeof(To))};
  }

  sim_code check_access(sim_memory& memory) noexcept override {
    for (sim_access const& a : touched) {
      if (!memory.is_reachable(a.p, device_)) return sim_code::illegal_address;
    }
    return sim_element_work::check_access(memory);
  }
  void write() noexcept override {
    for (std::size_t i = 0; i < count_; ++i)
      static_cast<To*>(to)[i] = element_cast<To>(static_cast<From const*>(from)[i]);
  }

 private:
  std::size_t count_;
  int device_;
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE::detail {

/// The last nodes of a captured stream, by index.
using sim_leaves = std::vector<std::size_t>;

/// Adds the leaves that are missing.
inline void join(sim_leaves& leaves, sim_leaves const& more) {
  for (std::size_t const n : more) {
    if (std::find(leaves.begin(), leaves.end(), n) == leaves.end()) leaves.push_back(n);
  }
}

/// Work, or a change of owner of some bytes, at one place of a capture.
struct sim_node {
  enum class kind : std::uint8_t { work, allocated, freed };
  kind what = kind::work;
  int device = 0;
  std::size_t branch = 0;
  sim_leaves after;  ///< what it depends on
  // Work.
  std::shared_ptr<sim_work> work;
  sim_nanoseconds duration = 0;
  std::uint64_t owners = 0;  ///< sim_order::owners() when it was captured
  // A change of owner. No node depends on it.
  void const* p = nullptr;
  std::size_t bytes = 0;
};

/// A capture, and then the graph that it recorded.
class sim_capture {
 public:
  explicit sim_capture(stream_id from) noexcept : origin(from) {}
  sim_capture& operator=(sim_capture&&) = delete;
  ~sim_capture() { drop_unordered(nodes_); }

  stream_id const origin;  ///< the stream where it began and must end
  bool invalid = false;
  bool open = true;
  std::uint64_t holds = 0;  ///< sim_order::holds() when it ended

  /// Bytes that the capture allocated or freed.
  struct range {
    void const* p = nullptr;
    std::size_t bytes = 0;
  };

  [[nodiscard]] std::vector<sim_node> const& nodes() const noexcept { return nodes_; }
  /// Number of nodes that are work.
  [[nodiscard]] std::size_t works() const noexcept { return works_; }
  [[nodiscard]] std::size_t branches() const noexcept { return ends_.empty() ? 1 : ends_.size(); }

  /// Adds work after the leaves of a stream, and makes it the stream's only leaf.
  void add_work(sim_node node, sim_leaves& leaves) {
    std::size_t const number = nodes_.size();
    std::vector<std::size_t> known = known_after(leaves);
    node.branch = branch_after(leaves, known);
    if (node.branch == ends_.size()) ends_.push_back(0);
    known.resize(ends_.size());
    known[node.branch] = ends_[node.branch] = number + 1;
    node.after = std::move(leaves);
    nodes_.push_back(std::move(node));
    known_.push_back(std::move(known));
    leaves.assign(1, number);
    ++works_;
  }
  /// Records that bytes change owners after the leaves of a stream.
  void add_mark(sim_node node, sim_leaves const& leaves) {
    node.branch = leaves.empty() ? 0 : nodes_[leaves.front()].branch;
    nodes_.push_back(std::move(node));
    known_.emplace_back();
  }
  /// Adds a whole graph after the leaves of a stream.
  void add_graph(sim_capture const& graph, sim_leaves& leaves) {
    std::vector<std::size_t> at(graph.nodes_.size());
    sim_leaves all = leaves;
    for (std::size_t i = 0; i < graph.nodes_.size(); ++i) {
      sim_node node = graph.nodes_[i];
      sim_leaves after;
      for (std::size_t const n : node.after) after.push_back(at[n]);
      if (after.empty()) after = leaves;
      at[i] = nodes_.size();
      if (node.what != sim_node::kind::work) {
        add_mark(std::move(node), after);
        continue;
      }
      for (std::size_t const n : after) all.erase(std::remove(all.begin(), all.end(), n), all.end());
      add_work(std::move(node), after);
      all.push_back(at[i]);
    }
    leaves = std::move(all);
  }

  /// Returns true if these leaves are ordered after all work.
  [[nodiscard]] bool is_joined(sim_leaves const& leaves) const {
    std::vector<std::size_t> known = known_after(leaves);
    known.resize(ends_.size());
    return known == ends_;
  }

  /// Blocks that it frees but did not allocate: each replay begins with them allocated.
  [[nodiscard]] std::vector<range> const& inputs() const noexcept { return inputs_; }
  /// Blocks that it allocates and does not free.
  [[nodiscard]] std::vector<range> const& outputs() const noexcept { return outputs_; }

  void end(std::uint64_t holds_now) {
    open = false;
    holds = holds_now;
    for (sim_node const& n : nodes_) {
      if (n.what == sim_node::kind::allocated) outputs_.push_back({n.p, n.bytes});
      if (n.what != sim_node::kind::freed) continue;
      auto const it = std::find_if(outputs_.begin(), outputs_.end(), [&](range r) { return r.p == n.p; });
      if (it != outputs_.end()) {
        outputs_.erase(it);
      } else {
        inputs_.push_back({n.p, n.bytes});
      }
    }
  }

 private:
  /// For each branch, the number of its latest node among the leaves and their ancestors, plus one.
  [[nodiscard]] std::vector<std::size_t> known_after(sim_leaves const& leaves) const {
    std::vector<std::size_t> known(ends_.size());
    for (std::size_t const n : leaves) {
      for (std::size_t b = 0; b < known_[n].size(); ++b) known[b] = (std::max)(known[b], known_[n][b]);
    }
    return known;
  }
  /// Returns a branch whose latest node is an ancestor, if possible a dependency; else a new one.
  [[nodiscard]] std::size_t branch_after(sim_leaves const& leaves,
                                         std::vector<std::size_t> const& known) const {
    for (std::size_t const n : leaves) {
      if (ends_[nodes_[n].branch] == n + 1) return nodes_[n].branch;
    }
    std::size_t b = 0;
    while (b < ends_.size() && known[b] != ends_[b]) ++b;
    return b;
  }

  std::vector<sim_node> nodes_;
  std::vector<std::vector<std::size_t>> known_;  ///< of each node, what known_after() would return for it
  std::vector<std::size_t> ends_;                ///< of each branch, the number of its latest node, plus one
  std::vector<range> inputs_, outputs_;
  std::size_t works_ = 0;
};

}  // namespace TARN_NAMESPACE::detail
// ---- tarn/driver/sim/sim_order.hpp
// The order checker of the simulated GPU: happens-before by vector clocks over streams and host threads. It
// reports any two conflicting accesses to the same bytes by different owners that are not ordered.
//
// Every stream and every host timeline is an agent with a clock: entry i is the number of agent i's
// operations that are known to be complete. Knowledge propagates as follows:
//
//   host enqueues on S      S learns what the host knows
//   record(E, S)            E learns what S knows          wait(S, E)            S learns what E knows
//   synchronize(S or E)     the host learns                query(E) = done       the host learns
//
//   publish(token)          the token learns               observe(token)        the host learns
//
// Host threads are one timeline, in the order of their driver calls, unless sim_checks::each_thread requests
// one timeline per thread; then knowledge passes between threads only by publish and observe.
//
// Two accesses are ordered if the later one's clock covers the earlier one's tick. Accesses by the same owner
// are not checked; when bytes change owners (freed, then allocated), the next owner's accesses must cover all
// accesses of previous owners. Bytes are physical: a page that is remapped keeps its history.
//
// Replays of a graph access the addresses of its capture. Bytes that were allocated or freed on a captured
// stream are held by the graph until eager work gets them, or, after graph_holds(), until graph_released():
// each replay repeats the changes of owner in the order of the capture. Other bytes must have the owner that
// they had when the access was captured.
//
// Over 400 lines: a stretch, the changes of its owner and the text of a finding about it are read together.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

// ---- tarn/driver/sim/sim_agents.hpp
// Who acts on the simulated GPU, and what each knows: the agents of the order checker and their vector
// clocks.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace TARN_NAMESPACE::detail {

/// An agent: an index into every clock.
using sim_agent = std::size_t;

/// A vector clock: how much of each agent's past is known.
class sim_clock {
 public:
  [[nodiscard]] std::uint64_t at(sim_agent agent) const noexcept {
    return agent < ticks_.size() ? ticks_[agent] : 0;
  }
  void raise(sim_agent agent, std::uint64_t tick) {
    if (agent >= ticks_.size()) ticks_.resize(agent + 1);
    if (ticks_[agent] < tick) ticks_[agent] = tick;
  }
  void join(sim_clock const& other) {
    if (ticks_.size() < other.ticks_.size()) ticks_.resize(other.ticks_.size());
    for (std::size_t i = 0; i < other.ticks_.size(); ++i) {
      if (ticks_[i] < other.ticks_[i]) ticks_[i] = other.ticks_[i];
    }
  }
  [[nodiscard]] bool is_empty() const noexcept { return ticks_.empty(); }
  void clear() noexcept { ticks_.clear(); }
  /// Finds the first agent whose tick here exceeds that in `known`; returns false if all ticks are known.
  [[nodiscard]] bool exceeds(sim_clock const& known, sim_agent& who) const noexcept {
    for (std::size_t i = 0; i < ticks_.size(); ++i) {
      if (ticks_[i] > known.at(i)) {
        who = i;
        return true;
      }
    }
    return false;
  }

 private:
  std::vector<std::uint64_t> ticks_;
};

/// The agents of a machine. Callers hold the machine's lock.
class sim_agents {
 public:
  /// Adds an agent that knows nothing. `kind` and `number` name it in findings.
  sim_agent add_agent(char const* kind, std::uint64_t number) {
    agents_.push_back({{}, 0, std::string(kind) + ' ' + std::to_string(number), 0, false});
    return agents_.size() - 1;
  }

  /// Returns the latest agent of that name, for the last uses of a destroyed stream; `none` if there was
  /// none.
  [[nodiscard]] sim_agent agent_of(char const* kind, std::uint64_t number) const {
    std::string const name = std::string(kind) + ' ' + std::to_string(number);
    for (sim_agent a = agents_.size(); a-- > 0;) {
      if (agents_[a].name == name) return a;
    }
    return none;
  }

  [[nodiscard]] sim_clock const& clock(sim_agent agent) const noexcept { return agents_[agent].clock; }
  void learn(sim_agent agent, sim_clock const& what) { agents_[agent].clock.join(what); }

  /// Records that an event covers what the agent did so far.
  void marked(sim_agent agent) {
    agents_[agent].marked = agents_[agent].ticks;
    agents_[agent].has_mark = true;
  }

  /// Counts one more operation of an agent; its own clock covers it from now on.
  void tick(sim_agent agent) { agents_[agent].clock.raise(agent, ++agents_[agent].ticks); }

  /// Returns true if everything that `first` has done is known to `second`.
  [[nodiscard]] bool is_ordered(sim_agent first, sim_agent second) const noexcept {
    return agents_[second].clock.at(first) >= agents_[first].ticks;
  }

 protected:
  static constexpr sim_agent none = static_cast<sim_agent>(-1);

  struct acting {
    sim_clock clock;
    std::uint64_t ticks;
    std::string name;
    std::uint64_t marked = 0;  ///< operations that its last event covers
    bool has_mark = false;
  };

  [[nodiscard]] std::uint64_t ticks_of(sim_agent who) const { return who == none ? 0 : agents_[who].ticks; }
  [[nodiscard]] std::string name_of_agent(sim_agent who) const {
    return who == none ? std::string("an unknown thread") : agents_[who].name;
  }

  std::vector<acting> agents_;
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

namespace detail {

/// Whether a block was allocated or freed by eager work, or inside a capture.
enum class sim_place : std::uint8_t { eager, captured };

/// The checker. Callers hold the machine's lock.
class sim_order : public sim_agents {
 public:
  /// Gives bytes a new owner, whose accesses must cover all earlier ones.
  void allocated(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on,
                 sim_place where = sim_place::eager) {
    ++owners_;
    if (where == sim_place::captured) ++holds_;
    char const* wrong = nullptr;
    stretch before;
    std::size_t behind = 0;
    each(memory, p, bytes, [&](stretch& s) {
      behind += s.bytes;
      char const* const found = s.held ? "bytes allocated twice"
                                : s.promised && where == sim_place::eager
                                    ? "bytes that a graph holds are allocated outside its captures"
                                    : nullptr;
      if (found != nullptr && wrong == nullptr) {
        wrong = found;
        before = s;
      }
      give(s, p, bytes, on);
      if (where == sim_place::eager && !s.promised) s.kept = 0;  // a later replay is a finding
      if (where == sim_place::captured && s.kept == 0) s.kept = holds_;
    });
    if (behind < bytes) without_pages_.insert(p);  // its pool falls asleep meanwhile
    if (wrong != nullptr) add_finding(wrong, {p, bytes, sim_use::writes}, before, on, none);
  }

  /// Takes bytes from their owner: nothing may access them until they have the next one.
  void freed(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on,
             sim_place where = sim_place::eager) {
    if (where == sim_place::captured) ++holds_;
    bool held = true;
    stretch before;
    each(memory, p, bytes, [&](stretch& s) {
      if (!s.held && held) {
        held = false;
        before = s;
      }
      take(s, on);
      if (where == sim_place::captured && s.kept == 0) s.kept = holds_;
    });
    if (!held && without_pages_.erase(p) == 0)
      add_finding("freed bytes that no block owns", {p, bytes, sim_use::writes}, before, on, none);
  }

  /// Lets the memory of graphs hold bytes until graph_released(). `holder` names that memory: bytes cannot
  /// have two.
  void graph_holds(sim_memory const& memory, void const* p, std::size_t bytes, void const* holder) {
    ++holds_;
    bool reported = false;
    each(memory, p, bytes, [&](stretch& s) {
      if (s.kept == 0) s.kept = holds_;
      s.noted = s.promised = true;
      if (holder == nullptr) return;
      if (s.kept_by != nullptr && s.kept_by != holder && !reported) {
        reported = true;
        add_finding("bytes that the memory of two graphs holds", {p, bytes, sim_use::writes}, s, none, none);
      }
      s.kept_by = holder;
    });
  }
  /// The same for physical memory that is new behind addresses that graphs held before: all of these graphs
  /// may use it.
  void graph_holds_again(sim_memory const& memory, void const* p, std::size_t bytes) {
    each(memory, p, bytes, [](stretch& s) {
      if (!s.noted) s.kept = 1;
      s.promised = s.promised || !s.noted;
    });
  }
  /// Until called again with false, graph_released() of another address of the same physical memory changes
  /// nothing.
  void graph_stays(sim_memory const& memory, void const* p, std::size_t bytes, bool stays) {
    each(memory, p, bytes, [=](stretch& s) { s.stays = stays; });
  }
  void graph_released(sim_memory const& memory, void const* p, std::size_t bytes) {
    each(memory, p, bytes, [](stretch& s) {
      if (s.stays) return;
      s.kept = 0;
      s.promised = false;
      s.kept_by = nullptr;
    });
  }

  /// Returns the number of owners that bytes have had so far, for the accesses of a capture.
  [[nodiscard]] std::uint64_t owners() const noexcept { return owners_; }
  /// Returns the number of times that graphs took hold of bytes so far, for a capture that ends.
  [[nodiscard]] std::uint64_t holds() const noexcept { return holds_; }
  /// Returns true if no byte was freed.
  [[nodiscard]] bool is_held(sim_memory const& memory, void const* p, std::size_t bytes) {
    bool held = true;
    each(memory, p, bytes, [&](stretch& s) { held = held && (s.held || !s.noted); });
    return held;
  }

  /// Returns true if a block of exactly these bytes owns some of them.
  [[nodiscard]] bool is_owned(sim_memory const& memory, void const* p, std::size_t bytes) {
    bool owned = false;
    each(memory, p, bytes, [&](stretch const& s) {
      owned = owned || (s.held && s.current.p == p && s.current.bytes == bytes);
    });
    return owned;
  }

  /// Repeats in a replay what allocated() did in its capture, when `holds` was what holds() returned.
  void allocated_again(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on,
                       std::uint64_t holds) {
    ++owners_;
    each(memory, p, bytes, [&](stretch& s) {
      bool const is_others = s.held && (s.current.p != p || s.current.bytes != bytes);
      // Lost: accesses by the replay are findings. In new physical memory at the same address the owner is
      // not known.
      if (!s.noted || !is_kept(s, holds) || is_others) return;
      std::uint64_t const number = s.current.number;
      bool const is_same = s.held;  // the capture did not free it, and nothing else did: for other graphs it
                                    // stays the same block
      give(s, p, bytes, on);
      if (is_same) s.current.number = number;
    });
  }
  void freed_again(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent on,
                   std::uint64_t holds) {
    each(memory, p, bytes, [&](stretch& s) {
      if (is_kept(s, holds) && s.current.p == p && s.current.bytes == bytes) take(s, on);
    });
  }

  /// What the checker knew when an access was captured.
  struct recorded {
    std::uint64_t owners = 0;  ///< owners() when the access was captured
    std::uint64_t holds = 0;   ///< holds() when the capture ended
  };

  /// Checks and records one access by work on `agent`.
  /// @param replayed  null for eager work
  void access(sim_memory const& memory, sim_access const& a, sim_agent agent,
              recorded const* replayed = nullptr) {
    sim_clock const& known = agents_[agent].clock;
    std::uint64_t const now = agents_[agent].ticks;
    bool reported = false;
    each(memory, a.p, a.bytes, [&](stretch& s) {
      sim_agent other = none;
      bool const writes = a.use == sim_use::writes;
      if (s.noted && !s.held && !reported) {
        reported = true;
        add_finding(writes ? "write to freed bytes" : "read of freed bytes", a, s, agent, none);
      } else if (!reported && replayed != nullptr && s.current.number > replayed->owners &&
                 !is_kept(s, replayed->holds)) {
        reported = true;
        add_finding(writes ? "write by a replay to bytes that got another owner after the capture"
                           : "read by a replay of bytes that got another owner after the capture",
                    a, s, agent, none);
      } else if (!reported && s.earlier_writes.exceeds(known, other)) {
        reported = true;
        add_finding(writes ? "write not ordered after an earlier owner's write"
                           : "read not ordered after an earlier owner's write",
                    a, s, agent, other);
      } else if (!reported && writes && s.earlier_reads.exceeds(known, other)) {
        reported = true;
        add_finding("write not ordered after an earlier owner's read", a, s, agent, other);
      }
      (writes ? s.writes : s.reads).raise(agent, now);
    });
    (void)memory.each_piece(a.p, a.bytes, [&](sim_memory::piece const& piece) {
      if (piece.mapping != 0) through_[piece.mapping].raise(agent, now);
    });
  }

  /// Checks that the host may unmap a range: all work that accessed memory through this mapping must be known
  /// to be complete. Work through other mappings of the same memory does not matter.
  void taken_away(sim_memory const& memory, void const* p, std::size_t bytes, sim_agent host,
                  char const* how) {
    auto const it = through_.find(reinterpret_cast<std::uintptr_t>(p));
    if (it == through_.end()) return;
    sim_agent other = none;
    if (it->second.exceeds(agents_[host].clock, other)) {
      stretch used;  // a stretch that this agent used: its history is the most useful
      each(memory, p, bytes, [&](stretch& s) {
        if (last_of(s, other) >= it->second.at(other)) used = s;
      });
      add_finding(how, {p, bytes, sim_use::writes}, used, host, other);
    }
    through_.erase(it);
  }

  /// Reports the use of a stream under a handle that belonged to another stream when the caller obtained it.
  void stale_handle(char const* call, std::uint64_t meant, sim_agent is_now) {
    if (findings_.size() >= most_findings) return;
    findings_.push_back(
        detail::concat({call, " with the handle of destroyed stream ", std::to_string(meant), ": it is ",
                        name_of_agent(is_now), " now. Call identify() before using a remembered handle."}));
  }
  /// Reports the use of a destroyed stream: CUDA may crash.
  void dead_handle(char const* call, std::uint64_t meant) {
    if (findings_.size() >= most_findings) return;
    findings_.push_back(
        detail::concat({call, " with the handle of stream ", std::to_string(meant),
                        ", which is destroyed: CUDA may crash. Mark the stream's work while it lives."}));
  }

  /// Removes the history of freed physical bytes. A block in them keeps its addresses (its pool sleeps) and
  /// may be freed later.
  void forget(std::uint64_t key, std::size_t bytes) {
    split(key);
    split(key + bytes);
    auto const end = stretches_.lower_bound(key + bytes);
    for (auto it = stretches_.lower_bound(key); it != end; it = stretches_.erase(it)) {
      if (it->second.held) without_pages_.insert(it->second.current.p);
    }
  }

  [[nodiscard]] std::vector<std::string> const& findings() const noexcept { return findings_; }
  [[nodiscard]] std::size_t stretches() const noexcept { return stretches_.size(); }

 private:
  /// Maximum number of findings kept; the first ones matter.
  static constexpr std::size_t most_findings = 1'000;
  /// Number of previous owners that a finding lists.
  static constexpr std::size_t most_previous = 3;

  /// One allocation of a block.
  struct owner {
    std::uint64_t number = 0;
    void const* p = nullptr;
    std::size_t bytes = 0;
    sim_agent allocated_on = none;
    sim_agent freed_on = none;
    std::uint64_t allocated_at = 0;  ///< number of that agent's operations at the time
    std::uint64_t freed_at = 0;
  };
  /// Bytes with the same history.
  struct stretch {
    std::size_t bytes = 0;
    bool held = false;       ///< has an owner now
    bool noted = false;      ///< allocated() or freed() was called; other bytes are never reported as freed
    std::uint64_t kept = 0;  ///< when a graph took hold of it; 0: no graph holds it
    bool promised = false;   ///< graph_holds() was called: eager work must not get it
    bool stays = false;      ///< graph_stays() was called
    void const* kept_by = nullptr;  ///< the graph's memory, if named
    owner current;
    owner previous[most_previous];            ///< latest first
    sim_clock reads, writes;                  ///< by the current owner
    sim_clock earlier_reads, earlier_writes;  ///< by all previous owners
  };

  [[nodiscard]] static bool is_kept(stretch const& s, std::uint64_t holds) noexcept {
    return s.kept != 0 && s.kept <= holds;
  }
  /// Gives a stretch the latest owner.
  void give(stretch& s, void const* p, std::size_t bytes, sim_agent on) {
    s.earlier_reads.join(s.reads);
    s.earlier_writes.join(s.writes);
    s.reads.clear();
    s.writes.clear();
    for (std::size_t i = most_previous; i-- > 1;) s.previous[i] = s.previous[i - 1];
    s.previous[0] = s.current;
    s.current = {owners_, p, bytes, on, none, ticks_of(on), 0};
    s.held = true;
    s.noted = true;
  }
  void take(stretch& s, sim_agent on) {
    s.held = false;
    s.noted = true;
    s.current.freed_on = on;
    s.current.freed_at = ticks_of(on);
  }

  /// Makes `key` a boundary between stretches.
  void split(std::uint64_t key) {
    auto it = stretches_.lower_bound(key);
    if (it == stretches_.begin() || (it != stretches_.end() && it->first == key)) return;
    --it;
    std::size_t const before = key - it->first;
    if (before >= it->second.bytes) return;
    stretch rest = it->second;
    rest.bytes -= before;
    it->second.bytes = before;
    stretches_.emplace(key, std::move(rest));
  }

  /// Visits the stretches behind a range, split to fit it; creates missing ones.
  template <class Visit>
  void each(sim_memory const& memory, void const* p, std::size_t bytes, Visit const& visit) {
    if (bytes == 0) return;
    (void)memory.each_piece(p, bytes, [&](sim_memory::piece piece) {
      std::uint64_t const end = piece.key + piece.bytes;
      split(piece.key);
      split(end);
      std::uint64_t at = piece.key;
      auto it = stretches_.lower_bound(at);
      while (at < end) {
        if (it == stretches_.end() || it->first > at) {
          std::uint64_t const until = it == stretches_.end() || it->first > end ? end : it->first;
          stretch fresh;
          fresh.bytes = until - at;
          it = stretches_.emplace_hint(it, at, std::move(fresh));
        }
        visit(it->second);
        at += it->second.bytes;
        ++it;
      }
    });
  }

  void add_owner(std::string& text, owner const& o) const {
    text += detail::concat({"block ", std::to_string(o.number), " ("});
    message<64> size;
    size.add_bytes(o.bytes).add(" at ").add_hex(reinterpret_cast<std::uintptr_t>(o.p));
    text += size.c_str();
    text += detail::concat({", allocated on ", name_of_agent(o.allocated_on), " after its operation ",
                            std::to_string(o.allocated_at)});
    text += o.freed_on == none ? std::string(", not freed)")
                               : detail::concat({", freed on ", name_of_agent(o.freed_on),
                                                 " after its operation ", std::to_string(o.freed_at), ")"});
  }
  /// Returns the last operation of an agent that accessed a stretch.
  [[nodiscard]] static std::uint64_t last_of(stretch const& s, sim_agent who) {
    std::uint64_t last = 0;
    for (sim_clock const* c : {&s.reads, &s.writes, &s.earlier_reads, &s.earlier_writes})
      last = detail::max_of(last, c->at(who));
    return last;
  }
  /// Describes the missing event: after which operation, what is known instead, and whether an event was
  /// recorded at all.
  void add_missing(std::string& text, stretch const& s, sim_agent by, sim_agent other) const {
    std::uint64_t const last = last_of(s, other);
    sim_agents::acting const& them = agents_[other];
    std::uint64_t const known = agents_[by].clock.at(other);
    text += detail::concat({" Missing: an event recorded on ", them.name, " after its last use, operation ",
                            std::to_string(last), ", that ", name_of_agent(by), " waits for. "});
    text += known == 0 ? std::string("None of its work is known there")
                       : detail::concat({"Known there: up to operation ", std::to_string(known)});
    if (!them.has_mark) {
      text += "; no event was ever recorded on it.";
    } else if (them.marked < last) {
      text += detail::concat({"; its last event covers up to operation ", std::to_string(them.marked), "."});
    } else {
      text += "; an event covers it, but was not waited for.";
    }
  }
  void add_finding(char const* what, sim_access const& a, stretch const& s, sim_agent by, sim_agent other) {
    if (findings_.size() >= most_findings) return;
    std::string text = what;
    message<64> where;
    where.add(": ").add_bytes(a.bytes).add(" at ").add_hex(reinterpret_cast<std::uintptr_t>(a.p));
    text += where.c_str();
    text += detail::concat({" by ", name_of_agent(by), " (operation ", std::to_string(ticks_of(by)), ")."});
    if (s.current.number != 0) {
      text += " Now: ";
      add_owner(text, s.current);
      text += '.';
    }
    char const* when = " Before: ";
    for (owner const& o : s.previous) {
      if (o.number == 0) break;
      text += when;
      add_owner(text, o);
      text += '.';
      when = " Before that: ";
    }
    if (other != none) add_missing(text, s, by, other);
    findings_.push_back(std::move(text));
  }

  std::map<std::uint64_t, stretch> stretches_;
  std::unordered_map<std::uintptr_t, sim_clock> through_;  ///< what used each mapping, by its start
  std::set<void const*> without_pages_;  ///< blocks that had no physical memory at some time
  std::uint64_t owners_ = 0;
  std::uint64_t holds_ = 0;
  std::vector<std::string> findings_;
};

}  // namespace detail

}  // namespace TARN_NAMESPACE
// ---- tarn/driver/sim/sim_replay.hpp
// Replay of a captured graph on the simulated GPU. A node starts when its dependencies have ended and the
// launching stream has reached the launch; independent branches run at the same time.
//
// To the order checker, branch 0 is the launching stream, and each other branch of a graph is an agent, the
// same one in all launches: they are ordered after each other, so it knows nothing that a later launch must
// not know.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

// ---- tarn/driver/sim/sim_stream_table.hpp
// The devices, streams and events of a simulated machine, and their handles.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE::detail {

// One stream, one event and one device of the simulated GPU: what each has to wait for.

/// How far device work runs beyond its nominal duration: a different schedule for each seed. See sim_options.
struct sim_schedule {
  sim_options const& options;
  std::uint64_t seed = options.seed;

  /// Returns a number below `most`, drawn from the seed (splitmix64).
  sim_nanoseconds draw(sim_nanoseconds most) noexcept {
    if (seed == 0 || most == 0) return 0;
    std::uint64_t z = (seed += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return (z ^ (z >> 31)) % most;
  }
};

enum class sim_blocking : std::uint8_t { with_legacy, independent };

struct sim_stream {
  stream_id id = 0;
  int device = 0;
  sim_blocking blocking = sim_blocking::independent;
  bool legacy = false;
  bool is_default = false;   ///< legacy or per-thread
  bool slow = false;         ///< as drawn from the schedule
  sim_nanoseconds tail = 0;  ///< when all work so far has completed
  std::shared_ptr<sim_capture> capture;
  sim_leaves leaves;  ///< in the capture
  sim_agent agent = 0;
  [[no_unique_address]] sim_past past;  ///< work that new work is ordered after
  [[no_unique_address]] sim_context context;

  void leave_capture() noexcept {
    capture.reset();
    leaves.clear();
  }
};

struct sim_event {
  std::uint64_t serial = 0;  ///< of a shared event, never reused; 0: not shared
  int device = 0;
  sim_nanoseconds time = 0;  ///< when the event is reached; 0: never recorded
  std::shared_ptr<sim_capture> capture;
  sim_leaves leaves;  ///< of the stream, if it was recorded in a capture
  sim_clock clock;
  [[no_unique_address]] sim_past past;
};

/// Extra time before an operation on a stream ends.
[[nodiscard]] inline sim_nanoseconds delay_on(sim_stream const& stream, sim_schedule& schedule) noexcept {
  return schedule.draw(schedule.options.jitter) +
         (stream.slow ? schedule.draw(schedule.options.slowness) : 0);
}

/// The default streams of a device, and what all its streams have done, destroyed ones included.
struct sim_device {
  sim_stream legacy;
  std::unordered_map<std::uint64_t, sim_stream> per_thread;
  sim_nanoseconds tail = 0;           ///< of all streams
  sim_nanoseconds blocking_tail = 0;  ///< of those that the legacy stream waits for
  sim_clock clock;                    ///< of all streams
  sim_clock blocking_clock;
  [[no_unique_address]] sim_past past;  ///< of all streams
  [[no_unique_address]] sim_past blocking_past;

  /// Returns when the stream could start work enqueued now. Passes to it the knowledge of the streams that
  /// the rules of the legacy default stream make it wait for.
  sim_nanoseconds start_on(sim_stream& stream, sim_nanoseconds now, sim_order* order) const {
    sim_nanoseconds start = stream.tail < now ? now : stream.tail;
    bool const blocking = stream.blocking == sim_blocking::with_legacy;
    sim_nanoseconds const other = stream.legacy ? blocking_tail : blocking ? legacy.tail : 0;
    if (start < other) start = other;
    if (stream.legacy) {
      stream.past.join(blocking_past);
      if (order != nullptr) order->learn(stream.agent, blocking_clock);
    } else if (blocking) {
      stream.past.join(legacy.past);
      if (order != nullptr) order->learn(stream.agent, order->clock(legacy.agent));
    }
    return start;
  }
  void finish_on(sim_stream& stream, sim_nanoseconds end, sim_order const* order) {
    stream.tail = end;
    if (tail < end) tail = end;
    if (stream.blocking == sim_blocking::with_legacy && blocking_tail < end) blocking_tail = end;
    share(stream, order);
  }
  /// Passes what a stream knows to those that wait for the whole device.
  void share(sim_stream const& stream, sim_order const* order) {
    bool const blocking = stream.blocking == sim_blocking::with_legacy;
    past.join(stream.past);
    if (blocking) blocking_past.join(stream.past);
    if (order == nullptr) return;
    clock.join(order->clock(stream.agent));
    if (blocking) blocking_clock.join(order->clock(stream.agent));
  }
};

/// Callers hold the machine's lock.
class sim_stream_table {
 public:
  /// Returns the stream of a handle; a default handle means the given device's, or that of the device which
  /// its identity names. Null if there is none. A per-thread default stream of another thread cannot be
  /// reached by its handle: the legacy default stream, which is ordered with it, is returned instead (as in
  /// cuda_driver).
  sim_stream* find(stream_ref stream, int device) {
    auto const handle = reinterpret_cast<std::uintptr_t>(stream.handle());
    if (handle <= per_thread_handle && stream.id() != stream_ref::unknown_id)
      device = device_of_default(stream.id(), device);
    auto& d = devices_[static_cast<std::size_t>(device)];
    if (handle <= legacy_handle) return &d.legacy;
    if (handle == per_thread_handle) {
      sim_stream& own = own_default_stream(device);
      bool const reached = stream.id() == stream_ref::unknown_id || stream.id() == own.id;
      return reached ? &own : &d.legacy;
    }
    auto const it = streams_.find(handle);
    return it == streams_.end() ? nullptr : &it->second;
  }

  /// Whether a stream that was created exists, by its handle and identity.
  [[nodiscard]] bool has(stream_ref stream) const noexcept {
    auto const it = streams_.find(reinterpret_cast<std::uintptr_t>(stream.handle()));
    return it != streams_.end() && it->second.id == stream.id();
  }

  /// Handles are reused, the latest freed first, as drivers do; identities are never reused.
  void create_stream(int device, sim_blocking blocking, stream_ref& stream) {
    stream_id const id = next_id_++;
    std::uintptr_t const handle = take_handle(free_streams_, next_stream_, stream_handles);
    streams_.emplace(handle, make_stream(device, blocking, id));
    stream = stream_ref::from(reinterpret_cast<void*>(handle), id);
  }

  void create_event(int device, event_handle& event) {
    auto made = std::make_shared<sim_event>();
    made->device = device;
    event = add_event(std::move(made));
  }
  /// Creates an event that open_event() finds by the serial number returned.
  std::uint64_t create_shared_event(int device, event_handle& event) {
    create_event(device, event);
    return find_event(event)->serial = ++last_serial_;
  }
  /// A second handle of a shared event, which lives until the last of its handles is destroyed.
  sim_code open_event(std::uint64_t serial, event_handle& event) {
    for (auto const& [of, shared] : events_) {
      if (serial == 0 || shared->serial != serial) continue;
      event = add_event(shared);
      return sim_code::ok;
    }
    return sim_code::invalid_value;
  }
  sim_code destroy_event(event_handle event) {
    auto const it = events_.find(reinterpret_cast<std::uintptr_t>(event));
    if (it == events_.end()) return sim_code::invalid_handle;
    free_events_.push_back(it->first);
    events_.erase(it);
    return sim_code::ok;
  }
  sim_event* find_event(event_handle event) noexcept {
    auto const it = events_.find(reinterpret_cast<std::uintptr_t>(event));
    return it == events_.end() ? nullptr : it->second.get();
  }

  [[nodiscard]] std::size_t streams() const noexcept { return streams_.size(); }
  [[nodiscard]] std::size_t events() const noexcept { return events_.size(); }

 protected:
  sim_stream_table(sim_options const& options, sim_order* order)
      : devices_(static_cast<std::size_t>(options.devices)),
        schedule_{options},
        order_(order),
        machine_(next_machine.fetch_add(1, std::memory_order_relaxed)) {
    for (int d = 0; d < options.devices; ++d) {
      sim_stream& legacy = devices_[static_cast<std::size_t>(d)].legacy;
      // Fixed identities below all others, from 1: 0 means unknown.
      legacy = make_stream(d, sim_blocking::with_legacy, first_legacy_id + static_cast<stream_id>(d));
      legacy.legacy = legacy.is_default = true;
    }
  }

  /// Work already enqueued continues; default streams are not destroyed.
  /// @param capture  the capture that the stream takes part in, if any
  /// @param id       the identity of the stream
  sim_code take_stream(stream_ref stream, std::shared_ptr<sim_capture>& capture, stream_id& id) {
    if (reinterpret_cast<std::uintptr_t>(stream.handle()) <= per_thread_handle) return sim_code::ok;
    auto const it = streams_.find(reinterpret_cast<std::uintptr_t>(stream.handle()));
    if (it == streams_.end()) return sim_code::invalid_handle;
    capture = std::move(it->second.capture);
    id = it->second.id;
    free_streams_.push_back(it->first);
    streams_.erase(it);
    return sim_code::ok;
  }
  [[nodiscard]] stream_id new_id() noexcept { return next_id_++; }

  template <class Visit>
  void each_stream(int device, Visit const& visit) {
    auto& d = devices_[static_cast<std::size_t>(device)];
    visit(d.legacy);
    for (auto& [thread, s] : d.per_thread) visit(s);
    for (auto& [handle, s] : streams_) {
      if (s.device == device) visit(s);
    }
  }

  std::vector<sim_device> devices_;
  sim_schedule schedule_;
  sim_order* order_;

 private:
  static constexpr std::uintptr_t legacy_handle = 1;      // cudaStreamLegacy
  static constexpr std::uintptr_t per_thread_handle = 2;  // cudaStreamPerThread
  static constexpr stream_id first_legacy_id = 1;
  static constexpr std::uintptr_t stream_handles = 0x51000000;
  static constexpr std::uintptr_t event_handles = 0x52000000;

  /// The device of a default stream by its identity; `otherwise` if it is none's.
  [[nodiscard]] int device_of_default(stream_id id, int otherwise) const noexcept {
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      if (devices_[d].legacy.id == id) return static_cast<int>(d);
      for (auto const& [thread, s] : devices_[d].per_thread) {
        if (s.id == id) return static_cast<int>(d);
      }
    }
    return otherwise;
  }
  sim_stream& own_default_stream(int device) {
    auto& streams_here = devices_[static_cast<std::size_t>(device)].per_thread;
    auto const thread = this_thread_number();
    auto it = streams_here.find(thread);
    if (it == streams_here.end()) {
      it = streams_here.emplace(thread, make_stream(device, sim_blocking::with_legacy, next_id_++)).first;
    }
    it->second.is_default = true;
    return it->second;
  }
  sim_stream make_stream(int device, sim_blocking blocking, stream_id id) {
    sim_stream s;
    s.id = id;
    s.device = device;
    s.blocking = blocking;
    unsigned const slow = schedule_.options.slow_streams;
    if (slow != 0) s.slow = schedule_.draw(1000) < slow && schedule_.seed != 0;
    if (order_ != nullptr) s.agent = order_->add_agent("stream", id);
    return s;
  }
  [[nodiscard]] event_handle add_event(std::shared_ptr<sim_event> event) {
    std::uintptr_t const handle = take_handle(free_events_, next_event_, event_handles);
    events_[handle] = std::move(event);
    return reinterpret_cast<void*>(handle);
  }
  std::uintptr_t take_handle(std::vector<std::uintptr_t>& free, std::uintptr_t& next,
                             std::uintptr_t base) const {
    if (free.empty()) return (machine_ % 0x8000 + 1) << 32 | (base + 16 * next++);
    std::uintptr_t const handle = free.back();
    free.pop_back();
    return handle;
  }

  /// Numbers the machines, so that handles of one machine are invalid on another.
  inline static std::atomic<std::uintptr_t> next_machine{0};

  std::uintptr_t machine_;
  std::unordered_map<std::uintptr_t, sim_stream> streams_;
  std::unordered_map<std::uintptr_t, std::shared_ptr<sim_event>> events_;
  std::uint64_t last_serial_ = 0;
  std::vector<std::uintptr_t> free_streams_, free_events_;
  std::uintptr_t next_stream_ = 0, next_event_ = 0;
  stream_id next_id_ = 4096;  // above every device's legacy stream
};

}  // namespace TARN_NAMESPACE::detail
// ---- tarn/driver/sim/sim_timeline.hpp
// The clock of a simulated machine, the operations that have not ended, and the fault of each device. The end
// of an operation is known when it is enqueued; the operation takes effect when the clock reaches that end.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE::detail {

/// Callers hold the machine's lock, except for now().
class sim_timeline {
 public:
  sim_timeline(int devices, sim_memory& memory)
      : memory_(memory), faults_(static_cast<std::size_t>(devices), sim_code::ok) {}

  [[nodiscard]] sim_nanoseconds now() const noexcept { return now_.load(std::memory_order_relaxed); }

  /// Advances the host's clock and runs operations that have become due.
  void advance_to(sim_nanoseconds time) {
    if (time > now()) now_.store(time, std::memory_order_relaxed);
    while (!pending_.empty() && pending_.begin()->first.first <= now()) {
      auto node = pending_.extract(pending_.begin());
      sim_code const outcome = run(node.mapped());
      sim_code& broken = fault(node.mapped().device);
      if (broken == sim_code::ok) broken = outcome;
    }
  }

  /// The error state of a device; once set, every call on the device returns it.
  [[nodiscard]] sim_code& fault(int device) noexcept { return faults_[static_cast<std::size_t>(device)]; }

  /// Adds an operation that ends at a known time, after what is in `past`; adds it to `past`.
  /// @param owner  what keeps the work alive, if `work` does not
  void add(sim_nanoseconds end, int device, std::shared_ptr<sim_work> work, sim_context& context,
           sim_past& past, stream_id stream, std::shared_ptr<void const> owner = nullptr) {
    std::uint64_t const number = ++next_;
    pending_.emplace(std::pair(end, number),
                     operation{device, std::move(owner), {std::move(work), context, past, stream, number}});
  }
  /// Number of operations that have not ended.
  [[nodiscard]] std::size_t pending() const noexcept { return pending_.size(); }

 private:
  struct operation {
    int device;
    std::shared_ptr<void const> owner;
    sim_ordered_work<sim_work> work;
  };

  /// The host looks up what the work accesses; the stream performs the work.
  sim_code run(operation& o) {
    sim_code const allowed = o.work.look([&](sim_work& work) { return work.check_access(memory_); });
    if (allowed != sim_code::ok) return allowed;
    sim_inside_work.store(true, std::memory_order_relaxed);
    o.work.run();
    sim_inside_work.store(false, std::memory_order_relaxed);
    return sim_code::ok;
  }

  sim_memory& memory_;
  std::vector<sim_code> faults_;
  std::map<std::pair<sim_nanoseconds, std::uint64_t>, operation> pending_;
  std::uint64_t next_ = 0;
  std::atomic<sim_nanoseconds> now_{1};  // never 0, which marks an event as unrecorded
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE::detail {

/// A graph that can be launched, like a cudaGraphExec_t. Its launches are ordered after each other.
struct sim_exec {
  struct branch {
    stream_id id = 0;
    sim_agent agent = 0;
    [[no_unique_address]] sim_context context;
  };
  std::shared_ptr<sim_capture const> graph;
  void const* machine = nullptr;  ///< its streams
  std::vector<branch> branches;   ///< all but branch 0
  sim_nanoseconds end = 0;        ///< of the last launch
  sim_clock clock;                ///< what is known after the last launch
  [[no_unique_address]] sim_past past;
};

/// One launch.
class sim_replay {
 public:
  sim_replay(sim_memory const& memory, sim_timeline& timeline, sim_order* order, sim_schedule& schedule,
             std::vector<sim_device>& devices, sim_stream& stream, sim_exec& exec)
      : memory_(memory),
        timeline_(timeline),
        order_(order),
        schedule_(schedule),
        devices_(devices),
        stream_(stream),
        exec_(exec),
        graph_(*exec.graph),
        done_(graph_.nodes().size()) {}

  /// Enqueues all nodes. Work enqueued on the stream afterwards is ordered after them.
  /// @param start  when the stream has reached the launch
  void run(sim_nanoseconds start) {
    begin_.end = start < exec_.end ? exec_.end : start;
    stream_.past.join(exec_.past);
    begin_.past = stream_.past;
    std::vector<sim_capture::range> const freed_since = take_inputs();
    sim_nanoseconds end = begin_.end;
    for (std::size_t i = 0; i < done_.size(); ++i) {
      sim_node const& n = graph_.nodes()[i];
      if (n.what == sim_node::kind::work) {
        add(n, done_[i]);
        end = (std::max)(end, done_[i].end);
      } else if (order_ != nullptr) {
        if (!is_others(n.p, n.bytes)) change_owner(n.what, n.p, n.bytes, agent_of(n.branch));
      }
    }
    for (moment const& m : done_) stream_.past.join(m.past);
    if (order_ != nullptr) {
      for (auto const& b : exec_.branches) order_->learn(stream_.agent, order_->clock(b.agent));
      // One operation after all branches: whoever knows it knows them.
      if (!exec_.branches.empty()) order_->tick(stream_.agent);
      for (auto const& r : freed_since) change_owner(sim_node::kind::freed, r.p, r.bytes, stream_.agent);
      exec_.clock = order_->clock(stream_.agent);
    }
    exec_.past = stream_.past;
    exec_.end = end;
    device(stream_.device).finish_on(stream_, end, order_);
  }

 private:
  /// When a node ends, and what is known then.
  struct moment {
    sim_nanoseconds end = 0;
    sim_clock clock;
    [[no_unique_address]] sim_past past;
  };

  [[nodiscard]] sim_device& device(int number) noexcept { return devices_[static_cast<std::size_t>(number)]; }
  [[nodiscard]] sim_agent agent_of(std::size_t branch) const noexcept {
    return branch == 0 ? stream_.agent : exec_.branches[branch - 1].agent;
  }
  void change_owner(sim_node::kind what, void const* p, std::size_t bytes, sim_agent on) {
    if (what == sim_node::kind::allocated) {
      order_->allocated_again(memory_, p, bytes, on, graph_.holds);
    } else {
      order_->freed_again(memory_, p, bytes, on, graph_.holds);
    }
  }
  /// Passes to the stream what the last launch knew, and makes the bytes that the graph holds what they were
  /// when its capture began. Returns the blocks of the capture that were freed since: they are free again
  /// afterwards.
  std::vector<sim_capture::range> take_inputs() {
    std::vector<sim_capture::range> freed_since;
    if (order_ == nullptr) return freed_since;
    order_->learn(stream_.agent, exec_.clock);
    begin_.clock = order_->clock(stream_.agent);
    for (auto const& r : graph_.outputs()) {
      if (!order_->is_held(memory_, r.p, r.bytes)) freed_since.push_back(r);
    }
    note_others();
    for (auto const& r : graph_.inputs()) {
      if (is_others(r.p, r.bytes)) continue;
      change_owner(sim_node::kind::allocated, r.p, r.bytes, stream_.agent);
    }
    return freed_since;
  }
  /// Notes the blocks that a later capture of the same memory got in place of one that this graph frees, and
  /// that are live now: they stay live. Their contents are lost.
  void note_others() {
    for (sim_node const& n : graph_.nodes()) {
      if (n.what == sim_node::kind::freed && !is_others(n.p, n.bytes) &&
          order_->is_owned(memory_, n.p, n.bytes))
        others_.push_back({n.p, n.bytes});
    }
  }
  [[nodiscard]] bool is_others(void const* p, std::size_t bytes) const {
    return std::any_of(others_.begin(), others_.end(),
                       [&](auto const& r) { return r.p == p && r.bytes == bytes; });
  }
  void add(sim_node const& n, moment& m) {
    sim_agent const agent = agent_of(n.branch);
    wait_for(begin_, m, agent);
    for (std::size_t const before : n.after) wait_for(done_[before], m, agent);
    m.end += n.duration + delay_on(stream_, schedule_);
    if (order_ != nullptr) {
      order_->tick(agent);
      sim_order::recorded const captured{n.owners, graph_.holds};
      for (sim_access const& a : n.work->touched) order_->access(memory_, a, agent, &captured);
      m.clock = order_->clock(agent);
    }
    // Streams destroy the work that they ran; this work belongs to the graph.
    std::shared_ptr<sim_work> work(std::shared_ptr<void>(), n.work.get());
    if (n.branch == 0) {
      timeline_.add(m.end, n.device, std::move(work), stream_.context, m.past, stream_.id, exec_.graph);
    } else {
      auto& b = exec_.branches[n.branch - 1];
      timeline_.add(m.end, n.device, std::move(work), b.context, m.past, b.id, exec_.graph);
    }
    if (n.device == stream_.device) return;  // the stream's end covers it
    auto& d = device(n.device);
    d.tail = (std::max)(d.tail, m.end);
    d.past.join(m.past);
    d.clock.join(m.clock);
  }
  void wait_for(moment const& before, moment& m, sim_agent agent) {
    m.end = (std::max)(m.end, before.end);
    m.past.join(before.past);
    if (order_ != nullptr) order_->learn(agent, before.clock);
  }

  sim_memory const& memory_;
  sim_timeline& timeline_;
  sim_order* order_;
  sim_schedule& schedule_;
  std::vector<sim_device>& devices_;
  sim_stream& stream_;
  sim_exec& exec_;
  sim_capture const& graph_;
  moment begin_;
  std::vector<sim_capture::range> others_;
  std::vector<moment> done_;
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

namespace detail {

/// What the streams and events of a machine do, and its clock. Callers hold the machine's lock.
class sim_streams : public sim_stream_table {
 public:
  sim_streams(sim_options const& options, sim_memory& memory, sim_order* order)
      : sim_stream_table(options, order),
        memory_(memory),
        timeline_(options.devices, memory),
        each_thread_(options.checks == sim_checks::each_thread) {
    if (order_ != nullptr && !each_thread_) host_ = order_->add_agent("host", 0);
  }

  [[nodiscard]] sim_nanoseconds now() const noexcept { return timeline_.now(); }

  /// Advances the host's clock and runs operations that have become due.
  void advance(sim_nanoseconds by) { advance_to(now() + by); }
  void advance_to(sim_nanoseconds time) { timeline_.advance_to(time); }

  /// The error state of a device; once set, every call on the device returns it.
  [[nodiscard]] sim_code& fault(int device) noexcept { return timeline_.fault(device); }

  /// Work already enqueued continues; default streams are not destroyed.
  sim_code destroy_stream(stream_ref stream) {
    std::shared_ptr<sim_capture> left;
    stream_id id = 0;
    if (sim_code const refused = take_stream(stream, left, id); refused != sim_code::ok) return refused;
    if (left && left->origin == id) invalidate(*left);
    if (left && left->origin == id) close(left);  // nothing can end it now
    return sim_code::ok;
  }

  sim_code record(sim_event& event, sim_stream& stream) {
    if (stream.device != event.device) return sim_code::invalid_handle;
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) {
      event.capture = stream.capture;
      event.leaves = stream.leaves;
      ++captured_;
      return sim_code::ok;
    }
    event.capture.reset();
    event.time = start_on(stream) + schedule_.draw(schedule_.options.late_events);
    finish_on(stream, event.time);
    event.past = stream.past;
    if (order_ != nullptr) {
      event.clock = order_->clock(stream.agent);
      order_->marked(stream.agent);
    }
    return sim_code::ok;
  }

  /// Marks all work of the event's device, as cuCtxRecordEvent does. Fails while any stream there is
  /// captured, and invalidates the captures.
  sim_code record_all(sim_event& event) {
    if (sim_code const refused = invalidate_all(event.device); refused != sim_code::ok) return refused;
    auto& d = devices_[static_cast<std::size_t>(event.device)];
    event.capture.reset();
    event.time = (d.tail < now() ? now() : d.tail) + schedule_.draw(schedule_.options.late_events);
    event.past = d.past;
    if (order_ != nullptr) {
      event.clock = d.clock;
      each_stream(event.device, [&](sim_stream const& s) { order_->marked(s.agent); });
    }
    return sim_code::ok;
  }

  sim_code wait(sim_stream& stream, sim_event const& event) {
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (event.capture) {
      if (!event.capture->open) return sim_code::captured_event;
      if (stream.capture && stream.capture != event.capture) {
        invalidate(*stream.capture);
        return refuse(*event.capture, sim_code::capture_merge);
      }
      if (stream.legacy) return refuse(*event.capture, sim_code::capture_implicit);
      stream.capture = event.capture;  // a fork: the waiting stream is captured, too
      detail::join(stream.leaves, event.leaves);
      ++captured_;
      return sim_code::ok;
    }
    if (stream.capture) {
      ++captured_;
      return event.time == 0 ? sim_code::ok : refuse(*stream.capture, sim_code::capture_isolation);
    }
    if (event.time == 0) return sim_code::ok;
    sim_nanoseconds start = start_on(stream);
    if (start < event.time) start = event.time;
    finish_on(stream, start);
    stream.past.join(event.past);
    if (order_ != nullptr) order_->learn(stream.agent, event.clock);
    device_of(stream).share(stream, order_);
    return sim_code::ok;
  }

  sim_code query(sim_event const& event) {
    if (event.capture) return refuse(*event.capture, sim_code::captured_event);
    if (event.time > now()) return sim_code::not_ready;
    event.past.observe();
    if (order_ != nullptr) order_->learn(host(), event.clock);
    return sim_code::ok;
  }

  sim_code synchronize(sim_event const& event) {
    if (!event.capture) advance_to(event.time);
    return query(event);
  }
  sim_code synchronize(sim_stream& stream) {
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) return refuse_captured(stream);
    sim_nanoseconds const end = start_on(stream);
    if (order_ != nullptr) order_->learn(host(), order_->clock(stream.agent));
    advance_to(end);
    stream.past.observe();
    return sim_code::ok;
  }
  sim_code synchronize_device(int device) {
    if (sim_code const refused = invalidate_all(device); refused != sim_code::ok) return refused;
    join_device(device);
    return sim_code::ok;
  }
  /// Waits for a device without checking for captures: what cudaFree does besides freeing.
  void join_device(int device) {
    auto& d = devices_[static_cast<std::size_t>(device)];
    if (order_ != nullptr) order_->learn(host(), d.clock);
    advance_to(d.tail);
    d.past.observe();
    d.past = {};  // a later waiter is ordered after this thread's next call
  }

  /// Enqueues work: it starts when the stream is free and lasts `duration`.
  /// @param who  user: the work belongs in a capture; driver: being captured is an accident and is counted
  enum class caller : std::uint8_t { user, driver };
  sim_code enqueue(sim_stream& stream, sim_nanoseconds duration, std::shared_ptr<sim_work> work, caller who) {
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) {
      if (who == caller::driver) ++captured_;
      sim_node node;
      node.device = stream.device;
      node.work = std::move(work);
      node.duration = duration;
      if (order_ != nullptr) node.owners = order_->owners();
      stream.capture->add_work(std::move(node), stream.leaves);
      return sim_code::ok;
    }
    sim_nanoseconds const end = start_on(stream) + duration + delay_on(stream, schedule_);
    if (order_ != nullptr) {
      order_->tick(stream.agent);
      for (sim_access const& a : work->touched) order_->access(memory_, a, stream.agent);
    }
    timeline_.add(end, stream.device, std::move(work), stream.context, stream.past, stream.id);
    finish_on(stream, end);
    return sim_code::ok;
  }

  /// Enqueues a replay; on a captured stream, adds the graph's nodes to the capture.
  sim_code launch(sim_stream& stream, sim_exec& exec) {
    if (exec.machine != this) return sim_code::invalid_value;
    if (sim_code const refused = check_capture(stream); refused != sim_code::ok) return refused;
    if (stream.capture) {
      stream.capture->add_graph(*exec.graph, stream.leaves);
      return sim_code::ok;
    }
    while (exec.branches.size() + 1 < exec.graph->branches()) {
      auto& b = exec.branches.emplace_back();
      b.id = new_id();
      if (order_ != nullptr) b.agent = order_->add_agent("branch", b.id);
    }
    sim_nanoseconds const start = start_on(stream);
    sim_replay(memory_, timeline_, order_, schedule_, devices_, stream, exec).run(start);
    return sim_code::ok;
  }

  /// Notifies the checker that bytes changed owners in the order of a stream; replays repeat it if the stream
  /// is captured.
  void change_owner(sim_stream& stream, sim_node::kind what, void const* p, std::size_t bytes) {
    bool const captured = stream.capture != nullptr;
    sim_place const place = captured ? sim_place::captured : sim_place::eager;
    change_owner(stream.agent, what, p, bytes, place);
    if (!captured) return;
    sim_node node;
    node.what = what;
    node.device = stream.device;
    node.p = p;
    node.bytes = bytes;
    stream.capture->add_mark(std::move(node), stream.leaves);
  }
  void change_owner(sim_agent on, sim_node::kind what, void const* p, std::size_t bytes,
                    sim_place place = sim_place::eager) {
    if (what == sim_node::kind::allocated) {
      order_->allocated(memory_, p, bytes, on, place);
    } else {
      order_->freed(memory_, p, bytes, on, place);
    }
  }

  sim_code begin_capture(sim_stream& stream) {
    if (stream.legacy) return sim_code::capture_unsupported;
    if (stream.capture) return sim_code::capture_unmatched;
    stream.capture = std::make_shared<sim_capture>(stream.id);
    ++open_captures_;
    return sim_code::ok;
  }
  sim_code end_capture(sim_stream& stream, std::shared_ptr<sim_exec>& graph) {
    if (!stream.capture) return sim_code::capture_unmatched;
    if (stream.capture->origin != stream.id) return refuse(*stream.capture, sim_code::capture_unmatched);
    std::shared_ptr<sim_capture> const done = stream.capture;
    bool const joined = done->is_joined(stream.leaves);
    close(done);
    if (done->invalid) return sim_code::capture_invalidated;
    if (!joined) return sim_code::capture_unjoined;
    graph = std::make_shared<sim_exec>();
    graph->graph = done;
    graph->machine = this;
    return sim_code::ok;
  }
  /// Also true for the legacy stream while a stream that it synchronises with is captured: work on it would
  /// invalidate that.
  [[nodiscard]] bool is_capturing(sim_stream const& stream) {
    bool capturing = stream.capture != nullptr;
    if (stream.legacy && open_captures_ != 0) {
      each_stream(stream.device, [&](sim_stream const& s) {
        if (s.capture && s.blocking == sim_blocking::with_legacy) capturing = true;
      });
    }
    return capturing;
  }

  void count_captured() noexcept { ++captured_; }
  [[nodiscard]] std::size_t captured() const noexcept { return captured_; }
  /// A call that a captured stream does not allow.
  sim_code refuse_captured(sim_stream& stream) noexcept {
    return refuse(*stream.capture, sim_code::capture_unsupported);
  }
  /// Number of captures that were invalidated so far.
  [[nodiscard]] std::size_t invalidated() const noexcept { return invalidated_; }
  [[nodiscard]] std::size_t pending() const noexcept { return timeline_.pending(); }

  /// The calling thread's agent in the order checker.
  [[nodiscard]] sim_agent host() {
    if (!each_thread_) return host_;
    auto const thread = this_thread_number();
    auto it = threads_.find(thread);
    if (it == threads_.end()) it = threads_.emplace(thread, order_->add_agent("thread", thread)).first;
    return it->second;
  }
  /// Passes knowledge from the thread that publishes a token to threads that observe it later.
  void publish(void const* token) { tokens_[token].join(order_->clock(host())); }
  void observe(void const* token) {
    if (auto const it = tokens_.find(token); it != tokens_.end()) order_->learn(host(), it->second);
  }

  /// Returns true if work enqueued on `second` now would be ordered after all work so far on `first`.
  [[nodiscard]] bool is_ordered(sim_stream& first, sim_stream& second) {
    (void)start_on(second);
    return order_->is_ordered(first.agent, second.agent);
  }

  /// Returns when work enqueued on a stream now could start: when all earlier work has completed.
  sim_nanoseconds end_of(sim_stream& stream) { return start_on(stream); }

 private:
  sim_code refuse(sim_capture& capture, sim_code why) noexcept {
    invalidate(capture);
    return why;
  }
  void invalidate(sim_capture& capture) noexcept {
    if (!capture.open || capture.invalid) return;
    capture.invalid = true;
    ++invalidated_;
  }
  /// Invalidates the captures of a device's streams; returns an error if there are any.
  sim_code invalidate_all(int device) {
    if (open_captures_ == 0) return sim_code::ok;
    sim_code outcome = sim_code::ok;
    each_stream(device, [&](sim_stream& s) {
      if (!s.capture) return;
      invalidate(*s.capture);
      outcome = sim_code::capture_unsupported;
    });
    return outcome;
  }
  /// Ends a capture: its streams run their work again.
  void close(std::shared_ptr<sim_capture> const& capture) {
    capture->end(order_ != nullptr ? order_->holds() : 0);
    --open_captures_;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      each_stream(static_cast<int>(d), [&](sim_stream& s) {
        if (s.capture == capture) s.leave_capture();
      });
    }
  }
  sim_code check_capture(sim_stream& stream) {
    if (stream.capture && stream.capture->invalid) return sim_code::capture_invalidated;
    if (!stream.legacy || open_captures_ == 0) return sim_code::ok;
    bool spoiled = false;
    each_stream(stream.device, [&](sim_stream& s) {
      if (!s.capture || s.blocking == sim_blocking::independent) return;
      invalidate(*s.capture);
      spoiled = true;
    });
    return spoiled ? sim_code::capture_implicit : sim_code::ok;
  }

  [[nodiscard]] sim_device& device_of(sim_stream const& stream) noexcept {
    return devices_[static_cast<std::size_t>(stream.device)];
  }
  /// Returns when the stream could start work enqueued now; passes to it the knowledge of the host and of
  /// what it waits for.
  sim_nanoseconds start_on(sim_stream& stream) {
    if (order_ != nullptr) order_->learn(stream.agent, order_->clock(host()));
    return device_of(stream).start_on(stream, now(), order_);
  }
  void finish_on(sim_stream& stream, sim_nanoseconds end) {
    device_of(stream).finish_on(stream, end, order_);
  }

  sim_memory& memory_;
  sim_timeline timeline_;
  std::size_t captured_ = 0;
  std::size_t invalidated_ = 0;
  std::size_t open_captures_ = 0;  ///< begun and not ended; while 0, no stream has to be searched
  bool each_thread_;               ///< whether threads of the host must be ordered, too
  sim_agent host_ = 0;
  std::unordered_map<std::uint64_t, sim_agent> threads_;
  std::unordered_map<void const*, sim_clock> tokens_;
};

}  // namespace detail

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE::detail {

/// Whether a block came from the cache, which determines its cost.
enum class sim_warmth : std::uint8_t { warm, cold };

/// The pools of one device, one for each kind of memory. A freed block serves requests of its own size: at
/// once on the stream that freed it, on other streams once the free has completed. Callers hold the machine's
/// lock.
class sim_async {
 public:
  sim_async(int device, sim_memory& memory, sim_order* order) noexcept
      : device_(device), memory_(memory), order_(order) {}

  sim_code allocate(std::size_t bytes, sim_kind kind, sim_stream const& stream, sim_nanoseconds now, void*& p,
                    sim_warmth& warmth) {
    p = nullptr;
    warmth = sim_warmth::warm;
    if (bytes == 0) return sim_code::ok;
    if (bytes > max_request_bytes) return sim_code::out_of_memory;
    held const size{kind, align_up(bytes, default_alignment * 2)};
    auto const [first, last] = cached_.equal_range(size);
    for (auto it = first; it != last; ++it) {
      kept const& c = it->second;
      if (c.freed_on != stream.id && c.freed_at > now) continue;
      if (order_ != nullptr) order_->learn(stream.agent, c.clock);
      p = c.p;
      live_.emplace(p, size);
      cached_.erase(it);
      return sim_code::ok;
    }
    warmth = sim_warmth::cold;
    sim_code outcome = memory_.allocate(device_, size.second, kind, p);
    if (outcome == sim_code::out_of_memory) {
      trim(now);
      outcome = memory_.allocate(device_, size.second, kind, p);
    }
    if (outcome == sim_code::ok) live_.emplace(p, size);
    return outcome;
  }

  /// @param end  when the work before the free on its stream completes
  sim_code release(void* p, sim_stream const& stream, sim_nanoseconds end) {
    if (p == nullptr) return sim_code::ok;
    auto const it = live_.find(p);
    if (it == live_.end()) return sim_code::invalid_value;
    kept c{p, stream.id, end, {}};
    if (order_ != nullptr) c.clock = order_->clock(stream.agent);
    cached_.emplace(it->second, std::move(c));
    live_.erase(it);
    return sim_code::ok;
  }

  /// Returns cached blocks whose free has completed to the device.
  void trim(sim_nanoseconds now) {
    for (auto it = cached_.begin(); it != cached_.end();) {
      if (it->second.freed_at <= now) {
        (void)memory_.release(it->second.p, it->first.first);
        it = cached_.erase(it);
      } else {
        ++it;
      }
    }
  }

  /// Number of cached blocks.
  [[nodiscard]] std::size_t cached() const noexcept { return cached_.size(); }

 private:
  using held = std::pair<sim_kind, std::size_t>;  ///< with the bytes
  struct kept {
    void* p;
    stream_id freed_on;
    sim_nanoseconds freed_at;
    sim_clock clock;
  };
  int device_;
  sim_memory& memory_;
  sim_order* order_;
  std::unordered_map<void*, held> live_;
  std::multimap<held, kept> cached_;
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

class sim_driver;

namespace detail {

/// The whole state of a machine, behind one lock.
struct sim_state {
  explicit sim_state(sim_options const& o)
      : options(o),
        memory(options),
        order(o.checks == sim_checks::off ? nullptr : std::make_unique<sim_order>()),
        streams(options, memory, order.get()) {
    has_context.resize(static_cast<std::size_t>(o.devices > 0 ? o.devices : 0));
    for (int d = 0; d < o.devices; ++d) async.emplace_back(d, memory, order.get());
    if (order) memory.watch_gone();
    if (o.tool == sim_tool::attached) memory.attach_tool();
  }

  /// Counts a call, charges its cost and runs work that became due; the call itself runs afterwards.
  void charge(driver_call call, sim_nanoseconds cost) {
    ++calls.counts[static_cast<std::size_t>(call)];
    charge_more(cost);
    memory.drain_gone([&](sim_memory::piece p) { order->forget(p.key, p.bytes); });
  }
  /// Charges a cost that is known only during the call.
  void charge_more(sim_nanoseconds cost) {
    calls.driver_ns += cost;
    streams.advance(cost);
  }
  void trim_async(int device) { async[static_cast<std::size_t>(device)].trim(streams.now()); }

  sim_options const options;
  mutable fork_mutex mutex;
  sim_memory memory;
  std::unique_ptr<sim_order> order;
  sim_streams streams;
  std::vector<sim_async> async;
  sim_calls calls;
  stream_devices devices_of_streams;
  std::vector<bool>
      has_context;  ///< of each device: whether a call of a driver or of the user's program has used it
  creating_process const process{};
};

}  // namespace detail

/// Work recorded from a captured stream; launch it any number of times, on the machine where it was captured.
/// Copies are the same graph, whose launches are ordered after each other, like those of one cudaGraphExec_t.
class sim_graph {
 public:
  [[nodiscard]] bool is_empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return exec_ ? exec_->graph->works() : 0; }

 private:
  friend class sim_machine;
  std::shared_ptr<detail::sim_exec> exec_;
};

/// A simulated host with devices. A cheap handle: copies are the same machine, which lives as long as any
/// handle or driver of it. Thread-safe; results are reproducible if one thread drives. Time is virtual: it
/// advances by the cost of each driver call, by advance(), and to the end of the work that a synchronisation
/// waits for. A forked child cannot use a machine of its parent, as with CUDA: each call fails, and page
/// contents remain the parent's.
class sim_machine {
 public:
  /// Constructs a machine with the default options: one device.
  sim_machine() : sim_machine(sim_options{}) {}
  explicit sim_machine(sim_options const& options)
      : state_(std::make_shared<detail::sim_state>(detail::resolved(options))) {}

  /// Returns the machine behind `sim_driver{}`: one per process, created at first use with the default
  /// options and never destroyed, so that objects with static storage may use it until exit. Variables of the
  /// environment change it: TARN_SIM_DEVICES is the number of its devices, TARN_SIM_SHARING=descriptors lets
  /// processes share memory, and TARN_SIM_TOOL=attached attaches the memory tool.
  [[nodiscard]] static sim_machine const& standard() {
    static sim_machine const* const machine = [] {
      sim_options options;
      auto const variable = [](char const* name) {
        char const* const value = std::getenv(name);
        return std::string(value != nullptr ? value : "");
      };
      int const devices = std::atoi(variable("TARN_SIM_DEVICES").c_str());
      if (devices > 0) options.devices = devices;
      if (variable("TARN_SIM_SHARING") == "descriptors") options.sharing = sim_sharing::descriptors;
      if (variable("TARN_SIM_TOOL") == "attached") options.tool = sim_tool::attached;
      return new sim_machine(options);
    }();
    return *machine;
  }

  /// Returns the driver of one device. Every call on a device that the machine lacks returns no_device.
  [[nodiscard]] sim_driver driver(device_id device = {}) const noexcept;
  [[nodiscard]] sim_options const& options() const noexcept { return state_->options; }

  // Time.

  /// Virtual time, nanoseconds. May also be called inside simulated work.
  [[nodiscard]] sim_nanoseconds now() const noexcept { return state_->streams.now(); }
  /// Advances the host's time; device work that ends in that time takes effect.
  void advance(sim_nanoseconds by) const { hold()->streams.advance(by); }

  // Work. A default stream is device 0's here; sim_driver::launch uses its own device's.

  /// Launches simulated work that lasts `duration`.
  /// @param touched  bytes that it reads and writes; an address without backing when the work ends is an
  /// illegal access and
  ///                 breaks the device for good, as on a GPU
  /// @param body     runs on the host when the work ends, on a thread that drives the machine; may access
  /// host-backed
  ///                 memory but must not call a driver or throw
  template <class F>
    requires std::is_invocable_v<F&>
  status launch(stream_ref stream, sim_nanoseconds duration, std::initializer_list<sim_access> touched,
                F body) const {
    return launch_on(0, stream, duration, std::make_shared<detail::sim_kernel<F>>(touched, std::move(body)));
  }
  template <class F>
    requires std::is_invocable_v<F&>
  status launch(stream_ref stream, sim_nanoseconds duration, F body) const {
    return launch(stream, duration, {}, std::move(body));
  }
  status launch(stream_ref stream, sim_nanoseconds duration,
                std::initializer_list<sim_access> touched = {}) const {
    return launch(stream, duration, touched, [] {});
  }
  /// Launches what a capture recorded. A node starts when the nodes that it depends on have ended; later work
  /// on `stream` waits for all of them. On a captured stream, adds the graph to the capture.
  status launch(stream_ref stream, sim_graph const& graph) const { return launch_on(0, stream, graph); }

  /// Creates a stream that synchronises with the legacy default stream, as cudaStreamCreate does.
  status create_blocking_stream(device_id device, stream_ref& stream) const {
    detail::scoped_lock const lock(state_->mutex);
    if (!has(device)) return detail::sim_status(detail::sim_code::invalid_device, "create_stream");
    state_->streams.create_stream(device.value, detail::sim_blocking::with_legacy, stream);
    return {};
  }

  // Capture, in relaxed mode: other calls of the capturing thread are not restricted.

  status begin_capture(stream_ref stream) const { return begin_capture_on(0, stream); }
  /// Ends the capture; returns an error if it was invalidated, or if work of it is not joined to `stream`.
  status end_capture(stream_ref stream, sim_graph& graph) const { return end_capture_on(0, stream, graph); }
  /// Number of driver calls recorded into graphs; for an allocator each one is an error.
  [[nodiscard]] std::size_t captured_calls() const { return hold()->streams.captured(); }
  /// Number of captures that a call has invalidated so far.
  [[nodiscard]] std::size_t invalidated_captures() const { return hold()->streams.invalidated(); }

  // Memory.

  /// Sets how much of the device others hold; if it exceeds the free memory, all further allocations fail.
  void take_memory(device_id device, std::size_t bytes) const {
    if (has(device)) hold()->memory.usage(device.value).taken = bytes;
  }
  void set_capacity(device_id device, std::size_t bytes) const {
    if (has(device)) hold()->memory.usage(device.value).capacity = bytes;
  }
  [[nodiscard]] sim_usage usage(device_id device = {}) const {
    return has(device) ? hold()->memory.usage(device.value) : sim_usage{};
  }
  /// Returns what calls have said of the page of managed memory at `p`.
  [[nodiscard]] sim_managed_page managed_page(void const* p) const { return hold()->memory.managed_page(p); }

  // Failures of real machines.

  /// Breaks a device like a kernel's illegal access: every call on it fails until repair().
  void break_device(device_id device) const {
    if (has(device)) hold()->streams.fault(device.value) = detail::sim_code::illegal_address;
  }
  /// Simulates the driver at process exit: every call on any device fails with `unloading` until repair().
  void unload() const { set_faults(detail::sim_code::unloading); }
  /// Undoes break_device(), unload() and illegal accesses; memory and streams are unchanged.
  void repair() const { set_faults(detail::sim_code::ok); }

  void reset_peak(device_id device = {}) const {
    detail::scoped_lock const lock(state_->mutex);
    if (!has(device)) return;
    auto& u = state_->memory.usage(device.value);
    u.peak_used = u.used;
  }
  /// Returns true if simulated work may access the whole range.
  [[nodiscard]] bool is_accessible(void const* p, std::size_t bytes) const {
    return hold()->memory.accessible(p, bytes);
  }
  [[nodiscard]] sim_leaks leaks() const {
    detail::scoped_lock const lock(state_->mutex);
    auto& s = *state_;
    sim_leaks l;
    l.ranges = s.memory.ranges();
    l.maps = s.memory.maps();
    l.blocks = s.memory.host_blocks();
    for (int d = 0; d < s.options.devices; ++d) {
      auto const& u = s.memory.usage(d);
      l.handles += u.handles;
      l.blocks += u.blocks - s.async[static_cast<std::size_t>(d)].cached();
    }
    l.streams = s.streams.streams();
    l.events = s.streams.events();
    return l;
  }

  // Counters.

  [[nodiscard]] sim_calls calls() const { return hold()->calls; }
  void reset_calls() const { hold()->calls = {}; }
  /// Number of enqueued operations that have not ended.
  [[nodiscard]] std::size_t pending() const { return hold()->streams.pending(); }

  // The order checker; without sim_checks::stream_order these do nothing.

  /// Records that bytes have a new owner, which first uses them on `stream`. On a captured stream, each
  /// replay repeats this and freed() at their place in the graph, and the graph may use the bytes until eager
  /// work gets them.
  void allocated(void const* p, std::size_t bytes, stream_ref stream) const {
    change_owner(stream, detail::sim_node::kind::allocated, p, bytes);
  }
  /// Records that the owner has finished with bytes in the order of `stream`.
  void freed(void const* p, std::size_t bytes, stream_ref stream) const {
    change_owner(stream, detail::sim_node::kind::freed, p, bytes);
  }
  /// Records that the memory of graphs holds bytes: only captures may allocate them, and replays may use them
  /// although they are free. `holder`, unless null, names that memory; bytes cannot have two.
  void graph_holds(void const* p, std::size_t bytes, void const* holder = nullptr) const {
    if (state_->order) hold()->order->graph_holds(state_->memory, p, bytes, holder);
  }
  /// Records that bytes that graphs held have new physical memory: the pool has slept, or was compacted.
  void graph_holds_again(void const* p, std::size_t bytes) const {
    if (state_->order) hold()->order->graph_holds_again(state_->memory, p, bytes);
  }
  /// Records that graphs hold bytes, whose physical memory may have other addresses, too: graph_released() of
  /// those changes nothing until this is called again with false.
  void graph_stays(void const* p, std::size_t bytes, bool stays) const {
    if (state_->order) hold()->order->graph_stays(state_->memory, p, bytes, stays);
  }
  /// Records that no graph holds the bytes any more: replays must not access them.
  void graph_released(void const* p, std::size_t bytes) const {
    if (state_->order) hold()->order->graph_released(state_->memory, p, bytes);
  }
  /// Under sim_checks::each_thread: passes the calling thread's knowledge to threads that observe the token
  /// later, like the release and acquire of a mutex.
  void publish(void const* token) const {
    if (state_->order) hold()->streams.publish(token);
  }
  void observe(void const* token) const {
    if (state_->order) hold()->streams.observe(token);
  }
  /// Returns true if the next work on `second` is ordered after all work enqueued on `first`. Needs the
  /// checker.
  [[nodiscard]] bool is_ordered(stream_ref first, stream_ref second) const {
    detail::scoped_lock const lock(state_->mutex);
    auto* const a = state_->streams.find(first, 0);
    auto* const b = state_->streams.find(second, 0);
    return state_->order && a != nullptr && b != nullptr && state_->streams.is_ordered(*a, *b);
  }
  /// Findings of the checker so far, in order; empty if there are none.
  [[nodiscard]] std::vector<std::string> findings() const {
    return state_->order ? hold()->order->findings() : std::vector<std::string>{};
  }

  // The memory tool; without sim_tool::attached these return nothing.

  /// Findings of the tool so far, in order.
  [[nodiscard]] std::vector<std::string> tool_findings() const {
    return state_->memory.tool() != nullptr ? hold()->memory.tool()->findings() : std::vector<std::string>{};
  }
  [[nodiscard]] sim_tool_counts tool_counts() const {
    detail::scoped_lock const lock(state_->mutex);
    auto const* const tool = state_->memory.tool();
    if (tool == nullptr) return {};
    return {tool->calls(), tool->heaps(), tool->regions(), tool->region_bytes()};
  }

  friend bool operator==(sim_machine const& a, sim_machine const& b) noexcept { return a.state_ == b.state_; }

 private:
  friend class sim_driver;

  /// The machine's state, whose lock it holds.
  class locked {
   public:
    explicit locked(detail::sim_state& state) : lock_(state.mutex), state_(state) {}
    detail::sim_state* operator->() const noexcept { return &state_; }

   private:
    detail::scoped_lock<detail::fork_mutex> lock_;
    detail::sim_state& state_;
  };
  /// For one statement: `hold()->streams`. What the constructor of the state has set needs no lock.
  [[nodiscard]] locked hold() const { return locked(*state_); }
  void set_faults(detail::sim_code code) const {
    detail::scoped_lock const lock(state_->mutex);
    for (int d = 0; d < state_->options.devices; ++d) state_->streams.fault(d) = code;
  }

  [[nodiscard]] bool has(device_id device) const noexcept {
    return device.value >= 0 && device.value < state_->options.devices;
  }
  status launch_on(int device, stream_ref stream, sim_nanoseconds duration,
                   std::shared_ptr<detail::sim_work> work) const {
    return launch_by(device, stream, [&](detail::sim_stream& s) {
      return state_->streams.enqueue(s, duration, std::move(work), detail::sim_streams::caller::user);
    });
  }
  status launch_on(int device, stream_ref stream, sim_graph const& graph) const {
    return launch_by(device, stream, [&](detail::sim_stream& s) {
      return graph.exec_ ? state_->streams.launch(s, *graph.exec_) : detail::sim_code::invalid_value;
    });
  }
  template <class Enqueue>
  status launch_by(int device, stream_ref stream, Enqueue const& enqueue) const {
    return on_stream(device, stream, "launch", [&](detail::sim_stream& s) {
      state_->streams.advance(state_->options.costs.launch);
      state_->has_context[static_cast<std::size_t>(s.device)] = true;
      detail::sim_code const broken = state_->streams.fault(s.device);
      return broken == detail::sim_code::ok ? enqueue(s) : broken;
    });
  }
  status begin_capture_on(int device, stream_ref stream) const {
    return on_stream(device, stream, "begin_capture",
                     [&](detail::sim_stream& s) { return state_->streams.begin_capture(s); });
  }
  status end_capture_on(int device, stream_ref stream, sim_graph& graph) const {
    return on_stream(device, stream, "end_capture",
                     [&](detail::sim_stream& s) { return state_->streams.end_capture(s, graph.exec_); });
  }
  /// Calls `f` with a stream; a default stream is that of `device`.
  template <class F>
  status on_stream(int device, stream_ref stream, char const* call, F const& f) const {
    detail::scoped_lock const lock(state_->mutex);
    if (!has(device)) return detail::sim_status(detail::sim_code::invalid_device, call);
    auto* const s = state_->streams.find(stream, device);
    return detail::sim_status(s == nullptr ? detail::sim_code::invalid_handle : f(*s), call);
  }
  void change_owner(stream_ref stream, detail::sim_node::kind what, void const* p, std::size_t bytes) const {
    detail::scoped_lock const lock(state_->mutex);
    if (!state_->order) return;
    // Memory changes owners even if the stream was destroyed or its handle was reused.
    auto* const s = state_->streams.find(stream, 0);
    bool const known =
        s != nullptr && (stream.id() == stream_ref::unknown_id || stream.id() == s->id || s->is_default);
    if (known) return state_->streams.change_owner(*s, what, p, bytes);
    state_->streams.change_owner(state_->order->agent_of("stream", stream.id()), what, p, bytes);
  }

  std::shared_ptr<detail::sim_state> state_;
};

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE {

/// A device of a simulated machine; by default the current one of the process-wide machine. A cheap handle
/// that keeps its machine alive. As the contract requires, no call throws and every call is thread-safe.
/// Beyond the contract: a call inside simulated work fails (not permitted), misuse is reported with CUDA's
/// error numbers, and after an illegal access every call on the device fails, as on a GPU.
class sim_driver {
 public:
  /// The tool attached to the machine, which the pool notifies of its blocks; converts to false if there is
  /// none.
  class memory_tool_ref {
   public:
    constexpr memory_tool_ref() noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }
    [[nodiscard]] void* register_heap(void const* p, std::size_t bytes) const noexcept {
      void* heap = nullptr;
      notify([&](detail::sim_memory_tool& tool) {
        using heap_in = detail::sim_memory_tool::heap_in;
        bool const in_block = state_->memory.in_block(p, bytes, detail::sim_kind::device);
        heap = tool.register_heap(p, bytes, in_block ? heap_in::device_block : heap_in::other_memory);
      });
      return heap;
    }
    void unregister_heap(void* heap) const noexcept {
      notify([&](detail::sim_memory_tool& tool) { tool.unregister_heap(heap); });
    }
    void register_region(void* heap, void const* p, std::size_t bytes) const noexcept {
      notify([&](detail::sim_memory_tool& tool) { tool.register_region(heap, p, bytes); });
    }
    void unregister_region(void const* p) const noexcept {
      notify([&](detail::sim_memory_tool& tool) { tool.unregister_region(p); });
    }

   private:
    friend class sim_driver;
    explicit memory_tool_ref(detail::sim_state* state) noexcept : state_(state) {}
    template <class F>
    void notify(F const& f) const noexcept {
      detail::scoped_lock const lock(state_->mutex);
      try {
        f(*state_->memory.tool());
      } catch (std::bad_alloc const&) {  // without host memory the tool misses this notification
      }
    }
    detail::sim_state* state_ = nullptr;  ///< valid as long as the driver that returned this
  };

  /// Uses the calling thread's current device of the process-wide machine, as cuda_driver does.
  sim_driver() : sim_driver(current()) {}
  /// Uses a device of the process-wide machine, which has device 0 and as many more as TARN_SIM_DEVICES asks
  /// for.
  explicit sim_driver(device_id device) : machine_(sim_machine::standard()), device_(device) {}
  sim_driver(sim_machine machine, device_id device) noexcept
      : machine_(std::move(machine)), device_(device) {}

  [[nodiscard]] device_id device() const noexcept { return device_; }

  /// Returns the calling thread's current device, for device_guard. Informational: no simulated call depends
  /// on it.
  static status current_device(device_id& device) noexcept {
    device = current();
    return {};
  }
  static status set_current_device(device_id device) noexcept {
    if (device.value < 0) return {failure::no_device, 101, "cudaErrorInvalidDevice", "set_current_device"};
    current() = device;
    return {};
  }
  [[nodiscard]] sim_machine const& machine() const noexcept { return machine_; }

  /// Returns an identity that the stream_ref already holds, as cuda_driver does. As CUDA, refuses to identify
  /// a captured stream by its handle, and invalidates the capture.
  status identify(stream_ref stream, stream_id& id) const noexcept {
    if (stream.id() != stream_ref::unknown_id) {
      return call(driver_call::identify, costs().look, [&](state&) {
        id = stream.id();
        return code::ok;
      });
    }
    if (status found;
        !detail::is_default_stream(stream) && detail::identify_captured(*this, stream, id, found))
      return found;
    return on_stream(driver_call::identify, costs().look, stream, [&](state& m, detail::sim_stream& s) {
      if (!s.is_default && m.streams.is_capturing(s)) return m.streams.refuse_captured(s);
      id = s.id;
      return code::ok;
    });
  }
  /// As cuda_driver's: where a stream lives, as far as it was learned.
  [[nodiscard]] device_id known_device(stream_ref stream) const noexcept {
    if (machine_.options().devices < 2) return device_;
    if (!detail::is_default_stream(stream)) return devices_of_streams().find(stream.id());
    return machine_.hold()->streams.find(stream, device_.value)->device;
  }
  /// Where an existing stream lives. As CUDA, refuses a captured stream, and invalidates the capture.
  status ask_device(stream_ref stream, device_id& device) const noexcept {
    return on_stream(driver_call::ask_device, costs().look, stream, [&](state& m, detail::sim_stream& s) {
      if (!s.is_default && m.streams.is_capturing(s)) return m.streams.refuse_captured(s);
      device = s.device;
      return code::ok;
    });
  }
  [[nodiscard]] detail::stream_devices& devices_of_streams() const noexcept {
    return machine_.state_->devices_of_streams;
  }
  /// As cuda_driver's: the current device, or this one where nothing has used the current one yet.
  [[nodiscard]] device_id named_device() const noexcept {
    auto const m = machine_.hold();
    return machine_.has(current()) && m->has_context[static_cast<std::size_t>(current().value)] ? current()
                                                                                                : device_;
  }
  /// Makes this the driver of another device of the machine.
  void retarget(device_id device) noexcept { device_ = device; }
  /// As cuda_driver's: the identity of an existing stream, without a call of the device.
  [[nodiscard]] stream_id made_identity(void* handle) const noexcept {
    auto const m = machine_.hold();
    auto* const s = m->streams.find(stream_ref::from(handle), device_.value);
    return s != nullptr ? s->id : stream_id{stream_ref::unknown_id};
  }
  status is_capturing(stream_ref stream, bool& capturing) const noexcept {
    return on_stream(driver_call::is_capturing, costs().look, stream, [&](state& m, detail::sim_stream& s) {
      capturing = m.streams.is_capturing(s);
      return code::ok;
    });
  }

  status create_event(event_handle& event) const noexcept {
    return call(driver_call::create_event, costs().create_event, [&](state& m) {
      m.streams.create_event(device_.value, event);
      return code::ok;
    });
  }
  status destroy_event(event_handle event) const noexcept {
    return call(driver_call::destroy_event, costs().destroy_event,
                [&](state& m) { return m.streams.destroy_event(event); });
  }
  status record_event(event_handle event, stream_ref stream) const noexcept {
    return on_stream(driver_call::record_event, costs().record_event, stream,
                     [&](state& m, detail::sim_stream& s) {
                       auto* const e = m.streams.find_event(event);
                       return e == nullptr ? code::invalid_handle : m.streams.record(*e, s);
                     });
  }
  status query_event(event_handle event) const noexcept {
    return on_event(driver_call::query_event, costs().query_event, event,
                    [](state& m, detail::sim_event& e) { return m.streams.query(e); });
  }
  status wait_event(stream_ref stream, event_handle event) const noexcept {
    return on_stream(driver_call::wait_event, costs().wait_event, stream,
                     [&](state& m, detail::sim_stream& s) {
                       auto* const e = m.streams.find_event(event);
                       return e == nullptr ? code::invalid_handle : m.streams.wait(s, *e);
                     });
  }
  status synchronize_event(event_handle event) const noexcept {
    return on_event(
        driver_call::synchronize_event, costs().synchronize, event,
        [&](state& m, detail::sim_event& e) { return synchronized(m, m.streams.synchronize(e)); });
  }
  status synchronize_stream(stream_ref stream) const noexcept {
    return on_stream(
        driver_call::synchronize_stream, costs().synchronize, stream,
        [&](state& m, detail::sim_stream& s) { return synchronized(m, m.streams.synchronize(s)); });
  }
  status synchronize_device() const noexcept {
    return call(driver_call::synchronize_device, costs().synchronize,
                [&](state& m) { return synchronized(m, m.streams.synchronize_device(device_.value)); });
  }
  status create_stream(stream_ref& stream) const noexcept {
    return call(driver_call::create_stream, costs().create_stream, [&](state& m) {
      m.streams.create_stream(device_.value, detail::sim_blocking::independent, stream);
      m.devices_of_streams.note(stream.id(), device_);
      return code::ok;
    });
  }
  status destroy_stream(stream_ref stream) const noexcept {
    return call(driver_call::destroy_stream, costs().destroy_stream,
                [&](state& m) { return m.streams.destroy_stream(stream); });
  }

  /// Copies when the stream reaches the operation. As in CUDA, a copy from or to pageable host memory (any
  /// memory unknown to the machine) has completed when the call returns.
  status copy(stream_ref stream, void* to, void const* from, std::size_t bytes) const noexcept {
    return copy_from_device(stream, to, device_, from, bytes);
  }
  /// Copies from another device's memory, without peer access.
  status copy_from_device(stream_ref stream, void* to, device_id from_device, void const* from,
                          std::size_t bytes) const noexcept {
    return on_stream(driver_call::copy, costs().copy, stream, [&](state& m, detail::sim_stream& s) {
      if (bytes == 0) return code::ok;
      if (to == nullptr || from == nullptr) return code::invalid_value;
      if (!m.memory.is_reachable(to, device_.value)) return code::invalid_value;
      if (!m.memory.is_reachable(from, from_device.value)) return code::invalid_value;
      auto work = std::make_shared<detail::sim_transfer_work>();
      work->to = to;
      work->from = from;
      work->bytes = bytes;
      bool const pageable_to = !m.memory.knows(to);
      bool const pageable_from = !m.memory.knows(from);
      if (!pageable_from) work->touched.push_back(sim_reads(from, bytes));
      if (!pageable_to) work->touched.push_back(sim_writes(to, bytes));
      bool const pageable = pageable_to || pageable_from;
      double const rate = pageable ? costs().pageable_rate : rate_between(m, to, from);
      code const outcome = transfer(m, s, std::move(work), detail::sim_transfer(bytes, rate));
      if (outcome != code::ok || !pageable || s.capture) return outcome;
      return synchronized(m, m.streams.synchronize(s));
    });
  }
  /// As CUDA's, and like a kernel, refuses a stream that was created on another device.
  status fill(stream_ref stream, void* to, int byte, std::size_t bytes) const noexcept {
    return on_stream(driver_call::fill, costs().copy, stream, [&](state& m, detail::sim_stream& s) {
      if (bytes == 0) return code::ok;
      if (s.device != device_.value && !s.is_default) return code::invalid_handle;
      if (!m.memory.knows(to)) return code::invalid_value;
      auto work = std::make_shared<detail::sim_transfer_work>();
      work->to = to;
      work->byte = byte;
      work->bytes = bytes;
      work->touched.push_back(sim_writes(to, bytes));
      return transfer(m, s, std::move(work), detail::sim_transfer(bytes, costs().fill_rate));
    });
  }
  /// Converts when the stream reaches the operation, at the rate of a copy of the same size. It is a kernel
  /// of this device, or of the default stream's: an access to memory that the device cannot reach is an
  /// illegal access and breaks the device.
  template <element To, element From>
  status convert(stream_ref stream, To* to, From const* from, std::size_t count) const noexcept {
    return on_stream(driver_call::convert, costs().launch, stream, [&](state& m, detail::sim_stream& s) {
      if (count == 0) return code::ok;
      if (s.device != device_.value && !s.is_default) return code::invalid_handle;
      auto work = std::make_shared<detail::sim_conversion<To, From>>(to, from, count, s.device);
      std::size_t const bytes = count * (sizeof(To) + sizeof(From)) / 2;
      return m.streams.enqueue(s, detail::sim_transfer(bytes, costs().on_device_rate), std::move(work),
                               detail::sim_streams::caller::user);
    });
  }

  /// Takes the time of a copy of what is not there yet. The pages stay accessible everywhere.
  status prefetch(stream_ref stream, void const* p, std::size_t bytes, device_id to) const noexcept {
    return on_stream(driver_call::prefetch, costs().copy, stream, [&](state& m, detail::sim_stream& s) {
      if (bytes == 0) return code::ok;
      if (code const refused = can_migrate(m, to); refused != code::ok) return refused;
      if (s.capture) return m.streams.refuse_captured(s);
      std::size_t moved = 0;
      code const found = m.memory.change_managed(p, bytes, [&](sim_managed_page& page, std::size_t size) {
        if (page.prefetched_to != to) moved += size;
        page.prefetched_to = to;
      });
      if (found != code::ok) return code::not_supported;
      auto const nothing = [] {};
      return m.streams.enqueue(s, detail::sim_transfer(moved, costs().pinned_rate),
                               std::make_shared<detail::sim_kernel<decltype(nothing)>>(
                                   std::initializer_list<sim_access>{}, nothing),
                               detail::sim_streams::caller::driver);
    });
  }
  status advise(void const* p, std::size_t bytes, memory_advice advice, device_id where) const noexcept {
    return call(driver_call::advise, costs().copy, [&](state& m) {
      if (bytes == 0) return code::ok;
      if (code const refused = can_migrate(m, where); refused != code::ok) return refused;
      code const found = m.memory.change_managed(p, bytes, [&](sim_managed_page& page, std::size_t) {
        bool const is_set = advice == memory_advice::read_mostly || advice == memory_advice::accessed_by ||
                            advice == memory_advice::preferred_location;
        switch (advice) {
          case memory_advice::read_mostly:
          case memory_advice::not_read_mostly:
            page.read_mostly = is_set;
            break;
          case memory_advice::preferred_location:
          case memory_advice::no_preferred_location:
            page.preferred_location = is_set ? where : sim_managed_page::nowhere;
            break;
          default:
            std::erase(page.accessed_by, where);
            if (is_set) page.accessed_by.push_back(where);
        }
      });
      return found == code::ok ? found : code::not_supported;
    });
  }

  status memory_info(std::size_t& free, std::size_t& total) const noexcept {
    return call(driver_call::memory_info, costs().memory_info, [&](state& m) {
      sim_usage const& u = m.memory.usage(device_.value);
      free = u.free_bytes() - detail::min_of(u.free_bytes(), m.options.page_cache);
      total = u.capacity;
      if (m.options.placement == sim_placement::integrated) {
        message<64> const meminfo("MemFree: ", free / 1_KiB, " kB\nMemAvailable: ", u.free_bytes() / 1_KiB,
                                  " kB\n");
        detail::use_available(meminfo.view(), total, free);
      }
      return code::ok;
    });
  }
  /// Reports what NVML would, from the options that attribute `taken`.
  status memory_account(device_account& account) const noexcept {
    return call(driver_call::memory_account, costs().memory_account, [&](state& m) {
      if (m.options.accounting == sim_accounting::missing) return code::not_supported;
      account = detail::sim_account(m.options, m.memory.usage(device_.value));
      return code::ok;
    });
  }

  status page_granularity(std::size_t& bytes) const noexcept {
    return paged(driver_call::page_granularity, costs().page_granularity, [&](state& m) {
      bytes = m.memory.granularity();
      return code::ok;
    });
  }
  status reserve_range(std::size_t bytes, std::size_t alignment, void*& p) const noexcept {
    return paged(driver_call::reserve_range, costs().reserve_range.at(bytes),
                 [&](state& m) { return m.memory.reserve(bytes, alignment, p); });
  }
  status release_range(void* p, std::size_t bytes) const noexcept {
    return paged(driver_call::release_range, costs().release_range,
                 [&](state& m) { return m.memory.release(p, bytes); });
  }
  status create_pages(std::size_t bytes, page_handle& handle) const noexcept {
    return create_pages(bytes, allocation_handle_type::none, handle);
  }
  status create_pages(std::size_t bytes, allocation_handle_type type, page_handle& handle) const noexcept {
    return paged(driver_call::create_pages, costs().create_pages.at(bytes), [&](state& m) {
      if (!exports(m, type)) return code::not_supported;
      return m.memory.create(device_.value, bytes, type, handle);
    });
  }
  status destroy_pages(page_handle handle) const noexcept {
    return paged(driver_call::destroy_pages, 0, [&](state& m) {
      m.charge_more(costs().destroy_pages.at(m.memory.page_bytes_of(handle)));
      return m.memory.destroy(handle);
    });
  }
  status map_pages(void* p, std::size_t bytes, page_handle handle) const noexcept {
    return paged(driver_call::map_pages, costs().map_pages.at(bytes),
                 [&](state& m) { return m.memory.map(p, bytes, handle); });
  }
  status unmap_pages(void* p, std::size_t bytes) const noexcept {
    return paged(driver_call::unmap_pages, costs().unmap_pages.at(bytes), [&](state& m) {
      if (m.order) m.order->taken_away(m.memory, p, bytes, m.streams.host(), "unmapped while in use");
      return m.memory.unmap(p, bytes);
    });
  }
  status can_share(device_id other, bool& yes) const noexcept {
    return call(driver_call::can_share, costs().look, [&](state& m) {
      if (!machine_.has(other)) return code::invalid_device;
      yes = other == device_ || m.options.peers == sim_peers::reachable;
      if (yes && other != device_) enter(m, other);
      return code::ok;
    });
  }
  status share_pages(void* p, std::size_t bytes, device_id other) const noexcept {
    return paged(driver_call::share_pages, costs().share_pages, [&](state& m) {
      if (!machine_.has(other)) return code::invalid_device;
      if (other != device_ && m.options.peers == sim_peers::apart) return code::not_supported;
      return m.memory.share(p, bytes, other.value);
    });
  }

  status can_export_pages(allocation_handle_type type, bool& yes) const noexcept {
    return paged(driver_call::can_export_pages, costs().look, [&](state& m) {
      yes = exports(m, type);
      return code::ok;
    });
  }
  status export_pages(page_handle handle, page_export& exported) const noexcept {
    return paged(driver_call::export_pages, costs().export_pages,
                 [&](state& m) { return m.memory.export_pages(handle, exported); });
  }
  status import_pages(page_export const& exported, page_handle& handle) const noexcept {
    return paged(driver_call::import_pages, costs().import_pages, [&](state& m) {
      if (!exports(m, exported.type)) return code::not_supported;
      return m.memory.import_pages(device_.value, exported, handle);
    });
  }
  /// Only drivers of the same machine can open it: another process's machine has its own time.
  status create_shared_event(event_handle& event, shared_event_token& token) const noexcept {
    return call(driver_call::create_shared_event, costs().create_event, [&](state& m) {
      if (m.options.sharing == sim_sharing::none) return code::not_supported;
      event_token const made{&m, m.streams.create_shared_event(device_.value, event), event_token::mark};
      std::memcpy(token.data(), &made, sizeof made);
      return code::ok;
    });
  }
  status open_shared_event(shared_event_token const& token, event_handle& event) const noexcept {
    return call(driver_call::open_shared_event, costs().create_event, [&](state& m) {
      event_token of{};
      std::memcpy(&of, token.data(), sizeof of);
      if (of.magic != event_token::mark) return code::invalid_value;
      return of.machine == &m ? m.streams.open_event(of.serial, event) : code::not_supported;
    });
  }
  /// No simulated device has dma-bufs: they are of the kernel.
  status export_dma_buf(void*, std::size_t, int&) const noexcept {
    return call(driver_call::export_dma_buf, costs().look, [](state&) { return code::not_supported; });
  }
  /// The same for the devices of one number of all simulated machines: a second process can import what the
  /// first has exported.
  status uuid(device_uuid& id) const noexcept {
    return call(driver_call::uuid, costs().look, [&](state&) {
      id = {'t', 'a', 'r', 'n', ' ', 's', 'i', 'm', static_cast<unsigned char>(device_.value)};
      return code::ok;
    });
  }

  [[nodiscard]] memory_tool_ref memory_tool() const noexcept {
    detail::sim_state& m = *machine_.state_;
    return memory_tool_ref(m.memory.tool() != nullptr ? &m : nullptr);
  }

  status malloc_device(std::size_t bytes, void*& p) const noexcept {
    return call(driver_call::malloc_device, costs().malloc_device.at(bytes), [&](state& m) {
      return m.memory.allocate(device_.value, bytes, detail::sim_kind::device, p);
    });
  }
  /// Waits for the device, as cudaFree does.
  status free_device(void* p) const noexcept {
    return free_block(driver_call::free_device, p, detail::sim_kind::device);
  }
  /// Whether memory holds what was written to it: not device memory that is addresses only.
  [[nodiscard]] bool has_contents(void const* p) const noexcept {
    if (machine_.options().backing == sim_backing::host_backed) return true;
    return machine_.hold()->memory.is_real(p);
  }
  [[nodiscard]] bool has_memory_pools() const noexcept {
    return machine_.state_->options.memory_pools == sim_memory_pools::available;
  }
  status malloc_async(std::size_t bytes, stream_ref stream, void*& p) const noexcept {
    return malloc_async(bytes, stream, async_memory::device, p);
  }
  status open_memory_pool(async_memory) const noexcept {
    return has_memory_pools() ? status{} : detail::sim_status(code::not_supported, "open_memory_pool");
  }
  status malloc_async(std::size_t bytes, stream_ref stream, async_memory memory, void*& p) const noexcept {
    using kind = detail::sim_kind;
    kind const of = memory == async_memory::device   ? kind::async
                    : memory == async_memory::pinned ? kind::async_pinned
                                                     : kind::async_managed;
    return on_stream(
        driver_call::malloc_async, costs().malloc_async_warm, stream, [&](state& m, detail::sim_stream& s) {
          if (!has_memory_pools()) return code::not_supported;
          if (s.capture) m.streams.count_captured();
          (void)m.streams.end_of(s);
          auto warmth = detail::sim_warmth::warm;
          code const outcome =
              m.async[static_cast<std::size_t>(s.device)].allocate(bytes, of, s, m.streams.now(), p, warmth);
          if (warmth == detail::sim_warmth::cold) {
            m.charge_more(costs().malloc_async_cold.at(bytes));
          }
          return outcome;
        });
  }
  status free_async(void* p, stream_ref stream) const noexcept {
    return on_stream(driver_call::free_async, costs().free_async, stream,
                     [&](state& m, detail::sim_stream& s) {
                       if (!has_memory_pools()) return code::not_supported;
                       if (s.capture) m.streams.count_captured();
                       sim_nanoseconds const end = m.streams.end_of(s);
                       return m.async[static_cast<std::size_t>(s.device)].release(p, s, end);
                     });
  }
  status malloc_pinned(std::size_t bytes, void*& p) const noexcept {
    return call(driver_call::malloc_pinned, costs().malloc_pinned.at(bytes), [&](state& m) {
      return m.memory.allocate(device_.value, bytes, detail::sim_kind::pinned, p);
    });
  }
  /// Waits for the device, as cudaFreeHost does.
  status free_pinned(void* p) const noexcept {
    return free_block(driver_call::free_pinned, p, detail::sim_kind::pinned);
  }
  /// Copies treat the memory as pinned from now on. Unregistering does not wait, since CUDA documents no
  /// wait: work that accesses the memory afterwards is an illegal access.
  status register_host(void* p, std::size_t bytes) const noexcept {
    return call(driver_call::register_host, costs().register_host.at(bytes),
                [&](state& m) { return m.memory.adopt(device_.value, p, bytes); });
  }
  status unregister_host(void* p) const noexcept {
    return call(driver_call::unregister_host, 0, [&](state& m) {
      if (p == nullptr) return code::ok;
      std::size_t bytes = 0;
      if (m.memory.find_block(p, detail::sim_kind::registered, bytes)) {
        m.charge_more(costs().unregister_host.at(bytes));
      }
      return m.memory.let_go(p);
    });
  }
  status malloc_managed(std::size_t bytes, void*& p) const noexcept {
    return call(driver_call::malloc_managed, costs().malloc_managed, [&](state& m) {
      return m.memory.allocate(device_.value, bytes, detail::sim_kind::managed, p);
    });
  }
  /// Waits for the device, as cudaFree does.
  status free_managed(void* p) const noexcept {
    return free_block(driver_call::free_managed, p, detail::sim_kind::managed);
  }

  /// Launches as sim_machine::launch does, with this device's default streams.
  template <class F>
    requires std::is_invocable_v<F&>
  status launch(stream_ref stream, sim_nanoseconds duration, std::initializer_list<sim_access> touched,
                F body) const {
    return machine_.launch_on(device_.value, stream, duration,
                              std::make_shared<detail::sim_kernel<F>>(touched, std::move(body)));
  }
  status launch(stream_ref stream, sim_nanoseconds duration,
                std::initializer_list<sim_access> touched = {}) const {
    return launch(stream, duration, touched, [] {});
  }
  status launch(stream_ref stream, sim_graph const& graph) const {
    return machine_.launch_on(device_.value, stream, graph);
  }
  /// Captures as sim_machine does, with this device's default streams.
  status begin_capture(stream_ref stream) const { return machine_.begin_capture_on(device_.value, stream); }
  status end_capture(stream_ref stream, sim_graph& graph) const {
    return machine_.end_capture_on(device_.value, stream, graph);
  }

  friend bool operator==(sim_driver const& a, sim_driver const& b) noexcept {
    return a.machine_ == b.machine_ && a.device_ == b.device_;
  }

 protected:
  [[nodiscard]] bool is_made(stream_ref stream) const noexcept {
    return machine_.hold()->streams.has(stream);
  }
  /// Marks all work of the device; see sim_marking_driver.
  status record_all_work(event_handle event) const noexcept {
    return on_event(driver_call::record_event, costs().record_event, event,
                    [](state& m, detail::sim_event& e) { return m.streams.record_all(e); });
  }

 private:
  using state = detail::sim_state;
  using code = detail::sim_code;

  [[nodiscard]] code can_migrate(state const& m, device_id to) const noexcept {
    if (to != host_id && !machine_.has(to)) return code::invalid_device;
    return m.options.migration == sim_migration::available ? code::ok : code::not_supported;
  }
  /// Returns the rate of a copy that involves no pageable memory.
  [[nodiscard]] double rate_between(state const& m, void const* to, void const* from) const noexcept {
    if (m.memory.is_on_host(to) || m.memory.is_on_host(from)) return costs().pinned_rate;
    if (m.memory.device_of(to) == m.memory.device_of(from)) return costs().on_device_rate;
    return m.options.peers == sim_peers::reachable ? costs().peer_rate : costs().staged_rate;
  }
  [[nodiscard]] static bool exports(state const& m, allocation_handle_type type) noexcept {
    switch (type) {
      case allocation_handle_type::none:
        return true;
      case allocation_handle_type::posix_file_descriptor:
        return m.options.sharing != sim_sharing::none;
      default:
        return m.options.sharing == sim_sharing::descriptors_and_fabric;
    }
  }
  struct event_token {
    static constexpr std::uint64_t mark = 0x7461726e65766e74;
    state const* machine;
    std::uint64_t serial;
    std::uint64_t magic;
  };
  static device_id& current() noexcept {
    static thread_local device_id device;
    return device;
  }

  [[nodiscard]] sim_costs const& costs() const noexcept { return machine_.options().costs; }

  /// Whether cuda_driver makes its device current for the call, which is then in use.
  [[nodiscard]] static constexpr bool enters_device(driver_call which) noexcept {
    using enum driver_call;
    bool const is_of_pages = (which >= reserve_range && which <= import_pages) || which == can_export_pages ||
                             which == export_pages;
    return !only_looks(which) && !is_of_pages && which != memory_account && which != can_share &&
           which != export_dma_buf && which != uuid;
  }
  static void enter(state& m, device_id device) noexcept {
    m.devices_of_streams.use(device);
    m.has_context[static_cast<std::size_t>(device.value)] = true;
  }
  /// Wraps every call: fails inside simulated work and on a missing or broken device; counts the call,
  /// charges its cost and names it in the status. A call on a default stream uses the device of that stream.
  template <class F>
  status call(driver_call which, sim_nanoseconds cost, F const& act,
              stream_ref const* on = nullptr) const noexcept {
    char const* const name = name_of(which);
    if (detail::sim_inside_work) return detail::sim_status(code::not_permitted, name);
    state& m = *machine_.state_;
    detail::scoped_lock const lock(m.mutex);
    if (!machine_.has(device_)) return detail::sim_status(code::invalid_device, name);
    if (!m.process.is_this()) return detail::sim_status(code::forked, name);
    try {
      bool const names_default = on != nullptr && detail::is_default_stream(*on);
      if (enters_device(which) || (which == driver_call::is_capturing && names_default))
        enter(m, names_default ? m.streams.find(*on, device_.value)->device : device_);
      m.charge(which, cost);
      if (code const broken = m.streams.fault(device_.value); broken != code::ok) {
        return detail::sim_status(broken, name);
      }
      return detail::sim_status(act(m), name);
    } catch (std::bad_alloc const&) {
      return detail::sim_status(code::out_of_memory, name);
    }
  }
  template <class F>
  status on_stream(driver_call which, sim_nanoseconds cost, stream_ref stream, F const& act) const noexcept {
    auto const find = [&](state& m) {
      auto* const s = m.streams.find(stream, device_.value);
      bool const known = stream.id() != stream_ref::unknown_id;
      if (s == nullptr) {
        if (m.order && known) m.order->dead_handle(name_of(which), stream.id());
        return code::invalid_handle;
      }
      bool const stale = known && stream.id() != s->id && !s->is_default;
      if (m.order && stale) m.order->stale_handle(name_of(which), stream.id(), s->agent);
      return act(m, *s);
    };
    return call(which, cost, find, &stream);
  }
  template <class F>
  status on_event(driver_call which, sim_nanoseconds cost, event_handle event, F const& act) const noexcept {
    return call(which, cost, [&](state& m) {
      auto* const e = m.streams.find_event(event);
      return e == nullptr ? code::invalid_handle : act(m, *e);
    });
  }
  template <class F>
  status paged(driver_call which, sim_nanoseconds cost, F const& act) const noexcept {
    return call(which, cost, [&](state& m) {
      bool const can = m.options.paging == sim_paging::available &&
                       (detail::sim_can_map || m.options.backing == sim_backing::address_only);
      return can ? act(m) : code::not_supported;
    });
  }

  /// After a wait: the pool of cudaMallocAsync releases what it may, and errors that occurred meanwhile are
  /// returned.
  code synchronized(state& m, code outcome) const {
    if (outcome != code::ok) return outcome;
    m.trim_async(device_.value);
    return m.streams.fault(device_.value);
  }
  static code transfer(state& m, detail::sim_stream& s, std::shared_ptr<detail::sim_work> work,
                       sim_nanoseconds duration) {
    return m.streams.enqueue(s, duration, std::move(work), detail::sim_streams::caller::driver);
  }
  status free_block(driver_call which, void* p, detail::sim_kind kind) const noexcept {
    return call(which, 0, [&](state& m) {
      if (p == nullptr) return code::ok;
      std::size_t bytes = 0;
      if (!m.memory.find_block(p, kind, bytes)) return code::invalid_value;
      m.charge_more(kind == detail::sim_kind::managed  ? costs().free_managed
                    : kind == detail::sim_kind::pinned ? costs().free_pinned.at(bytes)
                                                       : costs().free_device.at(bytes));
      m.streams.join_device(device_.value);
      return m.memory.release(p, kind);
    });
  }

  sim_machine machine_;
  device_id device_;
};

inline sim_driver sim_machine::driver(device_id device) const noexcept {
  return {*this, device};
}

/// The same driver as of CUDA 12.5 and later, which can mark a device's work without naming a stream: the
/// pool then passes no handle that may belong to a destroyed stream (pool/order/mark_work.hpp).
class sim_marking_driver : public sim_driver {
 public:
  using sim_driver::sim_driver;
  sim_marking_driver() = default;
  sim_marking_driver(sim_driver const& driver) noexcept : sim_driver(driver) {}  // NOLINT: the same device
  status record_all(event_handle event) const noexcept { return record_all_work(event); }
  /// As cuda_driver's: whether create_stream() created the stream and it is not destroyed. Passes no handle
  /// to the device.
  [[nodiscard]] bool has_made(stream_ref stream) const noexcept { return is_made(stream); }
};

static_assert(stream_driver<sim_driver> && page_driver<sim_driver> && block_driver<sim_driver> &&
              registering_driver<sim_driver> && migrating_driver<sim_driver> &&
              memory_tool_driver<sim_driver> && accounting_driver<sim_driver> && sharing_driver<sim_driver> &&
              detail::multi_device_driver<sim_driver> && detail::multi_device_driver<sim_marking_driver>);

}  // namespace TARN_NAMESPACE
// ---- tarn/source/registered_host.hpp
#ifndef TARN_SINGLE_SOURCE_REGISTERED_HOST_HPP
#define TARN_SINGLE_SOURCE_REGISTERED_HOST_HPP
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

#if TARN_HAS_CUDA
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
#endif  // TARN_SINGLE_SOURCE_REGISTERED_HOST_HPP

namespace TARN_NAMESPACE {

using sim_pages = basic_pages<sim_driver>;
using sim_malloc = basic_malloc<sim_driver>;
using sim_async = basic_async<sim_driver>;
using sim_async_pinned = basic_async_pinned<sim_driver>;
using sim_async_managed = basic_async_managed<sim_driver>;
using sim_pinned_host = basic_pinned<sim_driver>;
using sim_registered_host = basic_registered<sim_driver>;
using sim_managed = basic_managed<sim_driver>;

static_assert(page_source<sim_pages>);
static_assert(resource<sim_malloc> && resource<sim_async> && resource<sim_async_pinned> &&
              resource<sim_async_managed> && resource<sim_pinned_host> && resource<sim_managed> &&
              resource<sim_registered_host>);

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE {

/// device_pool on the simulated device: `tarn::sim_pool pool;` simulates an H200,
/// `sim_pool{sim_pages{machine.driver(0)}}` a user-defined machine.
using sim_pool = pool_over<sim_pages>;
/// An owning stream of the simulated device.
using sim_stream = basic_stream<sim_driver>;

#if !TARN_HAS_CUDA
// A program for the GPU, compiled with TARN_NO_CUDA, runs on the simulated device: include this header in its
// tests, or compile it with `-include tarn/sim.hpp`. Use the same way for all translation units of a program.
using cuda_pages = sim_pages;
using cuda_malloc = sim_malloc;
using cuda_async = sim_async;
using cuda_async_pinned = sim_async_pinned;
using cuda_async_managed = sim_async_managed;
using pinned_host = sim_pinned_host;
using registered_host = sim_registered_host;
using managed = sim_managed;
using device_pool = sim_pool;
using any_resource = basic_any_resource<sim_driver, device_accessible>;
using device_guard = basic_device_guard<sim_driver>;
class stream : public sim_stream {
 public:
  using sim_stream::sim_stream;
};
namespace detail {
template <class T>
struct simulated_driver {
  using type = sim_driver;
};
}  // namespace detail
#endif

}  // namespace TARN_NAMESPACE
