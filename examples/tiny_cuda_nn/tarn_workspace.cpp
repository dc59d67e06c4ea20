// SPDX-License-Identifier: Apache-2.0
#include "tarn_workspace.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace tcnn::tarn_workspace {

namespace {
std::optional<tarn::device_pool>& pool() {
  static std::optional<tarn::device_pool> here;
  return here;
}
}  // namespace

void use(tarn::device_pool memory) {
  pool() = std::move(memory);
}
bool in_use() noexcept {
  return pool().has_value();
}
std::uint8_t* allocate(cudaStream_t stream, std::size_t bytes) {
  return static_cast<std::uint8_t*>(pool()->allocate(stream, bytes));
}
void free(cudaStream_t stream, std::uint8_t* data, std::size_t bytes) noexcept {
  pool()->deallocate(stream, data, bytes);
}
void free_cached() noexcept {
  if (pool()) pool()->empty_cache();
}

}  // namespace tcnn::tarn_workspace
