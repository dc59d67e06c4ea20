// SPDX-License-Identifier: Apache-2.0
// error: tarn: not a resource; add: void deallocate(stream_ref, void*, size_t bytes, size_t alignment) noexcept
#include "tarn/core/resource.hpp"
#include "tarn/driver/no_driver.hpp"

struct almost {
  using driver_type = tarn::no_driver;
  using properties = tarn::property_set<tarn::host_accessible>;
  void* allocate(tarn::stream_ref, std::size_t, std::size_t) { return nullptr; }
  void* allocate_sync(std::size_t, std::size_t) { return nullptr; }
  void deallocate_sync(void*, std::size_t, std::size_t) noexcept {}
  tarn::no_driver const& driver() const { return d; }
  tarn::device_id device() const { return {}; }
  bool operator==(almost const&) const noexcept { return true; }
  tarn::no_driver d;
};
static_assert(tarn::check_memory_source<almost>());
int main() {}
