// SPDX-License-Identifier: Apache-2.0
#pragma once
// The driver of one simulated device: the whole contract in plain C++, deterministic, with CUDA's rules and
// error numbers.
//
// Over 400 lines: one short function for each call of the driver contract (driver.hpp).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "tarn/core/error.hpp"
#include "tarn/core/message.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/mutex.hpp"
#include "tarn/core/stream.hpp"
#include "tarn/driver/captured_handles.hpp"
#include "tarn/driver/driver.hpp"
#include "tarn/driver/meminfo.hpp"
#include "tarn/driver/sim/sim_account.hpp"
#include "tarn/driver/sim/sim_machine.hpp"
#include "tarn/driver/sim/sim_work.hpp"

namespace TARN_NAMESPACE {

/// A device of a simulated machine; by default the current one of the process-wide machine. A cheap handle
/// that keeps its machine alive. As the contract requires, no call throws and every call is thread-safe.
/// Beyond the contract: a call inside simulated work fails (not permitted), misuse is reported with CUDA's
/// error numbers, and after an illegal access every call on the device fails, as on a GPU.
class sim_driver {
 public:
  /// The tool attached to the machine, which the pool notifies of its blocks; converts to false if there is
  /// none.
  class memory_tool_ref {
   public:
    constexpr memory_tool_ref() noexcept = default;
    explicit operator bool() const noexcept { return state_ != nullptr; }
    [[nodiscard]] void* register_heap(void const* p, std::size_t bytes) const noexcept {
      void* heap = nullptr;
      notify([&](detail::sim_memory_tool& tool) {
        using heap_in = detail::sim_memory_tool::heap_in;
        bool const in_block = state_->memory.in_block(p, bytes, detail::sim_kind::device);
        heap = tool.register_heap(p, bytes, in_block ? heap_in::device_block : heap_in::other_memory);
      });
      return heap;
    }
    void unregister_heap(void* heap) const noexcept {
      notify([&](detail::sim_memory_tool& tool) { tool.unregister_heap(heap); });
    }
    void register_region(void* heap, void const* p, std::size_t bytes) const noexcept {
      notify([&](detail::sim_memory_tool& tool) { tool.register_region(heap, p, bytes); });
    }
    void unregister_region(void const* p) const noexcept {
      notify([&](detail::sim_memory_tool& tool) { tool.unregister_region(p); });
    }

   private:
    friend class sim_driver;
    explicit memory_tool_ref(detail::sim_state* state) noexcept : state_(state) {}
    template <class F>
    void notify(F const& f) const noexcept {
      detail::scoped_lock const lock(state_->mutex);
      try {
        f(*state_->memory.tool());
      } catch (std::bad_alloc const&) {  // without host memory the tool misses this notification
      }
    }
    detail::sim_state* state_ = nullptr;  ///< valid as long as the driver that returned this
  };

  /// Uses the calling thread's current device of the process-wide machine, as cuda_driver does.
  sim_driver() : sim_driver(current()) {}
  /// Uses a device of the process-wide machine, which has device 0 and as many more as TARN_SIM_DEVICES asks
  /// for.
  explicit sim_driver(device_id device) : machine_(sim_machine::standard()), device_(device) {}
  sim_driver(sim_machine machine, device_id device) noexcept
      : machine_(std::move(machine)), device_(device) {}

  [[nodiscard]] device_id device() const noexcept { return device_; }

  /// Returns the calling thread's current device, for device_guard. Informational: no simulated call depends
  /// on it.
  static status current_device(device_id& device) noexcept {
    device = current();
    return {};
  }
  static status set_current_device(device_id device) noexcept {
    if (device.value < 0) return {failure::no_device, 101, "cudaErrorInvalidDevice", "set_current_device"};
    current() = device;
    return {};
  }
  [[nodiscard]] sim_machine const& machine() const noexcept { return machine_; }

  /// Returns an identity that the stream_ref already holds, as cuda_driver does. As CUDA, refuses to identify
  /// a captured stream by its handle, and invalidates the capture.
  status identify(stream_ref stream, stream_id& id) const noexcept {
    if (stream.id() != stream_ref::unknown_id) {
      return call(driver_call::identify, costs().look, [&](state&) {
        id = stream.id();
        return code::ok;
      });
    }
    if (status found;
        !detail::is_default_stream(stream) && detail::identify_captured(*this, stream, id, found))
      return found;
    return on_stream(driver_call::identify, costs().look, stream, [&](state& m, detail::sim_stream& s) {
      if (!s.is_default && m.streams.is_capturing(s)) return m.streams.refuse_captured(s);
      id = s.id;
      return code::ok;
    });
  }
  /// As cuda_driver's: where a stream lives, as far as it was learned.
  [[nodiscard]] device_id known_device(stream_ref stream) const noexcept {
    if (machine_.options().devices < 2) return device_;
    if (!detail::is_default_stream(stream)) return devices_of_streams().find(stream.id());
    return machine_.hold()->streams.find(stream, device_.value)->device;
  }
  /// Where an existing stream lives. As CUDA, refuses a captured stream, and invalidates the capture.
  status ask_device(stream_ref stream, device_id& device) const noexcept {
    return on_stream(driver_call::ask_device, costs().look, stream, [&](state& m, detail::sim_stream& s) {
      if (!s.is_default && m.streams.is_capturing(s)) return m.streams.refuse_captured(s);
      device = s.device;
      return code::ok;
    });
  }
  [[nodiscard]] detail::stream_devices& devices_of_streams() const noexcept {
    return machine_.state_->devices_of_streams;
  }
  /// As cuda_driver's: the current device, or this one where nothing has used the current one yet.
  [[nodiscard]] device_id named_device() const noexcept {
    auto const m = machine_.hold();
    return machine_.has(current()) && m->has_context[static_cast<std::size_t>(current().value)] ? current()
                                                                                                : device_;
  }
  /// Makes this the driver of another device of the machine.
  void retarget(device_id device) noexcept { device_ = device; }
  /// As cuda_driver's: the identity of an existing stream, without a call of the device.
  [[nodiscard]] stream_id made_identity(void* handle) const noexcept {
    auto const m = machine_.hold();
    auto* const s = m->streams.find(stream_ref::from(handle), device_.value);
    return s != nullptr ? s->id : stream_id{stream_ref::unknown_id};
  }
  status is_capturing(stream_ref stream, bool& capturing) const noexcept {
    return on_stream(driver_call::is_capturing, costs().look, stream, [&](state& m, detail::sim_stream& s) {
      capturing = m.streams.is_capturing(s);
      return code::ok;
    });
  }

  status create_event(event_handle& event) const noexcept {
    return call(driver_call::create_event, costs().create_event, [&](state& m) {
      m.streams.create_event(device_.value, event);
      return code::ok;
    });
  }
  status destroy_event(event_handle event) const noexcept {
    return call(driver_call::destroy_event, costs().destroy_event,
                [&](state& m) { return m.streams.destroy_event(event); });
  }
  status record_event(event_handle event, stream_ref stream) const noexcept {
    return on_stream(driver_call::record_event, costs().record_event, stream,
                     [&](state& m, detail::sim_stream& s) {
                       auto* const e = m.streams.find_event(event);
                       return e == nullptr ? code::invalid_handle : m.streams.record(*e, s);
                     });
  }
  status query_event(event_handle event) const noexcept {
    return on_event(driver_call::query_event, costs().query_event, event,
                    [](state& m, detail::sim_event& e) { return m.streams.query(e); });
  }
  status wait_event(stream_ref stream, event_handle event) const noexcept {
    return on_stream(driver_call::wait_event, costs().wait_event, stream,
                     [&](state& m, detail::sim_stream& s) {
                       auto* const e = m.streams.find_event(event);
                       return e == nullptr ? code::invalid_handle : m.streams.wait(s, *e);
                     });
  }
  status synchronize_event(event_handle event) const noexcept {
    return on_event(
        driver_call::synchronize_event, costs().synchronize, event,
        [&](state& m, detail::sim_event& e) { return synchronized(m, m.streams.synchronize(e)); });
  }
  status synchronize_stream(stream_ref stream) const noexcept {
    return on_stream(
        driver_call::synchronize_stream, costs().synchronize, stream,
        [&](state& m, detail::sim_stream& s) { return synchronized(m, m.streams.synchronize(s)); });
  }
  status synchronize_device() const noexcept {
    return call(driver_call::synchronize_device, costs().synchronize,
                [&](state& m) { return synchronized(m, m.streams.synchronize_device(device_.value)); });
  }
  status create_stream(stream_ref& stream) const noexcept {
    return call(driver_call::create_stream, costs().create_stream, [&](state& m) {
      m.streams.create_stream(device_.value, detail::sim_blocking::independent, stream);
      m.devices_of_streams.note(stream.id(), device_);
      return code::ok;
    });
  }
  status destroy_stream(stream_ref stream) const noexcept {
    return call(driver_call::destroy_stream, costs().destroy_stream,
                [&](state& m) { return m.streams.destroy_stream(stream); });
  }

  /// Copies when the stream reaches the operation. As in CUDA, a copy from or to pageable host memory (any
  /// memory unknown to the machine) has completed when the call returns.
  status copy(stream_ref stream, void* to, void const* from, std::size_t bytes) const noexcept {
    return copy_from_device(stream, to, device_, from, bytes);
  }
  /// Copies from another device's memory, without peer access.
  status copy_from_device(stream_ref stream, void* to, device_id from_device, void const* from,
                          std::size_t bytes) const noexcept {
    return on_stream(driver_call::copy, costs().copy, stream, [&](state& m, detail::sim_stream& s) {
      if (bytes == 0) return code::ok;
      if (to == nullptr || from == nullptr) return code::invalid_value;
      if (!m.memory.is_reachable(to, device_.value)) return code::invalid_value;
      if (!m.memory.is_reachable(from, from_device.value)) return code::invalid_value;
      auto work = std::make_shared<detail::sim_transfer_work>();
      work->to = to;
      work->from = from;
      work->bytes = bytes;
      bool const pageable_to = !m.memory.knows(to);
      bool const pageable_from = !m.memory.knows(from);
      if (!pageable_from) work->touched.push_back(sim_reads(from, bytes));
      if (!pageable_to) work->touched.push_back(sim_writes(to, bytes));
      bool const pageable = pageable_to || pageable_from;
      double const rate = pageable ? costs().pageable_rate : rate_between(m, to, from);
      code const outcome = transfer(m, s, std::move(work), detail::sim_transfer(bytes, rate));
      if (outcome != code::ok || !pageable || s.capture) return outcome;
      return synchronized(m, m.streams.synchronize(s));
    });
  }
  /// As CUDA's, and like a kernel, refuses a stream that was created on another device.
  status fill(stream_ref stream, void* to, int byte, std::size_t bytes) const noexcept {
    return on_stream(driver_call::fill, costs().copy, stream, [&](state& m, detail::sim_stream& s) {
      if (bytes == 0) return code::ok;
      if (s.device != device_.value && !s.is_default) return code::invalid_handle;
      if (!m.memory.knows(to)) return code::invalid_value;
      auto work = std::make_shared<detail::sim_transfer_work>();
      work->to = to;
      work->byte = byte;
      work->bytes = bytes;
      work->touched.push_back(sim_writes(to, bytes));
      return transfer(m, s, std::move(work), detail::sim_transfer(bytes, costs().fill_rate));
    });
  }
  /// Converts when the stream reaches the operation, at the rate of a copy of the same size. It is a kernel
  /// of this device, or of the default stream's: an access to memory that the device cannot reach is an
  /// illegal access and breaks the device.
  template <element To, element From>
  status convert(stream_ref stream, To* to, From const* from, std::size_t count) const noexcept {
    return on_stream(driver_call::convert, costs().launch, stream, [&](state& m, detail::sim_stream& s) {
      if (count == 0) return code::ok;
      if (s.device != device_.value && !s.is_default) return code::invalid_handle;
      auto work = std::make_shared<detail::sim_conversion<To, From>>(to, from, count, s.device);
      std::size_t const bytes = count * (sizeof(To) + sizeof(From)) / 2;
      return m.streams.enqueue(s, detail::sim_transfer(bytes, costs().on_device_rate), std::move(work),
                               detail::sim_streams::caller::user);
    });
  }

  /// Takes the time of a copy of what is not there yet. The pages stay accessible everywhere.
  status prefetch(stream_ref stream, void const* p, std::size_t bytes, device_id to) const noexcept {
    return on_stream(driver_call::prefetch, costs().copy, stream, [&](state& m, detail::sim_stream& s) {
      if (bytes == 0) return code::ok;
      if (code const refused = can_migrate(m, to); refused != code::ok) return refused;
      if (s.capture) return m.streams.refuse_captured(s);
      std::size_t moved = 0;
      code const found = m.memory.change_managed(p, bytes, [&](sim_managed_page& page, std::size_t size) {
        if (page.prefetched_to != to) moved += size;
        page.prefetched_to = to;
      });
      if (found != code::ok) return code::not_supported;
      auto const nothing = [] {};
      return m.streams.enqueue(s, detail::sim_transfer(moved, costs().pinned_rate),
                               std::make_shared<detail::sim_kernel<decltype(nothing)>>(
                                   std::initializer_list<sim_access>{}, nothing),
                               detail::sim_streams::caller::driver);
    });
  }
  status advise(void const* p, std::size_t bytes, memory_advice advice, device_id where) const noexcept {
    return call(driver_call::advise, costs().copy, [&](state& m) {
      if (bytes == 0) return code::ok;
      if (code const refused = can_migrate(m, where); refused != code::ok) return refused;
      code const found = m.memory.change_managed(p, bytes, [&](sim_managed_page& page, std::size_t) {
        bool const is_set = advice == memory_advice::read_mostly || advice == memory_advice::accessed_by ||
                            advice == memory_advice::preferred_location;
        switch (advice) {
          case memory_advice::read_mostly:
          case memory_advice::not_read_mostly:
            page.read_mostly = is_set;
            break;
          case memory_advice::preferred_location:
          case memory_advice::no_preferred_location:
            page.preferred_location = is_set ? where : sim_managed_page::nowhere;
            break;
          default:
            std::erase(page.accessed_by, where);
            if (is_set) page.accessed_by.push_back(where);
        }
      });
      return found == code::ok ? found : code::not_supported;
    });
  }

  status memory_info(std::size_t& free, std::size_t& total) const noexcept {
    return call(driver_call::memory_info, costs().memory_info, [&](state& m) {
      sim_usage const& u = m.memory.usage(device_.value);
      free = u.free_bytes() - detail::min_of(u.free_bytes(), m.options.page_cache);
      total = u.capacity;
      if (m.options.placement == sim_placement::integrated) {
        message<64> const meminfo("MemFree: ", free / 1_KiB, " kB\nMemAvailable: ", u.free_bytes() / 1_KiB,
                                  " kB\n");
        detail::use_available(meminfo.view(), total, free);
      }
      return code::ok;
    });
  }
  /// Reports what NVML would, from the options that attribute `taken`.
  status memory_account(device_account& account) const noexcept {
    return call(driver_call::memory_account, costs().memory_account, [&](state& m) {
      if (m.options.accounting == sim_accounting::missing) return code::not_supported;
      account = detail::sim_account(m.options, m.memory.usage(device_.value));
      return code::ok;
    });
  }

  status page_granularity(std::size_t& bytes) const noexcept {
    return paged(driver_call::page_granularity, costs().page_granularity, [&](state& m) {
      bytes = m.memory.granularity();
      return code::ok;
    });
  }
  status reserve_range(std::size_t bytes, std::size_t alignment, void*& p) const noexcept {
    return paged(driver_call::reserve_range, costs().reserve_range.at(bytes),
                 [&](state& m) { return m.memory.reserve(bytes, alignment, p); });
  }
  status release_range(void* p, std::size_t bytes) const noexcept {
    return paged(driver_call::release_range, costs().release_range,
                 [&](state& m) { return m.memory.release(p, bytes); });
  }
  status create_pages(std::size_t bytes, page_handle& handle) const noexcept {
    return create_pages(bytes, allocation_handle_type::none, handle);
  }
  status create_pages(std::size_t bytes, allocation_handle_type type, page_handle& handle) const noexcept {
    return paged(driver_call::create_pages, costs().create_pages.at(bytes), [&](state& m) {
      if (!exports(m, type)) return code::not_supported;
      return m.memory.create(device_.value, bytes, type, handle);
    });
  }
  status destroy_pages(page_handle handle) const noexcept {
    return paged(driver_call::destroy_pages, 0, [&](state& m) {
      m.charge_more(costs().destroy_pages.at(m.memory.page_bytes_of(handle)));
      return m.memory.destroy(handle);
    });
  }
  status map_pages(void* p, std::size_t bytes, page_handle handle) const noexcept {
    return paged(driver_call::map_pages, costs().map_pages.at(bytes),
                 [&](state& m) { return m.memory.map(p, bytes, handle); });
  }
  status unmap_pages(void* p, std::size_t bytes) const noexcept {
    return paged(driver_call::unmap_pages, costs().unmap_pages.at(bytes), [&](state& m) {
      if (m.order) m.order->taken_away(m.memory, p, bytes, m.streams.host(), "unmapped while in use");
      return m.memory.unmap(p, bytes);
    });
  }
  status can_share(device_id other, bool& yes) const noexcept {
    return call(driver_call::can_share, costs().look, [&](state& m) {
      if (!machine_.has(other)) return code::invalid_device;
      yes = other == device_ || m.options.peers == sim_peers::reachable;
      if (yes && other != device_) enter(m, other);
      return code::ok;
    });
  }
  status share_pages(void* p, std::size_t bytes, device_id other) const noexcept {
    return paged(driver_call::share_pages, costs().share_pages, [&](state& m) {
      if (!machine_.has(other)) return code::invalid_device;
      if (other != device_ && m.options.peers == sim_peers::apart) return code::not_supported;
      return m.memory.share(p, bytes, other.value);
    });
  }

  status can_export_pages(allocation_handle_type type, bool& yes) const noexcept {
    return paged(driver_call::can_export_pages, costs().look, [&](state& m) {
      yes = exports(m, type);
      return code::ok;
    });
  }
  status export_pages(page_handle handle, page_export& exported) const noexcept {
    return paged(driver_call::export_pages, costs().export_pages,
                 [&](state& m) { return m.memory.export_pages(handle, exported); });
  }
  status import_pages(page_export const& exported, page_handle& handle) const noexcept {
    return paged(driver_call::import_pages, costs().import_pages, [&](state& m) {
      if (!exports(m, exported.type)) return code::not_supported;
      return m.memory.import_pages(device_.value, exported, handle);
    });
  }
  /// Only drivers of the same machine can open it: another process's machine has its own time.
  status create_shared_event(event_handle& event, shared_event_token& token) const noexcept {
    return call(driver_call::create_shared_event, costs().create_event, [&](state& m) {
      if (m.options.sharing == sim_sharing::none) return code::not_supported;
      event_token const made{&m, m.streams.create_shared_event(device_.value, event), event_token::mark};
      std::memcpy(token.data(), &made, sizeof made);
      return code::ok;
    });
  }
  status open_shared_event(shared_event_token const& token, event_handle& event) const noexcept {
    return call(driver_call::open_shared_event, costs().create_event, [&](state& m) {
      event_token of{};
      std::memcpy(&of, token.data(), sizeof of);
      if (of.magic != event_token::mark) return code::invalid_value;
      return of.machine == &m ? m.streams.open_event(of.serial, event) : code::not_supported;
    });
  }
  /// No simulated device has dma-bufs: they are of the kernel.
  status export_dma_buf(void*, std::size_t, int&) const noexcept {
    return call(driver_call::export_dma_buf, costs().look, [](state&) { return code::not_supported; });
  }
  /// The same for the devices of one number of all simulated machines: a second process can import what the
  /// first has exported.
  status uuid(device_uuid& id) const noexcept {
    return call(driver_call::uuid, costs().look, [&](state&) {
      id = {'t', 'a', 'r', 'n', ' ', 's', 'i', 'm', static_cast<unsigned char>(device_.value)};
      return code::ok;
    });
  }

  [[nodiscard]] memory_tool_ref memory_tool() const noexcept {
    detail::sim_state& m = *machine_.state_;
    return memory_tool_ref(m.memory.tool() != nullptr ? &m : nullptr);
  }

  status malloc_device(std::size_t bytes, void*& p) const noexcept {
    return call(driver_call::malloc_device, costs().malloc_device.at(bytes), [&](state& m) {
      return m.memory.allocate(device_.value, bytes, detail::sim_kind::device, p);
    });
  }
  /// Waits for the device, as cudaFree does.
  status free_device(void* p) const noexcept {
    return free_block(driver_call::free_device, p, detail::sim_kind::device);
  }
  /// Whether memory holds what was written to it: not device memory that is addresses only.
  [[nodiscard]] bool has_contents(void const* p) const noexcept {
    if (machine_.options().backing == sim_backing::host_backed) return true;
    return machine_.hold()->memory.is_real(p);
  }
  [[nodiscard]] bool has_memory_pools() const noexcept {
    return machine_.state_->options.memory_pools == sim_memory_pools::available;
  }
  status malloc_async(std::size_t bytes, stream_ref stream, void*& p) const noexcept {
    return malloc_async(bytes, stream, async_memory::device, p);
  }
  status open_memory_pool(async_memory) const noexcept {
    return has_memory_pools() ? status{} : detail::sim_status(code::not_supported, "open_memory_pool");
  }
  status malloc_async(std::size_t bytes, stream_ref stream, async_memory memory, void*& p) const noexcept {
    using kind = detail::sim_kind;
    kind const of = memory == async_memory::device   ? kind::async
                    : memory == async_memory::pinned ? kind::async_pinned
                                                     : kind::async_managed;
    return on_stream(
        driver_call::malloc_async, costs().malloc_async_warm, stream, [&](state& m, detail::sim_stream& s) {
          if (!has_memory_pools()) return code::not_supported;
          if (s.capture) m.streams.count_captured();
          (void)m.streams.end_of(s);
          auto warmth = detail::sim_warmth::warm;
          code const outcome =
              m.async[static_cast<std::size_t>(s.device)].allocate(bytes, of, s, m.streams.now(), p, warmth);
          if (warmth == detail::sim_warmth::cold) {
            m.charge_more(costs().malloc_async_cold.at(bytes));
          }
          return outcome;
        });
  }
  status free_async(void* p, stream_ref stream) const noexcept {
    return on_stream(driver_call::free_async, costs().free_async, stream,
                     [&](state& m, detail::sim_stream& s) {
                       if (!has_memory_pools()) return code::not_supported;
                       if (s.capture) m.streams.count_captured();
                       sim_nanoseconds const end = m.streams.end_of(s);
                       return m.async[static_cast<std::size_t>(s.device)].release(p, s, end);
                     });
  }
  status malloc_pinned(std::size_t bytes, void*& p) const noexcept {
    return call(driver_call::malloc_pinned, costs().malloc_pinned.at(bytes), [&](state& m) {
      return m.memory.allocate(device_.value, bytes, detail::sim_kind::pinned, p);
    });
  }
  /// Waits for the device, as cudaFreeHost does.
  status free_pinned(void* p) const noexcept {
    return free_block(driver_call::free_pinned, p, detail::sim_kind::pinned);
  }
  /// Copies treat the memory as pinned from now on. Unregistering does not wait, since CUDA documents no
  /// wait: work that accesses the memory afterwards is an illegal access.
  status register_host(void* p, std::size_t bytes) const noexcept {
    return call(driver_call::register_host, costs().register_host.at(bytes),
                [&](state& m) { return m.memory.adopt(device_.value, p, bytes); });
  }
  status unregister_host(void* p) const noexcept {
    return call(driver_call::unregister_host, 0, [&](state& m) {
      if (p == nullptr) return code::ok;
      std::size_t bytes = 0;
      if (m.memory.find_block(p, detail::sim_kind::registered, bytes)) {
        m.charge_more(costs().unregister_host.at(bytes));
      }
      return m.memory.let_go(p);
    });
  }
  status malloc_managed(std::size_t bytes, void*& p) const noexcept {
    return call(driver_call::malloc_managed, costs().malloc_managed, [&](state& m) {
      return m.memory.allocate(device_.value, bytes, detail::sim_kind::managed, p);
    });
  }
  /// Waits for the device, as cudaFree does.
  status free_managed(void* p) const noexcept {
    return free_block(driver_call::free_managed, p, detail::sim_kind::managed);
  }

  /// Launches as sim_machine::launch does, with this device's default streams.
  template <class F>
    requires std::is_invocable_v<F&>
  status launch(stream_ref stream, sim_nanoseconds duration, std::initializer_list<sim_access> touched,
                F body) const {
    return machine_.launch_on(device_.value, stream, duration,
                              std::make_shared<detail::sim_kernel<F>>(touched, std::move(body)));
  }
  status launch(stream_ref stream, sim_nanoseconds duration,
                std::initializer_list<sim_access> touched = {}) const {
    return launch(stream, duration, touched, [] {});
  }
  status launch(stream_ref stream, sim_graph const& graph) const {
    return machine_.launch_on(device_.value, stream, graph);
  }
  /// Captures as sim_machine does, with this device's default streams.
  status begin_capture(stream_ref stream) const { return machine_.begin_capture_on(device_.value, stream); }
  status end_capture(stream_ref stream, sim_graph& graph) const {
    return machine_.end_capture_on(device_.value, stream, graph);
  }

  friend bool operator==(sim_driver const& a, sim_driver const& b) noexcept {
    return a.machine_ == b.machine_ && a.device_ == b.device_;
  }

 protected:
  [[nodiscard]] bool is_made(stream_ref stream) const noexcept {
    return machine_.hold()->streams.has(stream);
  }
  /// Marks all work of the device; see sim_marking_driver.
  status record_all_work(event_handle event) const noexcept {
    return on_event(driver_call::record_event, costs().record_event, event,
                    [](state& m, detail::sim_event& e) { return m.streams.record_all(e); });
  }

 private:
  using state = detail::sim_state;
  using code = detail::sim_code;

  [[nodiscard]] code can_migrate(state const& m, device_id to) const noexcept {
    if (to != host_id && !machine_.has(to)) return code::invalid_device;
    return m.options.migration == sim_migration::available ? code::ok : code::not_supported;
  }
  /// Returns the rate of a copy that involves no pageable memory.
  [[nodiscard]] double rate_between(state const& m, void const* to, void const* from) const noexcept {
    if (m.memory.is_on_host(to) || m.memory.is_on_host(from)) return costs().pinned_rate;
    if (m.memory.device_of(to) == m.memory.device_of(from)) return costs().on_device_rate;
    return m.options.peers == sim_peers::reachable ? costs().peer_rate : costs().staged_rate;
  }
  [[nodiscard]] static bool exports(state const& m, allocation_handle_type type) noexcept {
    switch (type) {
      case allocation_handle_type::none:
        return true;
      case allocation_handle_type::posix_file_descriptor:
        return m.options.sharing != sim_sharing::none;
      default:
        return m.options.sharing == sim_sharing::descriptors_and_fabric;
    }
  }
  struct event_token {
    static constexpr std::uint64_t mark = 0x7461726e65766e74;
    state const* machine;
    std::uint64_t serial;
    std::uint64_t magic;
  };
  static device_id& current() noexcept {
    static thread_local device_id device;
    return device;
  }

  [[nodiscard]] sim_costs const& costs() const noexcept { return machine_.options().costs; }

  /// Whether cuda_driver makes its device current for the call, which is then in use.
  [[nodiscard]] static constexpr bool enters_device(driver_call which) noexcept {
    using enum driver_call;
    bool const is_of_pages = (which >= reserve_range && which <= import_pages) || which == can_export_pages ||
                             which == export_pages;
    return !only_looks(which) && !is_of_pages && which != memory_account && which != can_share &&
           which != export_dma_buf && which != uuid;
  }
  static void enter(state& m, device_id device) noexcept {
    m.devices_of_streams.use(device);
    m.has_context[static_cast<std::size_t>(device.value)] = true;
  }
  /// Wraps every call: fails inside simulated work and on a missing or broken device; counts the call,
  /// charges its cost and names it in the status. A call on a default stream uses the device of that stream.
  template <class F>
  status call(driver_call which, sim_nanoseconds cost, F const& act,
              stream_ref const* on = nullptr) const noexcept {
    char const* const name = name_of(which);
    if (detail::sim_inside_work) return detail::sim_status(code::not_permitted, name);
    state& m = *machine_.state_;
    detail::scoped_lock const lock(m.mutex);
    if (!machine_.has(device_)) return detail::sim_status(code::invalid_device, name);
    if (!m.process.is_this()) return detail::sim_status(code::forked, name);
    try {
      bool const names_default = on != nullptr && detail::is_default_stream(*on);
      if (enters_device(which) || (which == driver_call::is_capturing && names_default))
        enter(m, names_default ? m.streams.find(*on, device_.value)->device : device_);
      m.charge(which, cost);
      if (code const broken = m.streams.fault(device_.value); broken != code::ok) {
        return detail::sim_status(broken, name);
      }
      return detail::sim_status(act(m), name);
    } catch (std::bad_alloc const&) {
      return detail::sim_status(code::out_of_memory, name);
    }
  }
  template <class F>
  status on_stream(driver_call which, sim_nanoseconds cost, stream_ref stream, F const& act) const noexcept {
    auto const find = [&](state& m) {
      auto* const s = m.streams.find(stream, device_.value);
      bool const known = stream.id() != stream_ref::unknown_id;
      if (s == nullptr) {
        if (m.order && known) m.order->dead_handle(name_of(which), stream.id());
        return code::invalid_handle;
      }
      bool const stale = known && stream.id() != s->id && !s->is_default;
      if (m.order && stale) m.order->stale_handle(name_of(which), stream.id(), s->agent);
      return act(m, *s);
    };
    return call(which, cost, find, &stream);
  }
  template <class F>
  status on_event(driver_call which, sim_nanoseconds cost, event_handle event, F const& act) const noexcept {
    return call(which, cost, [&](state& m) {
      auto* const e = m.streams.find_event(event);
      return e == nullptr ? code::invalid_handle : act(m, *e);
    });
  }
  template <class F>
  status paged(driver_call which, sim_nanoseconds cost, F const& act) const noexcept {
    return call(which, cost, [&](state& m) {
      bool const can = m.options.paging == sim_paging::available &&
                       (detail::sim_can_map || m.options.backing == sim_backing::address_only);
      return can ? act(m) : code::not_supported;
    });
  }

  /// After a wait: the pool of cudaMallocAsync releases what it may, and errors that occurred meanwhile are
  /// returned.
  code synchronized(state& m, code outcome) const {
    if (outcome != code::ok) return outcome;
    m.trim_async(device_.value);
    return m.streams.fault(device_.value);
  }
  static code transfer(state& m, detail::sim_stream& s, std::shared_ptr<detail::sim_work> work,
                       sim_nanoseconds duration) {
    return m.streams.enqueue(s, duration, std::move(work), detail::sim_streams::caller::driver);
  }
  status free_block(driver_call which, void* p, detail::sim_kind kind) const noexcept {
    return call(which, 0, [&](state& m) {
      if (p == nullptr) return code::ok;
      std::size_t bytes = 0;
      if (!m.memory.find_block(p, kind, bytes)) return code::invalid_value;
      m.charge_more(kind == detail::sim_kind::managed  ? costs().free_managed
                    : kind == detail::sim_kind::pinned ? costs().free_pinned.at(bytes)
                                                       : costs().free_device.at(bytes));
      m.streams.join_device(device_.value);
      return m.memory.release(p, kind);
    });
  }

  sim_machine machine_;
  device_id device_;
};

inline sim_driver sim_machine::driver(device_id device) const noexcept {
  return {*this, device};
}

/// The same driver as of CUDA 12.5 and later, which can mark a device's work without naming a stream: the
/// pool then passes no handle that may belong to a destroyed stream (pool/order/mark_work.hpp).
class sim_marking_driver : public sim_driver {
 public:
  using sim_driver::sim_driver;
  sim_marking_driver() = default;
  sim_marking_driver(sim_driver const& driver) noexcept : sim_driver(driver) {}  // NOLINT: the same device
  status record_all(event_handle event) const noexcept { return record_all_work(event); }
  /// As cuda_driver's: whether create_stream() created the stream and it is not destroyed. Passes no handle
  /// to the device.
  [[nodiscard]] bool has_made(stream_ref stream) const noexcept { return is_made(stream); }
};

static_assert(stream_driver<sim_driver> && page_driver<sim_driver> && block_driver<sim_driver> &&
              registering_driver<sim_driver> && migrating_driver<sim_driver> &&
              memory_tool_driver<sim_driver> && accounting_driver<sim_driver> && sharing_driver<sim_driver> &&
              detail::multi_device_driver<sim_driver> && detail::multi_device_driver<sim_marking_driver>);

}  // namespace TARN_NAMESPACE
