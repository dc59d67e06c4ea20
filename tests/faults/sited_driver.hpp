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

template <marking Marking>
class sited_driver_of {
 public:
  sited_driver_of(std::shared_ptr<call_log> log, device_id device = {})
      : log_(std::move(log)), faulty_(log_->machine.driver(device), log_->plan) {
    current_log() = log_.get();
  }

  [[nodiscard]] device_id device() const noexcept { return faulty_.device(); }

  /// Makes no driver call.
  [[nodiscard]] stream_id made_identity(void* handle) const noexcept { return faulty_.made_identity(handle); }

  // clang-format off
  status identify(stream_ref stream, stream_id& id, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::identify, w, [&] { return faulty_.identify(stream, id); }); }
  status ask_device(stream_ref stream, device_id& device, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::ask_device, w, [&] { return faulty_.ask_device(stream, device); }); }
  [[nodiscard]] device_id known_device(stream_ref stream) const noexcept { return faulty_.known_device(stream); }
  [[nodiscard]] device_id named_device() const noexcept { return faulty_.named_device(); }
  [[nodiscard]] tarn::detail::stream_devices& devices_of_streams() const noexcept { return faulty_.devices_of_streams(); }
  void retarget(device_id device) noexcept { faulty_.retarget(device); }
  status is_capturing(stream_ref stream, bool& yes, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::is_capturing, w, [&] { return faulty_.is_capturing(stream, yes); }); }
  status create_event(event_handle& event, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::create_event, w, [&] { return faulty_.create_event(event); }); }
  status destroy_event(event_handle event, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::destroy_event, w, [&] { return faulty_.destroy_event(event); }, [d = faulty_.driver(), event] { return d.destroy_event(event); }); }
  status record_event(event_handle event, stream_ref stream, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::record_event, w, [&] { return faulty_.record_event(event, stream); }); }
  status query_event(event_handle event, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::query_event, w, [&] { return faulty_.query_event(event); }); }
  status wait_event(stream_ref stream, event_handle event, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::wait_event, w, [&] { return faulty_.wait_event(stream, event); }); }
  status synchronize_event(event_handle event, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::synchronize_event, w, [&] { return faulty_.synchronize_event(event); }); }
  status synchronize_stream(stream_ref stream, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::synchronize_stream, w, [&] { return faulty_.synchronize_stream(stream); }); }
  status synchronize_device(source_location w = source_location::current()) const noexcept { return log_->through(driver_call::synchronize_device, w, [&] { return faulty_.synchronize_device(); }); }
  status create_stream(stream_ref& stream, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::create_stream, w, [&] { status const s = faulty_.create_stream(stream); stream = stream_ref::from(stream.handle()); return s; }); }  // its identity must be queried
  status destroy_stream(stream_ref stream, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::destroy_stream, w, [&] { return faulty_.destroy_stream(stream); }, [d = faulty_.driver(), stream] { return d.destroy_stream(stream); }); }
  status copy(stream_ref stream, void* to, void const* from, std::size_t bytes, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::copy, w, [&] { return faulty_.copy(stream, to, from, bytes); }); }
  status copy_from_device(stream_ref stream, void* to, device_id other, void const* from, std::size_t bytes, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::copy, "copy_from_device", w, [&] { return faulty_.copy_from_device(stream, to, other, from, bytes); }); }
  status fill(stream_ref stream, void* to, int byte, std::size_t bytes, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::fill, w, [&] { return faulty_.fill(stream, to, byte, bytes); }); }
  template <class To, class From>
  status convert(stream_ref stream, To* to, From const* from, std::size_t count, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::convert, w, [&] { return faulty_.convert(stream, to, from, count); }); }
  status can_share(device_id other, bool& yes, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::can_share, w, [&] { return faulty_.can_share(other, yes); }); }
  status share_pages(void* p, std::size_t bytes, device_id other, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::share_pages, w, [&] { return faulty_.share_pages(p, bytes, other); }); }
  status can_export_pages(allocation_handle_type type, bool& yes, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::can_export_pages, w, [&] { return faulty_.can_export_pages(type, yes); }); }
  status export_pages(page_handle handle, page_export& exported, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::export_pages, w, [&] { return faulty_.export_pages(handle, exported); }); }
  status import_pages(page_export const& exported, page_handle& handle, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::import_pages, w, [&] { return faulty_.import_pages(exported, handle); }); }
  status create_pages(std::size_t bytes, allocation_handle_type type, page_handle& handle, source_location w = source_location::current()) const noexcept requires(Marking == marking::streams) { return log_->through(driver_call::create_pages, w, [&] { return faulty_.create_pages(bytes, type, handle); }); }
  status create_shared_event(event_handle& event, shared_event_token& token, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::create_shared_event, w, [&] { return faulty_.create_shared_event(event, token); }); }
  status open_shared_event(shared_event_token const& token, event_handle& event, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::open_shared_event, w, [&] { return faulty_.open_shared_event(token, event); }); }
  status export_dma_buf(void* p, std::size_t bytes, int& descriptor, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::export_dma_buf, w, [&] { return faulty_.export_dma_buf(p, bytes, descriptor); }); }
  status uuid(device_uuid& id, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::uuid, w, [&] { return faulty_.uuid(id); }); }
  status prefetch(stream_ref stream, void const* p, std::size_t bytes, device_id to, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::prefetch, w, [&] { return faulty_.prefetch(stream, p, bytes, to); }); }
  status advise(void const* p, std::size_t bytes, memory_advice advice, device_id where, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::advise, w, [&] { return faulty_.advise(p, bytes, advice, where); }); }
  status memory_info(std::size_t& free, std::size_t& total, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::memory_info, w, [&] { return faulty_.memory_info(free, total); }); }

  status page_granularity(std::size_t& bytes, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::page_granularity, w, [&] { return faulty_.page_granularity(bytes); }); }
  status reserve_range(std::size_t bytes, std::size_t alignment, void*& p, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::reserve_range, w, [&] { return faulty_.reserve_range(bytes, alignment, p); }); }
  status release_range(void* p, std::size_t bytes, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::release_range, w, [&] { return faulty_.release_range(p, bytes); }, [d = faulty_.driver(), p, bytes] { return d.release_range(p, bytes); }); }
  status create_pages(std::size_t bytes, page_handle& handle, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::create_pages, w, [&] { return faulty_.create_pages(bytes, handle); }); }
  status destroy_pages(page_handle handle, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::destroy_pages, w, [&] { return faulty_.destroy_pages(handle); }, [d = faulty_.driver(), handle] { return d.destroy_pages(handle); }); }
  status map_pages(void* p, std::size_t bytes, page_handle handle, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::map_pages, w, [&] { return faulty_.map_pages(p, bytes, handle); }); }
  status unmap_pages(void* p, std::size_t bytes, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::unmap_pages, w, [&] { return faulty_.unmap_pages(p, bytes); }, [d = faulty_.driver(), p, bytes] { return d.unmap_pages(p, bytes); }); }

  status malloc_device(std::size_t bytes, void*& p, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::malloc_device, w, [&] { return faulty_.malloc_device(bytes, p); }); }
  status free_device(void* p, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::free_device, w, [&] { return faulty_.free_device(p); }, [d = faulty_.driver(), p] { return d.free_device(p); }); }
  [[nodiscard]] bool has_memory_pools() const noexcept { return faulty_.has_memory_pools(); }
  status malloc_async(std::size_t bytes, stream_ref stream, void*& p, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::malloc_async, w, [&] { return faulty_.malloc_async(bytes, stream, p); }); }
  status open_memory_pool(async_memory memory) const noexcept { return faulty_.open_memory_pool(memory); }
  status malloc_async(std::size_t bytes, stream_ref stream, async_memory memory, void*& p, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::malloc_async, w, [&] { return faulty_.malloc_async(bytes, stream, memory, p); }); }
  status free_async(void* p, stream_ref stream, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::free_async, w, [&] { return faulty_.free_async(p, stream); }, [d = faulty_.driver(), p] { return d.free_async(p, stream_ref{}); }); }
  status malloc_pinned(std::size_t bytes, void*& p, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::malloc_pinned, w, [&] { return faulty_.malloc_pinned(bytes, p); }); }
  status free_pinned(void* p, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::free_pinned, w, [&] { return faulty_.free_pinned(p); }, [d = faulty_.driver(), p] { return d.free_pinned(p); }); }
  status register_host(void* p, std::size_t bytes, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::register_host, w, [&] { return faulty_.register_host(p, bytes); }); }
  status unregister_host(void* p, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::unregister_host, w, [&] { return faulty_.unregister_host(p); }, [d = faulty_.driver(), p] { return d.unregister_host(p); }); }
  status malloc_managed(std::size_t bytes, void*& p, source_location w = source_location::current()) const noexcept { return log_->through(driver_call::malloc_managed, w, [&] { return faulty_.malloc_managed(bytes, p); }); }
  status free_managed(void* p, source_location w = source_location::current()) const noexcept { return log_->release(driver_call::free_managed, w, [&] { return faulty_.free_managed(p); }, [d = faulty_.driver(), p] { return d.free_managed(p); }); }

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
  /// For the two calls that belong to no device.
  static call_log*& current_log() noexcept {
    static call_log* log = nullptr;
    return log;
  }
  std::shared_ptr<call_log> log_;
  faulty<sim_driver> faulty_;
};

using sited_driver = sited_driver_of<marking::streams>;
static_assert(page_driver<sited_driver> && block_driver<sited_driver> && memory_tool_driver<sited_driver>);
static_assert(sharing_driver<sited_driver> && !sharing_driver<sited_driver_of<marking::all_work>>);

}  // namespace tarn_test
