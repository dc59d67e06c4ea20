// SPDX-License-Identifier: Apache-2.0
#pragma once
// registered_host: pinned memory made of the host's own pages, which several threads touch before the driver
// registers them.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/source/block_source.hpp"
#include "tarn/source/host_pages.hpp"
#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE {

/// The pages of registered memory.
enum class host_page_size : std::uint8_t {
  usual,         ///< the host's own, mostly 4 KiB
  huge,          ///< 2 MiB if the host has them (transparent huge pages), usual ones otherwise
  reserved_huge  ///< 2 MiB from those that the administrator reserved (vm.nr_hugepages); refused if there are
                 ///< none
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
