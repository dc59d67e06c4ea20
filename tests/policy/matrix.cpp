// SPDX-License-Identifier: Apache-2.0
// The policy matrix (tests/policy_matrix) as unit tests. A finding is printed with its stack and promise; the
// program tarn_policy_matrix reproduces it: `tarn_policy_matrix --only "pages | pooled | fenced"`.
#include "catch.hpp"
#include "policy_matrix/all_stacks.hpp"

using namespace policy_matrix;

namespace {
void require_nothing(report const& out) {
  std::string all;
  for (std::string const& found : out.found()) all += found + '\n';
  INFO(all);
  CHECK(all.empty());
}
}  // namespace

TEST_CASE("policy_matrix promises hold on every policy, every source and every pair of policies",
          "[policy][matrix]") {
  unsigned pairs = 0;
  for (stack_under_test const& stack : all_stacks()) {
    bool const is_pair = stack.policies > 1;
    for (unsigned mode = 0; mode < device_modes; ++mode) {
      // Each pair of policies runs on one kind of device; successive pairs take the kinds in turn.
      if (!has_mode(stack, mode) || (is_pair && mode != pairs % device_modes)) continue;
      for (promise const& p : promises()) {
        report out;
        run(p, stack, mode, out);
        require_nothing(out);
      }
    }
    pairs += is_pair ? 1 : 0;
  }
}

TEST_CASE("run_random of the policy_matrix keeps the counts and the contents of every stack",
          "[policy][matrix]") {
  std::uint64_t seed = 0;
  for (stack_under_test const& stack : all_stacks()) {
    ++seed;
    report out;
    run_random(stack, static_cast<unsigned>(seed % device_modes), seed, 60, out);
    require_nothing(out);
  }
}

TEST_CASE("promise_of_ending_threads: a thread that ends leaves bounded host memory on each stack",
          "[policy][matrix]") {
  for (stack_under_test const& stack : all_stacks()) {
    if (stack.policies > 1) continue;
    report out;
    run(promise_of_ending_threads(), stack, 0, out);
    require_nothing(out);
  }
}
