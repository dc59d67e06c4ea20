// SPDX-License-Identifier: Apache-2.0
// Errors name the line of the user's program, whichever call threw.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "driver/faulty.hpp"
#include "tarn/core/location_scope.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/driver/sim/sim_driver.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/source/pinned_host.hpp"
#include "tarn/source/sim_sources.hpp"
#include "tarn/stl.hpp"
#include "tarn/transfer/available_memory.hpp"
#include "tarn/transfer/collect_batches.hpp"
#include "tarn/transfer/convert.hpp"
#include "tarn/transfer/evict_scope.hpp"
#include "tarn/transfer/free_on.hpp"
#include "tarn/transfer/micro_batches.hpp"
#include "tarn/transfer/peer_copy.hpp"
#include "tarn/transfer/scratch.hpp"
#include "tarn/transfer/stream_batches.hpp"

using namespace tarn;

namespace {

using failing_driver = faulty<sim_driver>;

/// A pool and buffers of it, on a driver whose calls can be made to fail.
template <class Pool>
struct scene {
  sim_machine machine;
  failing_driver driver{machine.driver()};
  Pool pool;
  basic_stream<failing_driver> stream{driver}, other{driver};
  device_buffer<float, Pool> buffer{pool, 1000, stream}, second{pool, 1000, other};
  std::vector<float> host = std::vector<float>(1000);

  explicit scene(auto const& policies) : pool(basic_pages<failing_driver>(driver) | pooled{} | policies) {}

  /// Makes every driver call fail, runs `call`, and checks that the error names `line` of this file.
  void fails_at(int line, char const* what, std::function<void()> const& call) {
    INFO(what);
    driver.plan().fail(1, {failure::other, fault_moment::instead, fault_span::for_good});
    try {
      call();
      FAIL_CHECK("no exception was thrown");
    } catch (cuda_error const& error) {
      INFO(error.what());
      CHECK(std::string(error.where().file).ends_with("places_of_errors.cpp"));
      CHECK(error.where().line == line);
      CHECK(std::string(error.what()).ends_with(":" + std::to_string(line) + "]"));
    }
    driver.plan().disarm();
  }
};

#define FAILS_HERE(s, ...) (s).fails_at(__LINE__, #__VA_ARGS__, [&] { (void)(__VA_ARGS__); })

template <class Pool>
void check_all(scene<Pool>& s) {
  auto& pool = s.pool;
  stream_ref const bare = stream_ref::from(s.stream.ref().handle());
  FAILS_HERE(s, pool.allocate(s.stream, 64_MiB));
  FAILS_HERE(s, pool.allocate(bare, 256));
  FAILS_HERE(s, pool.allocate_sync(64_MiB));
  FAILS_HERE(s, pool.allocate_async(64_MiB, s.stream));
  FAILS_HERE(s, pool.record_stream(s.buffer.data(), s.buffer.bytes(), bare));
  FAILS_HERE(s, identified(pool, bare));
  FAILS_HERE(s, s.stream.synchronize());
  FAILS_HERE(s, make_device_buffer<float>(pool, 64_MiB, s.stream));
  FAILS_HERE(s, make_device_buffer<float>(pool, 1000, bare));
  FAILS_HERE(s, make_device_buffer<float>(pool, std::span<float const>(s.host), s.stream));
  FAILS_HERE(s, device_buffer<float, Pool>(pool, bare));
  FAILS_HERE(s, s.buffer.resize(64_MiB));
  FAILS_HERE(s, s.buffer.resize(64_MiB, s.other));
  FAILS_HERE(s, s.buffer.resize(10, s.other));
  FAILS_HERE(s, s.buffer.reserve(64_MiB));
  FAILS_HERE(s, s.buffer.shrink_to_fit(s.other));
  FAILS_HERE(s, s.buffer.set_stream(s.other));
  FAILS_HERE(s, s.buffer.clone(s.other));
  FAILS_HERE(s, s.buffer.record_stream(bare));
  FAILS_HERE(s, s.buffer.copy_from(std::span<float const>(s.host)));
  FAILS_HERE(s, s.buffer.copy_from(s.second));
  FAILS_HERE(s, s.buffer.copy_to(std::span<float>(s.host)));
  FAILS_HERE(s, s.buffer.copy_to_sync(std::span<float>(s.host)));
  FAILS_HERE(s, s.buffer.fill(std::byte{1}));
  FAILS_HERE(s, s.buffer.zero());
  FAILS_HERE(s, make_device<float>(pool, bare));
  FAILS_HERE(s, make_device<float[]>(pool, 64_MiB, s.stream));
  auto pointer = make_device<float[]>(pool, 10, s.stream);
  FAILS_HERE(s, pointer.set_stream(s.other));
  FAILS_HERE(s, free_on(std::move(s.buffer), s.other));
  FAILS_HERE(s, free_on(s.other, std::move(s.buffer), std::move(s.second)));
  FAILS_HERE(s, free_on(bare, earlier_work::wait_for, std::move(s.buffer)));
  FAILS_HERE(s, micro_batches(10, 100, pool));
  basic_pinned<failing_driver> const pinned(s.driver);
  FAILS_HERE(s, pinned_buffer<float, basic_pinned<failing_driver>>(pinned, 1000));
  FAILS_HERE(s, tarn::copy(s.driver, std::span<float const>(s.host), s.buffer.span(), s.stream));
  FAILS_HERE(s, tarn::peer_copy(s.buffer, s.second));
  FAILS_HERE(s, tarn::convert(s.buffer, s.second));
  FAILS_HERE(s, converted<float16>(s.buffer, s.stream));
  FAILS_HERE(s, available_memory(pool));
  FAILS_HERE(s, mem_get_info(pool));
  tarn::scratch scratch(pool, 64_MiB, s.stream);
  FAILS_HERE(s, scratch.template take<float>(1000));
  FAILS_HERE(s, tarn::scratch(pool, 64_MiB, bare));
  FAILS_HERE(s, stream_batches(std::span<float const>(s.host), {.batch_bytes = 400}, pool, s.stream));
  FAILS_HERE(s, collect_batches(s.buffer, {.batch_bytes = 400}, s.stream));
  FAILS_HERE(s, evict_scope(pinned, s.stream, s.buffer));
  FAILS_HERE(s, evict_scope(pinned, bare, s.buffer));
  {
    evict_scope evicted(pinned, s.stream, s.buffer);
    FAILS_HERE(s, evicted.template host_copy<0>());
    FAILS_HERE(s, evicted.bring_back());
  }
}

}  // namespace

TEST_CASE("cuda_error names the line that called the library", "[raii][errors][source_location]") {
  scene<decltype(std::declval<basic_pages<failing_driver>>() | pooled{} | tracked{})> s{tracked{}};
  check_all(s);
}

TEST_CASE("cuda_error names the line that called the library where a layer records places",
          "[raii][errors][source_location]") {
  scene<decltype(std::declval<basic_pages<failing_driver>>() | pooled{} | with_history{})> s{with_history{}};
  check_all(s);
}

TEST_CASE("An error that a container's call led to names no line, or that of a location_scope",
          "[raii][errors][source_location]") {
  auto const memory = host_memory{} | limited{1000};
  std::vector<char, stl_allocator<char, std::remove_const_t<decltype(memory)>>> v(memory);
  try {
    v.resize(2000);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    INFO(error.what());
    CHECK(error.where().line == 0);
    CHECK(std::string(error.what()).ends_with("."));
  }
  int const line = __LINE__ + 2;
  try {
    location_scope const here;
    v.resize(2000);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    CHECK(error.where().line == line);
  }
}

TEST_CASE("An error of a handler keeps the handler's line", "[raii][errors][source_location]") {
  sim_machine const machine;
  auto other = sim_pages(machine.driver()) | pooled{} | limited{0};
  int line = 0;
  auto pool = sim_pages(machine.driver()) | pooled{} | limited{0} | retry_on_oom{[&](auto const&, unsigned) {
                line = __LINE__ + 1;
                (void)other.allocate(stream_ref{}, 1000);
                return true;
              }};
  try {
    (void)pool.allocate(stream_ref{}, 2000);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    CHECK(error.report().asked == 1000);
    CHECK(error.where().line == line);
  }
}

TEST_CASE("The end of a long path and the line are in the text", "[raii][errors][source_location]") {
  std::string const path = std::string(400, 'x') + "/solver/step.cpp";
  memory_report r;
  std::string const name(500, 'n');
  for (bytes_of_tag& tag : r.biggest_tags) tag = {name.c_str(), 1};
  source_location const where{path.c_str(), 42, "step"};
  CHECK(std::string(detail::at(where, out_of_memory(r)).what()).ends_with("/solver/step.cpp:42]"));
  cuda_error const e({failure::other, 400, "cudaErrorInvalidResourceHandle", "cudaStreamGetId"}, 0, where);
  CHECK(std::string(e.what()).ends_with("/solver/step.cpp:42]"));
}

TEST_CASE("out_of_memory names the line that called the library", "[raii][errors][source_location]") {
  sim_machine const machine;
  auto pool = sim_pages(machine.driver()) | pooled{} | limited{1_MiB};
  auto const stream = stream_ref{};
  int line = 0;
  try {
    line = __LINE__ + 1;
    auto const buffer = make_device_buffer<float>(pool, 1_MiB, stream);
    FAIL("no exception was thrown");
  } catch (out_of_memory const& error) {
    CHECK(error.where().line == line);
    CHECK(std::string(error.what()).ends_with("places_of_errors.cpp:" + std::to_string(line) + "]"));
  }
}
