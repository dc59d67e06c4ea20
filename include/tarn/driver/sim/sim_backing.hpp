// SPDX-License-Identifier: Apache-2.0
#pragma once
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

#include "tarn/core/at_fork.hpp"
#include "tarn/core/bytes.hpp"
#include "tarn/core/descriptor.hpp"
#include "tarn/core/mutex.hpp"

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
