// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a C caller does not repeat at the free, by address: a flat hash table in parts, each with its own
// lock.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tarn_c {

/// A map from addresses, which are multiples of 256, to values. Thread-safe. Memory is allocated only when a
/// part grows; a part keeps at least half of its places free, so that a search looks at two or three.
template <class Value>
class block_table {
 public:
  /// Adds an address that is not there. @throws std::bad_alloc  nothing has changed
  void add(void* p, Value const& value) {
    std::uint64_t const hash = hash_of(p);
    part& where = part_of(hash);
    std::lock_guard const guard(where);
    if (2 * (where.count + 1) > where.places.size()) where.grow();
    where.put({p, value});
    ++where.count;
  }
  /// Removes an address. Returns false if it is not there.
  [[nodiscard]] bool take(void* p, Value& value) noexcept {
    std::uint64_t const hash = hash_of(p);
    part& where = part_of(hash);
    std::lock_guard const guard(where);
    if (where.places.empty()) return false;
    std::size_t at = where.home(hash);
    for (; where.places[at].p != p; at = where.next(at)) {
      if (where.places[at].p == nullptr) return false;
    }
    value = where.places[at].value;
    where.close(at);
    --where.count;
    return true;
  }

 private:
  struct place {
    void* p = nullptr;
    Value value{};
  };
  /// Locked for less than a system call takes, so a thread that waits does not sleep.
  struct alignas(64) part {
    void lock() noexcept {
      while (busy.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    void unlock() noexcept { busy.clear(std::memory_order_release); }
    [[nodiscard]] std::size_t home(std::uint64_t hash) const noexcept { return hash & (places.size() - 1); }
    [[nodiscard]] std::size_t next(std::size_t at) const noexcept { return (at + 1) & (places.size() - 1); }
    void put(place const& what) noexcept {
      std::size_t at = home(hash_of(what.p));
      while (places[at].p != nullptr) at = next(at);
      places[at] = what;
    }
    /// Frees a place, and moves those after it that a search would no longer find.
    void close(std::size_t hole) noexcept {
      std::size_t const last = places.size() - 1;
      for (std::size_t at = next(hole); places[at].p != nullptr; at = next(at)) {
        std::size_t const from_home = (at - home(hash_of(places[at].p))) & last;
        if (from_home < ((at - hole) & last)) continue;  // its search begins after the hole
        places[hole] = places[at];
        hole = at;
      }
      places[hole].p = nullptr;
    }
    void grow() {
      std::vector<place> old(places.empty() ? 64 : 2 * places.size());
      old.swap(places);
      for (place const& one : old) {
        if (one.p != nullptr) put(one);
      }
    }

    std::atomic_flag busy;
    std::size_t count = 0;
    std::vector<place> places;
  };

  static std::uint64_t hash_of(void const* p) noexcept {
    auto const number = std::uint64_t{reinterpret_cast<std::uintptr_t>(p)} >> 8;
    return std::rotl(number * 0x9E3779B97F4A7C15U, 32);
  }
  /// By bits that home() does not use until a part has 2^24 places.
  part& part_of(std::uint64_t hash) noexcept { return parts_[(hash >> 24) % parts_.size()]; }

  std::array<part, 16> parts_{};
};

}  // namespace tarn_c
