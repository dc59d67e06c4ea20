// SPDX-License-Identifier: Apache-2.0
#pragma once
// Concatenates strings.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "tarn/version.hpp"

namespace TARN_NAMESPACE::detail {

/// Returns the concatenation of the parts, with one allocation. Use it in place of `"text" +
/// std::string(...)`: g++ 12 inlines that operator and then warns in the user's program (-Wrestrict), at -O2
/// and above. @throws std::bad_alloc
[[nodiscard]] inline std::string concat(std::initializer_list<std::string_view> parts) {
  std::size_t size = 0;
  for (std::string_view const part : parts) size += part.size();
  std::string out;
  out.reserve(size);
  for (std::string_view const part : parts) out += part;
  return out;
}

}  // namespace TARN_NAMESPACE::detail
