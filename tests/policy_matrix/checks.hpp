// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checks of what the documentation promises for every stack, compiled once.

#include <cstdint>
#include <string_view>
#include <vector>

#include "subject.hpp"

namespace policy_matrix {

/// One promise. A check that does not apply to a stack does nothing.
struct promise {
  std::string_view name;
  void (*check)(stack_under_test const& stack, test_device& device, test_memory& memory, report& out);
};

/// All promises except promise_of_ending_threads().
[[nodiscard]] std::vector<promise> const& promises();
/// A thread that ends leaves bounded host memory.
[[nodiscard]] promise const& promise_of_ending_threads();

/// Runs one promise on a new device and new memory, and checks for leaks.
void run(promise const& p, stack_under_test const& stack, unsigned mode, report& out);
/// Runs a random correct program against a model of the live blocks.
void run_random(stack_under_test const& stack, unsigned mode, std::uint64_t seed, unsigned steps,
                report& out);

/// Each returns the stacks of one file.
[[nodiscard]] std::vector<stack_under_test> stacks_of_sources();
[[nodiscard]] std::vector<stack_under_test> stacks_of_policies();
[[nodiscard]] std::vector<stack_under_test> stacks_below_pools();
[[nodiscard]] std::vector<stack_under_test> stacks_short();
inline constexpr unsigned pair_parts = 4;
template <unsigned Part>
void add_pairs_of_part(std::vector<stack_under_test>& all);
template <>
void add_pairs_of_part<0>(std::vector<stack_under_test>& all);
template <>
void add_pairs_of_part<1>(std::vector<stack_under_test>& all);
template <>
void add_pairs_of_part<2>(std::vector<stack_under_test>& all);
template <>
void add_pairs_of_part<3>(std::vector<stack_under_test>& all);

}  // namespace policy_matrix
