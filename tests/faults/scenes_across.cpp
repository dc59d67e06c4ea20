// SPDX-License-Identifier: Apache-2.0
// Element conversion and several devices: pieces copied between them, pages shared with other devices, pools
// of each, buffers over all. Contents are compared unless a copy was refused.
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "faults/scene_memory.hpp"
#include "faults/scenes.hpp"
#include "tarn/policy/accessible_from.hpp"
#include "tarn/source/pinned_host.hpp"
#include "tarn/transfer/convert.hpp"
#include "tarn/transfer/partitioned_buffer.hpp"
#include "tarn/transfer/peer_copy.hpp"
#include "tarn/transfer/per_device.hpp"

namespace tarn_test {

namespace of_across {

sim_options three_devices() {
  sim_options o = machine_of(32_MiB, 8_MiB);
  o.devices = 3;
  return o;
}

template <class Memory>
std::string live_in(Memory& memory) {
  return std::to_string(nearest(memory, [](auto& l) -> decltype(l.state()) { return l.state(); }).live) +
         " B live";
}

constexpr std::array<float, 5> numbers = {1, -2, 0.5, 4, 5};

/// True if the device holds the expected numbers, read from the machine itself.
template <class Buffer>
bool holds_numbers(trial& t, Buffer const& b) {
  host_faults::not_counted const own;
  std::array<typename Buffer::value_type, 5> seen{};
  sim_driver const driver = t.machine().driver(b.resource().driver().device());
  if (b.size() != 5 || !driver.copy(b.stream(), seen.data(), b.data(), b.bytes()).ok()) return false;
  (void)driver.synchronize_stream(b.stream());
  for (std::size_t i = 0; i < 5; ++i) {
    if (static_cast<float>(seen[i]) != numbers[i]) return false;
  }
  return true;
}

void conversions(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  stream const c(t.driver());  // outlives the pool, which must not unmap what its work reads
  auto memory = watched_pool(t);
  using floats = device_buffer<float, decltype(memory)>;
  using halves = device_buffer<float16, decltype(memory)>;
  auto const live = t.watch([&] { return live_in(memory); });
  floats full(memory, a);
  halves half(memory, b);
  bool const made = t.attempt("make", [&] { full = floats(memory, std::span<float const>(numbers), a); });
  bool const halved = made && t.attempt("converted", [&] { half = converted<float16>(memory, full, b); });
  if (halved && t.log().moment == fault_moment::instead) t.check(holds_numbers(t, half), "elements lost");
  if (halved) {
    if (t.attempt("convert on a third stream", [&] { tarn::convert(full, half, c); }))
      t.check(holds_numbers(t, half), "elements lost on a third stream");
    t.attempt("convert spans",
              [&] { tarn::convert(t.driver(), full.span().first(2), half.span().first(2), b); });
  }
  t.heal();
  t.attempt("once more", [&] { half = converted<float16>(memory, floats(memory, numbers, a), b); });
}

void pieces_between_devices(trial& t) {
  stream const a(t.driver(device_id{0}));
  stream const b(t.driver(device_id{1}));
  auto here = watched_pool(t, device_id{0});
  auto there = watched_pool(t, device_id{1});
  auto pinned = basic_pinned<sited_driver>(t.driver(device_id{0}));
  using buffer = device_buffer<float, decltype(here)>;
  buffer first(here, a);
  buffer beside(here, a);
  buffer second(there, b);
  device_buffer<float, decltype(pinned)> host(pinned, a);
  bool const made = t.attempt("make", [&] { first = buffer(here, std::span<float const>(numbers), a); }) &&
                    t.attempt("make beside", [&] { beside = buffer(here, 5, a); }) &&
                    t.attempt("make there", [&] { second = buffer(there, 5, b); }) &&
                    t.attempt("create on the host", [&] { host.resize(5); });
  if (made) {
    if (t.attempt("peer_copy", [&] { peer_copy(first, second); }))
      t.check(holds_numbers(t, second), "elements lost between devices");
    t.attempt("a piece back", [&] { peer_copy(second, 1, first, 1, 3); });
    t.attempt("on one device", [&] { peer_copy(first, beside); });
    t.attempt("to the host, by the other device", [&] { peer_copy(second, host); });
    t.attempt("from the host", [&] { peer_copy(host, second); });
  }
  t.heal();
  t.attempt("make again", [&] { second = buffer(there, std::span<float const>(numbers), b); });
}

void pages_that_others_reach(trial& t) {
  stream const a(t.driver());
  auto const make = [&] {
    return basic_pages<sited_driver>(t.driver()) | accessible_from{1, 2} | pooled{} | tracked{};
  };
  std::optional<decltype(make())> pool;
  t.attempt("map the pages for other devices", [&] { pool = make(); });
  if (pool) {
    auto const live = t.watch([&] { return live_in(*pool); });
    void* p = nullptr;
    t.attempt("allocate", [&] { p = pool->allocate(a, 3_MiB); });
    pool->deallocate(a, p, 3_MiB);
  }
  t.heal();
  if (!pool) t.attempt("map the pages for other devices again", [&] { pool = make(); });
  if (pool) {
    void* p = nullptr;
    t.attempt("allocate again", [&] { p = pool->allocate(a, 9_MiB); });
    char byte = 0;
    if (p != nullptr && (!t.struck() || t.healed())) {
      host_faults::not_counted const own;
      t.check(t.machine().driver(device_id{2}).copy(stream_ref{}, &byte, p, 1).ok(), "not reached");
    }
    pool->deallocate(a, p, 9_MiB);
  }
}

void a_buffer_over_devices(trial& t) {
  per_device pools{[&t](device_id device) { return watched_pool(t, device); }};
  using buffer = partitioned_buffer<float, decltype(pools)::pool_type>;
  std::vector<device_id> devices;
  (void)t.driver();  // whose machine has the current device
  {
    host_faults::not_counted const own;
    devices = {device_id{0}, device_id{1}, device_id{2}};
  }
  std::array<float, 5> seen{};
  t.attempt("the current pool", [&] { (void)pools.current(); });
  std::optional<buffer> whole;
  if (t.attempt("make", [&] { whole.emplace(pools, devices, 5); })) {
    bool const sent = t.attempt("scatter", [&] { whole->scatter(numbers); });
    if (sent && t.attempt("gather_sync", [&] { whole->gather_sync(seen); }))
      t.check(seen == numbers, "elements lost during the copy");
    t.attempt("for each part", [&] { whole->for_each_part([](auto const&) {}); });
    t.attempt("divide anew", [&] {
      buffer otherwise(pools, std::span<device_id const>(devices).first(2), 5);
      otherwise.copy_from(*whole);
    });
    t.attempt("order", [&] {
      whole->order_behind(t.driver(), stream_ref{});
      whole->order_before(t.driver(), stream_ref{});
    });
  }
  (void)sim_driver::set_current_device(device_id{0});  // where restoring the device was refused
  t.heal();
  t.attempt("make again", [&] { whole.emplace(pools, devices, 5); });
}

/// A kernel on the default stream of a device, of a program that has called cudaSetDevice().
void write_on(trial& t, device_id device, char* p, char value, sim_nanoseconds takes) {
  host_faults::not_counted const own;
  device_id now;
  (void)sim_driver::current_device(now);
  (void)sim_driver::set_current_device(device);
  (void)t.machine().driver(device).launch(stream_ref{}, takes, {sim_writes(p, 1)},
                                          [p, value] { *p = value; });
  (void)sim_driver::set_current_device(now);
}

/// Device 1 is in use, so that a block of host memory freed on a default stream, and a copy of one, wait for
/// the default streams of both.
void host_memory_on_default_streams(trial& t) {
  stream const other(t.driver(device_id{1}));
  stream const own(t.driver(device_id{0}));
  auto memory = basic_pinned<sited_driver>(t.driver(device_id{0})) | pooled{} | tracked{};
  auto const live = t.watch([&] { return live_in(memory); });
  for (int i = 0; i < 2; ++i) {
    void* p = nullptr;
    t.attempt("allocate", [&] { p = memory.allocate(stream_ref{}, 1_MiB); });
    memory.deallocate(stream_ref{}, p, 1_MiB);
    p = nullptr;
    t.attempt("trim", [&] { (void)memory.trim(0); });
    t.attempt("allocate on a stream of the other device", [&] { p = memory.allocate(other, 1_MiB); });
    memory.deallocate(own, p, 1_MiB);
    char seen = 0;
    bool const copied = t.attempt("copy a buffer", [&] {
      device_buffer<char, decltype(memory)> first(memory, 16, stream_ref{});
      write_on(t, device_id{1}, first.data(), 7, 1'000'000);
      write_on(t, device_id{0}, first.data() + 1, 7, 9'000'000);
      auto const second = first.clone(stream_ref{});
      write_on(t, device_id{1}, first.data(), 9, 1'000'000);
      t.wait_for(second.stream());
      seen = *second.data();
    });
    t.check(!copied || seen == 7, "elements lost behind the other device");
    if (i == 0) t.heal();
  }
}

constexpr scene all[] = {
    {"host_memory_on_default_streams", three_devices, host_memory_on_default_streams},
    {"conversions", three_devices, conversions},
    {"pieces_between_devices", three_devices, pieces_between_devices},
    {"pages_that_others_reach", three_devices, pages_that_others_reach},
    {"a_buffer_over_devices", three_devices, a_buffer_over_devices},
};

}  // namespace of_across

std::span<scene const> across_scenes() {
  return of_across::all;
}

}  // namespace tarn_test
