// SPDX-License-Identifier: Apache-2.0
// error: tarn: this policy changes allocate but not its counterpart
#include "tarn/policy/compose.hpp"
#include "tarn/source/host_memory.hpp"

template <class Upstream>
struct half_layer {
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  explicit half_layer(Upstream u, auto const&) : memory(u) {}
  Upstream memory;
  Upstream& upstream() { return memory; }
  void* allocate(tarn::stream_ref s, std::size_t n, std::size_t a) { return memory.allocate(s, n, a); }
};
struct half {
  template <class Upstream>
  using layer = half_layer<Upstream>;
};

int main() {
  auto memory = tarn::host_memory{} | half{};
  memory.deallocate(tarn::stream_ref{}, nullptr, 1, 1);
}
