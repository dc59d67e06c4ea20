// SPDX-License-Identifier: Apache-2.0
// Every policy over a pool, and over bare sources.
#include "adapter.hpp"
#include "checks.hpp"
#include "sim_device.hpp"

namespace policy_matrix {

std::vector<stack_under_test> stacks_of_policies() {
  std::vector<stack_under_test> all;
  for_each_policy<sim_device, of::pages>::over_pool(all, block_policies{});
  for_each_policy<sim_device, of::pages>::over_handle(all, block_policies{});
  for_each_policy<sim_device, of::blocks_of_malloc>::over_source(all, block_policies{});
  for_each_policy<sim_device, of::async>::over_source(all, block_policies{});
  add_stack<sim_device, of::pages, with::pooled, noted, with::reserved>(all);
  add_stack<sim_device, of::pages, with::pooled, noted, with::tracked, with::reserved, with::fenced>(all);
  add_stack<sim_device, of::pages, with::pooled, noted, with::fallback_to, with::reserved>(all);
  add_stack<sim_device, of::blocks_of_malloc, noted, with::reserved>(all);
  add_stack<sim_device, of::async, noted, with::reserved>(all);
  return all;
}

}  // namespace policy_matrix
