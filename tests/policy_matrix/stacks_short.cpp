// SPDX-License-Identifier: Apache-2.0
// A few stacks that use every policy, for mutants/run.py, which builds them once for each planted bug.
#include "adapter.hpp"
#include "checks.hpp"
#include "sim_device.hpp"

template class tarn::pool<tarn::basic_pages<policy_matrix::matrix_driver>>;
template class tarn::pool<tarn::basic_managed<policy_matrix::matrix_driver>>;

namespace policy_matrix {

std::vector<stack_under_test> stacks_short() {
  std::vector<stack_under_test> all;
  for_each_policy<sim_device, of::pages>::over_pool(all, block_policies{});
  add_stack<sim_device, of::blocks_of_malloc, noted>(all);
  add_stack<sim_device, of::async, noted>(all);
  add_stack<sim_device, of::blocks_of_malloc, with::retry_on_oom, with::pooled, noted>(all);
  add_stack<sim_device, of::pages, with::pooled, noted, with::fallback_to, with::tracked>(all);
  return all;
}

}  // namespace policy_matrix
