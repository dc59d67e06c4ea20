// SPDX-License-Identifier: Apache-2.0
#pragma once
// In-place heap sort without the header algorithm, which costs a compiler 40 ms.

#include <cstddef>

#include "tarn/core/config.hpp"

namespace TARN_NAMESPACE::detail {

/// Restores the order of a heap in `items[0, end)` whose item `at` may be out of it: none is before those
/// below it.
template <class T, class Before>
void sink_in_heap(T* items, std::size_t at, std::size_t end, Before const& before) {
  T sinking = static_cast<T&&>(items[at]);
  for (std::size_t child; (child = 2 * at + 1) < end; at = child) {
    TARN_VISIT();
    if (child + 1 < end && before(items[child], items[child + 1])) ++child;
    if (!before(sinking, items[child])) break;
    items[at] = static_cast<T&&>(items[child]);
  }
  items[at] = static_cast<T&&>(sinking);
}
/// Makes a heap of `items[0, count)`; its first item is the last in the order of `before(a, b)`. O(count),
/// never allocates.
template <class T, class Before>
void make_heap(T* items, std::size_t count, Before const& before) {
  for (std::size_t at = count / 2; at-- > 0;) sink_in_heap(items, at, count, before);
}
/// Moves the first item of a heap to `items[count - 1]`; those before it are a heap. O(log count), never
/// allocates.
template <class T, class Before>
void pop_heap(T* items, std::size_t count, Before const& before) {
  T last = static_cast<T&&>(items[count - 1]);
  items[count - 1] = static_cast<T&&>(items[0]);
  items[0] = static_cast<T&&>(last);
  sink_in_heap(items, 0, count - 1, before);
}

/// Sorts `items[0, count)` by `before(a, b)`. Not stable: for a deterministic order `before` must distinguish
/// all elements. O(count log count), never allocates.
template <class T, class Before>
void sort(T* items, std::size_t count, Before const& before) {
  make_heap(items, count, before);
  for (std::size_t end = count; end > 1; --end) pop_heap(items, end, before);
}

}  // namespace TARN_NAMESPACE::detail
