// SPDX-License-Identifier: Apache-2.0
// error: tarn: this layer routes to several resources but does not route record_stream
#include "spill.hpp"

template <class Upstream, class Other>
struct spill_layer : spill_base<Upstream, Other> {
  using spill_base<Upstream, Other>::spill_base;
  using routes = tarn::routes_to<Upstream, Other>;
  template <class F>
  decltype(auto) with_routes(F const& f) {
    return f(this->memory, this->other);
  }
  std::size_t route_of(void const*) const noexcept { return 0; }
};

int main() {
  tarn::host_memory second;
  auto memory = tarn::host_memory{} | tarn::pooled{} | spill<decltype(second)>{second};
  memory.record_stream(nullptr, 1, {});
}
