// SPDX-License-Identifier: Apache-2.0
#pragma once
// Identifiers for threads: an address among running threads, a number that is never reused, and a small
// number among running threads.

#include <atomic>
#include <bit>
#include <cstdint>

#include "tarn/core/config.hpp"

namespace TARN_NAMESPACE::detail {

/// Storage of a thread's number; 0 until the thread needs one.
[[nodiscard]] inline std::uint64_t& thread_number_place() noexcept {
  static thread_local constinit std::uint64_t number = 0;
  return number;
}

/// The last number given; constant-initialised, so that it exists before any thread uses it. A module of the
/// process may have one of its own (a plug-in with hidden symbols).
inline constinit std::atomic<std::uint64_t> last_thread_number{0};

/// Returns an address unique among running threads; a later thread may get the same one.
inline void const* this_thread_tag() noexcept {
  return &thread_number_place();
}

/// Returns a number unique to this thread and never reused; never 0. Assigned at the first call.
[[nodiscard]] inline std::uint64_t this_thread_number() noexcept {
  std::uint64_t& number = thread_number_place();
  if (number == 0) number = last_thread_number.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

// Small numbers for running threads: an array with one element per place has an element for each thread
// alone.

/// Number of places. Threads beyond it have none.
inline constexpr unsigned thread_places = 32;

/// Gives each place to one running thread at a time.
class place_table {
 public:
  /// Takes the lowest free place; returns thread_places if there is none.
  [[nodiscard]] unsigned take() noexcept {
    std::uint32_t taken = taken_.load(std::memory_order_relaxed);
    while (taken != ~std::uint32_t{0}) {
      auto const place = static_cast<unsigned>(std::countr_one(taken));
      if (taken_.compare_exchange_weak(taken, taken | std::uint32_t{1} << place, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
        return place;
      }
    }
    return thread_places;
  }
  /// What the thread did at this place happens before what the next one does there.
  void give(unsigned place) noexcept {
    taken_.fetch_and(~(std::uint32_t{1} << place), std::memory_order_release);
  }

 private:
  static_assert(thread_places == 32, "one bit each");
  std::atomic<std::uint32_t> taken_{0};
};

/// A module of the process may have a table of its own (a plug-in with hidden symbols). A place is unique
/// among those of its table. A forked child keeps the places of the threads that it does not have.
inline constinit place_table places_of_threads{};

/// The place of a thread; plain data, so that reading it needs no guard.
struct thread_place {
  place_table const* table = nullptr;  ///< that gave the place; null if the thread has none
  unsigned index = thread_places;
};
inline thread_local constinit thread_place this_thread_place{};

/// Gives the place of an ending thread back.
class place_holder {
 public:
  place_holder& operator=(place_holder&&) = delete;
  ~place_holder() {
    over = true;
    if (this_thread_place.table == nullptr) return;
    unsigned const place = this_thread_place.index;
    this_thread_place = {};
    places_of_threads.give(place);
  }

  /// Takes a place for the calling thread, which has none, if one is free.
  static void take() noexcept {
    if (over) return;
    static thread_local place_holder holder;
    (void)holder;
    if (unsigned const place = places_of_threads.take(); place != thread_places)
      this_thread_place = {&places_of_threads, place};
  }
  /// The same. A thread that gets none has none for good.
  static void take_now_or_never() noexcept {
    if (this_thread_place.table != nullptr) return;
    take();
    over = this_thread_place.table == nullptr;
  }

 private:
  /// code that runs later, in other destructors, has no place
  static inline thread_local constinit bool over = false;
};

}  // namespace TARN_NAMESPACE::detail
