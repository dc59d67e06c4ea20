// SPDX-License-Identifier: Apache-2.0
// error: tarn: around_allocate of this policy cannot be called; declare it: public: void* around_allocate
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/source/host_memory.hpp"

struct counting {
  int count = 0;
  void* around_allocate(tarn::request& r, auto const& next) { return ++count, next.allocate(r); }
};

int main() {
  auto memory = tarn::host_memory{} | tarn::around<counting>{};
  memory.deallocate({}, memory.allocate({}, 10), 10);
}
