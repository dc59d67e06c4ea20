// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keeps calls that would end a graph capture apart from captures that tarn knows of. Two calls concern the
// whole device and invalidate every capture on it, whichever thread makes them: cuCtxRecordEvent and
// cudaDeviceSynchronize. While a capture_scope is open they are refused here, as CUDA would refuse them, but
// without the call.

#include <atomic>
#include <cstdint>

#include "tarn/core/error.hpp"
#include "tarn/core/wait.hpp"

namespace TARN_NAMESPACE::detail {

/// Counts the open captures of the process and the calls in progress that would invalidate one. Lock-free; a
/// capture that begins waits for those calls, which take a microsecond.
class capture_gate {
 public:
  /// One call that would invalidate a capture; converts to false if it must not be made now.
  class passage {
   public:
    passage() noexcept : may_pass_(enter()) {}
    passage(passage const&) = delete;
    passage& operator=(passage const&) = delete;
    ~passage() {
      if (may_pass_) state.fetch_sub(one_call, std::memory_order_release);
    }
    explicit operator bool() const noexcept { return may_pass_; }

   private:
    bool may_pass_;
  };

  /// Made before a call: whether a capture was open at any time from then on.
  class watch {
   public:
    watch() noexcept : begun_(begun.load(std::memory_order_relaxed)), had_captures_(has_captures()) {}
    [[nodiscard]] bool saw_capture() const noexcept {
      return had_captures_ || begun.load(std::memory_order_acquire) != begun_;
    }

   private:
    std::uint64_t begun_;
    bool had_captures_;
  };

  static void begin_capture() noexcept {
    ++open_on_this_thread;
    begun.fetch_add(1, std::memory_order_relaxed);  // before the capture can be seen
    state.fetch_add(one_capture, std::memory_order_acq_rel);
    // Not forever: in a forked child, a call that another thread of the parent was in never ends.
    for (unsigned tries = 0; (state.load(std::memory_order_acquire) & calls) != 0 && tries < most_tries;
         ++tries)
      spin_wait(tries);
  }
  /// The same, but returns false where it would wait.
  [[nodiscard]] static bool try_begin_capture() noexcept {
    std::uint64_t now = state.load(std::memory_order_relaxed);
    while ((now & calls) == 0) {
      begun.fetch_add(1, std::memory_order_relaxed);
      if (!state.compare_exchange_weak(now, now + one_capture, std::memory_order_acq_rel)) continue;
      ++open_on_this_thread;
      return true;
    }
    return false;
  }
  /// @param is_own  whether this thread began it
  static void end_capture(bool is_own = true) noexcept {
    if (is_own && open_on_this_thread != 0) --open_on_this_thread;
    state.fetch_sub(one_capture, std::memory_order_release);
  }
  /// In a forked child: the captures and the calls of other threads of the parent do not exist there.
  static void forget_other_threads() noexcept {
    state.store(open_on_this_thread * one_capture, std::memory_order_relaxed);
  }
  /// Waits until no capture is open; returns false if one still is after 5 to 10 s, as when the caller's own
  /// thread has it open.
  [[nodiscard]] static bool wait_for_captures() noexcept {
    for (unsigned tries = 0; has_captures() && tries < most_tries; ++tries) spin_wait(tries);
    return !has_captures();
  }
  /// Whether this thread has begun a capture that it has not ended. Stays true if another thread has ended
  /// it.
  [[nodiscard]] static bool may_be_mine() noexcept { return open_on_this_thread != 0; }
  [[nodiscard]] static bool has_captures() noexcept {
    return state.load(std::memory_order_acquire) >= one_capture;
  }

 private:
  static bool enter() noexcept {
    std::uint64_t now = state.load(std::memory_order_relaxed);
    while (now < one_capture) {
      if (state.compare_exchange_weak(now, now + one_call, std::memory_order_acquire)) return true;
    }
    return false;
  }

  static constexpr unsigned most_tries = 100'000;  ///< 5 to 10 s, see spin_wait()
  static constexpr std::uint64_t one_call = 1;
  static constexpr std::uint64_t one_capture = std::uint64_t{1} << 32;
  static constexpr std::uint64_t calls = one_capture - 1;
  inline static constinit std::atomic<std::uint64_t> state{0};
  inline static constinit std::atomic<std::uint64_t> begun{0};
  inline static constinit thread_local unsigned open_on_this_thread = 0;
};

/// Whether a call was refused because a graph is being captured: CUDA's error codes, which every driver uses.
[[nodiscard]] constexpr bool is_of_capture(status const& s) noexcept {
  return s.code >= 900 && s.code <= 907;
}
/// The call that an allocation outside of a scope is refused as.
inline constexpr char const* captured_without_scope =
    "allocation on a captured stream (open a tarn::capture_scope for it, or join() it to the open one)";
[[nodiscard]] constexpr status refused_for_capture(char const* call) noexcept {
  return {failure::other, 900, "cudaErrorStreamCaptureUnsupported", call};
}

}  // namespace TARN_NAMESPACE::detail
