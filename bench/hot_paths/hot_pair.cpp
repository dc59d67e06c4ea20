// SPDX-License-Identifier: Apache-2.0
// tarn_hot_pair POOL BYTES PAIRS: allocates and frees one block again and again, and nothing else, for
// instructions.sh to count.

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "hot_paths/timing.hpp"
#include "peers/host_malloc.hpp"
#include "peers/mimalloc.hpp"
#include "peers/simulated_device.hpp"
#include "peers/std_pmr.hpp"
#include "peers/tarn_pool.hpp"

namespace {

using namespace tarn::bench;

struct counts {
  std::size_t bytes = 0;
  std::uint64_t pairs = 0;
};

template <peer P>
bool run_if(std::string_view name, counts n) {
  if (name != P::name) return false;
  P pool{setup{}};
  for (std::uint64_t i = 0; i < n.pairs; ++i) {
    void* const block = pool.allocate(0, n.bytes);
    keep(block);
    pool.deallocate(0, block, n.bytes);
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "use: tarn_hot_pair POOL BYTES PAIRS\n";
    return 2;
  }
  std::string_view const name = argv[1];
  counts const n{std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10)};
  if (name == mimalloc::name && !mimalloc::installed()) return 77;
  bool const known = run_if<tarn_pool<simulated_device, with_defaults>>(name, n) ||
                     run_if<tarn_pool<simulated_device, with_tracking>>(name, n) ||
                     run_if<tarn_pool<simulated_device, with_watching>>(name, n) ||
                     run_if<mimalloc>(name, n) || run_if<host_malloc>(name, n) || run_if<std_pmr>(name, n);
  if (!known) std::cerr << "tarn_hot_pair: no pool " << name << '\n';
  return known ? 0 : 2;
}
