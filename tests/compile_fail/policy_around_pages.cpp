// SPDX-License-Identifier: Apache-2.0
// error: tarn: this policy changes the calls of blocks; put it over the pool: pages | pooled{} | policy{}
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/source/sim_sources.hpp"

struct counting {
  int count = 0;
  void* around_allocate(tarn::request const& r, auto const& next) { return ++count, next.allocate(r); }
};

int main() {
  auto memory = tarn::sim_pages{} | tarn::around<counting>{} | tarn::pooled{};
  memory.deallocate({}, memory.allocate({}, 10), 10);
}
