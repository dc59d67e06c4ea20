// SPDX-License-Identifier: Apache-2.0
#pragma once
// per_device: one pool per device, created on first use.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/core/stream.hpp"

namespace TARN_NAMESPACE {

namespace detail {

/// The source below all policies of a pool.
template <class Pool>
struct source_under {
  using type = Pool;
};
template <class Layer>
  requires requires { typename Layer::upstream_type; }
struct source_under<shared_resource<Layer>> : source_under<typename Layer::upstream_type> {};

/// Creates a pool on a device's source, with default policies.
template <class Pool>
struct default_pool_of {
  [[nodiscard]] Pool operator()(device_id device) const {
    return Pool(typename source_under<Pool>::type(device));
  }
};

}  // namespace detail

/// One pool per device: `tarn::per_device<tarn::device_pool> pools;`, then `pools[device]` or
/// `pools.current()`. For pools with options, or on a simulated machine, pass a callable that makes a pool:
/// `tarn::per_device pools{[](tarn::device_id d) { return tarn::cuda_pages{d} | tarn::pooled{} |
/// tarn::limited{8_GiB}; }};` Thread-safe; access to an existing pool is one atomic load. Pools live until
/// this object is destroyed, and longer while buffers hold them; references to them stay valid.
template <class Pool, class Make = detail::default_pool_of<Pool>>
  requires std::same_as<std::invoke_result_t<Make&, device_id>, Pool>
class per_device {
 public:
  using pool_type = Pool;
  using driver_type = typename Pool::driver_type;
  /// Device ordinals must be below this.
  static constexpr int most_devices = 128;

  /// Creates no pool yet.
  /// @param make  called with a device, by one thread at a time. It may access the pools of other devices; it
  /// must not wait for
  ///              a thread that accesses one
  explicit per_device(Make make = Make{}) : make_(std::move(make)) {}
  ~per_device() {
    for (auto& slot : slots_) delete slot.load(std::memory_order_relaxed);
  }

  /// Returns the device's pool; creates it on first use. The current device is unchanged.
  /// @throws cuda_error  of kind `no_device` if the device does not exist, or anything that making a pool
  /// throws; the next
  ///                     call tries again
  /// @throws misuse      of kind `wrong_device`: the pool belongs to another device; of kind `recursion`:
  /// making a device's
  ///                     pool accesses that same pool
  [[nodiscard]] Pool& operator[](device_id device) {
    if (device.value < 0 || device.value >= most_devices) refuse(device);
    std::atomic<Pool*>& slot = slots_[device.value];
    if (Pool* const there = slot.load(std::memory_order_acquire); there != nullptr) return *there;
    detail::scoped_lock const lock(mutex_);
    if (Pool* const there = slot.load(std::memory_order_relaxed); there != nullptr) return *there;
    bool& in_making = in_making_[device.value];
    if (in_making) refuse_recursion(device);
    in_making = true;
    making const here{in_making};
    auto made = std::make_unique<Pool>(make_(device));
    if (made->device() != device) refuse(device, made->device());
    slot.store(made.get(), std::memory_order_release);
    return *made.release();
  }

  /// Returns the pool of the calling thread's current device. @throws as operator[]
  [[nodiscard]] Pool& current(source_location where = source_location::current())
    requires requires(device_id& device) { driver_type::current_device(device); }
  {
    return detail::called_from(where, [&]() -> Pool& {
      device_id device;
      if (status const s = driver_type::current_device(device); !s.ok()) throw cuda_error(s);
      return (*this)[device];
    });
  }

  /// Returns the device's pool, or null if it has not been created.
  [[nodiscard]] Pool* find(device_id device) noexcept {
    if (device.value < 0 || device.value >= most_devices) return nullptr;
    return slots_[device.value].load(std::memory_order_acquire);
  }
  /// Calls `call(device, pool)` for each existing pool, by ordinal.
  template <class Call>
  void for_each(Call const& call) {
    for (int device = 0; device < most_devices; ++device) {
      if (Pool* const pool = find(device_id{device}); pool != nullptr) call(device_id{device}, *pool);
    }
  }
  /// Returns the number of pools created so far.
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t made = 0;
    for (auto const& slot : slots_) made += slot.load(std::memory_order_relaxed) != nullptr ? 1 : 0;
    return made;
  }

 private:
  /// Marks a device whose pool the current thread is making.
  struct making {
    bool& marked;
    ~making() { marked = false; }
  };

  [[noreturn]] static void refuse_recursion(device_id device) {
    message<160> const text("per_device is creating the pool of device ", device.value,
                            ", and its creation requested the same pool; create it from a source");
    throw misuse(misuse_kind::recursion, nullptr, text.view());
  }
  [[noreturn]] static void refuse(device_id device) {
    throw cuda_error({failure::no_device, 101, "cudaErrorInvalidDevice", "per_device"}, device.value,
                     source_location{});
  }
  [[noreturn]] static void refuse(device_id asked, device_id made) {
    message<160> const text("per_device requested a pool of device ", asked.value,
                            " and received one of device ", made.value, "; pass the device to the source");
    throw misuse(misuse_kind::wrong_device, nullptr, text.view());
  }

  Make make_;
  detail::recursive_fork_mutex mutex_;  ///< recursive: making one pool may access another
  bool in_making_[most_devices]{};
  std::atomic<Pool*> slots_[most_devices]{};
};

template <class Make>
per_device(Make) -> per_device<std::invoke_result_t<Make&, device_id>, Make>;

}  // namespace TARN_NAMESPACE
