// SPDX-License-Identifier: Apache-2.0
#pragma once
// A layer with a second resource, for the tests of what such a layer has to say; each adds what it says.
#include <cstddef>
#include <utility>

#include "tarn/policy/compose.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"

template <class Upstream, class Other>
struct spill_base {
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  spill_base(Upstream u, auto const& options) : memory(std::move(u)), other(options.other) {}
  Upstream memory;
  Other other;
  Upstream& upstream() { return memory; }
  driver_type const& driver() const { return memory.driver(); }
  void* allocate(tarn::stream_ref s, std::size_t n, std::size_t a) {
    return n > 1000 ? other.allocate(s, n, a) : memory.allocate(s, n, a);
  }
  void deallocate(tarn::stream_ref s, void* p, std::size_t n, std::size_t a) noexcept {
    n > 1000 ? other.deallocate(s, p, n, a) : memory.deallocate(s, p, n, a);
  }
  void* allocate_sync(std::size_t n, std::size_t a) { return memory.allocate_sync(n, a); }
  void deallocate_sync(void* p, std::size_t n, std::size_t a) noexcept { memory.deallocate_sync(p, n, a); }
  std::size_t trim(std::size_t keep) { return memory.trim(keep) + other.trim(keep); }
};

/// Of the test.
template <class Upstream, class Other>
struct spill_layer;
template <class Other>
struct spill {
  Other other;
  template <class Upstream>
  using layer = spill_layer<Upstream, Other>;
};
