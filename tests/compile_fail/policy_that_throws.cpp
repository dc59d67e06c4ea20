// SPDX-License-Identifier: Apache-2.0
// error: tarn: around_deallocate of this policy cannot be called; declare it: public: void around_deallocate
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/source/host_memory.hpp"

struct counting {
  int count = 0;
  void around_deallocate(tarn::request const& r, void* p, auto const& next) {
    ++count, next.deallocate(r, p);
  }
};

int main() {
  auto memory = tarn::host_memory{} | tarn::around<counting>{};
  memory.deallocate({}, memory.allocate({}, 10), 10);
}
