// SPDX-License-Identifier: Apache-2.0
#pragma once
// Fault injection: wraps any driver and makes chosen calls fail, as in `basic_pages<faulty<sim_driver>>`.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tarn/core/at_fork.hpp"
#include "tarn/core/error.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/driver_call.hpp"
#include "tarn/driver/sharing_driver.hpp"
#include "tarn/driver/stream_device.hpp"

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

/// A driver whose calls fail according to a plan and otherwise forward to `Driver`. Same contract and thread
/// safety; adds one short lock per call.
template <stream_driver Driver>
class faulty {
 public:
  /// Starts with its own plan, accessible by plan(), without faults.
  faulty()
    requires std::default_initializable<Driver>
  = default;
  explicit faulty(device_id device)
    requires std::constructible_from<Driver, device_id>
      : driver_(device) {}
  explicit faulty(Driver driver, fault_plan plan = {}) : driver_(std::move(driver)), plan_(std::move(plan)) {}

  [[nodiscard]] fault_plan const& plan() const noexcept { return plan_; }
  /// The wrapped driver, without faults.
  [[nodiscard]] Driver const& driver() const noexcept { return driver_; }
  [[nodiscard]] device_id device() const noexcept { return driver_.device(); }

  status identify(stream_ref stream, stream_id& id) const noexcept {
    return through(driver_call::identify, [&] { return driver_.identify(stream, id); });
  }
  status ask_device(stream_ref stream, device_id& device) const noexcept
    requires detail::multi_device_driver<Driver>
  {
    return through(driver_call::ask_device, [&] { return driver_.ask_device(stream, device); });
  }
  /// Makes no driver call; likewise the next three.
  [[nodiscard]] device_id known_device(stream_ref stream) const noexcept
    requires detail::multi_device_driver<Driver>
  {
    return driver_.known_device(stream);
  }
  [[nodiscard]] device_id named_device() const noexcept
    requires detail::multi_device_driver<Driver>
  {
    return driver_.named_device();
  }
  [[nodiscard]] detail::stream_devices& devices_of_streams() const noexcept
    requires detail::multi_device_driver<Driver>
  {
    return driver_.devices_of_streams();
  }
  void retarget(device_id device) noexcept
    requires detail::multi_device_driver<Driver>
  {
    driver_.retarget(device);
  }
  status is_capturing(stream_ref stream, bool& capturing) const noexcept {
    return through(driver_call::is_capturing, [&] { return driver_.is_capturing(stream, capturing); });
  }
  /// Makes no driver call.
  [[nodiscard]] stream_id made_identity(void* handle) const noexcept
    requires requires(Driver const& driver) { driver.made_identity(handle); }
  {
    return driver_.made_identity(handle);
  }
  status create_event(event_handle& event) const noexcept {
    return through(driver_call::create_event, [&] { return driver_.create_event(event); });
  }
  status destroy_event(event_handle event) const noexcept {
    return through(driver_call::destroy_event, [&] { return driver_.destroy_event(event); });
  }
  status record_event(event_handle event, stream_ref stream) const noexcept {
    return through(driver_call::record_event, [&] { return driver_.record_event(event, stream); });
  }
  status query_event(event_handle event) const noexcept {
    return through(driver_call::query_event, [&] { return driver_.query_event(event); });
  }
  status wait_event(stream_ref stream, event_handle event) const noexcept {
    return through(driver_call::wait_event, [&] { return driver_.wait_event(stream, event); });
  }
  status synchronize_event(event_handle event) const noexcept {
    return through(driver_call::synchronize_event, [&] { return driver_.synchronize_event(event); });
  }
  status synchronize_stream(stream_ref stream) const noexcept {
    return through(driver_call::synchronize_stream, [&] { return driver_.synchronize_stream(stream); });
  }
  status synchronize_device() const noexcept {
    return through(driver_call::synchronize_device, [&] { return driver_.synchronize_device(); });
  }
  status create_stream(stream_ref& stream) const noexcept {
    return through(driver_call::create_stream, [&] { return driver_.create_stream(stream); });
  }
  status destroy_stream(stream_ref stream) const noexcept {
    return through(driver_call::destroy_stream, [&] { return driver_.destroy_stream(stream); });
  }
  status copy(stream_ref stream, void* to, void const* from, std::size_t bytes) const noexcept {
    return through(driver_call::copy, [&] { return driver_.copy(stream, to, from, bytes); });
  }
  status copy_from_device(stream_ref stream, void* to, device_id other, void const* from,
                          std::size_t bytes) const noexcept
    requires requires(Driver const& d) { d.copy_from_device(stream, to, other, from, bytes); }
  {
    return through(driver_call::copy,
                   [&] { return driver_.copy_from_device(stream, to, other, from, bytes); });
  }
  status fill(stream_ref stream, void* to, int byte, std::size_t bytes) const noexcept {
    return through(driver_call::fill, [&] { return driver_.fill(stream, to, byte, bytes); });
  }
  template <class To, class From>
  status convert(stream_ref stream, To* to, From const* from, std::size_t count) const noexcept
    requires requires(Driver const& d) { d.convert(stream, to, from, count); }
  {
    return through(driver_call::convert, [&] { return driver_.convert(stream, to, from, count); });
  }
  status can_share(device_id other, bool& yes) const noexcept
    requires requires(Driver const& d) { d.can_share(other, yes); }
  {
    return through(driver_call::can_share, [&] { return driver_.can_share(other, yes); });
  }
  status share_pages(void* p, std::size_t bytes, device_id other) const noexcept
    requires requires(Driver const& d) { d.share_pages(p, bytes, other); }
  {
    return through(driver_call::share_pages, [&] { return driver_.share_pages(p, bytes, other); });
  }
  status can_export_pages(allocation_handle_type type, bool& yes) const noexcept
    requires sharing_driver<Driver>
  {
    return through(driver_call::can_export_pages, [&] { return driver_.can_export_pages(type, yes); });
  }
  status create_pages(std::size_t bytes, allocation_handle_type type, page_handle& handle) const noexcept
    requires sharing_driver<Driver>
  {
    return through(driver_call::create_pages, [&] { return driver_.create_pages(bytes, type, handle); });
  }
  status export_pages(page_handle handle, page_export& exported) const noexcept
    requires sharing_driver<Driver>
  {
    return through(driver_call::export_pages, [&] { return driver_.export_pages(handle, exported); });
  }
  status import_pages(page_export const& exported, page_handle& handle) const noexcept
    requires sharing_driver<Driver>
  {
    return through(driver_call::import_pages, [&] { return driver_.import_pages(exported, handle); });
  }
  status create_shared_event(event_handle& event, shared_event_token& token) const noexcept
    requires sharing_driver<Driver>
  {
    return through(driver_call::create_shared_event,
                   [&] { return driver_.create_shared_event(event, token); });
  }
  status open_shared_event(shared_event_token const& token, event_handle& event) const noexcept
    requires sharing_driver<Driver>
  {
    return through(driver_call::open_shared_event, [&] { return driver_.open_shared_event(token, event); });
  }
  status export_dma_buf(void* p, std::size_t bytes, int& descriptor) const noexcept
    requires sharing_driver<Driver>
  {
    return through(driver_call::export_dma_buf, [&] { return driver_.export_dma_buf(p, bytes, descriptor); });
  }
  status uuid(device_uuid& id) const noexcept
    requires sharing_driver<Driver>
  {
    return through(driver_call::uuid, [&] { return driver_.uuid(id); });
  }
  status memory_info(std::size_t& free, std::size_t& total) const noexcept {
    return through(driver_call::memory_info, [&] { return driver_.memory_info(free, total); });
  }
  status memory_account(device_account& account) const noexcept
    requires accounting_driver<Driver>
  {
    return through(driver_call::memory_account, [&] { return driver_.memory_account(account); });
  }

  status page_granularity(std::size_t& bytes) const noexcept
    requires page_driver<Driver>
  {
    return through(driver_call::page_granularity, [&] { return driver_.page_granularity(bytes); });
  }
  status reserve_range(std::size_t bytes, std::size_t alignment, void*& p) const noexcept
    requires page_driver<Driver>
  {
    return through(driver_call::reserve_range, [&] { return driver_.reserve_range(bytes, alignment, p); });
  }
  status release_range(void* p, std::size_t bytes) const noexcept
    requires page_driver<Driver>
  {
    return through(driver_call::release_range, [&] { return driver_.release_range(p, bytes); });
  }
  status create_pages(std::size_t bytes, page_handle& handle) const noexcept
    requires page_driver<Driver>
  {
    return through(driver_call::create_pages, [&] { return driver_.create_pages(bytes, handle); });
  }
  status destroy_pages(page_handle handle) const noexcept
    requires page_driver<Driver>
  {
    return through(driver_call::destroy_pages, [&] { return driver_.destroy_pages(handle); });
  }
  status map_pages(void* p, std::size_t bytes, page_handle handle) const noexcept
    requires page_driver<Driver>
  {
    return through(driver_call::map_pages, [&] { return driver_.map_pages(p, bytes, handle); });
  }
  status unmap_pages(void* p, std::size_t bytes) const noexcept
    requires page_driver<Driver>
  {
    return through(driver_call::unmap_pages, [&] { return driver_.unmap_pages(p, bytes); });
  }

  status malloc_device(std::size_t bytes, void*& p) const noexcept
    requires block_driver<Driver>
  {
    return through(driver_call::malloc_device, [&] { return driver_.malloc_device(bytes, p); });
  }
  status free_device(void* p) const noexcept
    requires block_driver<Driver>
  {
    return through(driver_call::free_device, [&] { return driver_.free_device(p); });
  }
  [[nodiscard]] bool has_memory_pools() const noexcept
    requires requires(Driver const& d) { d.has_memory_pools(); }
  {
    return driver_.has_memory_pools();
  }
  status malloc_async(std::size_t bytes, stream_ref stream, void*& p) const noexcept
    requires block_driver<Driver>
  {
    return through(driver_call::malloc_async, [&] { return driver_.malloc_async(bytes, stream, p); });
  }
  status free_async(void* p, stream_ref stream) const noexcept
    requires block_driver<Driver>
  {
    return through(driver_call::free_async, [&] { return driver_.free_async(p, stream); });
  }
  status malloc_pinned(std::size_t bytes, void*& p) const noexcept
    requires block_driver<Driver>
  {
    return through(driver_call::malloc_pinned, [&] { return driver_.malloc_pinned(bytes, p); });
  }
  status free_pinned(void* p) const noexcept
    requires block_driver<Driver>
  {
    return through(driver_call::free_pinned, [&] { return driver_.free_pinned(p); });
  }
  status malloc_managed(std::size_t bytes, void*& p) const noexcept
    requires block_driver<Driver>
  {
    return through(driver_call::malloc_managed, [&] { return driver_.malloc_managed(bytes, p); });
  }
  status free_managed(void* p) const noexcept
    requires block_driver<Driver>
  {
    return through(driver_call::free_managed, [&] { return driver_.free_managed(p); });
  }

  status register_host(void* p, std::size_t bytes) const noexcept
    requires registering_driver<Driver>
  {
    return through(driver_call::register_host, [&] { return driver_.register_host(p, bytes); });
  }
  status unregister_host(void* p) const noexcept
    requires registering_driver<Driver>
  {
    return through(driver_call::unregister_host, [&] { return driver_.unregister_host(p); });
  }

  /// The wrapped driver's tool: faults do not affect what a tool is notified of.
  [[nodiscard]] auto memory_tool() const noexcept
    requires describing_driver<Driver>
  {
    return driver_.memory_tool();
  }

  /// Equal: the same device under the same plan.
  friend bool operator==(faulty const& a, faulty const& b) noexcept {
    return a.driver_ == b.driver_ && a.plan_ == b.plan_;
  }

 private:
  template <class F>
  status through(driver_call call, F const& f) const noexcept {
    fault const struck = plan_.next(call);
    if (struck.kind == failure::none) return f();
    if (struck.moment == fault_moment::after) (void)f();
    return detail::fault_status(struck.kind, call);
  }

  Driver driver_;
  fault_plan plan_;
};

}  // namespace TARN_NAMESPACE
