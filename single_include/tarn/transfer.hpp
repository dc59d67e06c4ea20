// SPDX-License-Identifier: Apache-2.0
#pragma once
// tarn/transfer.hpp over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.
#include "tarn.hpp"
// ---- tarn/transfer.hpp
// Moving memory: batches between host and device, work split to fit free memory, lower precision, eviction,
// several devices. Opt-in: it takes as long to compile as the pool.

// ---- tarn/policy/accessible_from.hpp
// accessible_from: gives other devices access to a device's pages, so that their kernels may read and write a
// pool's memory in place, and copies between the devices are direct.

#include <cstddef>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE {

/// Thrown if a device cannot access another's memory: no NVLink or PCIe path between them allows it.
class unreachable_device : public detail::error_of<std::runtime_error, 320> {
 public:
  unreachable_device(device_id memory, device_id from) : memory_(memory), from_(from) {
    text_.add("tarn: memory of device ").add_number(memory.value).add(" cannot be reached from device ");
    text_.add_number(from.value).add("; remove it from accessible_from: copies do not need it");
  }
  /// The device that has the memory.
  [[nodiscard]] device_id memory() const noexcept { return memory_; }
  /// The device that cannot reach it.
  [[nodiscard]] device_id from() const noexcept { return from_; }

 private:
  device_id memory_;
  device_id from_;
};

template <class Upstream>
class reachable_layer;

/// Below a pool: `cuda_pages{0} | accessible_from{1, 2} | pooled{}`. One more driver call per device and
/// mapping (about 25 us), none per allocation. The pages' own device may be listed and costs nothing.
class accessible_from {
 public:
  template <class Upstream>
  using layer = reachable_layer<Upstream>;

  /// No other device.
  accessible_from() = default;
  accessible_from(std::initializer_list<device_id> devices,
                  source_location where = source_location::current())
      : devices_(devices), where_(where) {}
  explicit accessible_from(std::span<device_id const> devices,
                           source_location where = source_location::current())
      : devices_(devices.begin(), devices.end()), where_(where) {}

  [[nodiscard]] std::vector<device_id> const& devices() const noexcept { return devices_; }
  /// For errors.
  [[nodiscard]] source_location where() const noexcept { return where_; }

 private:
  std::vector<device_id> devices_;
  source_location where_;
};

/// A page source whose mappings are shared with other devices when they are made. It does not pass plain
/// blocks on: cudaMalloc's blocks cannot be shared this way, so an attached memory tool cannot watch the
/// blocks of a pool over it, and a pool over it cannot be made on a device without virtual memory management.
template <class Upstream>
class reachable_layer : public resource_adaptor<reachable_layer<Upstream>, Upstream>,
                        public detail::page_calls<reachable_layer<Upstream>, Upstream> {
  static_assert(page_source<Upstream>,
                "tarn: accessible_from maps pages; put it below the pool: cuda_pages{0} | accessible_from{1} "
                "| pooled{}");
  using base = resource_adaptor<reachable_layer<Upstream>, Upstream>;

 public:
  using base::driver;

  explicit reachable_layer(Upstream upstream) : base(std::move(upstream)) {}
  /// @throws unreachable_device  a device cannot access these pages
  /// @throws cuda_error          of kind `unsupported` if this device has no pages: copies between devices
  /// need none
  /// @throws cuda_error          of kind `no_device` if there is no such device
  reachable_layer(Upstream upstream, accessible_from const& options) : base(std::move(upstream)) {
    for (device_id const other : options.devices()) {
      if (other == driver().device()) continue;
      detail::require_pages(this->upstream(), detail::sharing_refused);
      bool yes = false;
      if (status const s = driver().can_share(other, yes); !s.ok())
        throw cuda_error(s, other.value, options.where());
      if (!yes) throw detail::at(options.where(), unreachable_device(driver().device(), other));
      others_.push_back(other);
    }
  }

  /// As the source's, and readable and writable by the other devices. @throws out_of_memory, cuda_error;
  /// nothing is mapped
  void map(void* p, std::size_t bytes, page_handle handle) {
    this->upstream().map(p, bytes, handle);
    for (device_id const other : others_) {
      status const s = driver().share_pages(p, bytes, other);
      if (s.ok()) continue;
      this->upstream().unmap(p, bytes);
      detail::refuse(driver(), s, stream_ref{}, bytes, this->granularity());
    }
  }

  /// The devices that reach the memory, besides its own.
  [[nodiscard]] std::span<device_id const> reached_from() const noexcept { return others_; }

 private:
  std::vector<device_id> others_;
};

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
// ---- tarn/transfer/collect_batches.hpp
// collect_batches: a loop over host batches of device memory; the next batches are copied back meanwhile.

#include <cstddef>
#include <iterator>
#include <span>
#include <type_traits>
#include <utility>

// ---- tarn/transfer/batch_options.hpp
// Options, batch types and iterator of stream_batches() and collect_batches().

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string_view>

namespace TARN_NAMESPACE {

struct batch_options {
  /// Maximum bytes per batch; elements are never split. From 16 MiB on, the overhead of a batch besides its
  /// copy is below 3 %. Where host threads fill the slots, larger batches are slower because the slots no
  /// longer fit the processor's cache (bench/results/moving.jsonl).
  std::size_t batch_bytes = 16_MiB;
  /// Number of device slots, that is, batches held at once, including the current one. 1 alternates copy and
  /// work; 2 overlap them; the third hides delays of the host. The host uses as many slots where copies are
  /// staged, one more where threads fill them (so that they do not wait for the copy), and one more than
  /// `threads` for a generator.
  std::size_t depth = 3;
  /// Threads that fill slots ahead of the loop. 0: chosen by size for memory and files, up to 8; a generator
  /// is called by the looping thread.
  unsigned threads = 0;
};

/// Reports options that cannot be met, or a generator that overruns its slot. No data was copied for it.
class bad_batch : public detail::error_of<std::invalid_argument, 320> {
 public:
  explicit bad_batch(std::string_view text) { text_.add("tarn: ").add(text); }
};

/// Elements of one batch and their position in the source. A non-owning view, valid until the loop advances.
template <class T>
class batch_view {
 public:
  using element_type = T;
  batch_view(std::span<T> elements, std::size_t index, std::size_t offset) noexcept
      : elements_(elements), index_(index), offset_(offset) {}

  [[nodiscard]] T* data() const noexcept { return elements_.data(); }
  /// Number of elements; never 0.
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return elements_.size_bytes(); }
  [[nodiscard]] std::span<T> span() const noexcept { return elements_; }
  /// Number of batches before this one.
  [[nodiscard]] std::size_t index() const noexcept { return index_; }
  /// Number of elements before this batch.
  [[nodiscard]] std::size_t offset() const noexcept { return offset_; }

 private:
  std::span<T> elements_;
  std::size_t index_;
  std::size_t offset_;
};

/// A batch in device memory, for work on the loop's stream. That work may write to it.
template <class T>
class device_batch : public batch_view<T> {
 public:
  using batch_view<T>::batch_view;
};

/// A batch in host memory; a contiguous range.
template <class T>
class host_batch : public batch_view<T> {
 public:
  using batch_view<T>::batch_view;
  [[nodiscard]] T* begin() const noexcept { return this->data(); }
  [[nodiscard]] T* end() const noexcept { return this->data() + this->size(); }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return this->data()[i]; }
};

namespace detail {

/// Marks an unknown number of elements or batches.
inline constexpr std::size_t unknown_count = static_cast<std::size_t>(-1);

/// Returns the number of elements of a full batch. @throws bad_batch  the options cannot be met
[[nodiscard]] inline std::size_t batch_capacity(batch_options const& options, std::size_t element_bytes) {
  if (options.depth == 0) throw bad_batch("batch_options::depth is 0; use 1 or more, 2 to overlap");
  if (options.batch_bytes < element_bytes || options.batch_bytes > max_request_bytes) {
    message<160> text("batch_options::batch_bytes is ", options.batch_bytes);
    if (options.batch_bytes < element_bytes) {
      text.add("; it must hold at least one element, ").add_number(std::uint64_t{element_bytes}).add(" B");
    } else {
      text.add(", more than the largest request; check the number for overflow");
    }
    throw bad_batch(text.view());
  }
  return options.batch_bytes / element_bytes;
}
/// Returns the number of slots for so many batches. @throws bad_batch  they exceed the largest request
[[nodiscard]] inline std::size_t batch_depth(batch_options const& options, std::size_t batches,
                                             std::size_t bytes_of_slot) {
  std::size_t const depth = min_of(options.depth, batches);
  if (depth > max_request_bytes / bytes_of_slot) {
    message<160> const text("batch_options::depth is ", options.depth,
                            "; so many batches exceed the largest request; check the number for overflow");
    throw bad_batch(text.view());
  }
  return depth;
}

}  // namespace detail

// The single-pass iterator of a range of batches. It stores only a pointer to the range.

/// An input iterator. The range must outlive it and provide `Batch now()`, `void next()` and
/// `bool is_over() const noexcept`.
template <class Range, class Batch>
class batch_iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  batch_iterator() noexcept = default;
  explicit batch_iterator(Range& range) noexcept : range_(&range) {}

  /// Returns the current batch. It is valid until ++.
  [[nodiscard]] Batch operator*() const { return range_->now(); }
  batch_iterator& operator++() {
    range_->next();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(batch_iterator const& it, std::default_sentinel_t) noexcept { return it.is_over(); }

 private:
  [[nodiscard]] bool is_over() const noexcept { return range_->is_over(); }
  Range* range_ = nullptr;
};

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/copy_stream.hpp
// copy_stream: a separate stream for copies, and the events that order it with the user's stream.

#include <cstddef>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE::detail {

/// Copies on its own stream and orders the copies with the user's stream by numbered events. Waits on the
/// host only where documented. Destruction waits for the running copies, so the memory that they use may be
/// freed. One thread at a time.
template <stream_driver Driver>
class copy_stream {
 public:
  /// @param user  the stream of the other work, of any device; must not be capturing
  /// @param where  the user's call, which errors name
  /// @throws misuse  `user` is being captured; cuda_error
  copy_stream(Driver const& driver, stream_ref user, source_location where)
      : driver_(driver),
        user_(user),
        stream_(called_from(where, [&] { return basic_stream<Driver>(driver); })),
        where_(where) {
    require_no_capture();
  }
  copy_stream& operator=(copy_stream&&) = delete;
  ~copy_stream() {
    finish();
    for (event_handle const event : events_) {
      if (event != nullptr) (void)driver_.destroy_event(event);  // null: it could not be created
    }
  }

  [[nodiscard]] stream_ref user() const noexcept { return user_; }

  /// Before the two streams are ordered: the event would draw this stream, and its copies, into the capture.
  /// @throws misuse  the user's stream is being captured; cuda_error
  void require_no_capture() const {
    refuse_capture(driver_, user_,
                   "batches cannot be copied on a stream that is being captured; copy before or after the "
                   "capture",
                   where_);
  }

  /// Creates the events with numbers below `count`.
  void make_events(std::size_t count) {
    while (events_.size() < count) must_succeed(driver_.create_event(events_.emplace_back(nullptr)));
  }

  void copy(void* to, void const* from, std::size_t bytes) {
    must_succeed(driver_.copy(stream_, to, from, bytes));
  }
  /// Records an event behind the copies so far.
  void mark(std::size_t event) { must_succeed(driver_.record_event(events_[event], stream_)); }
  /// Records an event behind the user's work so far. @throws as require_no_capture()
  void mark_user(std::size_t event) {
    require_no_capture();
    must_succeed(record_in_order(driver_, events_[event], user_));
  }
  /// Makes later copies wait for an event recorded on the user's stream.
  void wait_for(std::size_t event) { must_succeed(driver_.wait_event(stream_, events_[event])); }
  /// Makes the user's later work wait for an event.
  void let_user_wait(std::size_t event) { must_succeed(driver_.wait_event(user_, events_[event])); }
  /// Whether the device has passed an event.
  [[nodiscard]] bool is_past(std::size_t event) {
    status const s = driver_.query_event(events_[event]);
    if (s.kind == failure::not_ready) return false;
    must_succeed(s);
    return true;
  }
  /// Waits on the host until the device has passed an event.
  void synchronize(std::size_t event) { must_succeed(driver_.synchronize_event(events_[event])); }

  /// Waits on the host for all copies.
  void finish() noexcept { (void)wait_for_stream(driver_, stream_); }

 private:
  void must_succeed(status const& s) const {
    if (!s.ok()) throw cuda_error(s, driver_.device().value, where_);
  }

  Driver driver_;
  stream_ref user_;
  basic_stream<Driver> stream_;
  source_location where_;  ///< where the batches were made
  std::vector<event_handle> events_;
};

}  // namespace TARN_NAMESPACE::detail
// ---- tarn/transfer/pinned_slots.hpp
// pinned_slots: reusable host memory in which copies are staged.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE::detail {

/// `count` slots of `elements` elements each. No work may use them when they are destroyed, since a pool may
/// reuse them on the host at once. In contrast, a pinned_buffer is freed in stream order.
template <class T, class Pinned>
class pinned_slots {
  static_assert(has_property<Pinned, host_accessible>,
                "tarn: batches are staged in memory that the host can access; use pinned_host, "
                "registered_host or a pool "
                "over them");

 public:
  /// @throws length_error, out_of_memory
  pinned_slots(Pinned memory, std::size_t count, std::size_t elements)
      : pinned_slots(std::move(memory), checked_bytes(elements, sizeof(T))) {
    elements_ = elements;
    slots_.reserve(count);
    while (slots_.size() < count)
      slots_.push_back(static_cast<T*>(memory_.allocate_sync(bytes_, alignment_of<T>)));
  }
  pinned_slots& operator=(pinned_slots&&) = delete;
  ~pinned_slots() {
    for (T* const p : slots_) free_block_sync(memory_, p, bytes_, alignment_of<T>);
  }

  [[nodiscard]] std::span<T> operator[](std::size_t slot) const noexcept { return {slots_[slot], elements_}; }

 private:
  pinned_slots(Pinned memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}

  Pinned memory_;
  std::size_t bytes_;
  std::size_t elements_ = 0;
  std::vector<T*> slots_;
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

/// The range that collect_batches() returns: a single-pass input range for one thread. Neither copyable nor
/// movable. Its end waits for the running copies; afterwards the device memory is no longer read.
template <class T, class Pinned, class Driver>
class batch_collector {
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: only trivially copyable elements can be copied between host and device");

 public:
  using value_type = T;
  using batch = host_batch<T>;
  /// A batch is in pinned memory, which the host may use until ++.
  using iterator = batch_iterator<batch_collector, batch>;

  /// See collect_batches().
  template <class Memory>
  batch_collector(std::span<T const> from, batch_options const& options, Memory const& memory,
                  stream_ref stream, Pinned pinned, source_location where = source_location::current())
      : from_(from),
        capacity_(detail::min_of(detail::batch_capacity(options, sizeof(T)),
                                 detail::max_of(from.size(), std::size_t{1}))),
        end_((from.size() + capacity_ - 1) / capacity_),
        depth_(detail::batch_depth(options, end_, capacity_ * sizeof(T))),
        slots_(std::move(pinned), depth_, capacity_),
        lane_(memory.driver(), identified(memory, stream, where), where) {
    lane_.make_events(depth_ + 1);
  }

  /// Starts the copies on the first call. A later call returns an iterator at the current batch.
  [[nodiscard]] iterator begin() {
    if (!detail::exchange(started_, true) && end_ != 0) start();
    return iterator(*this);
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  friend iterator;

  [[nodiscard]] std::size_t slot_of(std::size_t index) const noexcept { return index % depth_; }
  [[nodiscard]] bool is_over() const noexcept { return current_ == end_; }
  [[nodiscard]] std::span<T const> elements(std::size_t index) const noexcept {
    std::size_t const offset = index * capacity_;
    return from_.subspan(offset, detail::min_of(capacity_, from_.size() - offset));
  }
  [[nodiscard]] batch now() const noexcept {
    return {slots_[slot_of(current_)].first(elements(current_).size()), current_, current_ * capacity_};
  }

  void start() {
    lane_.mark_user(depth_);  // copies what the stream has written so far
    lane_.wait_for(depth_);
    while (sent_ < depth_) send();
    lane_.synchronize(slot_of(current_));
  }
  void next() {
    ++current_;
    if (sent_ != end_) send();  // into the slot that the host no longer uses
    if (!is_over()) lane_.synchronize(slot_of(current_));
  }
  void send() {
    std::span<T const> const part = elements(sent_);
    lane_.copy(slots_[slot_of(sent_)].data(), part.data(), part.size_bytes());
    lane_.mark(slot_of(sent_));
    ++sent_;
  }

  std::span<T const> from_;
  std::size_t capacity_;  ///< elements per slot
  std::size_t end_;       ///< number of batches
  std::size_t depth_;
  detail::pinned_slots<T, Pinned> slots_;
  detail::copy_stream<Driver> lane_;  ///< destroyed first; its destructor waits for the copies into the slots
  bool started_ = false;
  std::size_t current_ = 0;
  std::size_t sent_ = 0;
};

/// Copies device memory to the host in batches:
/// `for (auto batch : collect_batches(buffer, {.batch_bytes = 16_MiB}, stream))`.
/// Each batch is a host_batch: a contiguous range of pinned memory, valid until the loop advances. The next
/// batches are copied meanwhile on a separate stream. They contain what `stream` has written when the loop
/// begins; the body must not change it.
/// @param from     device memory, or a device_buffer; must outlive the loop
/// @param memory   identifies the device of `from`
/// @param pinned   provides the slots; preferably a pool that is kept over several loops
/// The loop may be left at any time, also by exceptions: destruction waits for the running copies, and
/// nothing leaks. The host waits for the next batch. @throws as stream_batches()
template <class T, std::size_t N, class Memory, class Pinned>
  requires resource<Memory> && resource<Pinned>
[[nodiscard]] auto collect_batches(std::span<T, N> from, batch_options const& options, Memory const& memory,
                                   stream_ref stream, Pinned pinned,
                                   source_location where = source_location::current()) {
  return detail::called_from(where, [&] {
    return batch_collector<std::remove_const_t<T>, Pinned, typename Memory::driver_type>(
        from, options, detail::required(memory, where), stream, std::move(pinned), where);
  });
}
template <class T, std::size_t N, class Memory>
  requires resource<Memory>
[[nodiscard]] auto collect_batches(std::span<T, N> from, batch_options const& options, Memory const& memory,
                                   stream_ref stream, source_location where = source_location::current()) {
  basic_pinned<typename Memory::driver_type> pinned(detail::required(memory, where).driver());
  return collect_batches(from, options, memory, stream, std::move(pinned), where);
}
template <class T, class Memory>
[[nodiscard]] auto collect_batches(device_buffer<T, Memory> const& from, batch_options const& options,
                                   stream_ref stream, source_location where = source_location::current()) {
  return collect_batches(from.span(), options, from.resource(), stream, where);
}
template <class T, class Memory, class Pinned>
  requires resource<Pinned>
[[nodiscard]] auto collect_batches(device_buffer<T, Memory> const& from, batch_options const& options,
                                   stream_ref stream, Pinned pinned,
                                   source_location where = source_location::current()) {
  return collect_batches(from.span(), options, from.resource(), stream, std::move(pinned), where);
}
// clang-format off
template <class T, class Memory, class... Rest>
void collect_batches(device_buffer<T, Memory> const&&, batch_options const&, Rest const&...) = delete;  // this temporary is destroyed before the loop begins; store it in a variable first
// clang-format on

}  // namespace TARN_NAMESPACE
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
// ---- tarn/transfer/convert.hpp
// Copies that change the element type: store in lower precision, compute in higher. On CUDA the file that
// converts must be compiled by nvcc; for the simulated device and plain host memory any compiler works.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#if TARN_HAS_CUDA
// ---- tarn/driver/cuda_convert.hpp
// Element conversion on CUDA: a kernel that moves 16 bytes at a time and uses the device's conversion
// instructions. Needs nvcc; other compilers may include this file, and report an error only where convert()
// is used.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace TARN_NAMESPACE {

namespace detail {

template <class To, class From>
struct cuda_conversion {
  /// Elements that one thread converts at a time: 16 bytes of the wider type.
  static constexpr int together =
      16 / static_cast<int>(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));

  static __device__ float widen(float x) { return x; }
  static __device__ float widen(bfloat16 x) { return __uint_as_float(std::uint32_t{x.bits()} << 16); }
  static __device__ float widen(float16 x) { return __half2float(__ushort_as_half(x.bits())); }
  static __device__ float widen(float8_e4m3 x) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits(), __NV_E4M3)));
  }
  static __device__ float widen(float8_e5m2 x) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits(), __NV_E5M2)));
  }
  static __device__ To narrow(float x) {
    if constexpr (sizeof(To) >= sizeof(float)) {
      return static_cast<To>(x);
    } else if constexpr (element_type_of<To> == element_type::f16) {
      return To::from_bits(__half_as_ushort(__float2half_rn(x)));
    } else if constexpr (element_type_of<To> == element_type::bf16) {
      return To::from_bits(__bfloat16_as_ushort(__float2bfloat16_rn(x)));
    } else {
      return To::from_bits(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, eight_bits<To>));
    }
  }

  static __device__ To one(From x) {
    if constexpr (sizeof(From) == sizeof(double)) {
      return element_cast<To>(x);  // rounds once; two instructions would round twice
    } else {
      return narrow(widen(x));
    }
  }
  /// Converts a pair, with one instruction if the types have a paired instruction.
  static __device__ void two(To* to, From const* from) {
    if constexpr (sizeof(From) == sizeof(double) || (sizeof(To) != 1 && sizeof(From) != 1)) {
      to[0] = one(from[0]);
      to[1] = one(from[1]);
    } else if constexpr (sizeof(To) == 1) {
      __nv_fp8x2_storage_t const bits =
          __nv_cvt_float2_to_fp8x2(widen_two(from), __NV_SATFINITE, eight_bits<To>);
      to[0] = To::from_bits(static_cast<std::uint8_t>(bits));
      to[1] = To::from_bits(static_cast<std::uint8_t>(bits >> 8));
    } else {
      float2 const pair = widen_two(from);
      to[0] = narrow(pair.x);
      to[1] = narrow(pair.y);
    }
  }

 private:
  static __device__ float2 widen_two(From const* from) {
    if constexpr (sizeof(From) == 1) {
      auto const bits = static_cast<__nv_fp8x2_storage_t>(from[0].bits() | from[1].bits() << 8);
      return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(bits, eight_bits<From>)));
    } else {
      return make_float2(widen(from[0]), widen(from[1]));
    }
  }
  template <class T>
  static constexpr __nv_fp8_interpretation_t eight_bits =
      element_type_of<T> == element_type::f8_e5m2 ? __NV_E5M2 : __NV_E4M3;
};

/// A word of `Bytes` bytes that is loaded and stored with one instruction.
template <int Bytes>
using cuda_word = std::conditional_t<
    Bytes == 2, std::uint16_t,
    std::conditional_t<Bytes == 4, std::uint32_t, std::conditional_t<Bytes == 8, uint2, uint4>>>;

/// A range split into words: `head` single elements, then `words` words, then single elements up to `count`.
struct cuda_split {
  std::size_t head;
  std::size_t words;
  std::size_t count;
};

template <class To, class From>
__global__ void __launch_bounds__(256) cuda_convert_elements(To* to, From const* from, cuda_split split) {
  using conversion = cuda_conversion<To, From>;
  constexpr int n = conversion::together;
  using to_word = cuda_word<n* static_cast<int>(sizeof(To))>;
  using from_word = cuda_word<n* static_cast<int>(sizeof(From))>;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  std::size_t const first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;

  std::size_t const singly = split.count - split.words * n;
  for (std::size_t i = first; i < singly; i += stride) {
    std::size_t const at = i < split.head ? i : i + split.words * n;
    to[at] = conversion::one(from[at]);
  }

  auto const* const source = reinterpret_cast<from_word const*>(from + split.head);
  auto* const target = reinterpret_cast<to_word*>(to + split.head);
  auto const convert = [](from_word loaded) {
    From in[n];
    To out[n];
    to_word stored;
    memcpy(in, &loaded, sizeof loaded);
#pragma unroll
    for (int i = 0; i < n; i += 2) conversion::two(out + i, in + i);
    memcpy(&stored, out, sizeof stored);
    return stored;
  };
  // Four loads are in flight before the first result is needed, to hide memory latency.
  std::size_t i = first;
  for (; i + 3 * stride < split.words; i += 4 * stride) {
    from_word const a = source[i];
    from_word const b = source[i + stride];
    from_word const c = source[i + 2 * stride];
    from_word const d = source[i + 3 * stride];
    target[i] = convert(a);
    target[i + stride] = convert(b);
    target[i + 2 * stride] = convert(c);
    target[i + 3 * stride] = convert(d);
  }
  for (; i < split.words; i += stride) target[i] = convert(source[i]);
}

/// Splits a range so that the words are aligned on both sides; without words if no offset aligns both.
template <class To, class From>
[[nodiscard]] cuda_split cuda_split_of(To const* to, From const* from, std::size_t count) noexcept {
  constexpr std::size_t n = static_cast<std::size_t>(cuda_conversion<To, From>::together);
  for (std::size_t head = 0; head < n && head < count; ++head) {
    if (is_aligned(to + head, n * sizeof(To)) && is_aligned(from + head, n * sizeof(From))) {
      return {head, (count - head) / n, count};
    }
  }
  return {0, 0, count};
}

}  // namespace detail

template <null_stream Null>
template <class To, class From>
status basic_cuda_driver<Null>::convert(stream_ref stream, To* to, From const* from,
                                        std::size_t count) const noexcept {
  static_assert(element<To> && element<From>,
                "tarn: convert() supports only the types of tarn/core/element.hpp");
  if (count == 0) return {};
  detail::on_device const here(device_for(stream));
  if (!here.entered().ok()) return here.entered();
  detail::cuda_split split = detail::cuda_split_of(to, from, count);
  // Four words per thread, more if the grid would exceed its limit.
  constexpr std::size_t threads = 256;
  constexpr std::size_t most_blocks = std::size_t{1} << 20;
  std::size_t const units = split.words != 0 ? split.words / 4 + 1 : count;
  std::size_t const blocks = units / threads + 1 < most_blocks ? units / threads + 1 : most_blocks;
  void* arguments[] = {&to, &from, &split};
  void (*const kernel)(To*, From const*, detail::cuda_split) = &detail::cuda_convert_elements<To, From>;
  // As void const*: the host code that nvcc 12.4 writes finds no template for the kernel's type.
  return detail::cuda_status(
      cudaLaunchKernel(reinterpret_cast<void const*>(kernel), dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(threads)), arguments, 0, reach(stream)),
      "cudaLaunchKernel");
}

}  // namespace TARN_NAMESPACE

#else

namespace TARN_NAMESPACE {

template <null_stream Null>
template <class To, class From>
status basic_cuda_driver<Null>::convert(stream_ref, To*, From const*, std::size_t) const noexcept {
  static_assert(sizeof(To) == 0,
                "tarn: converting on CUDA launches a kernel; compile this file with nvcc (name it .cu)");
  return {};
}

}  // namespace TARN_NAMESPACE

#endif
#endif

namespace TARN_NAMESPACE {

/// In plain host memory, at once.
template <class To, class From>
status no_driver::convert(stream_ref, To* to, From const* from, std::size_t count) const noexcept {
  if (count == 0) return {};
  if (to == nullptr || from == nullptr) return invalid(driver_call::convert);
  for (std::size_t i = 0; i < count; ++i) to[i] = element_cast<To>(from[i]);
  return {};
}

namespace detail {

[[noreturn]] inline void refuse_devices(void const* p, device_id from, device_id to, source_location where) {
  message<200> const text("elements of device ", from.value, " cannot be converted into a buffer of device ",
                          to.value, "; call convert() on one device and copy_from() between the devices");
  throw at(where, misuse(misuse_kind::wrong_device, p, text.view()));
}

}  // namespace detail

/// Copies elements to another type in the order of a stream of any device; each is rounded to nearest, ties
/// to even. The spans have the same number of elements and must not overlap: a buffer cannot be converted in
/// place, since many threads write at once. Both must be memory that the driver's device can access (device,
/// pinned or managed memory, not pageable host memory). Runs one memory-bound kernel, with 16-byte accesses
/// where both alignments allow. With equal types it is a plain copy.
/// @throws length_error  the sizes differ; nothing is converted
/// @throws misuse        of kind `overlap`
/// @throws cuda_error    the driver refused
template <stream_driver Driver, class From, element To>
  requires element<std::remove_const_t<From>>
void convert(Driver const& driver, std::span<From> from, std::span<To> to, stream_ref stream,
             source_location where = source_location::current()) {
  detail::require_same_size("conversion", from.size(), to.size(), where);
  if (from.empty()) return;
  detail::require_no_overlap(from.data(), from.size_bytes(), to.data(), to.size_bytes(),
                             "the target of a conversion overlaps its source; convert into separate memory",
                             where);
  if constexpr (std::is_same_v<std::remove_const_t<From>, To>) {
    tarn::copy(driver, from, to, stream, where);
  } else {
    auto const enqueue = [&](stream_ref on) {
      return driver.convert(on, to.data(), from.data(), from.size());
    };
    detail::must_succeed(driver, detail::enqueue_in_order(driver, stream, enqueue), where);
  }
}

/// Converts between buffers on one device, in the order of `stream`, of any device. `stream` first waits, on
/// the device, for the streams of both buffers; these wait for the conversion, so either buffer may be
/// changed or destroyed at once. If all three are the same stream, no event is used.
/// @throws length_error, cuda_error
/// @throws misuse  of kind `wrong_device`; `no_resource`: one of them was default-constructed
template <element From, class FromResource, element To, class ToResource>
  requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void convert(device_buffer<From, FromResource> const& from, device_buffer<To, ToResource>& to,
             stream_ref stream, source_location where = source_location::current()) {
  auto const& driver = detail::required(to.resource(), where).driver();
  auto const& theirs = detail::required(from.resource(), where).driver();
  if constexpr (detail::is_devices_own<FromResource> && detail::is_devices_own<ToResource>) {
    if (theirs.device() != driver.device()) {
      detail::refuse_devices(from.data(), theirs.device(), driver.device(), where);
    }
  }
  detail::require_same_size("conversion", from.size(), to.size(), where);
  if (from.empty()) return;
  // Use the device that can access both: a buffer of host memory may carry the driver of any device.
  auto const& on = detail::is_devices_own<ToResource> ? driver : theirs;
  using driver_type = typename ToResource::driver_type;
  stream = detail::is_devices_own<ToResource> ? identified(to.resource(), stream, where)
                                              : identified(from.resource(), stream, where);
  detail::in_turn(
      detail::driven_stream<driver_type>{on, stream},
      [&] { tarn::convert(on, from.span(), to.span(), stream, where); }, where,
      detail::stream_on(from.resource(), from.stream()), detail::stream_on(to.resource(), to.stream()));
}
/// Converts on the target's stream, or on the source's if only the source's device can access both.
template <element From, class FromResource, element To, class ToResource>
  requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void convert(device_buffer<From, FromResource> const& from, device_buffer<To, ToResource>& to,
             source_location where = source_location::current()) {
  bool const apart =
      detail::required(from.resource(), where).device() != detail::required(to.resource(), where).device();
  tarn::convert(from, to, apart && !detail::is_devices_own<ToResource> ? from.stream() : to.stream(), where);
}

/// Returns a new buffer of `memory` on `stream` that holds the elements of `from` converted to To: `auto half
/// = tarn::converted<tarn::float16>(pool, weights, stream)`. Both buffers exist until the old one is
/// destroyed, so the peak is the sum of their sizes.
/// @throws length_error, out_of_memory, misuse, cuda_error; nothing is held
template <element To, class Memory, element From, class FromResource>
  requires resource<Memory>
[[nodiscard]] device_buffer<To, Memory> converted(Memory memory,
                                                  device_buffer<From, FromResource> const& from,
                                                  stream_ref stream,
                                                  attribution call = attribution::current()) {
  device_buffer<To, Memory> to(std::move(memory), from.size(), stream, default_alignment, call);
  tarn::convert(from, to, call.where);
  return to;
}
/// Returns a converted buffer from the resource of `from`.
template <element To, element From, class Resource>
[[nodiscard]] device_buffer<To, Resource> converted(device_buffer<From, Resource> const& from,
                                                    stream_ref stream,
                                                    attribution call = attribution::current()) {
  return tarn::converted<To>(from.resource(), from, stream, call);
}
template <element To, element From, class Resource>
[[nodiscard]] device_buffer<To, Resource> converted(device_buffer<From, Resource> const& from,
                                                    attribution call = attribution::current()) {
  return tarn::converted<To>(from, from.stream(), call);
}

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/element_reader.hpp
// element_reader<T>: reads single elements of device buffers back to the host, through pinned memory.

#include <cstddef>
#include <type_traits>
#include <utility>

namespace TARN_NAMESPACE {

/// Returns elements as RMM's device_uvector::element() and PyTorch's Tensor.item() do, for a loss or a
/// counter in a loop: `tarn::element_reader<float> reader; float loss = reader.element(losses, 0);`. It owns
/// one element of pinned memory, in which the driver writes directly: to read the element into a local
/// variable, the driver stages it in pinned memory of its own first. Allocates only when it is made. One
/// thread at a time.
template <class T, class Pinned = basic_pinned<detail::default_driver<T>>>
class element_reader {
  static_assert(std::is_trivially_copyable_v<T>,
                "tarn: only trivially copyable elements can be copied between host and device");

 public:
  /// Takes pinned memory of any device. @throws out_of_memory
  explicit element_reader(Pinned memory = {}) : slots_(std::move(memory), 1, 1) {}

  /// Returns the element, as it is after the work of the buffer's stream; waits on the host for that stream.
  /// Two driver calls. Not while the stream is captured.
  /// @throws length_error  the buffer has no such element; no driver call was made
  /// @throws cuda_error
  template <class Resource>
  [[nodiscard]] T element(device_buffer<T, Resource> const& buffer, std::size_t index,
                          source_location where = source_location::current()) {
    return element(buffer, index, buffer.stream(), where);
  }
  /// Returns the element, as it is after the work of `stream` and of the buffer's stream; waits for `stream`,
  /// which first waits, on the device, for the buffer's stream if that is another one. A stream without an
  /// identity is the one that identified(buffer.resource(), stream) returns.
  template <class Resource>
  [[nodiscard]] T element(device_buffer<T, Resource> const& buffer, std::size_t index, stream_ref stream,
                          source_location where = source_location::current()) {
    if (index >= buffer.size()) {
      message<160> const text("tarn: there is no element ", index, " in a buffer of ", buffer.size());
      throw detail::at(where, length_error(text.view()));
    }
    auto const& memory = buffer.resource();
    stream = identified(memory, stream, where);
    detail::order_streams(memory, stream, buffer.stream(), where);
    auto const& driver = memory.driver();
    try {
      tarn::copy_sync(driver, buffer.span().subspan(index, 1), slots_[0], stream, where);
    } catch (cuda_error const&) {
      // The copy may still write, over the element of a later call.
      (void)detail::wait_for_stream(driver, stream);
      throw;
    }
    return slots_[0][0];
  }

 private:
  detail::pinned_slots<T, Pinned> slots_;
};

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/evict_scope.hpp
// evict_scope: keeps the elements of device buffers in pinned host memory during a scope.
//
//   stream A (a buffer's own)   S (the scope's)                     the device memory
//   work on it
//            --- event --->     copy to the host
//                               freed ------------------------->    reusable at once on S
//                               ...
//                               allocated, copied back
//            <-- event ---
//   work on it again

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

// ---- tarn/transfer/free_on.hpp
// free_on: frees the memory of an owner early, in the order of the stream that used it last.
//
// Three ways to report that memory was used on a stream other than its owner's:
//
//                        order of the streams       when the memory is free       for
//   set_stream(s)        made now, by an event      when the owner ends           s continues to own the work
//   record_stream(p, s)  made when the owner frees  once the device has passed    more uses, as of a copy; pools only
//                                                   s, for the owner's stream
//   free_on(owner, s)    made now, or it exists     at once, for later work on s  s was the last to use it

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace TARN_NAMESPACE {

/// Whether the last user's stream is already ordered behind what was enqueued on the owner's stream.
enum class earlier_work {
  wait_for,       ///< order it: one event if the streams differ; one for each device in use if the owner's is
                  ///< a default stream and the host can access its memory
  is_waited_for,  ///< already ordered, as when the last user waited for the owner's stream: no driver call
};

/// An owner that free_on() accepts: device_buffer, device_ptr, pinned_buffer, and similar types.
template <class Owner>
concept freeable = std::is_nothrow_move_constructible_v<Owner> && requires(Owner& owner) {
  { owner.stream() } -> std::same_as<stream_ref>;
  { owner.resource() } -> std::same_as<typename Owner::resource_type const&>;
  { owner.alignment() } -> std::same_as<std::size_t>;
  { owner.size() } -> std::same_as<std::size_t>;
  owner.release();
};

namespace detail {

/// Returns the number of elements in an owner's block.
template <class Owner>
[[nodiscard]] std::size_t block_elements(Owner const& owner) noexcept {
  if constexpr (requires { owner.capacity(); }) {
    return owner.capacity();
  } else {
    return owner.size();
  }
}

/// Frees an owner's block in the order of `stream`, which must be ordered behind all work that uses it.
template <freeable Owner>
void free_block_on(Owner& owner, stream_ref stream) noexcept {
  std::size_t const count = block_elements(owner);
  auto* const p = owner.release();
  if (p == nullptr) return;
  typename Owner::resource_type memory = owner.resource();
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the memory is not written
  auto* const block = const_cast<void*>(static_cast<void const*>(p));
  free_block(memory, stream, block, count * sizeof(*p), owner.alignment());
}

/// Orders `stream` behind the streams of non-empty owners. Adjacent owners on the same stream share one
/// event, unless it may be the default stream of any device.
/// @throws cuda_error  some may be ordered, which is harmless
template <freeable... Owners>
void order_behind(stream_ref stream, Owners const&... owners) {
  stream_ref last = stream;
  auto const order = [&]<class Owner>(Owner const& owner) {
    if (block_elements(owner) == 0) return;
    constexpr default_streams named = default_streams_of<typename Owner::resource_type>();
    if (same_stream(owner.stream(), last) && !is_of_any_device(owner.resource().driver(), last, named))
      return;
    order_streams(owner.resource(), stream, owner.stream());
    last = owner.stream();
  };
  (order(owners), ...);
}

}  // namespace detail

/// Frees the memory of owners now, in the order of their last user, a stream: later work on it may reuse it
/// at once, other streams once they are ordered. The owners are then empty, keep their streams and may be
/// reused. Over a pool it never waits; without one, sources that cannot free in stream order wait as usual.
/// @param last_user  a stream of any device; all work that uses the memory is enqueued on it or on the
///                   owners' streams
/// @param earlier    whether it must first be made to wait for the owners' streams
/// @throws cuda_error  a stream could not be made to wait: nothing was freed
template <class... Owners>
  requires(sizeof...(Owners) != 0 && (freeable<std::remove_reference_t<Owners>> && ...))
void free_on(detail::stream_at last_user, earlier_work earlier, Owners&&... owners) {
  static_assert((!std::is_lvalue_reference_v<Owners> && ...),
                "tarn: free_on takes the memory of its owners; pass std::move(owner)");
  stream_ref stream = last_user.stream;
  detail::called_from(last_user.where, [&] {
    ((stream = identified(owners.resource(), stream)), ...);
    if (earlier == earlier_work::wait_for) detail::order_behind(stream, owners...);
  });
  (detail::free_block_on(owners, stream), ...);
}
template <class... Owners>
  requires(sizeof...(Owners) != 0 && (freeable<std::remove_reference_t<Owners>> && ...))
void free_on(detail::stream_at last_user, Owners&&... owners) {
  free_on(last_user, earlier_work::wait_for, std::forward<Owners>(owners)...);
}
/// Frees the memory of one owner: `tarn::free_on(std::move(weights), stream);`
template <class Owner>
  requires freeable<std::remove_reference_t<Owner>>
void free_on(Owner&& owner, stream_ref stream, earlier_work earlier = earlier_work::wait_for,
             source_location where = source_location::current()) {
  free_on(detail::stream_at(stream, where), earlier, std::forward<Owner>(owner));
}

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE {

/// Elements that an evict_scope could not bring back when it ended.
struct lost_elements {
  std::size_t index = 0;  ///< index of the buffer in the scope, from 0
  std::span<std::byte const>
      bytes;  ///< the elements, valid during the call; empty if the device failed before copying them
  std::exception_ptr why;  ///< the exception of bring_back()
};

/// Moves the elements of device buffers to pinned host memory, frees their device memory, and restores them
/// at the end. `tarn::evict_scope evicted{pinned, stream, optimizer_state, embeddings};`
///
/// Everything is ordered on `stream`: the constructor and bring_back() make it wait for the buffers' streams,
/// and those for it; the host does not wait. Later work on `stream` can reuse the freed memory at once.
/// During the scope the buffers are empty (memory assigned to one meanwhile is freed when its elements
/// return). The buffers must outlive the scope and must not move; all streams must outlive it, too.
/// Afterwards they are the same objects with equal elements, size, stream and resource, but at another
/// address: earlier pointers and spans are invalid. Spare capacity is not restored.
///
/// Elements are never lost silently. bring_back() throws if the device has too little memory; it then changes
/// nothing and may be called again. The destructor also calls it. If that fails, it waits for the copies and
/// passes the remaining elements to the handler set by when_lost(); without a handler it reports misuse
/// (contents_lost), which ends the program unless a misuse handler returns. Call bring_back() explicitly
/// where an error can be handled. Once the driver is unloaded at process exit, nothing is done.
///
/// Host memory: as many bytes as the buffers have elements, from `pinned`. Use a pool: pinning costs 460 ms
/// per GiB, and a bare source waits for the stream when it frees. `pinned` may belong to another device. One
/// thread at a time.
template <class Pinned, class... Buffers>
class evict_scope {
  static_assert(sizeof...(Buffers) != 0,
                "tarn: evict_scope has no buffers to evict; pass them after the host memory");
  static_assert(has_property<Pinned, host_accessible>,
                "tarn: evict_scope needs host memory as a target; pass pinned_host or a pool over it first");
  static_assert(
      ((!has_property<typename Buffers::resource_type, host_accessible>)&&...),
      "tarn: evict_scope frees device memory; a buffer of pinned or managed memory uses no device memory");

 public:
  using handler = std::function<void(lost_elements const&)>;

  /// Moves the elements to the host. @param stream  a stream of the buffers' device
  /// @throws misuse         (capture) `stream` or a buffer's own is being captured into a graph;
  /// (no_resource) the first buffer has none
  /// @throws out_of_memory  the host has too little memory for all of them; nothing has changed
  /// @throws cuda_error     nothing has changed
  evict_scope(Pinned pinned, detail::stream_at stream, Buffers&... buffers)
      : pinned_(std::move(pinned)),
        slots_(slot<Buffers>{&buffers, buffers.resource(), buffers.stream(), buffers.alignment(), nullptr,
                             0}...),
        stream_(identified(detail::required(std::get<0>(slots_).memory, stream.where), stream.stream,
                           stream.where)) {
    detail::called_from(stream.where, [&] { evict(buffers...); });
    (detail::free_block_on(buffers, stream_), ...);
  }
  evict_scope& operator=(evict_scope&&) = delete;
  /// Restores what is still on the host. Never throws; see above for failures.
  ~evict_scope() {
    try {
      bring_back();
    } catch (cuda_error const& error) {
      if (error.kind() != failure::unloading && error.kind() != failure::forked) report_lost();
    } catch (...) {
      report_lost();
    }
    give_host_memory();
    forget_event();
  }

  /// Restores all elements, in stream order. Does nothing if they are already restored. If the device has too
  /// little memory, the caches of the buffers' pools are trimmed and it is tried once more.
  /// @throws out_of_memory, cuda_error  nothing has changed: the elements stay on the host, and it may be
  /// called again
  void bring_back(source_location where = source_location::current()) {
    if (evicted_bytes() == 0) return;
    detail::called_from(where, [&] {
      refuse_capture();
      try {
        bring_all(std::index_sequence_for<Buffers...>{});
      } catch (out_of_memory const&) {
        if (!clear_caches()) throw;
        bring_all(std::index_sequence_for<Buffers...>{});
      }
    });
  }

  /// Returns the i-th buffer's elements on the host after waiting for the copy. Empty once they are restored.
  /// @throws cuda_error
  template <std::size_t N>
  [[nodiscard]] auto host_copy(source_location where = source_location::current()) const {
    auto const& s = std::get<N>(slots_);
    using element = typename std::remove_reference_t<decltype(s)>::element;
    if (s.host == nullptr) return std::span<element const>();
    detail::called_from(where, [&] { detail::must_succeed(driver(), driver().synchronize_event(copied_)); });
    return std::span<element const>(s.data(), s.count);
  }

  /// Sets the handler for elements that the destructor cannot restore. It is called once for each such
  /// buffer, after the copies to the host have completed. An exception thrown by the handler ends the
  /// program.
  void when_lost(handler h) { handler_ = std::move(h); }

  /// Returns the bytes currently on the host.
  [[nodiscard]] std::size_t evicted_bytes() const noexcept {
    std::size_t bytes = 0;
    each([&](auto const& s) { bytes += s.host != nullptr ? s.bytes() : 0; });
    return bytes;
  }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }

 private:
  template <class Buffer>
  struct slot {
    using buffer_type = Buffer;
    using element = typename Buffer::value_type;
    Buffer* buffer;
    // Of the elements; the buffer may be given others.
    typename Buffer::resource_type memory;
    stream_ref stream;
    std::size_t alignment;
    void* host;
    std::size_t count;
    [[nodiscard]] element* data() const noexcept { return static_cast<element*>(host); }
    [[nodiscard]] std::size_t bytes() const noexcept { return count * sizeof(element); }
  };

  /// Copies the elements to the host; the buffers keep their memory.
  void evict(Buffers&... buffers) {
    refuse_capture();
    try {
      detail::must_succeed(driver(), driver().create_event(copied_));
      each([&](auto& s) {
        if (!s.buffer->empty()) s.host = host_memory_for(s);
        s.count = s.buffer->size();
      });
      detail::order_behind(stream_, buffers...);
      copy_out();
    } catch (...) {
      give_host_memory();
      forget_event();
      throw;
    }
  }

  template <class F>
  void each(F const& f) {
    std::apply([&](auto&... s) { (f(s), ...); }, slots_);
  }
  template <class F>
  void each(F const& f) const {
    std::apply([&](auto const&... s) { (f(s), ...); }, slots_);
  }
  /// Returns the driver that orders the streams. Not pinned_.driver(): pinned memory may belong to any
  /// device.
  [[nodiscard]] auto driver() const noexcept { return std::get<0>(slots_).memory.driver(); }
  template <class Slot>
  [[nodiscard]] void* host_memory_for(Slot const& s) {
    return pinned_.allocate(stream_, s.buffer->bytes(), detail::alignment_of<typename Slot::element>);
  }

  /// A copy captured into a graph would run when the graph is launched, not now; and waiting for a buffer's
  /// capturing stream would make the scope's stream part of that capture.
  void refuse_capture() const {
    auto const refuse = [&](stream_ref stream) {
      detail::refuse_capture(driver(), stream,
                             "evict_scope cannot use a stream that is being captured, or buffers of one; "
                             "begin and end it outside the capture");
    };
    refuse(stream_);
    each([&](auto const& s) { refuse(s.stream); });
  }

  void copy_out() {
    try {
      each([&](auto& s) {
        using element = typename std::remove_reference_t<decltype(s)>::element;
        if (s.host == nullptr) return;
        tarn::copy(s.memory.driver(), std::span<element const>(s.buffer->span()),
                   std::span<element>(s.data(), s.count), stream_);
      });
      detail::must_succeed(driver(), driver().record_event(copied_, stream_));
    } catch (...) {
      // The buffers' next users are not ordered behind the running copies.
      (void)detail::wait_for_stream(driver(), stream_);
      throw;
    }
  }

  /// Allocates new blocks on stream_, fills them and makes the buffers' streams wait. The buffers are changed
  /// only after that.
  template <std::size_t... N>
  void bring_all(std::index_sequence<N...>) {
    std::tuple<Buffers...> back(block_for(std::get<N>(slots_))...);
    (copy_in(std::get<N>(slots_), std::get<N>(back)), ...);
    (put_back(std::get<N>(slots_), std::get<N>(back)), ...);
  }
  template <class Slot>
  [[nodiscard]] auto block_for(Slot const& s) const {
    using buffer_type = typename Slot::buffer_type;
    if (s.host == nullptr) return buffer_type(s.memory, stream_, s.alignment);
    return buffer_type(s.memory, s.count, stream_, s.alignment);
  }
  template <class Slot, class Buffer>
  void copy_in(Slot const& s, Buffer& b) {
    if (s.host == nullptr) return;
    b.copy_from(std::span<typename Slot::element const>(s.data(), s.count));
    b.set_stream(s.stream);
  }
  template <class Slot, class Buffer>
  void put_back(Slot& s, Buffer& b) noexcept {
    if (s.host == nullptr) return;
    *s.buffer = std::move(b);
    give(s);
  }

  /// Returns whether any pool released memory.
  [[nodiscard]] bool clear_caches() {
    std::size_t given = 0;
    each([&](auto& s) {
      if (s.host != nullptr) given += detail::nearest_or(s.memory, pool_call::trim{}, std::size_t{});
    });
    return given != 0;
  }

  /// Frees a slot's host memory in the order of stream_, behind the copies.
  template <class Slot>
  void give(Slot& s) noexcept {
    if (s.host == nullptr) return;
    void* const host = detail::exchange(s.host, nullptr);
    detail::free_block(pinned_, stream_, host, s.bytes(), detail::alignment_of<typename Slot::element>);
  }
  void give_host_memory() noexcept {
    each([&](auto& s) { give(s); });
  }
  void forget_event() noexcept {
    if (copied_ != nullptr) (void)driver().destroy_event(detail::exchange(copied_, nullptr));
  }

  /// Reports lost elements. Called inside the catch block of what bring_back() threw.
  void report_lost() noexcept {
    bool const copied = driver().synchronize_event(copied_).ok();
    if (!handler_) {
      report_misuse(misuse(misuse_kind::contents_lost, std::get<0>(slots_).buffer,
                           "evict_scope ended, but the elements of its buffers could not be restored; call "
                           "bring_back() to get the error, or set a handler with when_lost()"));
      return;
    }
    std::size_t index = 0;
    each([&](auto& s) {
      lost_elements lost{index++, {}, std::current_exception()};
      if (s.host == nullptr) return;
      if (copied) lost.bytes = std::as_bytes(std::span(s.data(), s.count));
      handler_(lost);
    });
  }

  Pinned pinned_;
  std::tuple<slot<Buffers>...> slots_;
  stream_ref stream_;
  event_handle copied_ = nullptr;  ///< recorded when the elements are on the host
  handler handler_;
};

template <class Pinned, class... Buffers>
evict_scope(Pinned, stream_ref, Buffers&...) -> evict_scope<Pinned, Buffers...>;

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/mapped_file.hpp
// mapped_file: a file mapped as read-only memory.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

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

/// Owns a read-only mapping of a whole file. Move-only; a moved-from object is empty. The system reads ahead
/// for one sequential pass. Any thread may read. If another process shortens the file, access to its missing
/// pages ends the program (SIGBUS); read() throws instead, and is what streamed batches use.
class mapped_file {
 public:
  /// Never waits for a writer and never opens a device. @throws file_error  the file does not exist, is not
  /// readable, is not a regular file, or is generated by the system when read (/proc), so that its size is
  /// unknown
  explicit mapped_file(std::string path, source_location where = source_location::current())
      : path_(std::move(path)) {
    detail::called_from(where, [&] { open(); });
  }
  mapped_file(mapped_file&& other) noexcept { swap(other); }
  mapped_file& operator=(mapped_file&& other) noexcept {
    mapped_file taken(std::move(other));
    swap(taken);
    return *this;
  }
  ~mapped_file() { close(); }
  void swap(mapped_file& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the mapped bytes of the file.
  [[nodiscard]] std::span<std::byte const> span() const noexcept { return {data_, bytes_}; }
  /// Returns the mapped file as elements. @throws file_error  the file size is not a multiple of sizeof(T)
  template <class T>
  [[nodiscard]] std::span<T const> as() const {
    return {reinterpret_cast<T const*>(data_), count_of<T>()};
  }
  /// Returns the number of elements of T in the file. @throws file_error  the file size is not a multiple of
  /// sizeof(T)
  template <class T>
  [[nodiscard]] std::size_t count_of() const {
    static_assert(std::is_trivially_copyable_v<T>, "tarn: a file holds bytes: T must be trivially copyable");
    if (bytes_ % sizeof(T) != 0)
      throw file_error(path_, "ends within an element: its size is not a multiple of sizeof(T)", 0);
    return bytes_ / sizeof(T);
  }

  /// Copies bytes of the file to memory by pread, not through the mapping. Thread-safe. From the page cache,
  /// one thread of an EPYC virtual machine read 17 GB/s this way and 7 GB/s through a new mapping, which
  /// faults in page by page.
  /// @throws file_error  the bytes cannot be read, or the file has become shorter
  void read(std::size_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      ssize_t const got = ::pread(file_.get(), to.data(), to.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw file_error(path_, "cannot be read", errno);
      if (got == 0) throw file_error(path_, "is shorter than it was when it was mapped", 0);
      offset += static_cast<std::size_t>(got);
      to = to.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  void open() {
    struct ::stat facts {};
    if (::stat(path_.c_str(), &facts) == 0) require_regular(facts);
    // Without O_NONBLOCK, opening a FIFO that has just replaced the file would wait for a writer.
    file_ = unique_descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (!file_) fail("cannot be opened for reading");
    if (::fstat(file_.get(), &facts) != 0) fail("cannot be inspected");
    require_regular(facts);
    bytes_ = static_cast<std::size_t>(facts.st_size);
    if (bytes_ == 0) {
      require_empty();
      return;
    }
    void* const mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file_.get(), 0);
    if (mapped == MAP_FAILED) fail("cannot be mapped");
    data_ = static_cast<std::byte*>(mapped);
    (void)::madvise(mapped, bytes_, MADV_SEQUENTIAL);  // only a hint: failure is not an error
    (void)::madvise(mapped, bytes_, MADV_WILLNEED);
  }
  void require_regular(struct ::stat const& facts) {
    if (S_ISREG(facts.st_mode)) return;
    errno = 0;
    fail("is not a regular file; read it with a generator");
  }
  /// Rejects files with contents but a reported size of 0, which the system generates when they are read.
  void require_empty() {
    char first = 0;
    ssize_t const got = ::pread(file_.get(), &first, 1, 0);
    if (got < 0) fail("cannot be read");
    if (got == 0) return;
    errno = 0;
    fail("has contents, but its size is unknown; read it with a generator");
  }
  [[noreturn]] void fail(std::string_view what) {
    int const error = errno;
    close();
    throw file_error(path_, what, error);
  }
  void close() noexcept {
    if (data_ != nullptr) (void)::munmap(data_, bytes_);
    data_ = nullptr;
    file_ = {};
    bytes_ = 0;
  }

  std::string path_;
  unique_descriptor file_;
  std::byte* data_ = nullptr;  ///< read-only mapping
  std::size_t bytes_ = 0;
};

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/micro_batches.hpp
// micro_batches: splits work into parts that fit a memory budget, as gradient accumulation needs.

#include <cstddef>
#include <iterator>

// ---- tarn/transfer/available_memory.hpp
// available_memory(): how much memory a resource could allocate now, and what limits it.

#include <cstddef>
#include <type_traits>

namespace TARN_NAMESPACE {

/// How much memory a resource could allocate at one moment, in bytes. Unknown fields stay
/// memory_report::unknown.
struct memory_availability {
  std::size_t bytes = 0;                             ///< bytes that could be allocated
  char const* bounded_by = "the device";             ///< the tightest limit; static storage
  std::size_t limit = memory_report::unknown;        ///< the limit, if bounded by one
  std::size_t live = memory_report::unknown;         ///< allocated, as the nearest layer that knows reports
  std::size_t cached = memory_report::unknown;       ///< held by the nearest pool but not allocated
  std::size_t device_free = memory_report::unknown;  ///< as the driver reports
  bool is_asleep = false;  ///< the nearest pool sleeps: nothing is available before tarn::wake(memory)
};

namespace detail {

template <class Resource>
constexpr void require_available() noexcept {
  static_assert(knows_available<layer_behind<Resource>>(),
                "tarn: the free amount of this memory is unknown: no driver reports it for pinned or managed "
                "memory; add | tarn::limited{bytes}, or pass a number of bytes");
}

}  // namespace detail

/// Returns how much `memory` could allocate now. Computed from the source upwards: free memory as the driver
/// reports it; bounded by a `limited` layer over pages; plus what a pool has cached (over pages all of it;
/// over blocks, and where the device has no pages, the largest free range, since blocks are not combined);
/// bounded by each `limited` layer above that. 0 while the pool sleeps. Memory that a `fallback_to` or
/// `retry_on_oom` could add is not counted, nor is memory deferred for recorded uses, nor what only captures
/// of a graph_memory can allocate. A snapshot: other
/// threads and processes continue. Takes the pool's locks briefly and queries the driver once (5 us). Never
/// waits for a stream. Thread-safe.
/// @throws cuda_error  the driver did not report free memory; of kind `unsupported`: a basic_any_resource has
/// a pool of pinned or managed memory without a limit
template <class Resource>
[[nodiscard]] memory_availability available_memory(Resource const& memory,
                                                   source_location where = source_location::current()) {
  detail::require_available<Resource>();
  Resource handle = memory;
  detail::memory_bound const left = detail::memory_left(detail::layer_of(handle));
  if (!left.query.ok()) throw cuda_error(left.query, memory.device().value, where);
  if (left.bytes == detail::unknown_left)
    throw cuda_error(detail::unsupported_call(detail::unknown_amount), memory.device().value, where);
  return {left.bytes, left.by, left.limit, left.live, left.cached, left.device_free, left.is_asleep};
}

/// Returns the size of the largest block that `memory` would serve now, in bytes; 0 if the pool sleeps. Over
/// pages that is what can be put together of free and new memory; over blocks one that is free, or new.
/// Within the limits above and below the pool, and less what `fenced` and `checked` add. Above 1 MiB it is
/// served, and so is each smaller block, on a device where each free byte can be allocated, if no other
/// thread or process allocates. Rarely a larger one is served as well: a view that was made before may show
/// more free memory, and over blocks below a limit 512 bytes are kept for an alignment. Below 1 MiB, and
/// while work of a captured stream uses freed memory, allocate() may serve more or fewer bytes. Memory that
/// other pools cache, that a pool below a pool would give back, or that a `fallback_to` or `retry_on_oom`
/// could add, is not counted.
///
/// Counts what is free once the work on it is done: allocate() may wait for it. Returns the blocks in thread
/// caches to the pool, holds its growth lock for O(free ranges + handles), and queries the driver once (5
/// us). Waits for no stream. Thread-safe.
/// @throws cuda_error, std::bad_alloc  the driver or the host refused; as available_memory()
template <class Resource>
[[nodiscard]] std::size_t largest_available_block(Resource const& memory,
                                                  source_location where = source_location::current()) {
  detail::require_available<Resource>();
  Resource handle = memory;
  return detail::called_from(where, [&] { return detail::largest_request(detail::layer_of(handle)); });
}

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE {

/// What happens if one item does not fit the budget.
enum class too_large_item {
  refuse,        ///< throws out_of_memory before anything is done
  one_at_a_time  ///< parts of one item each: the allocation itself may still succeed or fail
};

struct micro_batch_options {
  /// Thousandths of the available memory that are left unused: blocks are rounded up (small ones by up
  /// to 12.5 %), and other programs use the device. A budget given as a number of bytes is used completely.
  unsigned reserve_per_mille = 50;
  too_large_item when_too_large = too_large_item::refuse;
  std::size_t most_items = ~std::size_t{0};  ///< maximum items per part, regardless of memory; 0 counts as 1
};

/// Consecutive items: [first, first + count) of `of`.
struct micro_batch {
  std::size_t first = 0;
  std::size_t count = 0;
  std::size_t index = 0;  ///< index of the part, from 0
  std::size_t of = 0;     ///< total items of all parts

  /// Returns the part's share of all items. Scaled by it, the mean losses of all parts accumulate to the
  /// gradients of the whole batch, although the last parts have one item fewer. The weights of all parts add
  /// up to 1.
  [[nodiscard]] double weight() const noexcept {
    return static_cast<double>(count) / static_cast<double>(of);
  }
};

/// Splits `n` items into the fewest parts that fit a budget, as evenly as possible: sizes differ by at most
/// one item. The split is computed once, on construction, and does not follow later allocations; construct
/// again for current figures. A forward range of micro_batch; a small value that holds no memory and no
/// resource. Zero items give no parts.
class micro_batches {
  struct split {
    std::size_t items = 0;
    std::size_t parts = 0;
    std::size_t each = 0;   ///< items per smaller part
    std::size_t extra = 0;  ///< parts with one more item; they come first
    [[nodiscard]] micro_batch part(std::size_t index) const noexcept {
      std::size_t const larger = detail::min_of(index, extra);
      return {index * each + larger, each + (index < extra ? 1 : 0), index, items};
    }
  };

 public:
  class iterator {
   public:
    using value_type = micro_batch;
    using reference = micro_batch;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;  // dereferencing returns a value
    using iterator_concept = std::forward_iterator_tag;

    iterator() noexcept = default;
    [[nodiscard]] micro_batch operator*() const noexcept { return whole_.part(at_); }
    iterator& operator++() noexcept {
      ++at_;
      return *this;
    }
    iterator operator++(int) noexcept {
      iterator const before = *this;
      ++at_;
      return before;
    }
    friend bool operator==(iterator const& a, iterator const& b) noexcept { return a.at_ == b.at_; }

   private:
    friend class micro_batches;
    iterator(split const& whole, std::size_t at) noexcept : whole_(whole), at_(at) {}
    split whole_;  // a copy: the range may be a temporary
    std::size_t at_ = 0;
  };

  /// Splits by a number of bytes.
  /// @param n               items
  /// @param bytes_per_item  needed per item while its part is processed: `bytes_of<float>(features)`; 0: all
  /// items fit
  /// @param budget          bytes that a part may use
  /// @throws out_of_memory  one item exceeds the budget (unless one_at_a_time); nothing was done
  micro_batches(std::size_t n, std::size_t bytes_per_item, std::size_t budget,
                micro_batch_options const& options = {}, source_location where = source_location::current())
      : micro_batches(n, bytes_per_item, memory_availability{budget, "the budget of micro_batches", budget},
                      0, -1, options, where) {}

  /// Splits by what a resource could allocate now: available_memory(memory) minus the reserve.
  /// @throws pool_asleep  the pool sleeps
  /// @throws cuda_error   the driver did not report free memory
  template <has_driver Resource>
  micro_batches(std::size_t n, std::size_t bytes_per_item, Resource const& memory,
                micro_batch_options const& options = {}, source_location where = source_location::current())
      : micro_batches(n, bytes_per_item, available_memory(memory, where), options.reserve_per_mille,
                      memory.driver().device().value, options, where) {}

  [[nodiscard]] iterator begin() const noexcept { return {split_, 0}; }
  [[nodiscard]] iterator end() const noexcept { return {split_, split_.parts}; }
  /// Returns the number of parts.
  [[nodiscard]] std::size_t size() const noexcept { return split_.parts; }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// Returns the number of items in the largest part, which is the first. Buffers shared by all parts must
  /// hold this many.
  [[nodiscard]] std::size_t largest() const noexcept {
    return empty() ? 0 : split_.each + (split_.extra != 0 ? 1 : 0);
  }
  /// Returns the bytes that a part may use.
  [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
  /// Returns one part; index < size().
  [[nodiscard]] micro_batch operator[](std::size_t index) const noexcept { return split_.part(index); }

 private:
  micro_batches(std::size_t n, std::size_t bytes_per_item, memory_availability const& room,
                unsigned reserve_per_mille, int device, micro_batch_options const& options,
                source_location where)
      : budget_(room.bytes - share_of(room.bytes, reserve_per_mille)) {
    if (n == 0) return;
    if (room.is_asleep) throw detail::at(where, pool_asleep(bytes_per_item, device));
    std::size_t fit = bytes_per_item == 0 ? n : budget_ / bytes_per_item;
    if (fit == 0) {
      if (options.when_too_large == too_large_item::refuse) refuse(bytes_per_item, room, device, where);
      fit = 1;
    }
    fit = detail::min_of(fit, detail::max_of(options.most_items, std::size_t{1}));
    std::size_t const parts = n / fit + (n % fit != 0 ? 1 : 0);
    split_ = {n, parts, n / parts, n % parts};
  }

  [[nodiscard]] static std::size_t share_of(std::size_t bytes, unsigned per_mille) noexcept {
    std::size_t const part = detail::min_of(per_mille, 1000U);
    return bytes / 1000 * part + bytes % 1000 * part / 1000;
  }
  [[noreturn]] void refuse(std::size_t bytes_per_item, memory_availability const& room, int device,
                           source_location where) const {
    bool const is_reserve = bytes_per_item <= room.bytes;
    memory_report r;
    r.asked = bytes_per_item;
    r.device = device;
    r.live = room.live;
    r.cached = room.cached;
    r.device_free = room.device_free;
    r.limit = is_reserve ? budget_ : room.limit;
    r.refused_by = is_reserve ? "the reserve of micro_batches" : room.bounded_by;
    r.stream = memory_report::no_stream;
    throw detail::at(where, out_of_memory(r));
  }

  std::size_t budget_ = 0;
  split split_;
};

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/partitioned_buffer.hpp
// partitioned_buffer<T>: one array divided over several devices; each part is on its device with its own
// stream.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// ---- tarn/transfer/peer_copy.hpp
// Copies between buffers of two devices, whole or in part, with or without peer access.

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace TARN_NAMESPACE {

namespace detail {

inline void require_elements(char const* whose, std::size_t first, std::size_t count, std::size_t size,
                             source_location where) {
  if (first <= size && count <= size - first) return;
  message<160> const text("tarn: peer_copy of ", count, " elements, starting at element ", first, " of the ",
                          whose, ", which has ", size);
  throw at(where, length_error(text.view()));
}

}  // namespace detail

/// Copies elements between buffers on any devices, including the same one, on the target's stream. That
/// stream first waits, on the device, for the source's stream, which then waits for the copy, so either
/// buffer may be changed or destroyed at once. The host does not wait. Peer access is not required: without
/// it the driver copies through the host (which may take ten times as long); pages made `|
/// accessible_from{...}` can be copied directly.
/// @param from_first, to_first, count  elements
/// @throws length_error  beyond the end of a buffer; nothing is copied
/// @throws misuse        of kind `overlap`: both are the same buffer and the ranges share elements
/// @throws cuda_error
template <class T, class FromResource, class ToResource>
  requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void peer_copy(device_buffer<T, FromResource> const& from, std::size_t from_first,
               device_buffer<T, ToResource>& to, std::size_t to_first, std::size_t count,
               source_location where = source_location::current()) {
  detail::require_elements("source", from_first, count, from.size(), where);
  detail::require_elements("target", to_first, count, to.size(), where);
  if (count == 0) return;
  T const* const source = from.data() + from_first;
  T* const target = to.data() + to_first;
  std::size_t const bytes = count * sizeof(T);
  detail::require_no_overlap(source, bytes, target, bytes,
                             "the target of a copy overlaps its source; copy through a separate buffer",
                             where);
  detail::copy_in_turn<FromResource, ToResource>(detail::stream_on(from.resource(), from.stream()), source,
                                                 detail::stream_on(to.resource(), to.stream()), target, bytes,
                                                 where);
}

/// Copies all elements. @throws length_error  the sizes differ; cuda_error
template <class T, class FromResource, class ToResource>
  requires std::is_same_v<typename FromResource::driver_type, typename ToResource::driver_type>
void peer_copy(device_buffer<T, FromResource> const& from, device_buffer<T, ToResource>& to,
               source_location where = source_location::current()) {
  detail::require_elements("source", 0, to.size(), from.size(), where);
  tarn::peer_copy(from, 0, to, 0, from.size(), where);
}

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/per_device.hpp
// per_device: one pool per device, created on first use.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace TARN_NAMESPACE {

namespace detail {

/// The source below all policies of a pool.
template <class Pool>
struct source_under {
  using type = Pool;
};
template <class Layer>
  requires requires { typename Layer::upstream_type; }
struct source_under<shared_resource<Layer>> : source_under<typename Layer::upstream_type> {};

/// Creates a pool on a device's source, with default policies.
template <class Pool>
struct default_pool_of {
  [[nodiscard]] Pool operator()(device_id device) const {
    return Pool(typename source_under<Pool>::type(device));
  }
};

}  // namespace detail

/// One pool per device: `tarn::per_device<tarn::device_pool> pools;`, then `pools[device]` or
/// `pools.current()`. For pools with options, or on a simulated machine, pass a callable that makes a pool:
/// `tarn::per_device pools{[](tarn::device_id d) { return tarn::cuda_pages{d} | tarn::pooled{} |
/// tarn::limited{8_GiB}; }};` Thread-safe; access to an existing pool is one atomic load. Pools live until
/// this object is destroyed, and longer while buffers hold them; references to them stay valid.
template <class Pool, class Make = detail::default_pool_of<Pool>>
  requires std::same_as<std::invoke_result_t<Make&, device_id>, Pool>
class per_device {
 public:
  using pool_type = Pool;
  using driver_type = typename Pool::driver_type;
  /// Device ordinals must be below this.
  static constexpr int most_devices = 128;

  /// Creates no pool yet.
  /// @param make  called with a device, by one thread at a time. It may access the pools of other devices; it
  /// must not wait for
  ///              a thread that accesses one
  explicit per_device(Make make = Make{}) : make_(std::move(make)) {}
  ~per_device() {
    for (auto& slot : slots_) delete slot.load(std::memory_order_relaxed);
  }

  /// Returns the device's pool; creates it on first use. The current device is unchanged.
  /// @throws cuda_error  of kind `no_device` if the device does not exist, or anything that making a pool
  /// throws; the next
  ///                     call tries again
  /// @throws misuse      of kind `wrong_device`: the pool belongs to another device; of kind `recursion`:
  /// making a device's
  ///                     pool accesses that same pool
  [[nodiscard]] Pool& operator[](device_id device) {
    if (device.value < 0 || device.value >= most_devices) refuse(device);
    std::atomic<Pool*>& slot = slots_[device.value];
    if (Pool* const there = slot.load(std::memory_order_acquire); there != nullptr) return *there;
    detail::scoped_lock const lock(mutex_);
    if (Pool* const there = slot.load(std::memory_order_relaxed); there != nullptr) return *there;
    bool& in_making = in_making_[device.value];
    if (in_making) refuse_recursion(device);
    in_making = true;
    making const here{in_making};
    auto made = std::make_unique<Pool>(make_(device));
    if (made->device() != device) refuse(device, made->device());
    slot.store(made.get(), std::memory_order_release);
    return *made.release();
  }

  /// Returns the pool of the calling thread's current device. @throws as operator[]
  [[nodiscard]] Pool& current(source_location where = source_location::current())
    requires requires(device_id& device) { driver_type::current_device(device); }
  {
    return detail::called_from(where, [&]() -> Pool& {
      device_id device;
      if (status const s = driver_type::current_device(device); !s.ok()) throw cuda_error(s);
      return (*this)[device];
    });
  }

  /// Returns the device's pool, or null if it has not been created.
  [[nodiscard]] Pool* find(device_id device) noexcept {
    if (device.value < 0 || device.value >= most_devices) return nullptr;
    return slots_[device.value].load(std::memory_order_acquire);
  }
  /// Calls `call(device, pool)` for each existing pool, by ordinal.
  template <class Call>
  void for_each(Call const& call) {
    for (int device = 0; device < most_devices; ++device) {
      if (Pool* const pool = find(device_id{device}); pool != nullptr) call(device_id{device}, *pool);
    }
  }
  /// Returns the number of pools created so far.
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t made = 0;
    for (auto const& slot : slots_) made += slot.load(std::memory_order_relaxed) != nullptr ? 1 : 0;
    return made;
  }

 private:
  /// Marks a device whose pool the current thread is making.
  struct making {
    bool& marked;
    ~making() { marked = false; }
  };

  [[noreturn]] static void refuse_recursion(device_id device) {
    message<160> const text("per_device is creating the pool of device ", device.value,
                            ", and its creation requested the same pool; create it from a source");
    throw misuse(misuse_kind::recursion, nullptr, text.view());
  }
  [[noreturn]] static void refuse(device_id device) {
    throw cuda_error({failure::no_device, 101, "cudaErrorInvalidDevice", "per_device"}, device.value,
                     source_location{});
  }
  [[noreturn]] static void refuse(device_id asked, device_id made) {
    message<160> const text("per_device requested a pool of device ", asked.value,
                            " and received one of device ", made.value, "; pass the device to the source");
    throw misuse(misuse_kind::wrong_device, nullptr, text.view());
  }

  Make make_;
  detail::recursive_fork_mutex mutex_;  ///< recursive: making one pool may access another
  bool in_making_[most_devices]{};
  std::atomic<Pool*> slots_[most_devices]{};
};

template <class Make>
per_device(Make) -> per_device<std::invoke_result_t<Make&, device_id>, Make>;

}  // namespace TARN_NAMESPACE

namespace TARN_NAMESPACE {

// Divides elements into contiguous parts, evenly or by weight.

/// Reports a partition that cannot be made, and why.
class bad_partition : public detail::error_of<std::invalid_argument, 320> {
 public:
  explicit bad_partition(std::string_view text) { text_.add(text); }
};

/// Divides elements 0 to size() into contiguous parts. Each element is in exactly one part; parts may be
/// empty. A value type.
class partition_layout {
 public:
  /// Constructs a partition without elements and parts.
  partition_layout() = default;
  /// Divides into parts whose sizes differ by at most one step.
  /// @param multiple_of  the step: a part begins at a multiple of this many elements (a row, a cache line)
  /// @throws bad_partition  `parts` or `multiple_of` is 0
  [[nodiscard]] static partition_layout even(std::size_t count, std::size_t parts,
                                             std::size_t multiple_of = 1,
                                             source_location where = source_location::current()) {
    partition_layout made(count, parts, multiple_of, where);
    std::size_t const steps = steps_of(count, multiple_of);
    for (std::size_t i = 1; i < parts; ++i) {
      std::size_t const before = steps / parts * i + detail::min_of(i, steps % parts);
      made.first_[i] = position_of(before, count, multiple_of);
    }
    return made;
  }
  /// Divides in proportion to weights (memory, speed); each part is within one step of its share.
  /// @throws bad_partition  no weights, a weight is negative or not finite, no weight is positive, or
  /// `multiple_of` is 0
  [[nodiscard]] static partition_layout weighted(std::size_t count, std::span<double const> weights,
                                                 std::size_t multiple_of = 1,
                                                 source_location where = source_location::current()) {
    partition_layout made(count, weights.size(), multiple_of, where);
    // Not double: it would round positions above 2^53, and large weights would add up to infinity.
    long double total = 0;
    for (double const w : weights) {
      if (!(w >= 0) || !std::isfinite(w)) refuse("a weight must be a finite number of at least 0", where);
      total += w;
    }
    if (!(total > 0) || !std::isfinite(total)) refuse("the weights must add up to a number above 0", where);
    auto const steps = static_cast<long double>(steps_of(count, multiple_of));
    long double before = 0;
    for (std::size_t i = 1; i < weights.size(); ++i) {
      before += weights[i - 1];
      long double const position = std::floor(steps * (before / total) + 0.5L);
      // Also covers rounding beyond the last step, and step counts that a long double of few bits cannot
      // represent.
      made.first_[i] =
          position >= steps ? count : position_of(static_cast<std::size_t>(position), count, multiple_of);
    }
    return made;
  }

  /// Returns the total number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return first_.empty() ? 0 : first_.back(); }
  /// Returns the number of parts.
  [[nodiscard]] std::size_t parts() const noexcept { return first_.empty() ? 0 : first_.size() - 1; }
  /// Returns the first element of part i.
  [[nodiscard]] std::size_t first(std::size_t i) const noexcept { return first_[i]; }
  /// Returns the number of elements of part i.
  [[nodiscard]] std::size_t size(std::size_t i) const noexcept { return first_[i + 1] - first_[i]; }
  /// Returns the part that contains an element. @param element  below size(). O(log parts).
  [[nodiscard]] std::size_t part_of(std::size_t element) const noexcept {
    auto const next = std::upper_bound(first_.begin(), first_.end(), element);
    return static_cast<std::size_t>(next - first_.begin()) - 1;
  }

  friend bool operator==(partition_layout const&, partition_layout const&) = default;

 private:
  partition_layout(std::size_t count, std::size_t parts, std::size_t multiple_of, source_location where) {
    if (parts == 0) refuse("it needs at least one part", where);
    if (parts >= first_.max_size()) refuse("the number of parts is too large; check it for overflow", where);
    if (multiple_of == 0) refuse("the multiple at which parts begin must be at least 1 element", where);
    first_.resize(parts + 1);
    first_.back() = count;
  }
  static std::size_t steps_of(std::size_t count, std::size_t multiple_of) noexcept {
    return count / multiple_of + (count % multiple_of != 0 ? 1 : 0);
  }
  static std::size_t position_of(std::size_t step, std::size_t count, std::size_t multiple_of) noexcept {
    return step > count / multiple_of ? count : step * multiple_of;
  }
  [[noreturn]] static void refuse(char const* why, source_location where) {
    throw detail::at(where, bad_partition(message<128>("tarn: invalid partition: ", why).view()));
  }

  std::vector<std::size_t> first_;
};

using partition [[deprecated("write partition_layout")]] = partition_layout;

namespace detail {

/// Makes the device of a part current while its work is enqueued, for drivers that have a current device.
template <class Driver>
concept has_current_device = requires(device_id device) { Driver::set_current_device(device); };
struct no_guard {
  explicit constexpr no_guard(device_id) noexcept {}
};

}  // namespace detail

/// Owns size() uninitialised elements; part i is in a block of memory i. Each part's work is ordered on its
/// own stream; parts run concurrently, and the host waits only where documented. Several parts may be on one
/// device. Movable, not copyable. One thread at a time. A default-constructed or moved-from buffer has no
/// elements and no parts, and may be assigned. A constructor that throws frees the parts allocated so far.
template <class T, class Resource = detail::default_device_resource<T>>
class partitioned_buffer {
 public:
  using value_type = T;
  using resource_type = Resource;
  using driver_type = typename Resource::driver_type;
  using part_type = device_buffer<T, Resource>;

  /// Argument of the for_each_part() callback: elements [first, first + elements.size()) of the whole.
  struct part_ref {
    std::size_t index;
    std::size_t first;
    part_type& elements;
    stream_ref stream;
  };

  /// Constructs a buffer without parts.
  partitioned_buffer() = default;
  /// Allocates part i from memory i.
  /// @throws bad_partition  the number of memories differs from the number of parts
  /// @throws length_error, out_of_memory, cuda_error; nothing is held
  partitioned_buffer(std::span<Resource const> memories, partition_layout parts,
                     attribution call = attribution::current())
      : layout_(std::move(parts)) {
    if (memories.size() != layout_.parts()) {
      message<160> const text("tarn: ", layout_.parts(), " parts and ", memories.size(),
                              " memories; pass one memory per part");
      throw detail::at(call.where, bad_partition(text.view()));
    }
    parts_.reserve(memories.size());
    for (std::size_t i = 0; i < memories.size(); ++i) parts_.emplace_back(memories[i], layout_.size(i), call);
  }
  /// Allocates part i from the pool of device i of `devices`.
  template <class Make>
  partitioned_buffer(per_device<Resource, Make>& pools, std::span<device_id const> devices,
                     partition_layout parts, attribution call = attribution::current())
      : partitioned_buffer(std::span<Resource const>(pools_of(pools, devices)), std::move(parts), call) {}
  /// Divides `count` elements evenly.
  template <class Make>
  partitioned_buffer(per_device<Resource, Make>& pools, std::span<device_id const> devices, std::size_t count,
                     attribution call = attribution::current())
      : partitioned_buffer(pools, devices, partition_layout::even(count, devices.size()), call) {}

  partitioned_buffer(partitioned_buffer&&) noexcept = default;
  /// Takes over the other's parts; the old ones are freed on their streams. Self-move changes nothing.
  partitioned_buffer& operator=(partitioned_buffer other) noexcept {
    std::swap(layout_, other.layout_);
    parts_.swap(other.parts_);
    return *this;
  }

  /// Returns the total number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return layout_.size(); }
  [[nodiscard]] std::size_t parts() const noexcept { return parts_.size(); }
  [[nodiscard]] partition_layout const& layout() const noexcept { return layout_; }
  /// Returns part i, a buffer on its device with the stream stream(i). Do not change its size or its stream.
  [[nodiscard]] part_type& part(std::size_t i) noexcept { return parts_[i].elements; }
  [[nodiscard]] part_type const& part(std::size_t i) const noexcept { return parts_[i].elements; }
  [[nodiscard]] stream_ref stream(std::size_t i) const noexcept { return parts_[i].stream.ref(); }
  [[nodiscard]] device_id device(std::size_t i) const noexcept { return driver(i).device(); }

  /// Calls `call(part_ref)` for each part with its device current; the callback enqueues the part's work on
  /// its stream.
  template <class Call>
  void for_each_part(Call const& call) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      [[maybe_unused]] guard const here(device(i));
      call(part_ref{i, layout_.first(i), part(i), stream(i)});
    }
  }

  /// Copies from size() host elements, each part in its stream's order. From pinned memory, which must be
  /// kept until the streams have completed the copies, all devices copy concurrently; from other memory they
  /// copy one after the other.
  /// @throws length_error  the number of elements differs; nothing is copied
  /// @throws cuda_error    some parts may have been copied
  void scatter(std::span<T const> from, source_location where = source_location::current()) {
    require_size("scatter", from.size(), where);
    for (std::size_t i = 0; i < parts_.size(); ++i) part(i).copy_from(piece(from, i), where);
  }
  /// Copies to size() host elements in the same way. @throws as scatter
  void gather(std::span<T> to, source_location where = source_location::current()) const {
    require_size("gather", to.size(), where);
    for (std::size_t i = 0; i < parts_.size(); ++i) part(i).copy_to(piece(to, i), where);
  }
  /// Copies as gather() does, then waits for all copies, so that the host may read. It waits also if it
  /// throws, so `to` may be freed.
  void gather_sync(std::span<T> to, source_location where = source_location::current()) const {
    try {
      gather(to, where);
    } catch (...) {
      (void)finish();
      throw;
    }
    synchronize(where);
  }
  /// Copies from another division of the same number of elements, piece by piece between the devices, ordered
  /// with the streams of all parts involved; either buffer may be changed or destroyed at once. @throws as
  /// scatter
  template <class Other>
    requires std::is_same_v<typename Other::driver_type, driver_type>
  void copy_from(partitioned_buffer<T, Other> const& other,
                 source_location where = source_location::current()) {
    require_size("copy_from", other.size(), where);
    for (std::size_t at = 0; at < size();) {
      std::size_t const mine = layout_.part_of(at);
      std::size_t const theirs = other.layout().part_of(at);
      std::size_t const my_end = layout_.first(mine) + layout_.size(mine);
      std::size_t const their_end = other.layout().first(theirs) + other.layout().size(theirs);
      std::size_t const count = detail::min_of(my_end, their_end) - at;
      tarn::peer_copy(other.part(theirs), at - other.layout().first(theirs), part(mine),
                      at - layout_.first(mine), count, where);
      at += count;
    }
  }

  /// Sets every byte to 0, in each stream's order. @throws cuda_error
  void zero(source_location where = source_location::current()) {
    for (part_and_stream& p : parts_) p.elements.zero(where);
  }

  /// Waits on the host for the work of all parts. @throws cuda_error  the first error of the parts, also
  /// errors of earlier kernels; all parts have been waited for
  void synchronize(source_location where = source_location::current()) const {
    if (failed_part const first = finish(); !first.what.ok())
      throw cuda_error(first.what, first.device, where);
  }
  /// Makes later work of all parts wait, on the devices, for the work enqueued on `stream` so far. @throws
  /// cuda_error
  void order_behind(driver_type const& driver_of_stream, stream_ref stream,
                    source_location where = source_location::current()) {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      detail::order_streams(driver(i), this->stream(i), driver_of_stream,
                            identified(driver_of_stream, stream, where), where);
    }
  }
  /// Makes later work on `stream` wait, on the devices, for the work enqueued by all parts so far. @throws
  /// cuda_error
  void order_before(driver_type const& driver_of_stream, stream_ref stream,
                    source_location where = source_location::current()) const {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      detail::order_streams(driver_of_stream, identified(driver_of_stream, stream, where), driver(i),
                            this->stream(i), where);
    }
  }

 private:
  using guard = std::conditional_t<detail::has_current_device<driver_type>, basic_device_guard<driver_type>,
                                   detail::no_guard>;
  struct part_and_stream {
    part_and_stream(Resource memory, std::size_t count, attribution call)
        : stream(detail::called_from(call.where, [&] { return basic_stream<driver_type>(memory.driver()); })),
          elements(std::move(memory), count, stream, call) {}
    basic_stream<driver_type> stream;  // must outlive the elements, which are freed on it
    part_type elements;
  };
  struct failed_part {
    status what;
    int device = 0;
  };

  /// Waits for all parts, even if some fail. Returns the first failure.
  failed_part finish() const noexcept {
    failed_part first;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      status const s = detail::wait_for_stream(driver(i), stream(i));
      if (first.what.ok() && !s.ok()) first = {s, device(i).value};
    }
    return first;
  }

  template <class Make>
  static std::vector<Resource> pools_of(per_device<Resource, Make>& pools,
                                        std::span<device_id const> devices) {
    std::vector<Resource> memories;
    for (device_id const d : devices) memories.push_back(pools[d]);
    return memories;
  }
  [[nodiscard]] driver_type const& driver(std::size_t i) const noexcept { return parts_[i].stream.driver(); }
  template <class Element>
  [[nodiscard]] std::span<Element> piece(std::span<Element> whole, std::size_t i) const noexcept {
    return whole.subspan(layout_.first(i), layout_.size(i));
  }
  void require_size(char const* what, std::size_t count, source_location where) const {
    if (count == size()) return;
    message<160> const text("tarn: ", what, " of ", count, " elements does not match a buffer of ", size());
    throw detail::at(where, length_error(text.view()));
  }

  partition_layout layout_;
  std::vector<part_and_stream> parts_;
};

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/reservation.hpp
// reservation: an amount of memory that a task takes before it starts, so that it never runs out of memory
// half way.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>

namespace TARN_NAMESPACE {

/// A reservation has no room for an allocation. Nothing has changed.
class reservation_exceeded : public out_of_memory {
 public:
  explicit reservation_exceeded(memory_report const& report) noexcept
      : out_of_memory(report, " Reserve more, or free memory of this reservation first.") {}
};

namespace detail {

/// A handle on a limit over blocks.
template <class Memory>
inline constexpr bool divides_a_limit = false;
template <class Upstream>
inline constexpr bool divides_a_limit<shared_resource<limited_layer<Upstream>>> = resource<Upstream>;

/// A thread that waits for bytes of a budget.
class waiting_thread final : public budget_waiter {
 public:
  using budget_waiter::budget_waiter;
  void wake() noexcept override {
    std::lock_guard const guard(mutex_);
    is_awake_ = true;
    changed_.notify_one();
  }
  /// Waits until the bytes were given or never can be, or the time is over.
  void wait(std::chrono::nanoseconds at_most) {
    std::unique_lock lock(mutex_);
    auto const is_awake = [this] { return is_awake_; };
    // A time that the clock cannot represent is as good as no end.
    if (at_most > std::chrono::hours(24 * 365)) return changed_.wait(lock, is_awake);
    (void)changed_.wait_for(lock, at_most, is_awake);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_awake_ = false;
};

/// Takes bytes of a budget, or waits for them. Returns false if they did not become free in time.
[[nodiscard]] inline bool take_or_wait(byte_budget& budget, std::size_t bytes,
                                       std::chrono::nanoseconds at_most) {
  if (budget.take_in_turn(bytes)) return true;
  if (at_most <= std::chrono::nanoseconds::zero()) return false;
  waiting_thread self(bytes);
  if (!budget.wait_for(self)) return false;
  self.wait(at_most);
  return budget.stop_waiting(self);
}

/// The part of a limit that one reservation has. It allocates below the limit, so nothing is counted twice; a
/// block that is freed after the reservation has ended returns its bytes to the limit.
template <class Memory>
class reserved_layer
    : public resource_adaptor<reserved_layer<Memory>, typename Memory::layer_type::upstream_type> {
  using upstream_type = typename Memory::layer_type::upstream_type;
  using base = resource_adaptor<reserved_layer, upstream_type>;

 public:
  /// The bytes were taken from the limit.
  reserved_layer(Memory const& memory, std::size_t bytes)
      : base(memory->upstream()), memory_(memory), bytes_(bytes), left_(bytes) {}
  ~reserved_layer() { end(); }

  /// @throws reservation_exceeded  more than is left, or the reservation has ended; out_of_memory: the
  /// upstream refused
  void* around_allocate(request const& r, auto const& next) {
    std::size_t const counted = counted_bytes(this->upstream(), r.bytes, r.alignment);
    if (!take(counted)) [[unlikely]]
      refuse(r);
    void* p = nullptr;
    try {
      p = next.allocate(r);
    } catch (...) {
      give(counted);
      throw;
    }
    std::size_t const used = used_.fetch_add(counted, std::memory_order_relaxed) + counted;
    for (std::size_t peak = peak_.load(std::memory_order_relaxed); peak < used;) {
      if (peak_.compare_exchange_weak(peak, used, std::memory_order_relaxed)) break;
    }
    return p;
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    std::size_t const counted = counted_bytes(this->upstream(), r.bytes, r.alignment);
    next.deallocate(r, p);
    used_.fetch_sub(counted, std::memory_order_relaxed);
    give(counted);
  }

  [[nodiscard]] std::size_t limit() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }

  /// Gives unused bytes back to the limit, all but `keep`; returns how many.
  std::size_t release_unused(std::size_t keep) noexcept {
    std::size_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left == ended || left <= keep) return 0;
    } while (!left_.compare_exchange_weak(left, keep, std::memory_order_relaxed));
    bytes_.fetch_sub(left - keep, std::memory_order_relaxed);
    memory_->budget().give(left - keep);
    return left - keep;
  }
  /// Gives all unused bytes back, now and whenever a block is freed, and refuses new blocks.
  void end() noexcept {
    std::size_t const left = left_.exchange(ended, std::memory_order_relaxed);
    if (left == ended) return;
    bytes_.fetch_sub(left, std::memory_order_relaxed);
    memory_->budget().give(left);
  }

 private:
  /// reserve() gives out no more than max_request_bytes
  static constexpr std::size_t ended = ~std::size_t{0};

  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    std::size_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left == ended || left < bytes) return false;
    } while (!left_.compare_exchange_weak(left, left - bytes, std::memory_order_relaxed));
    return true;
  }
  void give(std::size_t bytes) noexcept {
    std::size_t left = left_.load(std::memory_order_relaxed);
    do {
      if (left != ended) continue;
      bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      memory_->budget().give(bytes);
      return;
    } while (!left_.compare_exchange_weak(left, left + bytes, std::memory_order_relaxed));
  }
  [[noreturn]] TARN_NOINLINE void refuse(request const& r) const {
    memory_report report = this->report_of(r);
    report.limit = limit();
    report.limit_used = used();
    report.live = used();
    bool const has_ended = left_.load(std::memory_order_relaxed) == ended;
    report.refused_by = has_ended ? "the reservation, which has ended" : "the reservation";
    throw reservation_exceeded(report);
  }

  Memory memory_;                     ///< with the limit
  std::atomic<std::size_t> bytes_;    ///< taken from the limit
  std::atomic<std::size_t> left_;     ///< of them, not in blocks; or `ended`
  std::atomic<std::size_t> used_{0};  ///< in blocks
  std::atomic<std::size_t> peak_{0};
};

}  // namespace detail

/// An amount of memory that reserve() took from a limit ahead of time: no other user of the limit can have it
/// until it is given back. A task that knows its peak reserves it, and then allocates through resource(),
/// where the limit refuses nothing up to that amount.
///
/// Blocks count as the pool rounds them. A block must be freed through the resource that it was allocated
/// from, as owners do. It may outlive the reservation: its bytes return to the limit when it is freed, all
/// others at once.
///
/// Safe from any thread, except that the reservation is moved and destroyed by one. An allocation costs three
/// more atomic operations on memory that the task's threads share, a deallocation two.
template <class Memory>
class [[nodiscard]] reservation {
  using layer = detail::reserved_layer<Memory>;

 public:
  using resource_type = shared_resource<layer>;

  /// For reserve(): the bytes were taken from the limit.
  reservation(Memory const& memory, std::size_t bytes) : resource_(std::in_place, memory, bytes) {}
  reservation(reservation&&) noexcept = default;
  /// Ends this reservation, and takes over the other.
  reservation& operator=(reservation other) noexcept {
    std::swap(resource_, other.resource_);
    return *this;
  }
  ~reservation() {
    if (resource_) resource_->end();
  }

  // A reservation that was moved from has no bytes and no resource.

  /// The memory to allocate from. Its handle may have layers on top, as in `task.resource() | tracked{}`.
  /// Once the reservation has ended, it refuses to allocate.
  [[nodiscard]] resource_type const& resource() const noexcept { return resource_; }
  /// Returns how much of the limit is reserved, bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return resource_ ? resource_->limit() : 0; }
  /// Returns how much of it is in blocks, bytes.
  [[nodiscard]] std::size_t used() const noexcept { return resource_ ? resource_->used() : 0; }
  /// Returns the largest used() so far, bytes: what such a task needs to reserve.
  [[nodiscard]] std::size_t peak() const noexcept { return resource_ ? resource_->peak() : 0; }
  /// Gives unused bytes back, all but `keep`, when a task is past its peak; returns how many.
  // NOLINTNEXTLINE(modernize-use-nodiscard): may be ignored
  std::size_t release_unused(std::size_t keep = 0) noexcept {
    return resource_ ? resource_->release_unused(keep) : 0;
  }

 private:
  resource_type resource_;
};

/// Reserves bytes of a limit for a task, so that it starts only when its peak fits beside those of the
/// others: `auto memory = pool | limited{bytes};`, and on each task's thread `auto task = reserve(memory,
/// peak, 60s);`.
///
/// Requests that wait are served in the order in which they came, but one that fits is served before one that
/// does not, at most 16 times. Allocations that are not made through a reservation do not queue. The limit
/// should be what the device really has for the pool, `available_memory(pool).bytes`, less a part for free
/// ranges that are too small for a request: 5 per cent where the tasks' blocks are similar, 10 where they are
/// not. With 16 threads and random blocks of up to a twentieth of the device, about one program in 1,000 ran
/// out of memory at 5 per cent and none of 3,000 at 10 (tests/transfer/reservation.cpp, simulated device).
///
/// @param memory  has a limit on live bytes as its uppermost layer
/// @param bytes   the peak of what is live at once, as the pool rounds it: peak() of an earlier run, for
/// example
/// @param wait    how long to wait until they are free; 0: not at all; nanoseconds::max(): without end
/// @throws out_of_memory  the bytes are not free, or did not become free in time, or a request that waits for
///                        them was passed 16 times; or exceed the limit, now or as set_limit() lowers it
///                        meanwhile, which is not waited for; or exceed max_request_bytes
/// @throws std::bad_alloc, std::system_error  the host refused. Nothing has changed
/// Thread-safe. A thread that waits must not hold a reservation that the others wait for. One host
/// allocation; O(requests that wait).
template <class Memory>
[[nodiscard]] auto reserve(Memory const& memory, std::size_t bytes,
                           std::chrono::nanoseconds wait = std::chrono::nanoseconds::zero(),
                           source_location where = source_location::current()) {
  static_assert(detail::divides_a_limit<Memory>,
                "tarn: reserve() divides a limit on live bytes, which must be the uppermost layer: "
                "`auto memory = pool | tarn::limited{bytes};`, then reserve(memory, ...)");
  if constexpr (detail::divides_a_limit<Memory>) {
    return detail::called_from(where, [&] {
      detail::byte_budget& budget = memory->budget();
      if (bytes > max_request_bytes || !detail::take_or_wait(budget, bytes, wait)) {
        memory_report report;
        report.asked = bytes;
        report.device = memory.device().value;
        report.stream = memory_report::no_stream;
        report.limit = budget.limit();
        report.limit_used = budget.used();
        report.refused_by = "limited";
        report.call = wait > std::chrono::nanoseconds::zero() ? "reserve, which waits" : "reserve";
        throw out_of_memory(report);
      }
      try {
        return reservation<Memory>(memory, bytes);
      } catch (...) {
        budget.give(bytes);
        throw;
      }
    });
  }
}

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/scratch.hpp
// scratch: a stack allocator for temporaries on a device, with mark and rewind, for recomputation and layered
// work.
//
//   chunk 0                 chunk 1
//   [ a | b |    gap     ]  [ c | d | free         ]    mark m was taken after b: rewind(m) frees c and d
//           ^ m                     ^ top               chunk 1 is kept, empty, for the next take()

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace TARN_NAMESPACE {

/// What take() does if the chunks are full.
enum class scratch_growth {
  doubling,  ///< allocates another chunk, as large as all chunks so far or as the request, whichever is
             ///< larger
  none       ///< throws out_of_memory: chunk_bytes is the total
};

struct scratch_options {
  std::size_t chunk_bytes = 4_MiB;  ///< size of the first chunk, allocated at the first take()
  scratch_growth growth = scratch_growth::doubling;
};

/// A position in a scratch to rewind to. A small value; invalid once it, or an earlier mark, is rewound to.
class scratch_mark {
 private:
  template <class Resource>
  friend class scratch;
  void const* of_ = nullptr;
  std::uint64_t serial_ = 0;
  std::size_t depth_ = 0;
};

/// Hands out uninitialised device memory from chunks in ascending order; rewinding to a mark frees all memory
/// handed out since. Chunks come from `memory` and are kept until release() or destruction: a warm take() or
/// rewind() is a few instructions and does not call the pool.
///
/// All memory is ordered by one stream: freed memory may be handed out again at once, for later work on
/// stream(). Work on another stream must be ordered before the rewind (by an event, or set_stream()).
///
/// It is deliberately not a resource: an owner that frees in arbitrary order, or outlives a rewind, would be
/// wrong undetected. Sizes do not wrap. One thread at a time. Destruction frees the chunks in the order of
/// stream(), and never throws.
template <class Resource>
class scratch {
 public:
  using resource_type = Resource;

  /// Allocates no memory yet. @throws cuda_error  the driver does not know the stream
  explicit scratch(Resource memory, scratch_options const& options = {}, stream_ref stream = {},
                   source_location where = source_location::current())
      : memory_(std::move(memory)), stream_(identified(memory_, stream, where)), options_(options) {}
  /// A template, so that `{}` means the default options and not 0 bytes.
  template <std::integral Bytes>
  scratch(Resource memory, Bytes chunk_bytes, stream_ref stream = {},
          source_location where = source_location::current())
      : scratch(std::move(memory), scratch_options{static_cast<std::size_t>(chunk_bytes)}, stream, where) {}
  scratch& operator=(scratch&&) = delete;
  ~scratch() { give_from(0); }

  /// Returns `count` uninitialised elements, valid until an earlier mark is rewound to; null for zero
  /// elements.
  /// @param count  elements, not bytes. Aligned to 256 bytes, or to alignof(T) if that is larger
  /// @throws length_error   count * sizeof(T) overflows
  /// @throws out_of_memory  nothing has changed. With growth::none the error reports the size of the scratch
  /// O(1) if a kept chunk has room (O(chunks) if chunks must be skipped), else one allocation.
  template <class T>
  [[nodiscard]] T* take(std::size_t count, attribution call = attribution::current()) {
    static_assert(std::is_trivially_copyable_v<T>,
                  "tarn: scratch never constructs elements: T must be trivially copyable");
    constexpr std::size_t alignment = detail::alignment_of<T>;
    static_assert(alignment <= max_alignment,
                  "tarn: no resource supports this alignment; align T to max_alignment or less");
    return static_cast<T*>(take_bytes(checked_bytes(count, sizeof(T)), alignment, call));
  }

  /// Records the position that rewind() returns to. @throws std::bad_alloc  (host) nothing has changed
  [[nodiscard]] scratch_mark mark() {
    marks_.push_back(noted{next_serial_, at_, used_});
    scratch_mark m;
    m.of_ = this;
    m.serial_ = next_serial_++;
    m.depth_ = marks_.size() - 1;
    return m;
  }
  /// Frees all memory handed out since the mark and invalidates the mark and all later ones. An invalid mark,
  /// or one of another scratch, is reported to the misuse handler; if that returns, nothing has changed.
  /// Keeps the chunks.
  void rewind(scratch_mark const& m) noexcept {
    bool const known = m.of_ == this && m.depth_ < marks_.size() && marks_[m.depth_].serial == m.serial_;
    if (!known) return report_invalid(m);
    at_ = marks_[m.depth_].at;
    used_ = marks_[m.depth_].used;
    while (marks_.size() > m.depth_) marks_.pop_back();
  }

  /// Frees the unused chunks in the order of stream(). Marks stay valid.
  void release() noexcept { give_from(used_ == 0 ? 0 : at_ + 1); }

  /// Changes the stream. Later work on `stream` waits, on the device, for what was enqueued on the old
  /// stream, which must still exist, as device_buffer::set_stream() has it.
  /// @throws cuda_error  nothing has changed
  void set_stream(stream_ref stream, source_location where = source_location::current()) {
    detail::change_stream(memory_, chunks_.empty() ? nullptr : chunks_[0].p, stream_, stream, where);
  }

  /// Returns the bytes handed out, including the gaps between them.
  [[nodiscard]] std::size_t used() const noexcept {
    std::size_t bytes = used_;
    for (std::size_t i = 0; i < at_; ++i) bytes += chunks_[i].used_when_left;
    return bytes;
  }
  /// Returns the bytes held from the resource.
  [[nodiscard]] std::size_t capacity() const noexcept {
    std::size_t bytes = 0;
    for (chunk const& c : chunks_) bytes += c.bytes;
    return bytes;
  }
  /// Returns the number of valid marks.
  [[nodiscard]] std::size_t marks() const noexcept { return marks_.size(); }
  [[nodiscard]] stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }

 private:
  struct chunk {
    void* p = nullptr;
    std::size_t bytes = 0;
    std::size_t alignment = 0;
    std::size_t used_when_left = 0;
  };
  struct noted {
    std::uint64_t serial = 0;
    std::size_t at = 0;
    std::size_t used = 0;
  };

  [[nodiscard]] void* take_bytes(std::size_t bytes, std::size_t alignment, attribution const& call) {
    if (bytes == 0) return nullptr;
    for (std::size_t i = at_; i < chunks_.size(); ++i) {
      std::size_t const begin = i == at_ ? used_ : 0;
      if (void* const p = place_in(i, begin, bytes, alignment); p != nullptr) return p;
    }
    detail::called_from<Resource>(call, [&] { grow(bytes, alignment); });
    return place_in(chunks_.size() - 1, 0, bytes, alignment);
  }

  /// Returns null if the chunk has no room above `begin`.
  [[nodiscard]] void* place_in(std::size_t i, std::size_t begin, std::size_t bytes,
                               std::size_t alignment) noexcept {
    chunk const& c = chunks_[i];
    auto const base = reinterpret_cast<std::uintptr_t>(c.p);
    std::size_t const offset = align_up(base + begin, alignment) - base;
    if (offset > c.bytes || bytes > c.bytes - offset) return nullptr;
    if (i != at_) {
      chunks_[at_].used_when_left = used_;
      for (std::size_t skipped = at_ + 1; skipped < i; ++skipped) chunks_[skipped].used_when_left = 0;
      at_ = i;
    }
    used_ = offset + bytes;
    return static_cast<std::byte*>(c.p) + offset;
  }

  void grow(std::size_t bytes, std::size_t alignment) {
    std::size_t const held = capacity();
    if (options_.growth == scratch_growth::none && (held != 0 || bytes > options_.chunk_bytes))
      refuse(bytes, alignment);
    chunks_.reserve(chunks_.size() + 1);
    std::size_t const wanted = held == 0 ? options_.chunk_bytes : held;
    chunk c;
    c.bytes = detail::max_of(bytes, wanted);
    c.alignment = alignment;
    try {
      c.p = memory_.allocate(stream_, c.bytes, alignment);
    } catch (out_of_memory const&) {
      if (c.bytes == bytes || options_.growth == scratch_growth::none) throw;
      c.bytes = bytes;  // retry with only the requested size
      c.p = memory_.allocate(stream_, c.bytes, alignment);
    }
    chunks_.push_back(c);
  }

  [[noreturn]] void refuse(std::size_t bytes, std::size_t alignment) const {
    memory_report r;
    r.asked = bytes;
    r.alignment = alignment;
    r.device = memory_.driver().device().value;
    r.stream = stream_.id();
    r.live = used();
    r.limit = options_.chunk_bytes;
    r.refused_by = "scratch";
    throw out_of_memory(r);
  }

  void give_from(std::size_t first) noexcept {
    while (chunks_.size() > first) {
      chunk const& c = chunks_.back();
      detail::free_block(memory_, stream_, c.p, c.bytes, c.alignment);
      chunks_.pop_back();
    }
  }

  void report_invalid(scratch_mark const& m) const noexcept {
    bool const mine = m.of_ == this;
    report_misuse(misuse(
        mine ? misuse_kind::double_free : misuse_kind::foreign_pointer, this,
        mine ? "rewind to an expired mark: the scratch was already rewound to it or to an earlier mark; "
               "rewind in the reverse order of the marks"
             : "rewind to a mark of another scratch; rewind the scratch that created it"));
  }

  Resource memory_;
  stream_ref stream_;
  scratch_options options_;
  detail::sequence<chunk> chunks_;
  detail::sequence<noted> marks_;  ///< valid marks, oldest first
  std::size_t at_ = 0;             ///< the chunk that take() tries first
  std::size_t used_ = 0;           ///< bytes handed out of that chunk
  std::uint64_t next_serial_ = 1;
};

/// Rewinds a scratch at scope exit to its position at scope entry. Scopes nest.
template <class Resource>
class rewind_scope {
 public:
  /// @throws std::bad_alloc  (host)
  explicit rewind_scope(scratch<Resource>& arena) : arena_(arena), mark_(arena.mark()) {}
  rewind_scope& operator=(rewind_scope&&) = delete;
  ~rewind_scope() { arena_.rewind(mark_); }

 private:
  scratch<Resource>& arena_;
  scratch_mark mark_;
};

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/stream_batches.hpp
// stream_batches: a loop over device batches of a host source; the next batches are filled and copied
// meanwhile.
//
//   threads   fill pinned slot i               wait for copied[i] of the slot's last batch (looping thread, then opens it)
//   lane      copy pinned i -> device i        waits on the device for released[i] of the slot's last batch; records copied[i]
//   user      the body's work on device i      waits on the device for copied[i]; ++ records released[i]
//
// Only the looping thread calls the driver. For the other direction, see collect_batches.

#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

// ---- tarn/transfer/batch_source.hpp
// Sources of streamed batches: pageable memory, pinned memory, a file, a generator.
//
// | expression                  | of which | meaning                                                                       |
// |-----------------------------|----------|-------------------------------------------------------------------------------|
// | S::value_type               | all      | trivially copyable                                                            |
// | S::is_staged                | all      | true: copied through pinned slots; false: already in pinned memory            |
// | s.size()                    | all      | total elements; detail::unknown_count: until fill() returns 0                 |
// | s.data()                    | unstaged | pointer to the first element                                                  |
// | s.fill(to, index, offset)   | staged   | writes to.size() elements starting at `offset`; returns the number written    |
// | S::is_divisible             | staged   | parts of a batch may be filled independently of each other                    |

#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>

namespace TARN_NAMESPACE {

/// Elements in any host memory. The host copies them to pinned slots.
template <class T>
class pageable_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = true;
  static constexpr bool is_divisible = true;
  explicit pageable_source(std::span<T const> elements) noexcept : elements_(elements) {}
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  std::size_t fill(std::span<T> to, std::size_t, std::size_t offset) const noexcept {
    if (!to.empty()) std::memcpy(to.data(), elements_.data() + offset, to.size_bytes());
    return to.size();
  }

 private:
  std::span<T const> elements_;
};

/// Elements in pinned memory, copied directly from there.
template <class T>
class pinned_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = false;
  explicit pinned_source(std::span<T const> elements) noexcept : elements_(elements) {}
  [[nodiscard]] std::size_t size() const noexcept { return elements_.size(); }
  [[nodiscard]] T const* data() const noexcept { return elements_.data(); }

 private:
  std::span<T const> elements_;
};

/// Elements of a file, read into pinned slots.
template <class T>
class file_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = true;
  static constexpr bool is_divisible = true;
  /// @throws file_error  the file size is not a multiple of the element size
  explicit file_source(mapped_file const& file) : file_(&file), size_(file.count_of<T>()) {}
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  std::size_t fill(std::span<T> to, std::size_t, std::size_t offset) const {
    file_->read(offset * sizeof(T), std::as_writable_bytes(to));
    return to.size();
  }

 private:
  mapped_file const* file_;
  std::size_t size_;
};

/// Elements produced by a callable.
template <class T, class Fill>
class generated_source {
 public:
  using value_type = T;
  static constexpr bool is_staged = true;
  static constexpr bool is_divisible = false;
  explicit generated_source(Fill fill) : fill_(std::make_unique<Fill>(std::move(fill))) {}
  [[nodiscard]] std::size_t size() const noexcept { return detail::unknown_count; }
  std::size_t fill(std::span<T> to, std::size_t index, std::size_t) const {
    std::size_t const filled = (*fill_)(to, index);
    if (filled > to.size()) throw bad_batch("a generator reported more elements than its slot holds");
    return filled;
  }

 private:
  std::unique_ptr<Fill> fill_;  ///< callable from a const source; the range never copies it
};

/// Declares that memory is pinned (pinned_buffer, cudaHostAlloc, cudaHostRegister), so it is copied without
/// staging. If it is not pinned, the result is still correct, but slow: the driver waits for each batch.
template <class T, std::size_t N>
[[nodiscard]] pinned_source<std::remove_const_t<T>> pinned(std::span<T, N> elements) noexcept {
  return pinned_source<std::remove_const_t<T>>(elements);
}
/// Elements of a file, which must outlive the loop. @throws file_error  the file size is not a multiple of
/// the element size
template <class T>
[[nodiscard]] file_source<T> from_file(mapped_file const& file) {
  return file_source<T>(file);
}
template <class T>
file_source<T> from_file(mapped_file const&&) = delete;  // the file would be closed before the first batch

/// Batches produced by `fill(std::span<T> slot, std::size_t index) -> std::size_t`, which returns the number
/// of elements that it filled, at most slot.size(); 0 ends the range. With batch_options::threads, several
/// threads call it at once, each with its own index, also with indices after the one that ends. Batches
/// arrive in index order.
template <class T, class Fill>
  requires std::is_invocable_r_v<std::size_t, Fill&, std::span<T>, std::size_t>
[[nodiscard]] generated_source<T, std::decay_t<Fill>> generate(Fill&& fill) {
  return generated_source<T, std::decay_t<Fill>>(std::forward<Fill>(fill));
}

namespace detail {

template <class S>
concept batch_source = requires(S const& s) {
  typename S::value_type;
  { S::is_staged } -> std::convertible_to<bool>;
  { s.size() } -> std::same_as<std::size_t>;
};

template <class R>
inline constexpr bool is_pinned_buffer = false;
template <class T, class Resource>
inline constexpr bool is_pinned_buffer<pinned_buffer<T, Resource>> = true;

/// Converts an argument to a source: a source is returned as is, a pinned_buffer becomes pinned memory, any
/// other contiguous range becomes pageable memory. A range that would be destroyed before the loop begins
/// does not compile.
template <class S>
[[nodiscard]] auto as_batch_source(S&& s) {
  using plain = std::remove_cvref_t<S>;
  if constexpr (batch_source<plain>) {
    return plain(std::forward<S>(s));
  } else {
    static_assert(
        std::ranges::contiguous_range<S> && std::ranges::sized_range<S>,
        "tarn: batches are read from contiguous memory, from_file<T>(file) or generate<T>(callable)");
    static_assert(std::ranges::borrowed_range<S>,
                  "tarn: this temporary is destroyed before the loop begins; store it in a variable first");
    using element = std::ranges::range_value_t<S>;
    static_assert(std::is_trivially_copyable_v<element>,
                  "tarn: only trivially copyable elements can be copied between host and device");
    std::span<element const> const all(std::ranges::data(s), std::ranges::size(s));
    if constexpr (is_pinned_buffer<plain>) {
      return pinned_source<element>(all);
    } else {
      return pageable_source<element>(all);
    }
  }
}
template <class S>
using batch_source_of = decltype(as_batch_source(std::declval<S>()));

}  // namespace detail

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/fill_threads.hpp
// fill_threads: a few threads that fill numbered slots in order, ahead of the consumer.

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace TARN_NAMESPACE::detail {

/// Calls fill(batch, piece) once for each piece of each opened batch, in order of (batch, piece), from
/// several threads at once. Batch b uses slot b % slots; opening it permits writing to the slot. With no
/// threads, the caller fills in is_filled() or take(). An exception thrown by fill is stored and rethrown by
/// take(). One thread opens and takes.
class fill_threads {
 public:
  /// @param fill  returns the number of elements that it filled; called by several threads at once
  using fill_function = std::function<std::size_t(std::size_t batch, std::size_t piece)>;

  /// @throws std::system_error  no thread can be created; std::bad_alloc
  fill_threads(unsigned threads, std::size_t pieces, std::size_t slot_count, fill_function fill)
      : fill_threads(pieces, slot_count, std::move(fill)) {
    // If a thread cannot be created, the destructor runs, since the delegated-to constructor has completed.
    crew_->threads.reserve(threads);
    while (crew_->threads.size() < threads) crew_->threads.emplace_back([this] { work(); });
  }
  /// Waits for the pieces being filled, not for those that have not started. In a forked child, which does
  /// not have the threads, it waits for nothing.
  ~fill_threads() {
    if (process_.is_this()) {
      stop();
    } else {
      (void)crew_.release();
    }
  }

  /// Opens the next batch for filling, in order. The previous batch of its slot has been taken.
  void open() {
    {
      std::lock_guard const lock(crew_->mutex);
      slots_[opened_ % slots_.size()] = {pieces_, 0, nullptr};
      ++opened_;
    }
    crew_->there_is_work.notify_all();
  }
  [[nodiscard]] std::size_t opened() const noexcept { return opened_; }

  /// Whether an opened batch is filled without an exception. Does not wait. Without threads, fills it first.
  [[nodiscard]] bool is_filled(std::size_t batch) {
    slot const& s = slots_[batch % slots_.size()];
    if (crew_->threads.empty()) fill_here(batch);
    std::lock_guard const lock(crew_->mutex);
    return s.pieces_left == 0 && s.error == nullptr;
  }

  /// Waits until an opened batch is filled; returns its number of elements. @throws what fill threw for one
  /// of its pieces
  std::size_t take(std::size_t batch) {
    slot const& s = slots_[batch % slots_.size()];
    if (crew_->threads.empty()) fill_here(batch);
    std::unique_lock lock(crew_->mutex);
    crew_->filled.wait(lock, [&] { return s.pieces_left == 0; });
    if (s.error != nullptr) std::rethrow_exception(s.error);
    return s.elements;
  }

 private:
  struct slot {
    std::size_t pieces_left = 0;
    std::size_t elements = 0;
    std::exception_ptr error;
  };

  /// The threads and what they wait on. In a forked child the mutex may be locked and the conditions have
  /// waiters that do not exist there: to destroy them would wait forever, so the child leaks them.
  struct crew {
    std::mutex mutex;
    std::condition_variable there_is_work, filled;
    std::vector<std::thread> threads;
  };

  fill_threads(std::size_t pieces, std::size_t slot_count, fill_function fill)
      : fill_(std::move(fill)), pieces_(pieces), slots_(slot_count) {}

  void work() {
    std::unique_lock lock(crew_->mutex);
    for (;;) {
      crew_->there_is_work.wait(lock, [this] { return stopping_ || next_ < opened_ * pieces_; });
      if (stopping_) return;
      std::size_t const piece = next_++;
      lock.unlock();
      bool const last = fill_piece(piece / pieces_, piece % pieces_);
      if (last) crew_->filled.notify_one();
      lock.lock();
    }
  }
  void fill_here(std::size_t batch) {
    while (next_ < (batch + 1) * pieces_) {
      std::size_t const piece = next_++;
      (void)fill_piece(piece / pieces_, piece % pieces_);
    }
  }
  /// Returns whether it was the last piece of the batch.
  bool fill_piece(std::size_t batch, std::size_t piece) {
    std::size_t elements = 0;
    std::exception_ptr error;
    try {
      elements = fill_(batch, piece);
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard const lock(crew_->mutex);
    slot& s = slots_[batch % slots_.size()];
    s.elements += elements;
    if (error != nullptr && s.error == nullptr) s.error = std::move(error);
    return --s.pieces_left == 0;
  }
  void stop() noexcept {
    {
      std::lock_guard const lock(crew_->mutex);
      stopping_ = true;
    }
    crew_->there_is_work.notify_all();
    for (std::thread& t : crew_->threads) t.join();
  }

  fill_function const fill_;
  std::size_t const pieces_;
  creating_process const process_{};
  std::unique_ptr<crew> crew_ = std::make_unique<crew>();
  std::vector<slot> slots_;  ///< guarded by the crew's mutex, as are all members below
  std::size_t opened_ = 0;   ///< batches; written only by the thread that opens
  std::size_t next_ = 0;     ///< pieces started
  bool stopping_ = false;
};

}  // namespace TARN_NAMESPACE::detail

namespace TARN_NAMESPACE {

/// The range that stream_batches() returns: a single-pass input range for one thread. Neither copyable nor
/// movable. Its end stops filling and waits for the running copies; the body's work continues. Afterwards the
/// source is no longer read.
template <class Source, class Memory, class Pinned>
class batch_stream {
 public:
  using value_type = typename Source::value_type;
  using batch = device_batch<value_type>;
  /// A batch may be used by work on the loop's stream until ++; work that the body enqueued before may still
  /// use it afterwards.
  using iterator = batch_iterator<batch_stream, batch>;
  static_assert(has_property<Memory, device_accessible>,
                "tarn: batches are streamed to memory that the device can access");

  /// See stream_batches().
  batch_stream(Source source, batch_options const& options, Memory memory, stream_ref stream, Pinned pinned,
               source_location where = source_location::current())
      : source_(std::move(source)),
        capacity_(capacity_for(source_.size(), detail::batch_capacity(options, sizeof(value_type)))),
        end_(batches_of(source_.size(), capacity_)),
        depth_(detail::batch_depth(options, end_, capacity_ * sizeof(value_type))),
        threads_wanted_(threads_for(options)),
        host_depth_(detail::min_of(host_depth_for(depth_, threads_wanted_), end_)),
        lane_(detail::required(memory, where).driver(), identified(memory, stream, where), where) {
    device_.reserve(depth_);
    while (device_.size() < depth_) device_.emplace_back(memory, capacity_, lane_.user(), where);
    lane_.make_events(host_depth_ + depth_ + 1);
    sizes_.resize(depth_);
    if constexpr (Source::is_staged) {
      if (depth_ != 0) stage(std::move(pinned));
    }
  }

  /// Starts the loop on the first call. A later call returns an iterator at the current batch.
  [[nodiscard]] iterator begin() {
    if (!detail::exchange(started_, true) && end_ != 0) start();
    return iterator(*this);
  }
  [[nodiscard]] std::default_sentinel_t end() const noexcept { return {}; }

 private:
  friend iterator;

  /// Limits a slot to the size of the source, but to at least one element.
  static std::size_t capacity_for(std::size_t size, std::size_t most) noexcept {
    return detail::min_of(most, detail::max_of(size, std::size_t{1}));
  }
  static std::size_t batches_of(std::size_t size, std::size_t capacity) noexcept {
    return size == detail::unknown_count ? size : (size + capacity - 1) / capacity;
  }

  /// One more than the device slots if threads fill, so that they do not wait for the copy. If each slot is
  /// filled by a single thread, each thread gets a slot.
  static std::size_t host_depth_for(std::size_t depth, std::size_t threads) noexcept {
    if (depth == 0 || threads == 0) return depth;
    if constexpr (Source::is_staged) {
      if (!Source::is_divisible) return detail::max_of(depth, threads) + 1;
    }
    return depth + 1;
  }
  [[nodiscard]] std::size_t slot_of(std::size_t index) const noexcept { return index % depth_; }
  [[nodiscard]] std::size_t host_slot_of(std::size_t index) const noexcept { return index % host_depth_; }
  // Indices of the lane's events: copied per host slot, released per device slot, and one for the user's
  // stream at the start.
  [[nodiscard]] std::size_t copied(std::size_t index) const noexcept { return host_slot_of(index); }
  [[nodiscard]] std::size_t released(std::size_t index) const noexcept {
    return host_depth_ + slot_of(index);
  }
  [[nodiscard]] std::size_t beginning() const noexcept { return host_depth_ + depth_; }

  [[nodiscard]] bool is_over() const noexcept { return current_ == end_; }
  [[nodiscard]] batch now() noexcept {
    extent const e = sizes_[slot_of(current_)];
    return {device_[slot_of(current_)].span().first(e.size), current_, e.offset};
  }

  void start() {
    // The slots were allocated in stream order, so earlier work on the stream may still use their memory.
    lane_.mark_user(beginning());
    lane_.wait_for(beginning());
    make_ready();
  }
  void next() {
    lane_.mark_user(released(current_));
    ++current_;
    make_ready();
  }

  /// Enqueues the copy of the current batch, and of the following ones that need no waiting.
  void make_ready() {
    while (sent_ <= current_ && sent_ != end_) send();
    while (sent_ != end_ && sent_ < current_ + depth_ && is_filled()) send();
    if (!is_over()) lane_.let_user_wait(copied(current_));
  }

  /// Whether the next batch can be sent without waiting. Opens all free slots.
  [[nodiscard]] bool is_filled() {
    if constexpr (Source::is_staged) {
      while (threads_->opened() != end_ && threads_->opened() < sent_ + host_depth_ &&
             slot_is_free(threads_->opened())) {
        threads_->open();
      }
      return sent_ < threads_->opened() && threads_->is_filled(sent_);
    } else {
      return true;
    }
  }
  /// Whether no copy still reads the pinned slot of a batch.
  [[nodiscard]] bool slot_is_free(std::size_t index) {
    return index < host_depth_ || lane_.is_past(copied(index));
  }

  /// Copies the next batch; the slot's last batch was released. Ends the range when the source ends.
  void send() {
    value_type const* from = nullptr;
    std::size_t size = 0;
    if constexpr (Source::is_staged) {
      if (!is_filled()) {
        while (threads_->opened() <= sent_) {
          lane_.synchronize(copied(threads_->opened()));
          threads_->open();
        }
      }
      size = threads_->take(sent_);
      if (size == 0) {
        end_ = sent_;
        return;
      }
      from = (*pinned_)[host_slot_of(sent_)].data();
    } else {
      size = detail::min_of(capacity_, source_.size() - offset_);
      from = source_.data() + offset_;
    }
    if (sent_ >= depth_) lane_.wait_for(released(sent_));
    lane_.copy(device_[slot_of(sent_)].data(), from, size * sizeof(value_type));
    lane_.mark(copied(sent_));
    sizes_[slot_of(sent_)] = {size, offset_};
    offset_ += size;
    ++sent_;
  }

  void stage(Pinned pinned) {
    pinned_.emplace(std::move(pinned), host_depth_, capacity_);
    // Parts below 256 KiB cost more to distribute than to copy.
    constexpr std::size_t least_part = 256_KiB;
    std::size_t const parts = capacity_ * sizeof(value_type) / least_part;
    std::size_t pieces = 1;
    if (Source::is_divisible) pieces = detail::max_of(detail::min_of(threads_wanted_, parts), std::size_t{1});
    threads_.emplace(
        static_cast<unsigned>(threads_wanted_), pieces, host_depth_,
        [this, pieces](std::size_t index, std::size_t piece) { return fill(index, piece, pieces); });
  }
  /// Returns the number of useful threads: below 64 MiB, starting threads takes longer than they save.
  [[nodiscard]] std::size_t threads_for(batch_options const& options) const {
    if constexpr (Source::is_staged) {
      if (options.threads != 0) return options.threads;
      if (!Source::is_divisible || source_.size() < 64_MiB / sizeof(value_type)) return 0;
      return detail::min_of(detail::max_of(std::thread::hardware_concurrency(), 2U) - 1, 8U);
    } else {
      return 0;
    }
  }
  /// Fills one piece of a batch's pinned slot. Called by the threads.
  std::size_t fill(std::size_t index, std::size_t piece, std::size_t pieces) {
    if constexpr (Source::is_staged) {
      std::span<value_type> slot = (*pinned_)[host_slot_of(index)];
      std::size_t const offset = source_.size() == detail::unknown_count ? 0 : index * capacity_;
      if (source_.size() != detail::unknown_count) {
        slot = slot.first(detail::min_of(capacity_, source_.size() - offset));
      }
      std::size_t const share = (slot.size() + pieces - 1) / pieces;
      std::size_t const from = detail::min_of(piece * share, slot.size());
      std::size_t const to = detail::min_of(from + share, slot.size());
      return source_.fill(slot.subspan(from, to - from), index, offset + from);
    } else {
      return 0;
    }
  }

  struct extent {
    std::size_t size = 0;
    std::size_t offset = 0;
  };

  // Destruction order, last member first: the threads end, the lane waits for its copies, then the slots are
  // freed.
  Source source_;
  std::size_t capacity_;  ///< elements per slot
  std::size_t end_;       ///< number of batches, if known
  std::size_t depth_;
  std::size_t threads_wanted_;
  std::size_t host_depth_;  ///< number of pinned slots, if copies are staged
  std::vector<device_buffer<value_type, Memory>> device_;
  std::optional<detail::pinned_slots<value_type, Pinned>> pinned_;
  detail::copy_stream<typename Memory::driver_type> lane_;
  std::vector<extent> sizes_;  ///< contents of each slot
  std::optional<detail::fill_threads> threads_;
  bool started_ = false;
  std::size_t current_ = 0;  ///< index of the body's current batch
  std::size_t sent_ = 0;     ///< number of batches whose copy is enqueued
  std::size_t offset_ = 0;   ///< number of elements in those batches
};

/// Streams a source to the device: `for (auto batch : stream_batches(source, {.batch_bytes = 16_MiB}, pool,
/// stream))`. Each batch is a device_batch: elements in device memory, ready for work that the body enqueues
/// on `stream`. The next batches are filled and copied meanwhile on a separate stream. The last batch has the
/// remaining elements; an empty source yields no batch.
/// @param source   contiguous memory (a span, a named vector: pageable), a pinned_buffer or pinned(span),
/// from_file<T>(file),
///                 generate<T>(callable); it must outlive the loop
/// @param memory   provides the device slots, in the order of `stream`
/// @param pinned   provides the slots in which a source that is not pinned is staged: best a pool, kept over
/// several loops;
///                 by default the driver's pinned memory: some 450 ms per GiB at each loop, and freeing it stops the device
/// The loop may be left at any time, also by exceptions: destruction waits on the host for the running
/// copies, and thus for the body's work on the batches that they replace; nothing leaks. An exception of a
/// source or generator is thrown from the loop in place of its batch, whichever thread it occurred on;
/// afterwards the range may only be destroyed.
/// @throws bad_batch  the options cannot be met; misuse  `stream` is being captured; out_of_memory,
/// cuda_error,
///                    std::system_error (no thread)
/// The host waits only for a pinned slot to be filled or copied; with a pinned source it never waits. Six
/// driver calls per batch, some 2 to 3 µs on the host, or eight if it is staged. With a pinned source the
/// loop copies at the speed of the device; with others as fast as `threads` can fill.
template <class Source, class Memory, class Pinned>
  requires resource<Memory> && resource<Pinned>
[[nodiscard]] auto stream_batches(Source&& source, batch_options const& options, Memory memory,
                                  stream_ref stream, Pinned pinned,
                                  source_location where = source_location::current()) {
  return detail::called_from(where, [&] {
    return batch_stream<detail::batch_source_of<Source>, Memory, Pinned>(
        detail::as_batch_source(std::forward<Source>(source)), options, std::move(memory), stream,
        std::move(pinned), where);
  });
}
template <class Source, class Memory>
  requires resource<Memory>
[[nodiscard]] auto stream_batches(Source&& source, batch_options const& options, Memory memory,
                                  stream_ref stream, source_location where = source_location::current()) {
  basic_pinned<typename Memory::driver_type> pinned(detail::required(memory, where).driver());
  return stream_batches(std::forward<Source>(source), options, std::move(memory), stream, std::move(pinned),
                        where);
}

}  // namespace TARN_NAMESPACE
// ---- tarn/transfer/with_oom_retry.hpp
// with_oom_retry: runs work at a given size and at smaller ones while memory runs out; optionally finds the
// largest size.

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace TARN_NAMESPACE {

/// Which sizes are tried after one works.
enum class oom_search {
  downward,  ///< none: the first size that works is the result
  upward     ///< larger ones, to find the largest that works
};

/// Which exceptions mean that memory ran out. Decided by type, never by text.
enum class oom_errors {
  tarns_own,     ///< tarn::out_of_memory: from tarn's resources, also through Thrust and containers
  any_bad_alloc  ///< every std::bad_alloc: also those of Thrust itself and of the host's operator new
};

/// The sizes known to work and to fail. Keep one object beside a loop that calls with_oom_retry repeatedly: a
/// size that failed once is not tried again. Assign {} when memory has become free.
struct oom_sizes {
  std::size_t good = 0;               ///< the largest that worked; 0: none yet
  std::size_t bad = ~std::size_t{0};  ///< the smallest that failed; all ones: none yet
};

struct oom_retry_options {
  std::size_t least = 1;  ///< the smallest size to try; a start below it is tried all the same
  oom_search search = oom_search::downward;
  /// upward: the largest size to try, even if `remember` knows a larger one
  std::size_t most = ~std::size_t{0};
  std::size_t tolerance = 1;  ///< upward: stops when a size larger by at most this has failed; 0 counts as 1
  oom_errors errors = oom_errors::tarns_own;
  oom_sizes* remember = nullptr;  ///< read before and updated after each call of f; must outlive the call
};

/// What f returned, and for which size.
template <class T>
struct oom_retry_result {
  T value;
  std::size_t size = 0;      ///< the largest size that worked
  std::size_t attempts = 0;  ///< calls of f, failed ones included
};
template <>
struct oom_retry_result<void> {
  std::size_t size = 0;
  std::size_t attempts = 0;
};

namespace detail {

/// One call of with_oom_retry: its state and its attempts.
template <class F, class Clear>
class oom_retry {
 public:
  using value = std::invoke_result_t<F&, std::size_t>;
  using result = oom_retry_result<value>;

  oom_retry(F& f, Clear const& clear, oom_retry_options const& options)
      : f_(f),
        clear_(clear),
        options_(options),
        known_(options.remember != nullptr ? *options.remember : own_) {}
  oom_retry& operator=(oom_retry&&) = delete;

  result run(std::size_t start) {
    auto const keep = [this](std::size_t size) { return call_keeping(size); };
    start = first_size(start);
    if (options_.search == oom_search::downward) return descend(start, keep);
    auto const drop = [this](std::size_t size) { return call_dropping(size); };
    std::size_t good = 0;
    if (is_found(start)) {  // if it works, it is the result, and its value is kept
      result first = descend(start, keep);
      if (is_found(first.size)) return first;
      good = first.size;
    } else {
      good = descend(start, drop);
    }
    good = ascend(good, drop);
    if constexpr (std::is_void_v<value>) {
      return {good, attempts_};
    } else {
      return descend(good, keep);
    }
  }

 private:
  [[nodiscard]] std::size_t least() const noexcept { return max_of(options_.least, std::size_t{1}); }

  /// Returns the initial size: `start`, unless remembered results suggest another. A search upward stays
  /// within options.most.
  [[nodiscard]] std::size_t first_size(std::size_t start) noexcept {
    bool const upward = options_.search == oom_search::upward;
    std::size_t const asked = start;
    if (known_.good >= known_.bad) known_.good = 0;  // contradictory: keep the failure
    if (upward) start = min_of(start, options_.most);
    if ((known_.bad != no_size && start >= known_.bad) || (upward && start < known_.good))
      start = known_.good;
    if (start == 0 && known_.bad != no_size) start = max_of(known_.bad / 2, least());
    return min_of(start, upward ? options_.most : asked);
  }

  /// Whether no size above `good`, which works, needs to be tried.
  [[nodiscard]] bool is_found(std::size_t good) const noexcept {
    return good >= options_.most || known_.bad - good <= max_of(options_.tolerance, std::size_t{1});
  }

  result call_keeping(std::size_t size) {
    ++attempts_;
    if constexpr (std::is_void_v<value>) {
      f_(size);
      note_good(size);
      return {size, attempts_};
    } else {
      result r{f_(size), size, attempts_};
      note_good(size);
      return r;
    }
  }
  /// The result of f is destroyed before this returns, so it holds no memory while a larger size is tried.
  std::size_t call_dropping(std::size_t size) {
    ++attempts_;
    (void)f_(size);
    note_good(size);
    return size;
  }

  /// Halves the size until a call succeeds. @throws the last error if no smaller size is left
  template <class Call>
  auto descend(std::size_t size, Call const& call) -> decltype(call(size)) {
    for (bool cleared = false;; cleared = true) {
      try {
        return call(size);
      } catch (out_of_memory const&) {
        size = after_failure(size, cleared);
      } catch (std::bad_alloc const&) {
        if (options_.errors == oom_errors::tarns_own) throw;
        size = after_failure(size, cleared);
      }
    }
  }
  /// Returns the next size to try. Called in the handler, where f's objects are destroyed and their memory is
  /// in the cache. Returns the same size once if clearing released memory, since memory cached before the
  /// first try is then free, too.
  [[nodiscard]] std::size_t after_failure(std::size_t size, bool cleared) {
    note_bad(size);
    std::size_t const given = clear_();
    if (!cleared && given != 0) return size;
    if (size <= least()) throw;
    return max_of(size / 2, least());
  }

  /// Doubles the size, then bisects between a size that works and one that fails. Each try starts with an
  /// empty cache.
  /// @returns the largest size that worked
  template <class Call>
  std::size_t ascend(std::size_t good, Call const& call) {
    while (!is_found(good)) {
      std::size_t next = good + (known_.bad - good) / 2;
      if (known_.bad == no_size) next = good > no_size / 2 ? no_size - 1 : max_of(good * 2, std::size_t{1});
      next = min_of(next, options_.most);
      (void)clear_();
      try {
        good = call(next);
      } catch (out_of_memory const&) {
        fail_above(good, next);
      } catch (std::bad_alloc const&) {
        if (options_.errors == oom_errors::tarns_own) throw;
        fail_above(good, next);
      }
    }
    return good;
  }
  void fail_above(std::size_t good, std::size_t bad) noexcept {
    note_bad(bad);
    known_.good = good;
  }

  void note_good(std::size_t size) noexcept {
    known_.good = max_of(known_.good, size);
    if (known_.bad <= known_.good) known_.bad = no_size;  // it works now
  }
  void note_bad(std::size_t size) noexcept {
    known_.bad = min_of(known_.bad, min_of(size, no_size - 1));
    if (known_.good >= known_.bad) known_.good = 0;  // it no longer works
  }

  static constexpr std::size_t no_size = ~std::size_t{0};  ///< no size has failed
  F& f_;
  Clear const& clear_;
  oom_retry_options const& options_;
  oom_sizes own_;
  oom_sizes& known_;
  std::size_t attempts_ = 0;
};

}  // namespace detail

/// Calls f(start). If that throws out_of_memory, trims the cache of `memory`'s pool and, if that freed
/// anything, tries the same size once more, then half of it, and so on down to options.least. With
/// oom_search::upward it then doubles the size while that works, and bisects to find the largest size that
/// works.
/// @param memory   the cache of its nearest pool is cleared before each further try; without a pool nothing
/// is cleared
/// @param f        called with a size, often more than once. It must undo what it changed before it threw, as
/// unwinding does
///                 for owners. Memory that outlives its failed call makes the next try fail as well
/// @returns f's value (if any), the size, and the number of calls. With upward, each try's value is destroyed
/// before the next,
///          and f is called once more with the size found, unless it returns void
/// @throws the last exception of f if no smaller size is left; any other exception of f, at once; cuda_error
/// from clearing Which exceptions count is decided by type (options.errors), never by text. Two threads must
/// not share one `remember`.
template <has_driver Resource, class F>
  requires std::is_invocable_v<F&, std::size_t>
auto with_oom_retry(Resource memory, std::size_t start, F&& f, oom_retry_options const& options = {}) {
  auto const clear = [&memory] { return detail::nearest_or(memory, pool_call::trim{}, std::size_t{}); };
  return detail::oom_retry<std::remove_reference_t<F>, decltype(clear)>(f, clear, options).run(start);
}

/// Retries without a pool whose cache could be cleared.
template <class F>
  requires std::is_invocable_v<F&, std::size_t>
auto with_oom_retry(std::size_t start, F&& f, oom_retry_options const& options = {}) {
  auto const clear = [] { return std::size_t{0}; };
  return detail::oom_retry<std::remove_reference_t<F>, decltype(clear)>(f, clear, options).run(start);
}

}  // namespace TARN_NAMESPACE
