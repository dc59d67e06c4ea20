// SPDX-License-Identifier: Apache-2.0
#pragma once
// In-place heap sort without the header algorithm, which costs a compiler 40 ms.

#include <cstddef>

namespace tarn::detail {

/// Sorts `items[0, count)` by `before(a, b)`. Not stable: for a deterministic order `before` must distinguish all elements.
/// O(count log count), never allocates.
template <class T, class Before>
void sort(T* items, std::size_t count, Before const& before) {
  auto const sink = [&](std::size_t at, std::size_t end) {
    T sinking = static_cast<T&&>(items[at]);
    for (std::size_t child; (child = 2 * at + 1) < end; at = child) {
      if (child + 1 < end && before(items[child], items[child + 1])) ++child;
      if (!before(sinking, items[child])) break;
      items[at] = static_cast<T&&>(items[child]);
    }
    items[at] = static_cast<T&&>(sinking);
  };
  for (std::size_t at = count / 2; at-- > 0;) sink(at, count);
  for (std::size_t end = count; end-- > 1;) {
    T last = static_cast<T&&>(items[end]);
    items[end] = static_cast<T&&>(items[0]);
    items[0] = static_cast<T&&>(last);
    sink(0, end);
  }
}

}  // namespace tarn::detail
