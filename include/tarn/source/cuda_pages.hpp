// SPDX-License-Identifier: Apache-2.0
#pragma once
// cuda_pages: device memory as pages: address ranges are reserved first, physical memory is mapped on demand.

#include <concepts>
#include <cstddef>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/source/plain_block.hpp"
#include "tarn/source/refusal.hpp"
#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE {

/// A page source on a driver's virtual memory management. A small value: copies are the same source. Safe
/// from any thread as long as two threads do not map or unmap the same range.
///
/// On a device without virtual memory management (many virtual GPUs), it has no pages but plain blocks, and a
/// pool over it grows by those: allocator_backend(pool) returns "cudaMalloc". The calls of pages throw
/// cuda_error of kind `unsupported` there.
///
/// Other processes can import the memory (export_block) by a file descriptor, which costs nothing to ask for:
/// create takes 11.1 us with the type and 11.7 us without, map 28.4 and 29.6 (H200). The type cannot be
/// changed once the pages are created.
///
/// Costs on an H200, per handle of any size: create 10 µs, map 26 µs, unmap 17 µs, destroy 15 µs (338 µs for
/// 1 GiB). None of them waits for running kernels.
template <page_driver D>
class basic_pages {
 public:
  using driver_type = D;
  using properties = property_set<device_accessible>;

  /// On the driver's default device; for CUDA the calling thread's current one.
  /// @throws cuda_error  of kind `no_device` if there is no device; of kind `unsupported` if the device has
  /// no virtual memory
  ///                     management and the driver has no plain blocks
  basic_pages()
    requires std::default_initializable<D>
      : basic_pages(D{}, allocation_handle_type::posix_file_descriptor, source_location{}) {}
  /// On one device. @param wanted  see handle_type() @throws as above
  explicit basic_pages(device_id device,
                       allocation_handle_type wanted = allocation_handle_type::posix_file_descriptor,
                       source_location where = source_location::current())
    requires std::constructible_from<D, device_id>
      : basic_pages(D(device), wanted, where) {}
  /// On a given driver. @param wanted  see handle_type() @throws as above
  explicit basic_pages(D driver,
                       allocation_handle_type wanted = allocation_handle_type::posix_file_descriptor,
                       source_location where = source_location::current())
      : driver_(std::move(driver)) {
    status s = driver_.page_granularity(granularity_);
    if (s.kind == failure::unsupported) {
      granularity_ = 0;
      if constexpr (detail::plain_block_driver<D>) return;
      s.call = detail::no_pages_nor_blocks;
    }
    if (!s.ok()) throw cuda_error(s, driver_.device().value, where);
    type_ = available(wanted);
  }

  /// Whether the device has virtual memory management. If not, allocate_plain() is what the source offers.
  [[nodiscard]] bool has_pages() const noexcept { return granularity_ != 0; }
  /// Bytes; every size and offset below is a multiple of it. 2 MiB if there are no pages.
  [[nodiscard]] std::size_t granularity() const noexcept { return has_pages() ? granularity_ : 2_MiB; }

  /// How other processes can import the memory: as it was wanted if the device can, else by a file descriptor
  /// if it can, else none.
  [[nodiscard]] allocation_handle_type handle_type() const noexcept { return type_; }

  /// Reserves unmapped addresses, aligned to the granularity.
  /// @throws out_of_memory  the address space has no gap of that size
  /// @throws cuda_error
  [[nodiscard]] void* reserve(std::size_t bytes) {
    detail::require_pages(*this, detail::page_call_refused);
    void* p = nullptr;
    status const s =
        bytes <= max_request_bytes ? driver_.reserve_range(bytes, granularity_, p) : detail::too_large();
    if (!s.ok()) detail::refuse(driver_, s, stream_ref{}, bytes, granularity_);
    return p;
  }
  /// Releases the whole range of one reserve(); nothing is mapped in it any more.
  void unreserve(void* p, std::size_t bytes) noexcept { (void)driver_.release_range(p, bytes); }

  /// Creates one handle of physical memory. The only call here that takes memory from the device.
  /// @throws out_of_memory, cuda_error; nothing has changed
  [[nodiscard]] page_handle create(std::size_t bytes) {
    detail::require_pages(*this, detail::page_call_refused);
    page_handle handle{};
    status const s = bytes <= max_request_bytes ? create_with_type(bytes, handle) : detail::too_large();
    if (!s.ok()) detail::refuse(driver_, s, stream_ref{}, bytes, granularity_);
    return handle;
  }
  /// Destroys a handle, which is no longer mapped anywhere.
  void destroy(page_handle handle, std::size_t) noexcept { (void)driver_.destroy_pages(handle); }

  /// Maps the whole handle at `p`, readable and writable by the device.
  /// @throws out_of_memory  no memory for page tables
  /// @throws cuda_error     nothing is mapped
  void map(void* p, std::size_t bytes, page_handle handle) {
    detail::require_pages(*this, detail::page_call_refused);
    status const s = driver_.map_pages(p, bytes, handle);
    if (!s.ok()) detail::refuse(driver_, s, stream_ref{}, bytes, granularity_);
  }
  /// Undoes exactly one map(). The handle keeps its contents; no work may still use the range.
  void unmap(void* p, std::size_t bytes) noexcept { (void)driver_.unmap_pages(p, bytes); }

  /// Allocates one block that is not a page, in place of create() and map(): for a pool on a device without
  /// pages, or that a tool watches.
  /// @throws out_of_memory, cuda_error; nothing has changed
  [[nodiscard]] void* allocate_plain(std::size_t bytes)
    requires detail::plain_block_driver<D>
  {
    return detail::take_plain_block(driver_, bytes);
  }
  /// Frees such a block; no work uses it any more.
  void deallocate_plain(void* p, std::size_t) noexcept
    requires detail::plain_block_driver<D>
  {
    detail::give_plain_block(driver_, p);
  }

  /// Where a pool's memory comes from, see allocator_backend().
  [[nodiscard]] char const* backend() const noexcept { return has_pages() ? "pages" : "cudaMalloc"; }
  [[nodiscard]] D const& driver() const noexcept { return driver_; }
  [[nodiscard]] device_id device() const noexcept { return driver_.device(); }

  /// Equal if on the same device, so handles of one may be mapped by the other.
  friend bool operator==(basic_pages const& a, basic_pages const& b) noexcept {
    return a.driver_ == b.driver_;
  }

 private:
  [[nodiscard]] status create_with_type(std::size_t bytes, page_handle& handle) const noexcept {
    if constexpr (sharing_driver<D>) {
      return driver_.create_pages(bytes, type_, handle);
    } else {
      return driver_.create_pages(bytes, handle);
    }
  }
  /// Where the question fails, none: the pages work without.
  [[nodiscard]] allocation_handle_type available(allocation_handle_type wanted) const noexcept {
    if constexpr (sharing_driver<D>) {
      bool can = false;
      if (wanted == allocation_handle_type::none) return wanted;
      if (driver_.can_export_pages(wanted, can).ok() && can) return wanted;
      if (wanted == allocation_handle_type::fabric)
        return available(allocation_handle_type::posix_file_descriptor);
    }
    return allocation_handle_type::none;
  }

  D driver_;
  allocation_handle_type type_ = allocation_handle_type::none;
  std::size_t granularity_ = 0;  ///< 0: the device has no pages
};

#if TARN_HAS_CUDA
using cuda_pages = basic_pages<cuda_driver>;
static_assert(page_source<cuda_pages>);
#endif

}  // namespace TARN_NAMESPACE
