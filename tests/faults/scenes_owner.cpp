// SPDX-License-Identifier: Apache-2.0
// The owners: buffers, pointers, streams, copies between host and devices. Their contents are compared unless
// a copy was refused.
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "faults/scene_memory.hpp"
#include "faults/scenes.hpp"
#include "tarn/raii/copy.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/device_guard.hpp"
#include "tarn/raii/device_ptr.hpp"
#include "tarn/raii/pinned_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/pinned_host.hpp"
#include "tarn/transfer/available_memory.hpp"
#include "tarn/transfer/collect_batches.hpp"
#include "tarn/transfer/evict_scope.hpp"
#include "tarn/transfer/free_on.hpp"
#include "tarn/transfer/scratch.hpp"
#include "tarn/transfer/stream_batches.hpp"

namespace tarn_test {

namespace of_owner {

sim_options small_machine() {
  sim_options o = machine_of(32_MiB, 8_MiB);
  o.devices = 2;
  return o;
}

/// All state that a throwing call must not change.
template <class Buffer>
std::string fields(Buffer const& b) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(b.data())) + " size " + std::to_string(b.size()) +
         " capacity " + std::to_string(b.capacity()) + " stream " + std::to_string(b.stream().id());
}
template <class Memory>
std::string live_in(Memory& memory) {
  return std::to_string(nearest(memory, [](auto& l) -> decltype(l.state()) { return l.state(); }).live) +
         " B live";
}

constexpr std::array<int, 5> numbers = {1, 2, 3, 4, 5};

/// True if the device holds the expected numbers, read from the machine itself.
template <class Buffer>
bool holds_numbers(trial& t, Buffer const& b, std::size_t count) {
  host_faults::not_counted const own;
  std::array<int, 5> seen{};
  sim_driver const driver = t.machine().driver(b.resource().driver().device());
  if (!driver.copy(b.stream(), seen.data(), b.data(), count * sizeof(int)).ok()) return false;
  (void)driver.synchronize_stream(b.stream());
  return std::memcmp(seen.data(), numbers.data(), count * sizeof(int)) == 0;
}

void device_buffers(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  auto memory = watched_pool(t);
  using buffer = device_buffer<int, decltype(memory)>;
  auto const live = t.watch([&] { return live_in(memory); });
  buffer first(memory, a);
  auto const state = t.watch([&] { return fields(first); });
  bool const filled = t.attempt("make", [&] { first = buffer(memory, std::span<int const>(numbers), a); });
  t.attempt("reserve", [&] { first.reserve(500'000); });
  t.attempt("resize on another stream", [&] { first.resize(600'000, b); });
  t.attempt("resize", [&] { first.resize(5); });
  t.attempt("shrink_to_fit", [&] { first.shrink_to_fit(a); });
  t.attempt("set_stream", [&] { first.set_stream(b); });
  t.attempt("set_stream back", [&] { first.set_stream(stream_ref::from(stream_ref(a).handle())); });
  if (filled && t.log().moment == fault_moment::instead) t.check(holds_numbers(t, first, 5), "elements lost");
  {
    buffer second(memory, b);
    auto const other = t.watch([&] { return fields(second); });
    t.attempt("clone", [&] { second = first.clone(a); });
    t.attempt("clone on another stream", [&] { second = first.clone(b); });
    if (second.size() == first.size()) t.attempt("copy_from", [&] { second.copy_from(first); });
    t.attempt("fill", [&] { second.fill(std::byte{1}); });
    t.attempt("zero", [&] { second.zero(); });
    std::array<int, 5> host{};
    if (second.size() == 5) t.attempt("copy_to", [&] { second.copy_to(host); });
    if (second.size() == 5) t.attempt("copy_to_sync", [&] { second.copy_to_sync(host); });
    if (second.size() == 5)
      t.attempt("copy_from host", [&] { second.copy_from(std::span<int const>(numbers)); });
    t.attempt(
        "too much", [&] { second.resize(64_MiB); }, step_outcome::refused);
  }
  std::array<int, 5> there{};
  if (first.size() == 5) {
    t.attempt("copy_sync",
              [&] { copy_sync(t.driver(), std::span<int const>(first.span()), std::span<int>(there), a); });
  }
  t.attempt("synchronize", [&] { a.synchronize(); });
  t.heal();
  t.attempt("once more", [&] { first = buffer(memory, std::span<int const>(numbers), a); });
  if (!t.struck() || t.healed()) t.check(holds_numbers(t, first, 5), "elements of a new buffer");
}

void device_ptrs(trial& t) {
  stream const a(t.driver());
  auto memory = watched_pool(t);
  auto const live = t.watch([&] { return live_in(memory); });
  device_ptr<int, decltype(memory)> one(memory, stream_ref::from(stream_ref(a).handle()));
  t.attempt("make_device", [&] { one = make_device<int>(memory, stream_ref::from(stream_ref(a).handle())); });
  t.attempt("make_device of an array", [&] {
    auto many = make_device<int[]>(memory, 1'000'000, a);
    many.reset();
  });
  stream moved(t.driver());
  t.attempt("a stream assigned", [&] { moved = stream(t.driver()); });
  t.heal();
  t.attempt("make_device again", [&] { one = make_device<int>(memory, a); });
}

void pinned_buffers(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  auto memory = basic_pinned<sited_driver>(t.driver()) | pooled{} | order_watched{t.machine()} | tracked{};
  using buffer = pinned_buffer<int, decltype(memory)>;
  auto const live = t.watch([&] { return live_in(memory); });
  buffer first(memory, a);
  auto const state = t.watch([&] { return fields(first); });
  bool const made = t.attempt("make", [&] { first = buffer(memory, std::span<int const>(numbers), a); });
  t.attempt("resize", [&] { first.resize(300'000); });
  t.attempt("shrink", [&] { first.resize(5); });
  t.attempt("shrink_to_fit", [&] { first.shrink_to_fit(); });
  t.attempt("set_stream", [&] { first.set_stream(b); });
  t.attempt("copy", [&] { buffer const copied(first); });
  if (made)
    t.check(first.size() == 5 && std::memcmp(first.data(), numbers.data(), sizeof numbers) == 0,
            "elements lost");
  t.attempt(
      "too much", [&] { first.resize(8_MiB); }, step_outcome::refused);
  t.heal();
  t.attempt("once more", [&] { first = buffer(memory, 1000); });
}

void bare_pinned_buffer(trial& t) {
  stream const a(t.driver());
  basic_pinned<sited_driver> const memory(t.driver());
  using buffer = pinned_buffer<int, basic_pinned<sited_driver>>;
  t.attempt("create and destroy", [&] { buffer const one(memory, 1000, elements::value_initialised, a); });
}

void batches(trial& t) {
  stream const a(t.driver());
  auto memory = watched_pool(t);
  auto staging = basic_pinned<sited_driver>(t.driver()) | pooled{} | order_watched{t.machine()} | tracked{};
  auto const live = t.watch([&] { return live_in(memory) + ", pinned " + live_in(staging); });
  using buffer = device_buffer<int, decltype(memory)>;
  buffer device(memory, a);
  batch_options const options{.batch_bytes = sizeof(int), .depth = 2};
  std::array<int, 5> back{};
  auto const there_and_back = [&] {
    for (auto batch : stream_batches(std::span<int const>(numbers), options, memory, a, staging)) {
      tarn::copy(t.driver(), batch.span(), device.span().subspan(batch.offset(), batch.size()), a);
    }
    for (auto batch : collect_batches(device, options, a, staging)) back[batch.offset()] = batch[0];
  };
  if (t.attempt("make", [&] { device = buffer(memory, 5, a); })) {
    bool const moved = t.attempt("batches to the device and back", there_and_back);
    if (moved && t.log().moment == fault_moment::instead)
      t.check(back == numbers, "elements of batches lost");
    t.attempt("batches from pinned memory", [&] {
      pinned_buffer<int, decltype(staging)> const host(staging, std::span<int const>(numbers), a);
      for (auto batch : stream_batches(host, options, memory, a, staging)) {
        if (batch.index() == 3) break;
      }
    });
  }
  t.heal();
  if (device.empty()) t.attempt("make again", [&] { device = buffer(memory, 5, a); });
  back = {};
  bool const again = !device.empty() && t.attempt("batches once more", there_and_back);
  if (again && t.log().moment == fault_moment::instead)
    t.check(back == numbers, "elements of later batches lost");
}

void copies_between_devices(trial& t) {
  stream const a(t.driver(device_id{0}));
  stream const b(t.driver(device_id{1}));
  auto here = watched_pool(t, device_id{0});
  auto there = watched_pool(t, device_id{1});
  auto pinned = basic_pinned<sited_driver>(t.driver(device_id{0}));
  using buffer = device_buffer<int, decltype(here)>;
  buffer first(here, a);
  buffer second(there, b);
  device_buffer<int, decltype(pinned)> host(pinned, a);
  bool const made = t.attempt("make", [&] { first = buffer(here, std::span<int const>(numbers), a); }) &&
                    t.attempt("make there", [&] { second = buffer(there, 5, b); }) &&
                    t.attempt("create on the host", [&] { host.resize(5); });
  if (made) {
    bool const copied = t.attempt("copy_from another device", [&] { second.copy_from(first); });
    if (copied) t.check(holds_numbers(t, second, 5), "elements lost between devices");
    t.attempt("copy_from another device to the host", [&] { host.copy_from(second); });
    t.attempt("copy_from the host", [&] { second.copy_from(host); });
  }
  t.heal();
  t.attempt("make again", [&] { second = buffer(there, std::span<int const>(numbers), b); });
}

void current_device(trial& t) {
  using guard = basic_device_guard<sited_driver>;
  auto const now = [] {
    device_id device;
    (void)sim_driver::current_device(device);
    return device.value;
  };
  (void)t.driver();
  t.attempt("device_guard", [&] {
    guard const other(device_id{1});
    guard const same(device_id{1});
  });
  if (t.log().plan.failed() < 2 && !(t.struck() && t.log().made.back().struck))
    t.check(now() == 0, "another device is current");
  (void)sim_driver::set_current_device(device_id{0});  // where restoring the device was refused
}

void what_is_free(trial& t) {
  auto memory = watched_pool(t);
  t.attempt("mem_get_info", [&] { (void)mem_get_info(memory); });
  t.attempt("available_memory", [&] { (void)available_memory(memory); });
}

/// Evicted contents are copied back or passed on; owners given to free_on() or rewound leave nothing behind.
void early_release(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  auto memory = watched_pool(t);
  auto pinned = basic_pinned<sited_driver>(t.driver()) | pooled{} | order_watched{t.machine()} | tracked{};
  using buffer = device_buffer<int, decltype(memory)>;
  buffer first(memory, a);
  buffer second(memory, b);
  auto const state = t.watch([&] { return fields(first) + fields(second); });
  bool const made = t.attempt("make", [&] { first = buffer(memory, std::span<int const>(numbers), a); }) &&
                    t.attempt("make another", [&] { second = buffer(memory, 500'000, b); });
  bool lost = false;
  {
    std::optional<evict_scope<decltype(pinned), buffer, buffer>> evicted;
    bool const away = t.attempt("evict", [&] { evicted.emplace(pinned, b, first, second); });
    if (away) {
      evicted->when_lost([&lost](lost_elements const&) { lost = true; });
      t.attempt("host_copy", [&] { (void)evicted->host_copy<0>(); });
      t.attempt("use the freed memory", [&] { buffer(memory, 500'000, b).zero(); });
      t.attempt("bring_back", [&] { evicted->bring_back(); });
    }
    t.heal();
    t.attempt("the scope's end", [&] { evicted.reset(); });
  }
  t.wait_for(a);  // the same in every run: the following code queries whether work is done
  // After the driver has unloaded nothing is copied back, and no error is reported.
  if (made && !lost && !first.empty() && t.log().moment == fault_moment::instead)
    t.check(holds_numbers(t, first, 5), "evicted elements lost");
  if (!t.struck())
    t.check(first.size() == 5 && second.size() == 500'000, "evicted elements were not restored");
  t.attempt("free_on", [&] { free_on(b, std::move(first), std::move(second)); });
  t.attempt("scratch", [&] {
    scratch arena{memory, 100'000, a};
    rewind_scope const step{arena};
    (void)arena.take<int>(1'000);
    (void)arena.take<int>(100'000);
    arena.set_stream(b);
  });
}

constexpr scene all[] = {
    {"device_buffers", small_machine, device_buffers},
    {"device_ptrs", small_machine, device_ptrs},
    {"pinned_buffers", small_machine, pinned_buffers},
    {"bare_pinned_buffer", small_machine, bare_pinned_buffer},
    {"batches", small_machine, batches},
    {"copies_between_devices", small_machine, copies_between_devices},
    {"current_device", small_machine, current_device},
    {"what_is_free", small_machine, what_is_free},
    {"early_release", small_machine, early_release},
};

}  // namespace of_owner

std::span<scene const> owner_scenes() {
  return of_owner::all;
}

}  // namespace tarn_test
