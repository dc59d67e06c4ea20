// SPDX-License-Identifier: Apache-2.0
#pragma once
// accessible_from: gives other devices access to a device's pages, so that their kernels may read and write a
// pool's memory in place, and copies between the devices are direct.

#include <cstddef>
#include <initializer_list>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/source/refusal.hpp"

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
