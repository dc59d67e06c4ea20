// SPDX-License-Identifier: Apache-2.0
#pragma once
// per_device: one pool for each device, made when it is first asked for.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/device.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/shared.hpp"

namespace tarn {

namespace detail {

/// What is below all policies of a pool.
template <class Pool>
struct source_under {
  using type = Pool;
};
template <class Layer>
requires requires {
  typename Layer::upstream_type;
}
struct source_under<shared<Layer>> : source_under<typename Layer::upstream_type> {};

/// Makes a pool on a device's source, its policies with their defaults.
template <class Pool>
struct default_pool_of {
  [[nodiscard]] Pool operator()(device_id device) const {
    return Pool(typename source_under<Pool>::type(device));
  }
};

}  // namespace detail

/// A pool per device: `tarn::per_device<tarn::device_pool> pools;`, then `pools[device]` or `pools.current()`. With options,
/// or on a machine of one's own, give it what makes a pool:
/// `tarn::per_device pools{[](tarn::device_id d) { return tarn::cuda_pages{d} | tarn::pooled{} | tarn::limited{8_GiB}; }};`
/// Thread-safe; a pool that exists costs one atomic load. Pools stay until the whole is destroyed, and longer while
/// buffers hold them; references to them do not move.
template <class Pool, class Make = detail::default_pool_of<Pool>>
requires std::same_as<std::invoke_result_t<Make&, device_id>, Pool>
class per_device {
 public:
  using pool_type = Pool;
  using driver_type = typename Pool::driver_type;
  /// Ordinals go up to below this.
  static constexpr int most_devices = 128;

  /// Makes no pool yet. @param make  called with a device, by one thread at a time. It may ask for other devices' pools; it
  ///                                 must not wait for a thread that asks for one
  explicit per_device(Make make = Make{}) : make_(std::move(make)) {}
  per_device(per_device const&) = delete;
  per_device& operator=(per_device const&) = delete;
  ~per_device() {
    for (auto& slot : slots_) delete slot.load(std::memory_order_relaxed);
  }

  /// The device's pool, made now if there is none. The current device stays what it is.
  /// @throws cuda_error  of kind `no_device` where there is no such device, and whatever making a pool may throw; the next
  ///                     call tries again
  /// @throws misuse      of kind `wrong_device`: what was made is another device's; of kind `recursion`: making a device's
  ///                     pool asks for that same pool
  [[nodiscard]] Pool& operator[](device_id device) {
    if (device.value < 0 || device.value >= most_devices) refuse(device);
    std::atomic<Pool*>& slot = slots_[device.value];
    if (Pool* const there = slot.load(std::memory_order_acquire); there != nullptr) return *there;
    std::lock_guard const lock(mutex_);
    if (Pool* const there = slot.load(std::memory_order_relaxed); there != nullptr) return *there;
    making const here(in_making_[device.value], device);
    auto made = std::make_unique<Pool>(make_(device));
    if (made->device() != device) refuse(device, made->device());
    slot.store(made.get(), std::memory_order_release);
    return *made.release();
  }

  /// The pool of the calling thread's current device. @throws as operator[]
  [[nodiscard]] Pool& current() requires requires(device_id& device) { driver_type::current_device(device); }
  {
    device_id device;
    if (status const s = driver_type::current_device(device); !s.ok()) throw cuda_error(s);
    return (*this)[device];
  }

  /// The device's pool, null where it has not been made.
  [[nodiscard]] Pool* find(device_id device) noexcept {
    if (device.value < 0 || device.value >= most_devices) return nullptr;
    return slots_[device.value].load(std::memory_order_acquire);
  }
  /// Calls `call(device, pool)` for each pool that has been made, by ordinal.
  template <class Call>
  void for_each(Call const& call) {
    for (int device = 0; device < most_devices; ++device) {
      if (Pool* const pool = find(device_id{device}); pool != nullptr) call(device_id{device}, *pool);
    }
  }
  /// Pools made so far.
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t made = 0;
    for (auto const& slot : slots_) made += slot.load(std::memory_order_relaxed) != nullptr ? 1 : 0;
    return made;
  }

 private:
  /// Marks a device whose pool this thread is making.
  class making {
   public:
    making(bool& marked, device_id device) : marked_(marked) {
      if (marked) refuse_recursion(device);
      marked_ = true;
    }
    making(making const&) = delete;
    making& operator=(making const&) = delete;
    ~making() { marked_ = false; }

   private:
    bool& marked_;
  };

  [[noreturn]] static void refuse_recursion(device_id device) {
    message<160> text;
    text.add("per_device is making the pool of device ").add_number(device.value);
    text.add(", and making it asks for that same pool; make it from a source");
    throw misuse(misuse_kind::recursion, nullptr, text.view());
  }
  [[noreturn]] static void refuse(device_id device) {
    throw cuda_error({failure::no_device, 101, "cudaErrorInvalidDevice", "per_device"}, device.value);
  }
  [[noreturn]] static void refuse(device_id asked, device_id made) {
    message<160> text;
    text.add("per_device asked for a pool of device ")
        .add_number(asked.value)
        .add(" and was made one of device ");
    text.add_number(made.value).add("; hand the device on to the source");
    throw misuse(misuse_kind::wrong_device, nullptr, text.view());
  }

  Make make_;
  detail::recursive_fork_mutex mutex_;  ///< making one pool may ask for another
  bool in_making_[most_devices]{};
  std::atomic<Pool*> slots_[most_devices]{};
};

template <class Make>
per_device(Make) -> per_device<std::invoke_result_t<Make&, device_id>, Make>;

}  // namespace tarn
