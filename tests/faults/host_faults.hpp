// SPDX-License-Identifier: Apache-2.0
#pragma once
// A global operator new that refuses on demand and counts what is live. Linking host_faults.cpp replaces it.

#include <cstddef>
#include <cstdint>

namespace tarn_test {

/// The host memory of operator new. Requests under a `not_counted` guard are neither counted nor refused: the
/// test's own bookkeeping and the simulated machine, which stands for the driver. Safe from any thread.
class host_faults {
 public:
  enum class lasting : std::uint8_t { once, for_good };

  /// Makes the nth counted request from now fail, or that one and all later ones.
  static void arm(std::uint64_t nth, lasting how) noexcept;
  static void disarm() noexcept;
  /// Counted requests since the last reset().
  static std::uint64_t asked() noexcept;
  /// How many of them were refused.
  static std::uint64_t refused() noexcept;
  /// Counted allocations that are not freed yet.
  static std::int64_t live() noexcept;
  static void reset() noexcept;

  class not_counted {
   public:
    not_counted() noexcept;
    ~not_counted();
    not_counted(not_counted const&) = delete;
    not_counted& operator=(not_counted const&) = delete;
  };
  /// The opposite, for a section of the library's code inside the test's own.
  class counted {
   public:
    counted() noexcept;
    ~counted();
    counted(counted const&) = delete;
    counted& operator=(counted const&) = delete;

   private:
    unsigned before_;
  };
};

}  // namespace tarn_test
