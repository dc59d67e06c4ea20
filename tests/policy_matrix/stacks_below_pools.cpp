// SPDX-License-Identifier: Apache-2.0
// Every policy below a pool: over blocks, or over pages if the policy supports pages.
#include "adapter.hpp"
#include "checks.hpp"
#include "sim_device.hpp"

namespace policy_matrix {

std::vector<stack_under_test> stacks_below_pools() {
  std::vector<stack_under_test> all;
  for_each_policy<sim_device, of::blocks_of_malloc, with::pooled, noted>::below(all, block_policies{});
  for_each_policy<sim_device, of::pages, with::pooled, noted>::below(all, page_policies{});
  add_stack<sim_device, of::pages, with::limited, with::accessible_from, with::pooled, noted>(all);
  add_stack<sim_device, of::pages, with::accessible_from, with::limited, with::pooled, noted>(all);
  return all;
}

}  // namespace policy_matrix
