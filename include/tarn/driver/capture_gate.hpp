// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps calls that would end a graph capture apart from captures that tarn knows of. Two calls concern the
// whole device and invalidate every capture on it, whichever thread makes them: cuCtxRecordEvent and
// cudaDeviceSynchronize. While a capture_scope is open they are refused here, as CUDA would refuse them, but
// without the call.

#include <atomic>
#include <cstdint>

#include "tarn/core/error.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/wait.hpp"

namespace TARN_NAMESPACE::detail {

// What is one for a process, whichever versions of tarn are in it: a C interface with a version of its own,
// which modules with hidden symbols export, too. Frozen: the names, the types, and the meaning of the bits. A
// change of any of these gives both names the number 2; versions with different numbers do not see each
// other's captures.
//
//   tarn_captures_1            bits 0..15   calls in progress that would invalidate a capture; none begins while a capture is open
//                              bits 16..31  open captures; one that begins waits for those calls
//                              bits 32..63  how often the last open capture has ended
//   tarn_captures_1_of_thread  captures that this thread has begun and not ended
extern "C" {
[[gnu::visibility("default")]] inline constinit std::atomic<std::uint64_t> tarn_captures_1{0};
[[gnu::visibility("default")]] inline constinit thread_local unsigned tarn_captures_1_of_thread = 0;
}

/// Counts the open captures of the process and the calls in progress that would invalidate one. Lock-free; a
/// capture that begins waits for those calls, which take a microsecond.
class capture_gate {
 public:
  /// One call that would invalidate a capture; converts to false if it must not be made now.
  class passage {
   public:
    passage() noexcept : may_pass_(enter()) {}
    passage& operator=(passage&&) = delete;
    ~passage() {
      if (may_pass_) tarn_captures_1.fetch_sub(one_call, std::memory_order_release);
    }
    explicit operator bool() const noexcept { return may_pass_; }

   private:
    bool may_pass_;
  };

  /// Made before a call: whether a capture was open at any time from then on.
  class watch {
   public:
    watch() noexcept : captures_(captures_now()) {}
    [[nodiscard]] bool saw_capture() const noexcept {
      return (captures_ & captures) != 0 || captures_now() != captures_;
    }

   private:
    std::uint64_t captures_;
  };

  static void begin_capture() noexcept {
    ++tarn_captures_1_of_thread;
    tarn_captures_1.fetch_add(one_capture, std::memory_order_acq_rel);
    // Not forever: in a forked child, a call that another thread of the parent was in never ends.
    for (unsigned tries = 0;
         (tarn_captures_1.load(std::memory_order_acquire) & calls) != 0 && tries < most_tries; ++tries)
      spin_wait(tries);
  }
  /// The same, but returns false where it would wait.
  [[nodiscard]] static bool try_begin_capture() noexcept {
    std::uint64_t now = tarn_captures_1.load(std::memory_order_relaxed);
    while ((now & calls) == 0) {
      if (!tarn_captures_1.compare_exchange_weak(now, now + one_capture, std::memory_order_acq_rel)) continue;
      ++tarn_captures_1_of_thread;
      return true;
    }
    return false;
  }
  /// Does nothing if none is open: in a forked child a capture of another thread of the parent is not.
  /// @param is_own  whether this thread began it
  static void end_capture(bool is_own = true) noexcept {
    if (is_own && tarn_captures_1_of_thread != 0) --tarn_captures_1_of_thread;
    std::uint64_t now = tarn_captures_1.load(std::memory_order_relaxed);
    for (std::uint64_t left = 0; (now & captures) != 0;) {
      left = now - one_capture;
      if ((left & captures) == 0) left += one_end;
      if (tarn_captures_1.compare_exchange_weak(now, left, std::memory_order_release)) return;
    }
  }
  /// In a forked child: the captures and the calls of other threads of the parent do not exist there.
  static void forget_other_threads() noexcept {
    std::uint64_t const now = tarn_captures_1.load(std::memory_order_relaxed);
    // Another thread may have ended a capture of this one.
    std::uint64_t const own = min_of(tarn_captures_1_of_thread * one_capture, now & captures);
    tarn_captures_1.store((now & ~(captures | calls)) + one_end + own, std::memory_order_relaxed);
  }
  /// Waits until no capture is open; returns false if one still is after 5 to 10 s, as when the caller's own
  /// thread has it open.
  [[nodiscard]] static bool wait_for_captures() noexcept {
    for (unsigned tries = 0; has_captures() && tries < most_tries; ++tries) spin_wait(tries);
    return !has_captures();
  }
  /// Whether this thread has begun a capture that it has not ended. Stays true if another thread has ended
  /// it.
  [[nodiscard]] static bool may_be_mine() noexcept { return tarn_captures_1_of_thread != 0; }
  [[nodiscard]] static bool has_captures() noexcept { return (captures_now() & captures) != 0; }
  /// How often the last open capture has ended: equal values have no such moment between them.
  [[nodiscard]] static std::uint64_t ends() noexcept { return captures_now() & ~captures; }

 private:
  static bool enter() noexcept {
    std::uint64_t now = tarn_captures_1.load(std::memory_order_relaxed);
    while ((now & captures) == 0) {
      if (tarn_captures_1.compare_exchange_weak(now, now + one_call, std::memory_order_acquire)) return true;
    }
    return false;
  }
  static std::uint64_t captures_now() noexcept {
    return tarn_captures_1.load(std::memory_order_acquire) & ~calls;
  }

  static constexpr unsigned most_tries = 100'000;  ///< 5 to 10 s, see spin_wait()
  static constexpr std::uint64_t one_call = 1;
  static constexpr std::uint64_t one_capture = std::uint64_t{1} << 16;
  static constexpr std::uint64_t one_end = std::uint64_t{1} << 32;
  static constexpr std::uint64_t calls = one_capture - 1;
  static constexpr std::uint64_t captures = one_end - one_capture;
};

/// Whether a call was refused because a graph is being captured: CUDA's error codes, which every driver uses.
[[nodiscard]] constexpr bool is_capture_error(status const& s) noexcept {
  return s.code >= 900 && s.code <= 907;
}
/// The call that an allocation outside of a scope is refused as.
inline constexpr char const* captured_without_scope =
    "allocation on a captured stream (open a tarn::capture_scope for it, or join() it to the open one)";
[[nodiscard]] constexpr status refused_for_capture(char const* call) noexcept {
  return {failure::other, 900, "cudaErrorStreamCaptureUnsupported", call};
}

}  // namespace TARN_NAMESPACE::detail
