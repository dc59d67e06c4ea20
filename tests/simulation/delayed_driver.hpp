// SPDX-License-Identifier: Apache-2.0
#pragma once
// A simulated driver whose calls sometimes take real time, before or after their work, so that other threads
// run while one is in the driver.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>

#include "random_numbers.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

namespace simulation {

/// How often and how long calls are delayed, in all threads.
struct driver_delays {
  static inline std::atomic<unsigned> one_in{16};  ///< calls; 0: none
  static inline std::atomic<std::uint64_t> longest_us{100};
  static inline std::atomic<std::uint64_t> made{0};

  static void perhaps() noexcept {
    static std::atomic<std::uint64_t> threads{0};
    static thread_local random_numbers random(threads.fetch_add(1) + 77);
    unsigned const n = one_in.load(std::memory_order_relaxed);
    if (n == 0 || random.below(n) != 0) return;
    made.fetch_add(1, std::memory_order_relaxed);
    // Mostly a moment in which another processor continues; seldom long enough for many calls.
    std::uint64_t const most = random.percent(90) ? 5 : longest_us.load(std::memory_order_relaxed);
    std::uint64_t const us = random.below(most + 1);
    if (us == 0) return std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(us));
  }
};

template <class Driver>
class delayed : public Driver {
 public:
  using Driver::Driver;
  delayed() = default;
  explicit delayed(tarn::sim_driver const& driver) noexcept : Driver(driver) {}

  tarn::status identify(tarn::stream_ref stream, tarn::stream_id& id) const noexcept {
    return late([&] { return Driver::identify(stream, id); });
  }
  tarn::status is_capturing(tarn::stream_ref stream, bool& capturing) const noexcept {
    return late([&] { return Driver::is_capturing(stream, capturing); });
  }
  tarn::status create_event(tarn::event_handle& event) const noexcept {
    return late([&] { return Driver::create_event(event); });
  }
  tarn::status destroy_event(tarn::event_handle event) const noexcept {
    return late([&] { return Driver::destroy_event(event); });
  }
  tarn::status record_event(tarn::event_handle event, tarn::stream_ref stream) const noexcept {
    return late([&] { return Driver::record_event(event, stream); });
  }
  tarn::status record_all(tarn::event_handle event) const noexcept
    requires requires(Driver const& d) { d.record_all(event); }
  {
    return late([&] { return Driver::record_all(event); });
  }
  tarn::status query_event(tarn::event_handle event) const noexcept {
    return late([&] { return Driver::query_event(event); });
  }
  tarn::status wait_event(tarn::stream_ref stream, tarn::event_handle event) const noexcept {
    return late([&] { return Driver::wait_event(stream, event); });
  }
  tarn::status synchronize_event(tarn::event_handle event) const noexcept {
    return late([&] { return Driver::synchronize_event(event); });
  }
  tarn::status synchronize_stream(tarn::stream_ref stream) const noexcept {
    return late([&] { return Driver::synchronize_stream(stream); });
  }
  tarn::status synchronize_device() const noexcept {
    return late([&] { return Driver::synchronize_device(); });
  }
  tarn::status memory_info(std::size_t& free, std::size_t& total) const noexcept {
    return late([&] { return Driver::memory_info(free, total); });
  }
  tarn::status reserve_range(std::size_t bytes, std::size_t alignment, void*& p) const noexcept {
    return late([&] { return Driver::reserve_range(bytes, alignment, p); });
  }
  tarn::status create_pages(std::size_t bytes, tarn::page_handle& handle) const noexcept {
    return late([&] { return Driver::create_pages(bytes, handle); });
  }
  tarn::status destroy_pages(tarn::page_handle handle) const noexcept {
    return late([&] { return Driver::destroy_pages(handle); });
  }
  tarn::status map_pages(void* p, std::size_t bytes, tarn::page_handle handle) const noexcept {
    return late([&] { return Driver::map_pages(p, bytes, handle); });
  }
  tarn::status unmap_pages(void* p, std::size_t bytes) const noexcept {
    return late([&] { return Driver::unmap_pages(p, bytes); });
  }
  tarn::status malloc_device(std::size_t bytes, void*& p) const noexcept {
    return late([&] { return Driver::malloc_device(bytes, p); });
  }
  tarn::status free_device(void* p) const noexcept {
    return late([&] { return Driver::free_device(p); });
  }

 private:
  template <class Call>
  static tarn::status late(Call const& call) noexcept {
    driver_delays::perhaps();
    tarn::status const s = call();
    driver_delays::perhaps();
    return s;
  }
};

}  // namespace simulation
