// SPDX-License-Identifier: Apache-2.0
#pragma once
// faulty<sim_driver> that receives with each call its source location in the library, so that the sites that
// were made to fail can be compared with those in the sources. Releases prevented by a fault are recorded as
// owed.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "driver/faulty.hpp"
#include "faults/host_faults.hpp"
#include "tarn/core/source_location.hpp"
#include "tarn/driver/sim/sim_driver.hpp"

namespace tarn_test {

using namespace tarn;

/// One driver call as it was made.
struct made_call {
  char const* file;
  int line;
  char const* name;
  driver_call kind;
  bool struck;
};

/// A machine, its fault plan, and a record of what happened. Shared by all drivers of one trial.
class call_log {
 public:
  explicit call_log(sim_options const& options) : machine(options) {}

  sim_machine machine;
  fault_plan plan;
  fault_moment moment = fault_moment::instead;
  std::uint64_t full_from = 0;  ///< from this call on the devices have no free memory; 0: never
  bool full = false;
  std::vector<made_call> made;
  std::vector<std::string> complaints;

  [[nodiscard]] bool anything_owed() const noexcept { return !owed_.empty(); }

  /// Releases what failed calls left behind, in the order of the calls: if the program was correct, nothing
  /// is left then.
  void pay() {
    for (auto const& again : owed_) {
      if (status const s = again(); !s.ok()) {
        complaints.push_back(std::string("what ") + s.call + " owed cannot be released: " + s.name);
      }
    }
    owed_.clear();
  }

  template <class Call>
  status through(driver_call kind, source_location where, Call const& call) noexcept {
    return through(kind, name_of(kind), where, call);
  }
  template <class Call>
  status through(driver_call kind, char const* name, source_location where, Call const& call) noexcept {
    host_faults::not_counted const own;
    std::lock_guard const guard(mutex_);
    fill_up();
    std::uint64_t const before = plan.failed();
    status const s = call();
    made.push_back({where.file, where.line, name, kind, plan.failed() != before});
    return s;
  }
  /// A call that releases something; `again` makes it on the driver itself.
  template <class Call, class Again>
  status release(driver_call kind, source_location where, Call const& call, Again again) noexcept {
    status const s = through(kind, where, call);
    host_faults::not_counted const own;
    std::lock_guard const guard(mutex_);
    if (s.ok()) return s;
    bool const struck = made.back().struck;
    if (struck && moment == fault_moment::after) return s;
    if (!struck && owed_.empty()) {
      complaints.push_back(std::string(s.call) + " was refused, but no fault was injected: " + s.name);
    } else {
      owed_.push_back(std::move(again));
    }
    return s;
  }
  /// A call that is not in the contract; it fails as `kind` would.
  template <class Call>
  status extra(driver_call kind, char const* name, source_location where, Call const& call) noexcept {
    return through(kind, name, where, [&] {
      if (fault const struck = plan.next(kind); struck.kind != failure::none) {
        status s = tarn::detail::fault_status(struck.kind, kind);
        s.call = name;
        return s;
      }
      return call();
    });
  }

 private:
  void fill_up() {
    if (full_from == 0 || made.size() + 1 < full_from || full) return;
    full = true;
    for (int d = 0; d < machine.options().devices; ++d)
      machine.take_memory(device_id{d}, machine.options().capacity);
  }

  std::mutex mutex_;
  std::vector<std::function<status()>> owed_;
};

/// Whether the driver can mark all work of a device at once: CUDA's can, the simulated one cannot. The one
/// that can does not share pages with other processes here, so that both ways to create pages are made to
/// fail.
enum class marking : std::uint8_t { streams, all_work };

[[nodiscard]] constexpr bool is_in(marking m, driver_call call) noexcept {
  return m == marking::streams || call != driver_call::can_export_pages;
}

/// Whether what a failed call has not released is released later.
[[nodiscard]] constexpr bool releases(driver_call call) noexcept {
  std::string_view const name = name_of(call);
  for (std::string_view const verb : {"destroy_", "release_", "unmap_", "free_", "unregister_"}) {
    if (name.starts_with(verb)) return true;
  }
  return false;
}

template <marking Marking>
class sited_driver_of {
  using real_driver = faulty<sim_driver>;

 public:
  sited_driver_of(std::shared_ptr<call_log> log, device_id device = {})
      : log_(std::move(log)), faulty_(log_->machine.driver(device), log_->plan) {
    current_log() = log_.get();
  }

  [[nodiscard]] device_id device() const noexcept { return faulty_.device(); }

  /// Makes no driver call.
  [[nodiscard]] stream_id made_identity(void* handle) const noexcept { return faulty_.made_identity(handle); }

  [[nodiscard]] device_id known_device(stream_ref stream) const noexcept {
    return faulty_.known_device(stream);
  }
  [[nodiscard]] device_id named_device() const noexcept { return faulty_.named_device(); }
  [[nodiscard]] tarn::detail::stream_devices& devices_of_streams() const noexcept {
    return faulty_.devices_of_streams();
  }
  void retarget(device_id device) noexcept { faulty_.retarget(device); }
  [[nodiscard]] bool has_memory_pools() const noexcept { return faulty_.has_memory_pools(); }
  status open_memory_pool(async_memory memory) const noexcept { return faulty_.open_memory_pool(memory); }

  // clang-format off
  // The calls of the contract, by their names in the enumeration. No default argument can follow a pack, so each number of arguments has
  // a function of its own.
#define TARN_SITED(name) \
  TARN_SITED_FOR(name, (class D = real_driver), (), ()) \
  TARN_SITED_FOR(name, (class A, class D = real_driver), (A&& a,), (a)) \
  TARN_SITED_FOR(name, (class A, class B, class D = real_driver), (A&& a, B&& b,), (a, b)) \
  TARN_SITED_FOR(name, (class A, class B, class C, class D = real_driver), (A&& a, B&& b, C&& c,), (a, b, c)) \
  TARN_SITED_FOR(name, (class A, class B, class C, class E, class D = real_driver), (A&& a, B&& b, C&& c, E&& e,), (a, b, c, e))
#define TARN_SITED_FOR(name, types, parameters, arguments) \
  template <TARN_PLAIN types> \
  auto name(TARN_PLAIN parameters source_location w = source_location::current()) const noexcept -> decltype(std::declval<D const&>().name arguments) \
    requires(is_in(Marking, driver_call::name)) \
  { return call<driver_call::name>(w, [](auto const& driver, auto&... of) { return driver.name(of...); }) arguments; }
#define TARN_PLAIN(...) __VA_ARGS__
  TARN_DRIVER_CALLS(TARN_SITED)
#undef TARN_PLAIN
#undef TARN_SITED_FOR
#undef TARN_SITED

  /// Counts as a copy.
  status copy_from_device(stream_ref stream, void* to, device_id other, void const* from, std::size_t bytes, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::copy, "copy_from_device", w, [&] { return faulty_.copy_from_device(stream, to, other, from, bytes); }); }

  // Calls that only CUDA's driver has; modelled by those of the contract.
  status set_release_threshold(std::size_t, source_location w = source_location::current()) const noexcept { return log_->extra(driver_call::memory_info, "set_release_threshold", w, [] { return status{}; }); }
  status record_all(event_handle event, source_location w = source_location::current()) const noexcept requires(Marking == marking::all_work) {
    // Stricter than CUDA's, which does not make the host wait; as an order it is the same.
    return log_->extra(driver_call::record_event, "record_all", w, [&] { (void)faulty_.driver().synchronize_device(); return faulty_.driver().record_event(event, stream_ref{}); });
  }
  static status current_device(device_id& device, source_location w = source_location::current()) noexcept { return current_log()->extra(driver_call::identify, "current_device", w, [&] { return sim_driver::current_device(device); }); }
  static status set_current_device(device_id device, source_location w = source_location::current()) noexcept { return current_log()->extra(driver_call::identify, "set_current_device", w, [&] { return sim_driver::set_current_device(device); }); }
  // clang-format on

  /// The machine's tool, always notified correctly, even under faults; its memory is not the library's.
  class memory_tool_ref {
   public:
    explicit operator bool() const noexcept { return static_cast<bool>(tool); }
    [[nodiscard]] void* register_heap(void const* p, std::size_t bytes) const noexcept {
      host_faults::not_counted const own;
      return tool.register_heap(p, bytes);
    }
    void unregister_heap(void* heap) const noexcept {
      host_faults::not_counted const own;
      tool.unregister_heap(heap);
    }
    void register_region(void* heap, void const* p, std::size_t bytes) const noexcept {
      host_faults::not_counted const own;
      tool.register_region(heap, p, bytes);
    }
    void unregister_region(void const* p) const noexcept {
      host_faults::not_counted const own;
      tool.unregister_region(p);
    }
    sim_driver::memory_tool_ref tool;
  };
  [[nodiscard]] memory_tool_ref memory_tool() const noexcept { return {faulty_.memory_tool()}; }

  friend bool operator==(sited_driver_of const& a, sited_driver_of const& b) noexcept {
    return a.faulty_ == b.faulty_;
  }

 private:
  /// An argument of a call that is made again later, when the stream of free_async() may be gone.
  template <driver_call Call, class T>
  [[nodiscard]] static T kept(T const& argument) noexcept {
    if constexpr (Call == driver_call::free_async && std::is_same_v<T, stream_ref>) return {};
    return argument;
  }
  template <driver_call Call, class Act>
  [[nodiscard]] auto call(source_location where, Act const& act) const noexcept {
    return [=, this](auto&... a) -> status {
      auto const once = [&] { return act(faulty_, a...); };
      if constexpr (releases(Call)) {
        auto again = [act, driver = faulty_.driver(), ... of = kept<Call>(a)] { return act(driver, of...); };
        return log_->release(Call, where, once, std::move(again));
      } else {
        status const s = log_->through(Call, where, once);
        if constexpr (Call == driver_call::create_stream)
          ((a = stream_ref::from(a.handle())), ...);  // its identity must be queried
        return s;
      }
    };
  }

  /// For the two calls that belong to no device.
  static call_log*& current_log() noexcept {
    static call_log* log = nullptr;
    return log;
  }
  std::shared_ptr<call_log> log_;
  real_driver faulty_;
};

using sited_driver = sited_driver_of<marking::streams>;
static_assert(page_driver<sited_driver> && block_driver<sited_driver> && memory_tool_driver<sited_driver>);
static_assert(sharing_driver<sited_driver> && !sharing_driver<sited_driver_of<marking::all_work>>);

}  // namespace tarn_test
