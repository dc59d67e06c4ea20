// SPDX-License-Identifier: Apache-2.0
// error: tarn: this policy changes no call; add: void* around_allocate
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/source/host_memory.hpp"

struct counting {
  int count = 0;
  void* allocate(tarn::request const& r, auto const& next) { return ++count, next.allocate(r); }
};

int main() {
  auto memory = tarn::host_memory{} | tarn::around<counting>{};
  memory.deallocate({}, memory.allocate({}, 10), 10);
}
