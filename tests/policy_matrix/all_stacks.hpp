// SPDX-License-Identifier: Apache-2.0
#pragma once
// Every stack of every file. With TARN_MATRIX_SHORT only those of stacks_short.cpp, which compile faster;
// with TARN_FEWER_CASES a quarter of the pairs of policies.

#include <iterator>
#include <utility>
#include <vector>

#include "checks.hpp"

namespace policy_matrix {

[[nodiscard]] inline std::vector<stack_under_test> all_stacks() {
#if defined(TARN_MATRIX_SHORT)
  return stacks_short();
#else
  std::vector<stack_under_test> all = stacks_of_sources();
  for (auto* const more : {&stacks_of_policies, &stacks_below_pools}) {
    auto some = more();
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  add_pairs_of_part<0>(all);
#if !defined(TARN_FEWER_CASES)
  add_pairs_of_part<1>(all);
  add_pairs_of_part<2>(all);
  add_pairs_of_part<3>(all);
#endif
  return all;
#endif
}

}  // namespace policy_matrix
