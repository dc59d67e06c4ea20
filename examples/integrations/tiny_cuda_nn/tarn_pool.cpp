// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "tarn_workspace.hpp"
#include "train_image.hpp"

namespace tarn_tcnn {

namespace {
std::optional<tarn::device_pool> pool;
}  // namespace

void use_tarn() {
  pool.emplace();
  tcnn::tarn_workspace::use(*pool);
}
std::size_t peak_of_tarn() {
  return pool ? tarn::max_memory_allocated(*pool) : 0;
}
void empty_tarn() {
  if (pool) pool->empty_cache();
}

}  // namespace tarn_tcnn
