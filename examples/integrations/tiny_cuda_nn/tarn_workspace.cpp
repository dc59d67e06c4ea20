// SPDX-License-Identifier: Apache-2.0
#include "tarn_workspace.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "known_streams.hpp"

namespace tcnn::tarn_workspace {

namespace {
std::optional<tarn::device_pool>& pool() {
  static auto* const here = new std::optional<tarn::device_pool>;  // static matrices are freed at the end
  return *here;
}
}  // namespace

void use(tarn::device_pool memory) {
  pool() = std::move(memory);
}
bool in_use() noexcept {
  return pool().has_value();
}
unsigned long long identity_of(cudaStream_t stream) noexcept {
  return tarn_clients::identity_of(stream);
}
std::uint8_t* allocate(cudaStream_t stream, unsigned long long id, std::size_t bytes) {
  return static_cast<std::uint8_t*>(pool()->allocate(tarn::stream_ref::from(stream, id), bytes));
}
void free(cudaStream_t stream, unsigned long long id, std::uint8_t* data, std::size_t bytes) noexcept {
  pool()->deallocate(tarn::stream_ref::from(stream, id), data, bytes);
}
void free_cached() noexcept {
  if (pool()) pool()->empty_cache();
}

}  // namespace tcnn::tarn_workspace
