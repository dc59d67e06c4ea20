// SPDX-License-Identifier: Apache-2.0
// tarn's resources against the concepts of CCCL, in the generation that the toolkit has.

#include "tarn/cuda_mr.hpp"
#if __has_include(<cuda/buffer>)
#include <cuda/buffer>
#endif

#include <concepts>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>

#include "catch.hpp"
#include "contract/cuda_device.hpp"
#include "tarn/core/shared_resource.hpp"
#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/policy/compose.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/cuda_async.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/source/pinned_host.hpp"

namespace cuda_mr_test {  // not unnamed: nvcc would reject unused friends there

using tarn::default_alignment;
using device_tag = cuda::mr::device_accessible;
using host_tag = cuda::mr::host_accessible;

// The two generations have different names for the same two concepts.
#if CCCL_VERSION >= 3001000
template <class R, class... Tags>
inline constexpr bool allocates_blocks = cuda::mr::synchronous_resource_with<R, Tags...>;
template <class R, class... Tags>
inline constexpr bool allocates_in_stream_order = cuda::mr::resource_with<R, Tags...>;
#else
template <class R, class... Tags>
inline constexpr bool allocates_blocks = cuda::mr::resource_with<R, Tags...>;
template <class R, class... Tags>
inline constexpr bool allocates_in_stream_order = cuda::mr::async_resource_with<R, Tags...>;
#endif

template <class R, class... Tags>
inline constexpr bool is_cuda_resource =
    allocates_blocks<R, Tags...> && allocates_in_stream_order<R, Tags...>;

/// A minimal policy: forwards everything.
template <class Upstream>
class transparent_layer {
 public:
  using upstream_type = Upstream;
  using driver_type = typename Upstream::driver_type;
  using properties = typename Upstream::properties;
  transparent_layer()
    requires std::default_initializable<Upstream>
  = default;
  explicit transparent_layer(Upstream upstream) : upstream_(upstream) {}
  template <class Policy>
  transparent_layer(Upstream upstream, Policy const&) : upstream_(upstream) {}
  Upstream& upstream() noexcept { return upstream_; }
  [[nodiscard]] driver_type const& driver() const noexcept { return upstream_.driver(); }

 private:
  Upstream upstream_;
};
struct transparent {
  template <class Upstream>
  using layer = transparent_layer<Upstream>;
};

/// The exceptions of a library that has its own.
struct their_bad_alloc : std::bad_alloc {
  explicit their_bad_alloc(char const*) noexcept {}
};
struct their_out_of_memory : their_bad_alloc {
  using their_bad_alloc::their_bad_alloc;
};

// Sources.
static_assert(is_cuda_resource<tarn::cuda_malloc, device_tag>);
static_assert(is_cuda_resource<tarn::cuda_async, device_tag>);
static_assert(is_cuda_resource<tarn::pinned_host, device_tag, host_tag>);
static_assert(is_cuda_resource<tarn::managed, device_tag, host_tag>);
static_assert(is_cuda_resource<tarn::host_memory, host_tag>);
static_assert(!cuda::has_property<tarn::cuda_malloc, host_tag>);
static_assert(!cuda::has_property<tarn::host_memory, device_tag>);

// Stacks: every layer over a resource is a resource.
static_assert(is_cuda_resource<tarn::stack<tarn::cuda_malloc, transparent>, device_tag>);
static_assert(
    is_cuda_resource<tarn::stack<tarn::pinned_host, transparent, transparent>, device_tag, host_tag>);
static_assert(!cuda::has_property<tarn::stack<tarn::cuda_malloc, transparent>, host_tag>);

// The adaptors in both directions.
static_assert(is_cuda_resource<tarn::cuda_resource<tarn::cuda_malloc>, device_tag>);
static_assert(tarn::resource<tarn::cuda_resource_source<tarn::cuda_resource<tarn::cuda_malloc>>>);
static_assert(tarn::has_property<tarn::cuda_resource_source<tarn::cuda_resource<tarn::pinned_host>>,
                                 tarn::host_accessible>);

/// A resource as CCCL's users write it: counting host memory, not stream-ordered, that throws bad_alloc
/// on failure.
struct counting_resource {
  std::size_t* live;
  std::size_t limit;
  void* take(std::size_t bytes) {
    if (*live + bytes > limit) throw std::bad_alloc();
    *live += bytes;
    return std::aligned_alloc(default_alignment, tarn::align_up(bytes, default_alignment));
  }
  void give(void* p, std::size_t bytes) noexcept {
    *live -= bytes;
    std::free(p);
  }
#if CCCL_VERSION >= 3001000
  void* allocate_sync(std::size_t bytes, std::size_t) { return take(bytes); }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t) noexcept { give(p, bytes); }
#else
  void* allocate(std::size_t bytes, std::size_t) { return take(bytes); }
  void deallocate(void* p, std::size_t bytes, std::size_t) noexcept { give(p, bytes); }
#endif
  friend bool operator==(counting_resource a, counting_resource b) noexcept { return a.live == b.live; }
  friend bool operator!=(counting_resource a, counting_resource b) noexcept { return a.live != b.live; }
  friend void get_property(counting_resource const&, host_tag) noexcept {}
};
using counting_source = tarn::cuda_resource_source<counting_resource, tarn::no_driver>;
static_assert(tarn::resource<counting_source>);
static_assert(tarn::has_property<counting_source, tarn::host_accessible>);
static_assert(!tarn::has_property<counting_source, tarn::device_accessible>);

/// Memory of the simulated device, not stream-ordered.
struct simulated_resource {
  tarn::sim_driver driver;
  void* take(std::size_t bytes) const {
    void* p = nullptr;
    if (!driver.malloc_device(bytes, p).ok()) throw std::bad_alloc();
    return p;
  }
#if CCCL_VERSION >= 3001000
  void* allocate_sync(std::size_t bytes, std::size_t) { return take(bytes); }
  void deallocate_sync(void* p, std::size_t, std::size_t) noexcept { (void)driver.free_device(p); }
#else
  void* allocate(std::size_t bytes, std::size_t) { return take(bytes); }
  void deallocate(void* p, std::size_t, std::size_t) noexcept { (void)driver.free_device(p); }
#endif
  friend bool operator==(simulated_resource a, simulated_resource b) noexcept { return a.driver == b.driver; }
  friend bool operator!=(simulated_resource a, simulated_resource b) noexcept { return !(a == b); }
  friend void get_property(simulated_resource const&, device_tag) noexcept {}
};
/// The same, stream-ordered.
struct simulated_ordered_resource : simulated_resource {
  void* take_on(cuda::stream_ref stream, std::size_t bytes) const {
    void* p = nullptr;
    if (!driver.malloc_async(bytes, tarn::stream_ref(stream.get()), p).ok()) throw std::bad_alloc();
    return p;
  }
  void give_on(cuda::stream_ref stream, void* p) const noexcept {
    (void)driver.free_async(p, tarn::stream_ref(stream.get()));
  }
#if CCCL_VERSION >= 3001000
  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t) { return take_on(stream, bytes); }
  void deallocate(cuda::stream_ref stream, void* p, std::size_t, std::size_t) noexcept { give_on(stream, p); }
#else
  void* allocate_async(std::size_t bytes, std::size_t, cuda::stream_ref stream) {
    return take_on(stream, bytes);
  }
  void* allocate_async(std::size_t bytes, cuda::stream_ref stream) { return take_on(stream, bytes); }
  void deallocate_async(void* p, std::size_t, std::size_t, cuda::stream_ref stream) { give_on(stream, p); }
  void deallocate_async(void* p, std::size_t, cuda::stream_ref stream) { give_on(stream, p); }
#endif
  friend void get_property(simulated_ordered_resource const&, device_tag) noexcept {}
};
static_assert(!allocates_in_stream_order<simulated_resource, device_tag>);
static_assert(allocates_in_stream_order<simulated_ordered_resource, device_tag>);
// A pool that a tool watches must not take its blocks from the driver instead.
template <class R>
inline constexpr bool has_plain_blocks = requires(R memory) { memory.allocate_plain(8); };
static_assert(!has_plain_blocks<tarn::cuda_resource_source<simulated_ordered_resource, tarn::sim_driver>>);

/// Notes the handle and the current device of its latest call, as the stream that CCCL would use.
template <class... Tags>
struct noting_resource {
  struct note {
    void* handle = nullptr;
    int device = -1;
  };
  note* latest;
  void* take(void* handle, std::size_t bytes) const {
    see(handle);
    return std::aligned_alloc(default_alignment, tarn::align_up(bytes, default_alignment));
  }
  void give(void* handle, void* p) const noexcept {
    see(handle);
    std::free(p);
  }
#if CCCL_VERSION >= 3001000
  void* allocate_sync(std::size_t bytes, std::size_t) { return take(nullptr, bytes); }
  void deallocate_sync(void* p, std::size_t, std::size_t) noexcept { give(nullptr, p); }
  void* allocate(cuda::stream_ref s, std::size_t bytes, std::size_t) { return take(s.get(), bytes); }
  void deallocate(cuda::stream_ref s, void* p, std::size_t, std::size_t) noexcept { give(s.get(), p); }
#else
  void* allocate(std::size_t bytes, std::size_t) { return take(nullptr, bytes); }
  void deallocate(void* p, std::size_t, std::size_t) noexcept { give(nullptr, p); }
  void* allocate_async(std::size_t bytes, std::size_t, cuda::stream_ref s) { return take(s.get(), bytes); }
  void* allocate_async(std::size_t bytes, cuda::stream_ref s) { return take(s.get(), bytes); }
  void deallocate_async(void* p, std::size_t, std::size_t, cuda::stream_ref s) { give(s.get(), p); }
  void deallocate_async(void* p, std::size_t, cuda::stream_ref s) { give(s.get(), p); }
#endif
  friend bool operator==(noting_resource a, noting_resource b) noexcept { return a.latest == b.latest; }
  friend bool operator!=(noting_resource a, noting_resource b) noexcept { return a.latest != b.latest; }
  template <class Tag>
    requires(std::is_same_v<Tag, Tags> || ...)
  friend void get_property(noting_resource const&, Tag) noexcept {}

 private:
  void see(void* handle) const noexcept {
    tarn::device_id current;
    (void)tarn::sim_driver::current_device(current);
    *latest = {handle, current.value};
  }
};

/// Frees a block on a stream that was destroyed while its work uses the block.
template <class Resource>
void free_on_destroyed_stream() {
  tarn::sim_options options;
  options.checks = tarn::sim_checks::stream_order;
  tarn::sim_machine const machine(options);
  tarn::sim_driver const driver = machine.driver();
  auto memory = tarn::from_cuda_resource(Resource{driver}, driver);
  tarn::stream_ref stream;
  REQUIRE(driver.create_stream(stream).ok());
  stream = tarn::identified(driver, stream);
  void* const p = memory.allocate(stream, 1000);
  REQUIRE(driver.launch(stream, 1'000'000'000).ok());
  REQUIRE(driver.launch(stream, 1000, {tarn::sim_writes(p, 1000)}, [] {}).ok());
  REQUIRE(driver.destroy_stream(stream).ok());
  memory.deallocate(stream, p, 1000);
  CHECK(driver.synchronize_device().ok());
  CHECK(machine.findings().empty());
  CHECK(machine.leaks().blocks == 0);
}

/// A user's own tarn resource in the user's namespace.
struct foreign : tarn::host_memory {
  using tarn::host_memory::host_memory;
};

}  // namespace cuda_mr_test

using namespace cuda_mr_test;

TEST_CASE("from_cuda_resource makes a CCCL resource a tarn resource that can be stacked",
          "[interop][cuda_mr]") {
  std::size_t live = 0;
  auto memory = tarn::from_cuda_resource(counting_resource{&live, 1000}, tarn::no_driver{}) | transparent{};
  void* const p = memory.allocate({}, 600);
  REQUIRE(p != nullptr);
  CHECK(live == 600);
  memory.deallocate({}, p, 600);
  CHECK(live == 0);
  CHECK(memory.allocate_sync(0) == nullptr);
  memory.deallocate({}, nullptr, 0);
}

TEST_CASE("cuda_resource_source converts bad_alloc to out_of_memory with a report", "[interop][cuda_mr]") {
  std::size_t live = 0;
  counting_source memory({}, {counting_resource{&live, 1000}});
  try {
    (void)memory.allocate_sync(2000);
    FAIL("must not succeed");
  } catch (tarn::out_of_memory const& refused) {
    CHECK(refused.asked() == 2000);
  }
  CHECK(live == 0);
  CHECK_THROWS_AS(memory.allocate_sync(8, 3), tarn::bad_alignment);
}

TEST_CASE("cuda_resource_source frees a block whose stream was destroyed behind the work on it",
          "[interop][cuda_mr]") {
  free_on_destroyed_stream<simulated_resource>();
  free_on_destroyed_stream<simulated_ordered_resource>();
}

// A null handle would otherwise be the default stream of whichever device is current.
TEST_CASE("cuda_resource_source calls a CCCL resource on the device of its driver", "[interop][cuda_mr]") {
  using noting = noting_resource<device_tag>;
  tarn::sim_options options;
  options.devices = 2;
  tarn::sim_machine const machine(options);
  noting::note latest;
  auto memory = tarn::from_cuda_resource(noting{&latest}, machine.driver(1));
  void* const p = memory.allocate({}, 100);
  CHECK((latest.handle == nullptr && latest.device == 1));
  latest = {};
  memory.deallocate({}, p, 100);
  CHECK((latest.handle == nullptr && latest.device == 1));
  latest = {};
  void* const q = memory.allocate_sync(100);
  CHECK(latest.device == 1);
  latest = {};
  memory.deallocate_sync(q, 100);
  CHECK(latest.device == 1);
  tarn::device_id current;
  CHECK((tarn::sim_driver::current_device(current).ok() && current.value == 0));
}

TEST_CASE("cuda_resource_source refuses streams of another device and frees behind them",
          "[interop][cuda_mr]") {
  using noting = noting_resource<device_tag, host_tag>;
  tarn::sim_options options;
  options.devices = 2;
  tarn::sim_machine const machine(options);
  tarn::basic_stream<tarn::sim_driver> const other{machine.driver(0)};
  noting::note latest;
  auto memory = tarn::from_cuda_resource(noting{&latest}, machine.driver(1));
  CHECK_THROWS_AS(memory.allocate(other, 100), tarn::misuse);
  tarn::basic_stream<tarn::sim_driver> const own{machine.driver(1)};
  void* p = memory.allocate(own, 100);
  CHECK(latest.handle == tarn::stream_ref(own).handle());
  memory.deallocate(other, p, 100);
  CHECK((latest.handle != nullptr && latest.handle != tarn::stream_ref(other).handle()));
  // On memory that the host can access, a default stream is that of each device.
  p = memory.allocate(own, 100);
  memory.deallocate({}, p, 100);
  CHECK((latest.handle != nullptr && latest.device == 1));
}

TEST_CASE("as_cuda_resource gives a tarn resource CCCL's member functions", "[interop][cuda_mr]") {
  auto memory = tarn::as_cuda_resource(tarn::host_memory{});
  auto const same = memory;
  CHECK(memory == same);
#if CCCL_VERSION >= 3001000
  void* const p = memory.allocate_sync(100, 256);
  REQUIRE(p != nullptr);
  memory.deallocate_sync(p, 100, 256);
#else
  void* const p = memory.allocate(100, 256);
  REQUIRE(p != nullptr);
  memory.deallocate(p, 100, 256);
#endif
}

TEST_CASE("as_cuda_resource with errors_as throws the exceptions of the code above it",
          "[interop][cuda_mr]") {
  using errors = tarn::errors_as<their_out_of_memory, their_bad_alloc>;
  auto memory = tarn::as_cuda_resource<errors>(tarn::host_memory{});
  STATIC_REQUIRE(is_cuda_resource<decltype(memory), host_tag>);
  STATIC_REQUIRE(std::is_same_v<decltype(memory)::errors, errors>);
  auto const same = memory;
  CHECK(memory == same);
  constexpr std::size_t too_much = tarn::max_request_bytes;
  cuda::stream_ref const stream{cudaStream_t{}};
#if CCCL_VERSION >= 3001000
  CHECK_THROWS_AS(memory.allocate_sync(too_much, 256), their_out_of_memory);
  CHECK_THROWS_AS(memory.allocate(stream, too_much, 256), their_out_of_memory);
  CHECK_THROWS_AS(memory.allocate_sync(8, 3), their_bad_alloc);
  void* const p = memory.allocate_sync(100, 256);
  memory.deallocate_sync(p, 100, 256);
#else
  CHECK_THROWS_AS(memory.allocate(too_much, 256), their_out_of_memory);
  CHECK_THROWS_AS(memory.allocate_async(too_much, 256, stream), their_out_of_memory);
  CHECK_THROWS_AS(memory.allocate(8, 3), their_bad_alloc);
  void* const p = memory.allocate(100, 256);
  memory.deallocate(p, 100, 256);
#endif
  CHECK(p != nullptr);
}

TEST_CASE("resource_ref of CCCL holds a tarn resource", "[interop][cuda_mr]") {
  tarn::host_memory memory;
#if CCCL_VERSION >= 3001000
  cuda::mr::resource_ref<host_tag> reference(memory);
  void* const p = reference.allocate_sync(100, 256);
  reference.deallocate_sync(p, 100, 256);
  void* const q = reference.allocate(cuda::stream_ref{cudaStream_t{}}, 100, 256);
  memory.deallocate({}, q, 100, 256);
#else
  cuda::mr::async_resource_ref<host_tag> reference(memory);
  void* const p = reference.allocate(100, 256);
  reference.deallocate(p, 100, 256);
  void* const q = reference.allocate_async(100, 256, cuda::stream_ref{cudaStream_t{}});
  memory.deallocate({}, q, 100, 256);
#endif
  CHECK(p != nullptr);
  CHECK(q != nullptr);
}

TEST_CASE("as_cuda_resource exposes the properties of a resource in a user's namespace",
          "[interop][cuda_mr]") {
  auto memory = tarn::as_cuda_resource(foreign{});
  STATIC_REQUIRE(is_cuda_resource<decltype(memory), host_tag>);
  STATIC_REQUIRE(!cuda::has_property<decltype(memory), device_tag>);
}

#if CCCL_VERSION >= 3002000
TEST_CASE("any_resource owns a tarn resource, and from_cuda_resource can be stacked on it",
          "[interop][cuda_mr]") {
  cuda::mr::any_resource<host_tag> any{tarn::host_memory{}};
  auto memory = tarn::from_cuda_resource(any, tarn::no_driver{}) | transparent{};
  void* const p = memory.allocate({}, 100, 256);
  REQUIRE(p != nullptr);
  memory.deallocate({}, p, 100, 256);
  STATIC_REQUIRE(std::is_same_v<typename tarn::cuda_resource<tarn::managed>::default_queries,
                                cuda::mr::properties_list<device_tag, host_tag>>);
}

TEST_CASE("cuda::buffer allocates from a tarn resource", "[interop][cuda_mr][cuda]") {
  if (!tarn_test::has_cuda_devices()) return;
  tarn::cuda_malloc memory;
  tarn::stream_ref stream;
  REQUIRE(memory.driver().create_stream(stream).ok());
  {
    cuda::stream_ref const on{stream.get()};
    cuda::buffer<float, device_tag> direct(on, memory, 1000, cuda::no_init);
    CHECK(direct.size() == 1000);
    auto const made = cuda::make_buffer<float>(on, tarn::as_cuda_resource(memory), 1000, cuda::no_init);
    CHECK(tarn::is_aligned(made.data(), alignof(float)));
  }
  CHECK(memory.driver().destroy_stream(stream).ok());
}
#endif

TEST_CASE("resource_ref of CCCL allocates device memory from tarn in stream order",
          "[interop][cuda_mr][cuda]") {
  if (!tarn_test::has_cuda_devices()) return;
  tarn::cuda_async source;
  tarn::stream_ref stream;
  REQUIRE(source.driver().create_stream(stream).ok());
  cuda::stream_ref const on{stream.get()};
#if CCCL_VERSION >= 3001000
  cuda::mr::resource_ref<device_tag> memory(source);
  void* const p = memory.allocate(on, 1000, 256);
  CHECK(source.driver().fill(stream, p, 1, 1000).ok());
  memory.deallocate(on, p, 1000, 256);
#else
  cuda::mr::async_resource_ref<device_tag> memory(source);
  void* const p = memory.allocate_async(1000, 256, on);
  CHECK(source.driver().fill(stream, p, 1, 1000).ok());
  memory.deallocate_async(p, 1000, 256, on);
#endif
  CHECK(source.driver().synchronize_stream(stream).ok());
  CHECK(source.driver().destroy_stream(stream).ok());
}
