// SPDX-License-Identifier: Apache-2.0
#pragma once
// A value that was looked up under the hot lock, and is invalid once the lock was released. Another thread
// may then have taken the range, filled the view or ended the stream that it names. If TARN_CHECK_LOCKS is 1,
// each use compares the hold of the lookup with the current one and aborts if they differ; otherwise the
// object is the value alone.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tarn/core/config.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/pool/arena/hot_lock.hpp"

namespace TARN_NAMESPACE::detail {

/// Where a value was looked up, and during which hold of the lock.
template <bool Checked>
class lookup_record {
 public:
  lookup_record(hot_lock const& held, source_location where) noexcept
      : hold_(held.hold().number()), where_(where) {}

  /// Aborts if the lock was released since the lookup. @param use  the place that uses the value
  void check_held(hot_lock const& held, source_location use) const noexcept {
    if (held.hold().number() == hold_) [[likely]]
      return;
    source_location const released = held.hold().released_at();
    std::fprintf(stderr,
                 "tarn: a value looked up at %s:%d is used at %s:%d after the pool's lock was released (last "
                 "at %s:%d). "
                 "Look it up again.\n",
                 where_.file, where_.line, use.file, use.line, released.file, released.line);
    std::abort();
  }

 private:
  std::uint64_t hold_;
  source_location where_;
};
template <>
class lookup_record<false> {
 public:
  lookup_record(hot_lock const&, source_location) noexcept {}
  void check_held(hot_lock const&, source_location) const noexcept {}
};

template <class T>
class looked_up {
 public:
  /// @param held  the lock under which `value` was found
  looked_up(hot_lock const& held, T value, source_location where = source_location::current())
      : value_(std::move(value)), record_(held, where) {}

  /// The value, under the same hold of the lock. No cost if TARN_CHECK_LOCKS is 0.
  [[nodiscard]] T const& get(hot_lock const& held,
                             source_location use = source_location::current()) const noexcept {
    record_.check_held(held, use);
    return value_;
  }
  [[nodiscard]] T& get(hot_lock const& held, source_location use = source_location::current()) noexcept {
    record_.check_held(held, use);
    return value_;
  }

 private:
  T value_;
  [[no_unique_address]] lookup_record<check_locks> record_;
};

}  // namespace TARN_NAMESPACE::detail
