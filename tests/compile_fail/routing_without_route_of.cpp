// SPDX-License-Identifier: Apache-2.0
// error: tarn: this layer routes to several resources but does not say which one an address belongs to
#include "spill.hpp"

template <class Upstream, class Other>
struct spill_layer : spill_base<Upstream, Other> {
  using spill_base<Upstream, Other>::spill_base;
  using routes = tarn::routes_to<Upstream, Other>;
  template <class F>
  decltype(auto) with_routes(F const& f) {
    return f(this->memory, this->other);
  }
};

int main() {
  auto second = tarn::host_memory{} | tarn::pooled{};
  auto memory = tarn::host_memory{} | tarn::pooled{} | spill<decltype(second)>{second};
  memory.record_stream(nullptr, 1, {});
}
