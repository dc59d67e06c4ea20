// SPDX-License-Identifier: Apache-2.0
#pragma once
// counted_driver: counts the driver calls of tarn's pools in the same way on both devices.

#include <atomic>
#include <cstdint>
#include <utility>

#include "tarn/core/error.hpp"

namespace tarn::bench {

/// A count that outlives the drivers that increment it.
struct call_count {
  std::atomic<std::uint64_t> made{0};
};

/// `Driver` with a count of the calls that allocate, free, map, order or query the device. Not counted, as
/// for the peers: calls that never leave the process (device, identify, is_capturing).
template <class Driver>
class counted_driver : public Driver {
 public:
  counted_driver() = default;
  counted_driver(Driver driver, call_count& count) : Driver(std::move(driver)), count_(&count) {}

  friend bool operator==(counted_driver const& a, counted_driver const& b) noexcept {
    return static_cast<Driver const&>(a) == static_cast<Driver const&>(b);
  }

  // clang-format off
  template <class... A> status create_event(A&&... a) const noexcept { return one(Driver::create_event(std::forward<A>(a)...)); }
  template <class... A> status destroy_event(A&&... a) const noexcept { return one(Driver::destroy_event(std::forward<A>(a)...)); }
  template <class... A> status record_event(A&&... a) const noexcept { return one(Driver::record_event(std::forward<A>(a)...)); }
  template <class... A> status query_event(A&&... a) const noexcept { return one(Driver::query_event(std::forward<A>(a)...)); }
  template <class... A> status wait_event(A&&... a) const noexcept { return one(Driver::wait_event(std::forward<A>(a)...)); }
  template <class... A> status synchronize_event(A&&... a) const noexcept { return one(Driver::synchronize_event(std::forward<A>(a)...)); }
  template <class... A> status synchronize_stream(A&&... a) const noexcept { return one(Driver::synchronize_stream(std::forward<A>(a)...)); }
  template <class... A> status synchronize_device(A&&... a) const noexcept { return one(Driver::synchronize_device(std::forward<A>(a)...)); }
  template <class... A> status memory_info(A&&... a) const noexcept { return one(Driver::memory_info(std::forward<A>(a)...)); }
  template <class... A> status reserve_range(A&&... a) const noexcept { return one(Driver::reserve_range(std::forward<A>(a)...)); }
  template <class... A> status release_range(A&&... a) const noexcept { return one(Driver::release_range(std::forward<A>(a)...)); }
  template <class... A> status create_pages(A&&... a) const noexcept { return one(Driver::create_pages(std::forward<A>(a)...)); }
  template <class... A> status destroy_pages(A&&... a) const noexcept { return one(Driver::destroy_pages(std::forward<A>(a)...)); }
  template <class... A> status map_pages(A&&... a) const noexcept { return one(Driver::map_pages(std::forward<A>(a)...)); }
  template <class... A> status unmap_pages(A&&... a) const noexcept { return one(Driver::unmap_pages(std::forward<A>(a)...)); }
  template <class... A> status malloc_device(A&&... a) const noexcept { return one(Driver::malloc_device(std::forward<A>(a)...)); }
  template <class... A> status free_device(A&&... a) const noexcept { return one(Driver::free_device(std::forward<A>(a)...)); }
  // clang-format on

 private:
  [[nodiscard]] status one(status outcome) const noexcept {
    if (count_ != nullptr) count_->made.fetch_add(1, std::memory_order_relaxed);
    return outcome;
  }
  call_count* count_ = nullptr;
};

}  // namespace tarn::bench
