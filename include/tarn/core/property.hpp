// SPDX-License-Identifier: Apache-2.0
#pragma once
// Memory accessibility: empty tags that a resource lists in its type.

#include <type_traits>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE {

/// Kernels may read and write the memory.
struct device_accessible {};
/// The host may read and write the memory.
struct host_accessible {};

/// A list of tags; a resource declares `using properties = property_set<device_accessible>;`.
template <class... Tags>
struct property_set {
  template <class Tag>
  static constexpr bool has = (std::is_same_v<Tag, Tags> || ...);
};

/// True if the resource's memory has the tag.
template <class Resource, class Tag>
inline constexpr bool has_property = Resource::properties::template has<Tag>;

}  // namespace TARN_NAMESPACE
