// SPDX-License-Identifier: Apache-2.0
#pragma once
// check_all() and report_leaks() of the checked layer of a stack, whatever policies are above it.

#include <cstddef>

#include "tarn/core/layers.hpp"

namespace TARN_NAMESPACE {

/// Verifies all blocks: checked_layer::check_all() (debug/checked.hpp). Returns the number of findings.
/// @throws std::bad_alloc
template <class Resource>
std::size_t check_all(Resource const& memory) {
  auto const call = [](auto& layer) -> decltype(layer.check_all()) { return layer.check_all(); };
  static_assert(reachable<Resource, decltype(call)>,
                "tarn: this needs checked memory; add: | tarn::checked{}");
  return nearest(memory, call);
}
/// Reports live blocks: checked_layer::report_leaks() (debug/checked.hpp). Returns their number. @throws
/// std::bad_alloc
template <class Resource>
std::size_t report_leaks(Resource const& memory) {
  auto const call = [](auto& layer) -> decltype(layer.report_leaks()) { return layer.report_leaks(); };
  static_assert(reachable<Resource, decltype(call)>,
                "tarn: this needs checked memory; add: | tarn::checked{}");
  return nearest(memory, call);
}

}  // namespace TARN_NAMESPACE
