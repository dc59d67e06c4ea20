// SPDX-License-Identifier: Apache-2.0
#pragma once
// DALI's pool of device memory. Its headers are included by dali.cpp only.

#include <cstddef>
#include <memory>
#include <string_view>

#include "peers/cuda_streams.hpp"
#include "peers/peer.hpp"

namespace tarn::bench {

/// async_pool_resource over cuda_vm_resource, as DALI makes its default pool: it maps free physical blocks,
/// of 64 MiB on large devices, where a request needs them. It calls the driver itself, so that its calls
/// cannot be counted.
class dali_peer {
 public:
  static constexpr std::string_view name = "dali";
  static constexpr std::string_view about =
      "DALI's async_pool_resource over cuda_vm_resource, default settings";
  static constexpr place_of_memory where = place_of_memory::cuda;

  explicit dali_peer(setup const& s);
  ~dali_peer();
  dali_peer(dali_peer const&) = delete;
  dali_peer& operator=(dali_peer const&) = delete;

  void* allocate(std::size_t stream, std::size_t bytes) noexcept;
  void deallocate(std::size_t stream, void* block, std::size_t bytes) noexcept;
  [[nodiscard]] usage used() const;

 private:
  struct state;
  cuda_streams streams_;
  std::unique_ptr<state> state_;
};
static_assert(peer<dali_peer>);

}  // namespace tarn::bench
