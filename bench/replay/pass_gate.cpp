// SPDX-License-Identifier: Apache-2.0
#include "replay/pass_gate.hpp"

#include <iostream>
#include <stdexcept>
#include <string>

namespace tarn::bench {

void pass_gate::pass() const {
  if (!asks_) return;
  std::cout << "ready" << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) throw std::runtime_error("--in-turn: standard input has ended");
}

}  // namespace tarn::bench
