// SPDX-License-Identifier: Apache-2.0
// tarn_hot_pair POOL BYTES PAIRS: allocates and frees one block repeatedly, and nothing else; instructions.sh
// counts its instructions.

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "hot_paths/hot_pair.hpp"
#include "peers/host_malloc.hpp"
#include "peers/mimalloc.hpp"
#include "peers/std_pmr.hpp"
#include "peers/tarn_pool.hpp"

using namespace tarn::bench;

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "use: tarn_hot_pair POOL BYTES PAIRS\n";
    return 2;
  }
  std::string_view const name = argv[1];
  counts const n{std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10)};
  if (name == mimalloc::name && !mimalloc::installed()) return 77;
  bool const known = run_if<tarn_pool<idle_device, with_defaults>>(name, n) ||
                     run_if<tarn_pool<idle_device, with_tracking>>(name, n) || run_if_watched(name, n) ||
                     run_if<mimalloc>(name, n) || run_if<host_malloc>(name, n) || run_if<std_pmr>(name, n);
  if (!known) std::cerr << "tarn_hot_pair: no pool " << name << '\n';
  return known ? 0 : 2;
}
