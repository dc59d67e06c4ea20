// SPDX-License-Identifier: Apache-2.0
#pragma once
// any_resource: a handle to any tracked pool, in one type. For code that is no template: interfaces,
// plug-ins, class members.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <utility>

#include "tarn/core/bytes.hpp"
#include "tarn/core/config.hpp"
#include "tarn/core/layers.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/core/min_max.hpp"
#include "tarn/core/pool_call.hpp"
#include "tarn/core/resource.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/pool/graph/graph_totals.hpp"
#include "tarn/pool/pages/memory_left.hpp"
#include "tarn/pool/pool_state.hpp"
#if TARN_HAS_CUDA
#include "tarn/driver/cuda_driver.hpp"
#endif

namespace TARN_NAMESPACE {

namespace detail {

/// The calls of a pool whose type is unknown, and the number of handles to it.
template <class Driver>
class erased_pool {
 public:
  virtual ~erased_pool() = default;

  virtual void* allocate(stream_ref, std::size_t, std::size_t, attribution const&) = 0;
  virtual void deallocate(stream_ref, void*, std::size_t, std::size_t, attribution const&) noexcept = 0;
  virtual void* allocate_sync(std::size_t, std::size_t, attribution const&) = 0;
  virtual void deallocate_sync(void*, std::size_t, std::size_t, attribution const&) noexcept = 0;
  [[nodiscard]] virtual bool extend(stream_ref, void*, std::size_t, std::size_t, std::size_t,
                                    attribution const&) = 0;
  virtual void record_stream(void*, std::size_t, stream_ref, source_location) = 0;
  virtual std::size_t trim(std::size_t, source_location) = 0;
  [[nodiscard]] virtual bool owns(void const*) const noexcept = 0;
  [[nodiscard]] virtual std::size_t block_bytes(std::size_t, std::size_t) noexcept = 0;
  [[nodiscard]] virtual void* block_address(void*) noexcept = 0;
  [[nodiscard]] virtual bool is_asleep() noexcept = 0;
  [[nodiscard]] virtual std::uint64_t discards() noexcept = 0;
  [[nodiscard]] virtual memory_bound memory_left() = 0;
  [[nodiscard]] virtual std::size_t largest_request() = 0;
  virtual void observe_deferred(deferred_observer&) = 0;
  virtual void end_observation(deferred_observer&) = 0;
  [[nodiscard]] virtual std::size_t largest_free_range() const = 0;
  [[nodiscard]] virtual char const* allocator_backend() const = 0;
  [[nodiscard]] virtual Driver const& driver() const noexcept = 0;
  [[nodiscard]] virtual void const* identity() const noexcept = 0;
  [[nodiscard]] virtual pool_state state() const = 0;
  virtual void list_pools(pools_of_stack&) const = 0;
  virtual void add_graphs(graph_totals&) const = 0;
  [[nodiscard]] virtual tracked_statistics statistics() const = 0;
  virtual void reset_peaks() = 0;
  virtual void reset_totals() = 0;
  virtual void reset_peak_statistics() = 0;
  virtual void reset_accumulated_statistics() = 0;
  virtual void add(high_water_mark&, peak_of) = 0;
  virtual void remove(high_water_mark&) = 0;
  [[nodiscard]] virtual high_water_mark read(high_water_mark const&) const = 0;

  std::atomic<std::size_t> references{1};
};

/// Calls the nearest layer of `memory_` that has `call`.
#define TARN_OF_NEAREST(call) \
  nearest(memory_, [&](auto& layer) -> decltype(layer.call) { return layer.call; })

template <class Resource>
class erased_pool_of final : public erased_pool<typename Resource::driver_type> {
 public:
  explicit erased_pool_of(Resource memory) noexcept : memory_(std::move(memory)) {}

  void* allocate(stream_ref stream, std::size_t bytes, std::size_t alignment,
                 attribution const& call) override {
    return memory_.allocate(stream, bytes, alignment, call);
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment,
                  attribution const& call) noexcept override {
    memory_.deallocate(stream, p, bytes, alignment, call);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment, attribution const& call) override {
    return memory_.allocate_sync(bytes, alignment, call);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment,
                       attribution const& call) noexcept override {
    memory_.deallocate_sync(p, bytes, alignment, call);
  }
  [[nodiscard]] bool extend(stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                            std::size_t alignment, attribution const& call) override {
    return memory_.extend(stream, p, bytes, more, alignment, call);
  }
  void record_stream(void* p, std::size_t bytes, stream_ref stream, source_location where) override {
    memory_.record_stream(p, bytes, stream, where);
  }
  std::size_t trim(std::size_t keep_bytes, source_location where) override {
    return memory_.trim(keep_bytes, where);
  }
  [[nodiscard]] bool owns(void const* p) const noexcept override { return memory_.owns(p); }
  [[nodiscard]] std::size_t block_bytes(std::size_t bytes, std::size_t alignment) noexcept override {
    return block_bytes_of(memory_, bytes, alignment);
  }
  [[nodiscard]] void* block_address(void* p) noexcept override { return block_address_of(memory_, p); }
  [[nodiscard]] bool is_asleep() noexcept override { return sleeps(memory_); }
  [[nodiscard]] std::uint64_t discards() noexcept override { return discards_of(memory_); }
  [[nodiscard]] memory_bound memory_left() override { return detail::memory_left(memory_.layer()); }
  [[nodiscard]] std::size_t largest_request() override {
    if constexpr (knows_available<layer_behind<Resource>>()) {
      return detail::largest_request(memory_.layer());
    } else {
      throw cuda_error(unsupported_call(unknown_amount), memory_.device().value, source_location{});
    }
  }
  void observe_deferred(deferred_observer& observer) override {
    nearest(memory_, pool_call::observe_deferred{observer});
  }
  void end_observation(deferred_observer& observer) override {
    nearest(memory_, pool_call::end_observation{observer});
  }
  [[nodiscard]] std::size_t largest_free_range() const override { return memory_.largest_free_range(); }
  [[nodiscard]] char const* allocator_backend() const override {
    return nearest(memory_, pool_call::allocator_backend{});
  }
  [[nodiscard]] typename Resource::driver_type const& driver() const noexcept override {
    return memory_.driver();
  }
  [[nodiscard]] void const* identity() const noexcept override { return &memory_.layer(); }
  [[nodiscard]] pool_state state() const override { return nearest(memory_, pool_call::state{}); }
  void list_pools(pools_of_stack& found) const override {
    nearest(memory_, pool_call::list_pools{found});
    found.has_other_blocks = found.has_other_blocks || routes_above_pool<layer_behind<Resource>>();
  }
  void add_graphs(graph_totals& sum) const override {
    if constexpr (reachable<Resource, pool_call::add_graphs>) nearest(memory_, pool_call::add_graphs{sum});
  }
  [[nodiscard]] tracked_statistics statistics() const override { return TARN_OF_NEAREST(statistics()); }
  void reset_peaks() override { nearest(memory_, pool_call::reset_peaks{}); }
  void reset_totals() override { nearest(memory_, pool_call::reset_totals{}); }
  void reset_peak_statistics() override { TARN_OF_NEAREST(reset_peak_statistics()); }
  void reset_accumulated_statistics() override { TARN_OF_NEAREST(reset_accumulated_statistics()); }
  void add(high_water_mark& mark, peak_of whose) override { TARN_OF_NEAREST(add(mark, whose)); }
  void remove(high_water_mark& mark) override { TARN_OF_NEAREST(remove(mark)); }
  [[nodiscard]] high_water_mark read(high_water_mark const& mark) const override {
    return TARN_OF_NEAREST(read(mark));
  }

 private:
  Resource memory_;
};
#undef TARN_OF_NEAREST

struct statistics_call {
  template <class L>
  auto operator()(L& l) const -> decltype(static_cast<void>(l.statistics())) {}
};

/// A pool with statistics, on this driver, whose memory has these properties.
template <class Layer, class Driver, class... Properties>
concept erasable = std::same_as<typename Layer::driver_type, Driver> &&
                   (Layer::properties::template has<Properties> && ...) &&
                   reachable<shared_resource<Layer>, pool_call::record_stream> &&
                   reachable<shared_resource<Layer>, pool_call::state> &&
                   reachable<shared_resource<Layer>, pool_call::observe_deferred> &&
                   reachable<shared_resource<Layer>, statistics_call>;

/// Whether the host can access the memory although the list does not name host_accessible. Such a pool is not
/// taken: the handle's default streams would be those of the pool's device, not of the current one.
template <class Layer, class... Properties>
concept lacks_host_accessible =
    has_property<Layer, host_accessible> && !property_set<Properties...>::template has<host_accessible>;

}  // namespace detail

/// A shared handle to a pool of any type that has a `tracked` layer, as `cuda::mr::any_resource` is one to
/// any resource: `void solve(tarn::any_resource memory, tarn::stream_ref stream);` is called with a
/// device_pool or another stack. It holds the pool; a copy is the same pool, and one atomic increment.
/// Owners, containers, peak_scope, empty_cache() and the statistics take it as they take the pool; what needs
/// the pool's own type does not compile: sleep, compact, snapshots, graph_memory, sharing, reservations.
/// Equal handles are handles to the same pool. A default-constructed or moved-from handle is empty, and may
/// be assigned, copied, compared or destroyed. Thread-safe as the pool is. A call costs one virtual call more
/// than the pool's own: 354 instructions for an allocation and its free instead of 333
/// (bench/results/instructions.json).
/// @tparam Properties  what may access the memory: device_accessible, host_accessible or both. With
/// host_accessible it takes pools of pinned or managed memory, without it pools that only the device accesses
template <class Driver, class... Properties>
class basic_any_resource : public call_names<basic_any_resource<Driver, Properties...>> {
 public:
  using driver_type = Driver;
  using properties = property_set<Properties...>;
  static constexpr bool records_places = true;  ///< a layer of the pool may

  /// Constructs an empty handle.
  basic_any_resource() noexcept = default;
  explicit basic_any_resource(std::nullptr_t) noexcept {}
  /// Takes a handle to a pool. @throws std::bad_alloc (host)
  template <class Layer>
    requires(detail::erasable<Layer, Driver, Properties...> &&
             !detail::lacks_host_accessible<Layer, Properties...>)
  basic_any_resource(shared_resource<Layer> memory)  // NOLINT: a pool is passed where any is taken
      : pool_(memory ? new detail::erased_pool_of<shared_resource<Layer>>(std::move(memory)) : nullptr) {}
  // clang-format off
  template <detail::lacks_host_accessible<Properties...> Layer>
  basic_any_resource(shared_resource<Layer>) = delete;  // tarn: the host can access this memory: take basic_any_resource<Driver, device_accessible, host_accessible>
  // clang-format on
  basic_any_resource(basic_any_resource const& other) noexcept : pool_(other.pool_) {
    if (pool_ != nullptr) pool_->references.fetch_add(1, std::memory_order_relaxed);
  }
  basic_any_resource(basic_any_resource&& other) noexcept : pool_(detail::exchange(other.pool_, nullptr)) {}
  basic_any_resource& operator=(basic_any_resource other) noexcept {
    std::swap(pool_, other.pool_);
    return *this;
  }
  ~basic_any_resource() {
    if (pool_ != nullptr && pool_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete pool_;
  }
  [[nodiscard]] explicit operator bool() const noexcept { return pool_ != nullptr; }
  friend bool operator==(basic_any_resource const& a, basic_any_resource const& b) noexcept {
    return a.identity() == b.identity();
  }

  /// As those of shared_resource, with the same errors.
  [[nodiscard]] void* allocate(stream_ref stream, std::size_t bytes,
                               std::size_t alignment = default_alignment,
                               attribution call = attribution::current()) {
    return pool_->allocate(stream, bytes, alignment, call);
  }
  void deallocate(stream_ref stream, void* p, std::size_t bytes, std::size_t alignment = default_alignment,
                  attribution call = attribution::current()) noexcept {
    pool_->deallocate(stream, p, bytes, alignment, call);
  }
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment,
                                    attribution call = attribution::current()) {
    return pool_->allocate_sync(bytes, alignment, call);
  }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment,
                       attribution call = attribution::current()) noexcept {
    pool_->deallocate_sync(p, bytes, alignment, call);
  }
  [[nodiscard]] bool extend(stream_ref stream, void* p, std::size_t bytes, std::size_t more,
                            std::size_t alignment = default_alignment,
                            attribution call = attribution::current()) {
    return pool_->extend(stream, p, bytes, more, alignment, call);
  }
  // The same four calls under their other names.
  using call_names<basic_any_resource>::allocate;
  using call_names<basic_any_resource>::deallocate;

  void record_stream(void* p, std::size_t bytes, stream_ref stream,
                     source_location where = source_location::current()) const {
    pool_->record_stream(p, bytes, stream, where);
  }
  std::size_t trim(  // NOLINT(modernize-use-nodiscard): may be ignored
      std::size_t keep_bytes = 0, source_location where = source_location::current()) const {
    return pool_->trim(keep_bytes, where);
  }
  void empty_cache(source_location where = source_location::current()) const { (void)trim(0, where); }
  [[nodiscard]] bool owns(void const* p) const noexcept { return pool_->owns(p); }
  [[nodiscard]] std::size_t largest_free_range() const { return pool_->largest_free_range(); }
  [[nodiscard]] Driver const& driver() const noexcept { return pool_->driver(); }
  [[nodiscard]] device_id device() const noexcept { return driver().device(); }

  // What layers over this handle and available_memory() ask.

  [[nodiscard]] std::size_t block_bytes(std::size_t bytes,
                                        std::size_t alignment = default_alignment) const noexcept {
    return pool_->block_bytes(bytes, alignment);
  }
  [[nodiscard]] void* block_address(void* p) const noexcept { return pool_->block_address(p); }
  [[nodiscard]] bool is_asleep() const noexcept { return pool_->is_asleep(); }
  [[nodiscard]] std::uint64_t discards() const noexcept { return pool_->discards(); }
  [[nodiscard]] detail::memory_bound memory_left() const { return pool_->memory_left(); }
  [[nodiscard]] std::size_t largest_request() const { return pool_->largest_request(); }
  void observe_deferred(detail::deferred_observer& observer) const { pool_->observe_deferred(observer); }
  void end_observation(detail::deferred_observer& observer) const { pool_->end_observation(observer); }

  // What the statistics, explain_memory() and peak_scope call.

  [[nodiscard]] char const* allocator_backend() const { return pool_->allocator_backend(); }
  [[nodiscard]] pool_state state() const { return pool_->state(); }
  void list_pools(detail::pools_of_stack& found) const { pool_->list_pools(found); }
  void add_graphs(detail::graph_totals& sum) const { pool_->add_graphs(sum); }
  [[nodiscard]] tracked_statistics statistics() const { return pool_->statistics(); }
  void reset_peaks() const { pool_->reset_peaks(); }
  void reset_totals() const { pool_->reset_totals(); }
  void reset_peak_statistics() const { pool_->reset_peak_statistics(); }
  void reset_accumulated_statistics() const { pool_->reset_accumulated_statistics(); }
  void add(high_water_mark& mark, peak_of whose) const { pool_->add(mark, whose); }
  void remove(high_water_mark& mark) const { pool_->remove(mark); }
  [[nodiscard]] high_water_mark read(high_water_mark const& mark) const { return pool_->read(mark); }

 private:
  [[nodiscard]] void const* identity() const noexcept {
    return pool_ != nullptr ? pool_->identity() : nullptr;
  }

  detail::erased_pool<Driver>* pool_ = nullptr;
};

#if TARN_HAS_CUDA
/// A handle to any pool of device memory. Of pinned or managed memory: basic_any_resource<cuda_driver,
/// device_accessible, host_accessible>.
using any_resource = basic_any_resource<cuda_driver, device_accessible>;

static_assert(resource<any_resource>);
#endif

}  // namespace TARN_NAMESPACE
