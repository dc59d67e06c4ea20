// SPDX-License-Identifier: Apache-2.0
// error: tarn: around<Policy> makes its policy without arguments; a policy with options adds: template <class
#include "tarn/policy/compose.hpp"
#include "tarn/policy/resource_adaptor.hpp"
#include "tarn/source/host_memory.hpp"

struct counting {
  explicit counting(int first) : count(first) {}
  int count;
  void* around_allocate(tarn::request const& r, auto const& next) { return ++count, next.allocate(r); }
};

int main() {
  auto memory = tarn::host_memory{} | tarn::around<counting>{};
  memory.deallocate({}, memory.allocate({}, 10), 10);
}
