// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fault injection: wraps any driver and makes chosen calls fail, as in `basic_pages<faulty<sim_driver>>`.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "driver/wrapped_driver.hpp"
#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/driver/driver.hpp"

namespace TARN_NAMESPACE {

/// Whether the failing call does its work.
enum class fault_moment : std::uint8_t {
  instead,  ///< it fails without doing its work
  after     ///< it does its work, then fails, as a driver reports an earlier error from a free
};

/// How long a fault lasts.
enum class fault_span : std::uint8_t {
  once,     ///< only that call
  for_good  ///< that call and every later call of any kind: a sticky error
};

/// Returns true for calls that can fail because memory ran out.
[[nodiscard]] constexpr bool can_exhaust(driver_call call) noexcept {
  switch (call) {
    case driver_call::reserve_range:
    case driver_call::create_pages:
    case driver_call::malloc_device:
    case driver_call::malloc_async:
    case driver_call::malloc_pinned:
    case driver_call::malloc_managed:
    case driver_call::register_host:
      return true;
    default:
      return false;
  }
}

/// How a call fails.
struct fault {
  failure kind = failure::none;  ///< `none`: the call's typical failure
  fault_moment moment = fault_moment::instead;
  fault_span span = fault_span::once;
};

namespace detail {
/// Returns the typical failure of a call: out_of_memory if the call can run out of it.
[[nodiscard]] constexpr failure typical_failure(driver_call call) noexcept {
  if (can_exhaust(call)) return failure::out_of_memory;
  return call == driver_call::page_granularity ? failure::unsupported : failure::other;
}

[[nodiscard]] constexpr status fault_status(failure kind, driver_call call) noexcept {
  switch (kind) {
    case failure::none:
      return {};
    case failure::not_ready:
      return {kind, 600, "cudaErrorNotReady", name_of(call)};
    case failure::out_of_memory:
      return {kind, 2, "cudaErrorMemoryAllocation", name_of(call)};
    case failure::forked:
      return {kind, 3, "cudaErrorInitializationError", name_of(call)};
    case failure::unloading:
      return {kind, 4, "cudaErrorCudartUnloading", name_of(call)};
    case failure::unsupported:
      return {kind, 801, "cudaErrorNotSupported", name_of(call)};
    case failure::no_device:
      return {kind, 100, "cudaErrorNoDevice", name_of(call)};
    case failure::other:
      break;
  }
  return {failure::other, 719, "cudaErrorLaunchFailure", name_of(call)};
}
}  // namespace detail

/// Which calls fail, and counts of the calls made. A cheap handle: copies share one plan, for example a test
/// and the drivers in its pool. Thread-safe.
class fault_plan {
 public:
  fault_plan() : state_(std::make_shared<state>()) {}

  /// Makes the nth call from now fail, whichever call it is; 1 is the next one.
  void fail(std::uint64_t nth, fault how = {}) const {
    std::lock_guard const lock(state_->mutex);
    state_->rules.push_back({any_call, state_->all + nth, how});
  }
  /// Makes the nth occurrence from now of one call fail.
  void fail(driver_call call, std::uint64_t nth, fault how = {}) const {
    std::lock_guard const lock(state_->mutex);
    auto const index = static_cast<std::size_t>(call);
    state_->rules.push_back({index, state_->made[index] + nth, how});
  }
  /// Removes all faults; keeps the counts.
  void disarm() const {
    std::lock_guard const lock(state_->mutex);
    state_->rules.clear();
    state_->sticky = failure::none;
  }
  /// Removes all faults and resets the counts.
  void reset() const {
    disarm();
    std::lock_guard const lock(state_->mutex);
    state_->all = state_->all_failed = 0;
    for (std::size_t i = 0; i < driver_call_count; ++i) state_->made[i] = state_->failed[i] = 0;
  }

  /// Calls made, including failed ones.
  [[nodiscard]] std::uint64_t calls() const {
    std::lock_guard const lock(state_->mutex);
    return state_->all;
  }
  [[nodiscard]] std::uint64_t calls(driver_call call) const {
    std::lock_guard const lock(state_->mutex);
    return state_->made[static_cast<std::size_t>(call)];
  }
  /// Calls that the plan made fail.
  [[nodiscard]] std::uint64_t failed() const {
    std::lock_guard const lock(state_->mutex);
    return state_->all_failed;
  }
  [[nodiscard]] std::uint64_t failed(driver_call call) const {
    std::lock_guard const lock(state_->mutex);
    return state_->failed[static_cast<std::size_t>(call)];
  }

  /// Counts a call and returns how it fails; `kind` is none if it does not.
  [[nodiscard]] fault next(driver_call call) const noexcept {
    std::lock_guard const lock(state_->mutex);
    auto const index = static_cast<std::size_t>(call);
    std::uint64_t const nth_of_all = ++state_->all;
    std::uint64_t const nth_of_name = ++state_->made[index];
    fault struck{};
    if (state_->sticky != failure::none) struck.kind = state_->sticky;
    for (rule const& r : state_->rules) {
      bool const hit = r.call == any_call ? r.at == nth_of_all : r.call == index && r.at == nth_of_name;
      if (!hit || struck.kind != failure::none) continue;
      struck = r.how;
      if (struck.kind == failure::none) struck.kind = detail::typical_failure(call);
      if (struck.span == fault_span::for_good) state_->sticky = struck.kind;
    }
    if (struck.kind != failure::none) {
      ++state_->all_failed;
      ++state_->failed[index];
    }
    return struck;
  }

  friend bool operator==(fault_plan const& a, fault_plan const& b) noexcept { return a.state_ == b.state_; }

 private:
  static constexpr std::size_t any_call = driver_call_count;
  struct rule {
    std::size_t call;
    std::uint64_t at;
    fault how;
  };
  struct state {
    detail::fork_mutex mutex;
    std::vector<rule> rules;
    failure sticky = failure::none;
    std::uint64_t all = 0, all_failed = 0;
    std::uint64_t made[driver_call_count]{}, failed[driver_call_count]{};
  };
  std::shared_ptr<state> state_;
};

/// A driver whose calls fail according to a plan and are otherwise those of `Driver`. Same contract and
/// thread safety; adds one short lock per call. What a tool is notified of is not affected.
template <stream_driver Driver>
class faulty : public tarn_test::wrapped_driver<Driver, faulty<Driver>> {
  using base = tarn_test::wrapped_driver<Driver, faulty>;

 public:
  /// Starts with its own plan, accessible by plan(), without faults.
  faulty()
    requires std::default_initializable<Driver>
  = default;
  explicit faulty(device_id device)
    requires std::constructible_from<Driver, device_id>
      : base(Driver(device)) {}
  explicit faulty(Driver driver, fault_plan plan = {}) : base(std::move(driver)), plan_(std::move(plan)) {}

  [[nodiscard]] fault_plan const& plan() const noexcept { return plan_; }
  /// The wrapped driver, without faults.
  [[nodiscard]] Driver const& driver() const noexcept { return *this; }

  template <class F>
  status through(driver_call call, F const& f) const noexcept {
    fault const struck = plan_.next(call);
    if (struck.kind == failure::none) return f();
    if (struck.moment == fault_moment::after) (void)f();
    return detail::fault_status(struck.kind, call);
  }

  /// Equal: the same device under the same plan.
  friend bool operator==(faulty const& a, faulty const& b) noexcept {
    return a.driver() == b.driver() && a.plan_ == b.plan_;
  }

 private:
  fault_plan plan_;
};

}  // namespace TARN_NAMESPACE
