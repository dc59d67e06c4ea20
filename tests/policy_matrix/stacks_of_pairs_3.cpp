// SPDX-License-Identifier: Apache-2.0
// Pairs of policies over a pool, part 3: the index of the lower policy in the list is 3 modulo pair_parts.
#include "adapter.hpp"
#include "checks.hpp"
#include "sim_device.hpp"

namespace policy_matrix {

template <>
void add_pairs_of_part<3>(std::vector<stack_under_test>& all) {
  add_pairs<sim_device, of::pages>(all, part_of<3, pair_parts, block_policies>{}, block_policies{});
}

}  // namespace policy_matrix
