// SPDX-License-Identifier: Apache-2.0
// Standard containers in pooled pinned memory, by tarn::stl_allocator and by std::pmr.

#include <tarn/pmr.hpp>
#include <tarn/stl.hpp>
#include <tarn/tarn.hpp>

#include <iostream>
#include <list>
#include <memory_resource>
#include <numeric>
#include <unordered_map>
#include <vector>

int main() {
  auto pinned = tarn::pinned_host{} | tarn::pooled{} | tarn::tracked{};
  using memory = decltype(pinned);
  std::vector<int, tarn::stl_allocator<int, memory>> numbers(1000, tarn::stl_allocator<int, memory>(pinned));
  std::iota(numbers.begin(), numbers.end(), 0);
  std::list<double, tarn::stl_allocator<double, memory>> list({1.5, 2.5}, pinned);
  using entry = std::pair<int const, int>;
  std::unordered_map<int, int, std::hash<int>, std::equal_to<int>, tarn::stl_allocator<entry, memory>> map(
      8, tarn::stl_allocator<entry, memory>(pinned));
  map[3] = 9;
  auto adaptor = tarn::as_pmr_resource(pinned);
  std::pmr::vector<char> text(&adaptor);
  text.assign(100, 'x');
  std::cout << "sum " << std::accumulate(numbers.begin(), numbers.end(), 0) << ", list of " << list.size()
            << ", map[3] " << map[3] << ", text of " << text.size() << "\n"
            << "all of it in pinned memory: " << (tarn::memory_allocated(pinned) >= 4000 ? "yes" : "no")
            << "\n";
}
