// SPDX-License-Identifier: Apache-2.0
#pragma once
// Who may touch the memory: empty tags that a resource lists in its type.

#include <type_traits>

namespace tarn {

/// Kernels may read and write it.
struct device_accessible {};
/// The host may read and write it.
struct host_accessible {};

/// A list of tags; a resource has `using properties = property_set<device_accessible>;`.
template <class... Tags>
struct property_set {
  template <class Tag>
  static constexpr bool has = (std::is_same_v<Tag, Tags> || ...);
};

/// True where the resource's memory carries the tag.
template <class Resource, class Tag>
inline constexpr bool has_property = Resource::properties::template has<Tag>;

}  // namespace tarn
