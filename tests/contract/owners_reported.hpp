// SPDX-License-Identifier: Apache-2.0
#pragma once
// A policy that reports the owner of each block to the simulated machine's order checker, so that it finds
// uses that are not ordered after those of an earlier owner.

#include <cstddef>
#include <utility>

#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/policy/compose.hpp"

namespace tarn_test {

template <class Upstream>
class owners_reported_layer;
struct owners_reported {
  tarn::sim_machine machine;
  template <class Upstream>
  using layer = owners_reported_layer<Upstream>;
};
template <class Upstream>
class owners_reported_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;

  owners_reported_layer(Upstream upstream, owners_reported options)
      : upstream_(std::move(upstream)), machine_(std::move(options.machine)) {}

  void* allocate(tarn::stream_ref stream, std::size_t bytes, std::size_t alignment) {
    return reported(upstream_.allocate(stream, bytes, alignment), bytes, stream);
  }
  void deallocate(tarn::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p != nullptr) machine_.freed(p, bytes, stream);
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) {
    return reported(upstream_.allocate_sync(bytes, alignment), bytes, {});
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    if (p != nullptr) machine_.freed(p, bytes, {});
    upstream_.deallocate_sync(p, bytes, alignment);
  }
  [[nodiscard]] Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 private:
  void* reported(void* p, std::size_t bytes, tarn::stream_ref stream) {
    if (p != nullptr) machine_.allocated(p, bytes, stream);
    return p;
  }
  Upstream upstream_;
  tarn::sim_machine machine_;
};

}  // namespace tarn_test
