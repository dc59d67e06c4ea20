// SPDX-License-Identifier: Apache-2.0
#pragma once
// Standard container interoperability: tarn::stl_allocator for host-accessible memory.

#include "tarn/core/config.hpp"

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/resource.hpp"

namespace TARN_NAMESPACE {

/// A standard allocator over pinned, managed or host memory, pooled or not: `std::vector<float,
/// stl_allocator<float, R>>`. Containers are synchronous, so it uses allocate_sync and deallocate_sync:
/// complete copies to or from a container's memory before the container is changed or destroyed. Holds its
/// resource. Propagates on copy, move and swap of containers. Aligned to alignof(T); a pool aligns to 256
/// bytes in any case. As thread-safe as the resource.
template <class T, class Resource>
class stl_allocator {
 public:
  using value_type = T;
  using resource_type = Resource;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::bool_constant<std::is_empty_v<Resource>>;
  template <class U>
  struct rebind {
    using other = stl_allocator<U, Resource>;
  };

  static_assert(
      has_property<Resource, host_accessible>,
      "tarn: standard containers access their elements on the host; use pinned_host, managed or host_memory");

  stl_allocator() noexcept(std::is_nothrow_default_constructible_v<Resource>)
    requires std::default_initializable<Resource>
      : memory_() {}
  stl_allocator(Resource memory) noexcept : memory_(std::move(memory)) {}  // NOLINT: as std::pmr converts
  template <class U>
  stl_allocator(stl_allocator<U, Resource> const& other) noexcept
      : memory_(other.resource()) {}  // NOLINT: rebinding
  // Copied even where a move is possible: a moved-from container still uses its allocator.
  stl_allocator(stl_allocator const&) = default;
  stl_allocator& operator=(stl_allocator const&) = default;

  /// Returns the elements of the largest request: reserve() of more in a container throws std::length_error.
  [[nodiscard]] constexpr std::size_t max_size() const noexcept { return max_request_bytes / sizeof(T); }
  /// @throws length_error   count is above max_size()
  /// @throws out_of_memory
  [[nodiscard]] T* allocate(std::size_t count) {
    return static_cast<T*>(detail::called_from<Resource>(detail::unknown_place(), [&] {
      return memory_.allocate_sync(checked_bytes(count, sizeof(T)), alignof(T));
    }));
  }
  void deallocate(T* p, std::size_t count) noexcept {
    detail::free_block_sync(memory_, p, count * sizeof(T), alignof(T));
  }

  [[nodiscard]] Resource const& resource() const noexcept { return memory_; }

  /// Not a template for equal types: one in the namespace of T would be as good.
  friend bool operator==(stl_allocator const& a, stl_allocator const& b) noexcept {
    return a.resource() == b.resource();
  }
  template <class U>
  friend bool operator==(stl_allocator const& a, stl_allocator<U, Resource> const& b) noexcept {
    return a.resource() == b.resource();
  }

 private:
  Resource memory_;
};

template <class T, class Resource>
using allocator [[deprecated("write stl_allocator")]] = stl_allocator<T, Resource>;

}  // namespace TARN_NAMESPACE
