// SPDX-License-Identifier: Apache-2.0

#include "tarn/core/shared_resource.hpp"

#include "catch.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"

using namespace tarn;

TEST_CASE("copies of a stack are the same resource and outlive the original", "[core][shared_resource]") {
  auto first = std::make_unique<stack<host_memory, pooled>>();
  auto copy = *first;
  void* const p = first->allocate(stream_ref{}, 100);
  CHECK(copy == *first);
  first.reset();
  copy.deallocate(stream_ref{}, p, 100);
  CHECK(copy->state().live == 0);
  stack<host_memory, pooled> other;
  CHECK_FALSE(copy == other);
}

TEST_CASE("allocate, allocate_sync and allocate_async reach the same memory", "[core][shared_resource]") {
  auto memory = host_memory{} | pooled{};
  void* const a = memory.allocate(512, 256);
  memory.deallocate(a, 512, 256);
  void* const b = memory.allocate_sync(512);
  CHECK(a == b);
  memory.deallocate_sync(b, 512);
  void* const c = memory.allocate_async(512, 256, stream_ref{});
  memory.deallocate_async(c, 512, 256, stream_ref{});
  void* const d = memory.allocate({}, 512);  // {} is a stream, not bytes
  memory.deallocate({}, d, 512);
  CHECK(memory->state().live == 0);
}

namespace {
/// A layer without any call of its own.
struct plain_layer {
  using upstream_type = host_memory;
  using driver_type = host_memory::driver_type;
  using properties = host_memory::properties;
  explicit plain_layer(host_memory memory) : below(memory) {}
  host_memory& upstream() noexcept { return below; }
  [[nodiscard]] driver_type const& driver() const noexcept { return below.driver(); }
  host_memory below;
};
}  // namespace

TEST_CASE("extend is false over a source that extends nothing", "[core][shared_resource]") {
  shared_resource<plain_layer> memory(std::in_place, host_memory{});
  void* const p = memory.allocate({}, 1000);
  CHECK_FALSE(memory.extend({}, p, 1000, 1000));
  memory.deallocate({}, p, 1000);
}

TEST_CASE("stack forwards a call to the layer that implements it", "[core][shared_resource]") {
  auto memory = host_memory{} | pooled{} | limited{1_GiB};
  void* const p = memory.allocate({}, 3_MiB);
  CHECK(memory.owns(p));
  int local = 0;
  CHECK_FALSE(memory.owns(&local));
  memory.deallocate({}, p, 3_MiB);
  CHECK(memory.largest_free_range() < 1_GiB);
  CHECK(memory.trim(0) > 0);
  auto const state = nearest(memory, [](auto& l) -> decltype(l.state()) { return l.state(); });
  CHECK(state.reserved == 0);
  static_assert(!page_source<decltype(memory)>);
}
