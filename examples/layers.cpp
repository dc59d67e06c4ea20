// SPDX-License-Identifier: Apache-2.0
// Objects that own device memory in a std::vector: they are moved when it grows, and the memory stays where
// it is.

#include "layer.hpp"

#include <iostream>
#include <vector>

int main() {
  tarn::device_pool pool;
  tarn::stream stream;

  std::vector<layer> network;
  network.emplace_back(pool, 784, 256, stream);
  float const* const weights = network[0].weights();
  network.emplace_back(pool, 256, 64, stream);
  network.emplace_back(pool, 64, 10, stream);
  std::cout << "the first layer's weights " << (network[0].weights() == weights ? "stayed" : "moved") << '\n';

  network.back().resize(100);
  std::cout << network.size() << " layers, " << tarn::memory_allocated(pool) << " bytes\n";
  network.clear();
  std::cout << "without them: " << tarn::memory_allocated(pool) << " bytes\n";
}
