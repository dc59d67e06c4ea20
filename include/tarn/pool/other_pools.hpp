// SPDX-License-Identifier: Apache-2.0
#pragma once
// The pools of the process by device. A pool that the device refuses asks the other pools there to give back
// what they cache, before its allocation, that of one of its graph memories, or its wake() fails. It holds no
// lock of its own meanwhile, and takes the growth lock of another pool only if that is free, so no order of
// pools can deadlock. The pool that was made last is asked first: a pool over another one is made later, and
// what it gives back the lower one can give to the device.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/error.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/wait.hpp"

namespace TARN_NAMESPACE::detail {

/// Whether a pool that gives memory back may wait on the host for the streams that freed it.
enum class giving : std::uint8_t { what_is_idle, what_is_waited_for };

/// Whether a pool over this layer may give its memory to another pool.
template <class Layer>
constexpr bool may_stand_on_a_pool() noexcept {
  return any_layer<Layer>([]<class L>(std::type_identity<L>) { return gives_pieces<L> || routes_calls<L>; });
}

template <class Driver>
class other_pools;

template <class Driver>
struct pool_list {
  static_mutex mutex;
  other_pools<Driver>* latest = nullptr;
};
/// Never destroyed: threads may still use pools while the process exits. No local static, see
/// static_spin_lock.
template <class Driver>
inline constinit pool_list<Driver> pools_of_module{};

/// The place of one pool in the list of all pools over `Driver`. Pools over other driver types do not see it.
template <class Driver>
class other_pools {
 public:
  using give_back_function = std::size_t (*)(void* pool, std::size_t bytes, giving how) noexcept;
  using reserved_function = std::size_t (*)(void* pool) noexcept;

  /// Where the memory goes that a pool gives back.
  enum class goes_to : std::uint8_t {
    no_device,     ///< host memory: the pool neither asks others nor is asked
    another_pool,  ///< which is asked later
    the_device
  };

  /// Makes `pool` known. `give_back` returns the bytes that it gave back. Neither waits for a lock.
  other_pools(Driver const& driver, void* pool, give_back_function give_back, reserved_function reserved,
              goes_to to)
      : driver_(driver),
        pool_(pool),
        give_back_(give_back),
        reserved_(reserved),
        to_(to),
        has_left_(to < goes_to::another_pool) {
    if (has_left_) return;
    scoped_lock const guard(all_.mutex);
    next_ = all_.latest;
    all_.latest = this;
  }
  other_pools& operator=(other_pools&&) = delete;
  ~other_pools() { leave(); }

  /// Takes the pool out of the list, after the calls of other threads to its give_back have returned. Those
  /// of the parent's threads do not return in a forked child.
  void leave() noexcept {
    if (has_left_) return;
    for (unsigned tries = 0;; ++tries) {
      {
        scoped_lock const guard(all_.mutex);
        if (calls_ == 0 || !process_.is_this()) {
          other_pools** at = &all_.latest;
          while (*at != this) at = &(*at)->next_;
          *at = next_;
          has_left_ = true;
          return;
        }
      }
      spin_wait(tries);
    }
  }

  /// Calls `attempt`. If the device refuses it, other pools there give back what they cache, first what is
  /// idle, then what the host must wait for, and it is called again. The caller holds no lock of a pool.
  /// @param lacking  returns what the device lacks after a refusal, bytes
  /// @throws what the last attempt throws
  template <class Attempt, class Lacking>
  auto with_help(Attempt const& attempt, Lacking const& lacking) {
    constexpr giving in_turn[] = {giving::what_is_idle, giving::what_is_waited_for};
    for (std::size_t asked = 0;;) {
      try {
        return attempt();
      } catch (out_of_memory const& refused) {
        std::size_t given = 0;
        while (given == 0 && asked < 2 && is_refused_by_device(refused.report()))
          given = ask(lacking(refused.report()), in_turn[asked++]);
        if (given == 0) throw;
      }
    }
  }

  /// Asks the other pools on the same device, the latest first, until the device has got `bytes`. Returns the
  /// bytes given back, also to pools below those that were asked. The caller holds no lock of a pool.
  std::size_t ask(std::size_t bytes, giving how) noexcept {
    std::size_t given = 0;
    std::size_t to_device = 0;
    visit(all_, driver_, this, [&](other_pools& asked) {
      std::size_t const by_it = asked.give_back_(asked.pool_, bytes - to_device, how);
      given += by_it;
      if (asked.to_ == goes_to::the_device) to_device += by_it;
      return to_device < bytes;
    });
    return given;
  }

  /// Calls f(address of a pool, bytes that it reserves) for each pool whose memory is that of the driver's
  /// device. `f` throws nothing.
  template <class F>
  static void for_each_reserved(Driver const& driver, F const& f) noexcept {
    visit(pools_of_module<Driver>, driver, nullptr, [&](other_pools& known) {
      if (known.to_ == goes_to::the_device)
        f(static_cast<void const*>(known.pool_), known.reserved_(known.pool_));
      return true;
    });
  }

 private:
  /// Whether memory that other pools give back may help.
  [[nodiscard]] bool is_refused_by_device(memory_report const& refused) const noexcept {
    if (refused.device_total != memory_report::unknown && refused.asked > refused.device_total) return false;
    return to_ != goes_to::no_device && refused.limit == memory_report::unknown;
  }

  /// Calls act(pool) for each pool on a device except one, the latest first, until it returns false. No lock
  /// is held meanwhile, and none of the pools ends while it is called.
  template <class Act>
  static void visit(pool_list<Driver>& all, Driver const& driver, other_pools const* except,
                    Act const& act) noexcept {
    for (other_pools* at = nullptr;;) {
      {
        scoped_lock const guard(all.mutex);
        other_pools* const last = at;
        at = last == nullptr ? all.latest : last->next_;
        while (at != nullptr && (at == except || !is_same_device(at->driver_, driver))) at = at->next_;
        if (last != nullptr) --last->calls_;
        if (at == nullptr) return;
        ++at->calls_;
      }
      if (act(*at)) continue;
      scoped_lock const guard(all.mutex);
      --at->calls_;
      return;
    }
  }
  static bool is_same_device(Driver const& a, Driver const& b) noexcept {
    if constexpr (std::equality_comparable<Driver>) {
      return a == b;
    } else {
      return a.device() == b.device();
    }
  }

  pool_list<Driver>& all_ =
      pools_of_module<Driver>;  ///< of the constructing module; another one may destroy this
  static_mutex::user const user_{all_.mutex};
  creating_process const process_{};
  Driver const& driver_;
  void* const pool_;
  give_back_function const give_back_;
  reserved_function const reserved_;
  goes_to const to_;
  // Under the list's mutex:
  other_pools* next_ = nullptr;
  unsigned calls_ = 0;  ///< in progress
  bool has_left_;
};

}  // namespace TARN_NAMESPACE::detail
