// SPDX-License-Identifier: Apache-2.0
// Every source, bare and under a pool; and a pool over a pool.
#include "adapter.hpp"
#include "checks.hpp"
#include "sim_device.hpp"

template class tarn::pool<tarn::basic_pages<policy_matrix::matrix_driver>>;
template class tarn::pool<tarn::basic_managed<policy_matrix::matrix_driver>>;

namespace policy_matrix {

std::vector<stack_under_test> stacks_of_sources() {
  std::vector<stack_under_test> all;
  add_stack<sim_device, of::blocks_of_malloc, noted>(all);
  add_stack<sim_device, of::async, noted>(all);
  add_stack<sim_device, of::async_pinned, noted>(all);
  add_stack<sim_device, of::async_managed, noted>(all);
  add_stack<sim_device, of::pinned, noted>(all);
  add_stack<sim_device, of::registered, noted>(all);
  add_stack<sim_device, of::managed, noted>(all);
  add_stack<host_device, of::host, noted>(all);
  add_stack<sim_device, of::pages, with::pooled, noted>(all);
  add_stack<sim_device, of::blocks_of_malloc, with::pooled, noted>(all);
  add_stack<sim_device, of::async, with::pooled, noted>(all);
  add_stack<sim_device, of::pinned, with::pooled, noted>(all);
  add_stack<sim_device, of::registered, with::pooled, noted>(all);
  add_stack<sim_device, of::managed, with::pooled, noted>(all);
  add_stack<sim_device, of::managed, with::pooled, noted, with::prefetched>(all);
  add_stack<host_device, of::host, with::pooled, noted>(all);
  add_stack<sim_device, of::blocks_of_malloc, with::pooled, with::pooled, noted>(all);
  return all;
}

}  // namespace policy_matrix
