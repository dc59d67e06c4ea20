// SPDX-License-Identifier: Apache-2.0
#include "tarn/policy/resource_adaptor.hpp"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "contract/resource_contract.hpp"
#include "tarn/debug/logged.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/sim_sources.hpp"

using namespace tarn;

namespace {

/// Records what it is called with, and passes it on.
struct recording {
  std::vector<request> allocated;
  std::vector<std::pair<request, void*>> freed;

  void* around_allocate(request const& r, auto const& next) {
    allocated.push_back(r);
    return next.allocate(r);
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    freed.emplace_back(r, p);
    next.deallocate(r, p);
  }
};

/// Counts both calls, on any thread.
struct counting {
  std::atomic<long> calls{0};

  void* around_allocate(request const& r, auto const& next) {
    calls += 1;
    return next.allocate(r);
  }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    calls += 1;
    next.deallocate(r, p);
  }
};

/// Only around_deallocate, with options.
struct counting_frees {
  long* frees;
  template <class Upstream>
  using layer = around_layer<counting_frees, Upstream>;
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    *frees += 1;
    next.deallocate(r, p);
  }
};

/// Asks the layer below for twice the bytes, in stream order.
struct doubled {
  template <class Upstream>
  using layer = around_layer<doubled, Upstream>;
  static request twice(request r) noexcept {
    r.bytes *= 2;
    return r;
  }
  void* around_allocate(request const& r, auto const& next) { return next.allocate(twice(r)); }
  void around_deallocate(request const& r, void* p, auto const& next) noexcept {
    next.deallocate(twice(r), p);
  }
};

/// Gives its block back when it fails.
struct failing {
  template <class Upstream>
  using layer = around_layer<failing, Upstream>;
  void* around_allocate(request const& r, auto const& next) {
    next.deallocate(r, next.allocate(r));
    throw 42;
  }
};

/// A layer of its own, with the driver and the upstream.
template <class Upstream>
class sized_layer : public resource_adaptor<sized_layer<Upstream>, Upstream> {
 public:
  sized_layer(Upstream upstream, auto const&)
      : resource_adaptor<sized_layer, Upstream>(std::move(upstream)) {}
  std::int64_t bytes_below() { return this->upstream()->statistics().requested_bytes[0].current; }
};
struct sized {
  template <class Upstream>
  using layer = sized_layer<Upstream>;
};

}  // namespace

static_assert(sizeof(around_layer<doubled, host_memory>) == sizeof(sized_layer<host_memory>));
static_assert(!std::default_initializable<stack<host_memory, limited, around<recording>>>);
static_assert(!resource<shared_resource<sized_layer<sim_pages>>>);

TEST_CASE("resource_adaptor meets the resource contract with and without the functions of a layer",
          "[policy][resource_adaptor]") {
  tarn_test::resource_contract([] { return host_memory{} | around<counting>{}; });
  tarn_test::resource_contract([] { return host_memory{} | pooled{} | doubled{}; });
  tarn_test::resource_contract([] { return host_memory{} | tracked{} | sized{}; });
}

TEST_CASE("around_allocate and around_deallocate are called with the request of each call",
          "[policy][resource_adaptor]") {
  stack<host_memory, pooled, around<recording>> memory;
  auto const stream = stream_ref::from(reinterpret_cast<void*>(64));
  void* const p = memory.allocate(stream, 1000, 512);
  void* const q = memory.allocate_sync(500);
  memory.deallocate(stream, p, 1000, 512);
  memory.deallocate_sync(q, 500);
  REQUIRE(memory->allocated.size() == 2);
  REQUIRE(memory->freed.size() == 2);
  for (request const& r : {memory->allocated[0], memory->freed[0].first}) {
    CHECK(r.stream == stream);
    CHECK(r.bytes == 1000);
    CHECK(r.alignment == 512);
    CHECK(!r.is_synchronous());
  }
  for (request const& r : {memory->allocated[1], memory->freed[1].first}) {
    CHECK(r.stream == stream_ref{});
    CHECK(r.bytes == 500);
    CHECK(r.alignment == default_alignment);
    CHECK(r.is_synchronous());
    CHECK(!r.in_stream_order().is_synchronous());
  }
  CHECK(memory->freed[0].second == p);
  CHECK(memory->freed[1].second == q);
}

TEST_CASE("around_allocate is called for zero bytes, around_deallocate never for null",
          "[policy][resource_adaptor]") {
  auto memory = host_memory{} | around<recording>{};
  CHECK(memory.allocate({}, 0) == nullptr);
  CHECK(memory.allocate_sync(0) == nullptr);
  CHECK(memory->allocated.size() == 2);
  memory.deallocate({}, nullptr, 0);
  memory.deallocate_sync(nullptr, 0);
  CHECK(memory->freed.empty());
}

TEST_CASE("next_layer makes the same kind of call below", "[policy][resource_adaptor]") {
  std::vector<logged_call> calls;
  long frees = 0;
  auto memory = host_memory{} | logged([&](call_record const& c) { calls.push_back(c.call); }) |
                counting_frees{&frees} | around<recording>{};
  memory.deallocate({}, memory.allocate({}, 100), 100);
  memory.deallocate_sync(memory.allocate_sync(100), 100);
  CHECK(calls == std::vector<logged_call>{logged_call::allocate, logged_call::deallocate,
                                          logged_call::allocate_sync, logged_call::deallocate_sync});
  CHECK(frees == 2);
}

TEST_CASE("around_allocate may change the request that the next layer sees", "[policy][resource_adaptor]") {
  auto memory = host_memory{} | tracked{} | doubled{} | sized{};
  auto& requested = *memory->upstream()->upstream().operator->();
  void* const p = memory.allocate({}, 1000);
  void* const q = memory.allocate_sync(10);
  CHECK(requested.statistics().requested_bytes[0].current == 2020);
  memory.deallocate({}, p, 1000);
  memory.deallocate_sync(q, 10);
  CHECK(requested.statistics().requested_bytes[0].current == 0);
}

TEST_CASE("next_layer::deallocate gives back a block whose policy fails", "[policy][resource_adaptor]") {
  auto below = host_memory{} | tracked{};
  auto memory = below | failing{};
  CHECK_THROWS_AS(memory.allocate({}, 100), int);
  CHECK_THROWS_AS(memory.allocate_sync(100), int);
  CHECK(below->statistics().allocations[0].allocated == 2);
  CHECK(below->statistics().allocations[0].current == 0);
}

TEST_CASE("around_layer forwards the calls of the pool and the place of the caller",
          "[policy][resource_adaptor]") {
  std::string file;
  auto memory = sim_pages{} | pooled{} | logged([&](call_record const& c) { file = c.where.file; }) |
                around<recording>{};
  void* const p = memory.allocate({}, 100);
  CHECK(file.find("resource_adaptor.cpp") != std::string::npos);
  CHECK(memory.owns(p));
  memory.record_stream(p, 100, {});
  memory.deallocate({}, p, 100);
  CHECK(memory.trim() > 0);
}

TEST_CASE("resource_adaptor gives its layer the upstream and the driver", "[policy][resource_adaptor]") {
  auto memory = host_memory{} | tracked{} | sized{};
  void* const p = memory.allocate({}, 70);
  CHECK(memory->bytes_below() == 70);
  CHECK(memory.device() == no_driver{}.device());
  memory.deallocate({}, p, 70);
}
