// SPDX-License-Identifier: Apache-2.0
// error: tarn: this layer routes to several resources; add how each is reached
#include "spill.hpp"

template <class Upstream, class Other>
struct spill_layer : spill_base<Upstream, Other> {
  using spill_base<Upstream, Other>::spill_base;
  using routes = tarn::routes_to<Upstream, Other>;
};

int main() {
  auto second = tarn::host_memory{} | tarn::pooled{};
  auto memory = tarn::host_memory{} | tarn::pooled{} | spill<decltype(second)>{second};
  memory.record_stream(nullptr, 1, {});
}
