// SPDX-License-Identifier: Apache-2.0
// error: tarn: this layer routes to several resources but does not route record_stream
#include <utility>

#include "tarn/policy/compose.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/host_memory.hpp"

template <class Upstream, class Other>
struct spill_layer {
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  using routes = tarn::routes_to<Upstream, Other>;
  spill_layer(Upstream u, auto const& options) : memory(std::move(u)), other(options.other) {}
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
  template <class F>
  decltype(auto) with_routes(F const& f) {
    return f(memory, other);
  }
  std::size_t route_of(void const*) const noexcept { return 0; }
  std::size_t trim(std::size_t keep) { return memory.trim(keep) + other.trim(keep); }
};
template <class Other>
struct spill {
  Other other;
  template <class Upstream>
  using layer = spill_layer<Upstream, Other>;
};

int main() {
  tarn::host_memory second;
  auto memory = tarn::host_memory{} | tarn::pooled{} | spill<decltype(second)>{second};
  memory.record_stream(nullptr, 1, {});
}
