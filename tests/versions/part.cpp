// SPDX-License-Identifier: Apache-2.0
// One shared library: compiled with -DTARN_TEST_PART=first_part and the headers of one version, and with
// second_part and those of another.
#include "part.hpp"

#include <array>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tarn/debug/with_history.hpp"
#include "tarn/driver/all_work.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/retry_on_oom.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/sim.hpp"
#include "tarn/source/host_memory.hpp"
#include "tarn/tarn.hpp"

namespace {
using namespace tarn;

#define TARN_TEST_TEXT_OF(...) #__VA_ARGS__
#define TARN_TEST_TEXT(...) TARN_TEST_TEXT_OF(__VA_ARGS__)

auto make_plain(sim_driver const& driver) {
  return sim_pages{driver} | pooled{};
}
auto make_tracked(sim_driver const& driver) {
  return sim_pages{driver} | pooled{} | tracked{};
}
auto make_host() {
  return host_memory{} | pooled{} | tracked{} | with_history{};
}

struct block {
  void* p;
  std::size_t bytes;
  unsigned pool;
};

struct memories {
  sim_machine machine;
  sim_driver driver = machine.driver();
  sim_stream stream{driver};
  decltype(make_plain(driver)) plain = make_plain(driver);
  decltype(make_tracked(driver)) counted = make_tracked(driver);
  decltype(make_host()) host = make_host();
  graph_memory<decltype(plain)> of_graphs{plain};
  std::optional<capture_scope> scope;
  std::mutex mutex;
  std::vector<block> passed_on;  ///< to whichever thread frees it

  block allocate(std::size_t bytes, unsigned pool) {
    switch (pool) {
      case 0:
        return {plain.allocate(stream, bytes), bytes, pool};
      case 1:
        return {counted.allocate(stream, bytes), bytes, pool};
      default:
        block const b{host.allocate_sync(bytes), bytes, pool};
        std::memset(b.p, static_cast<int>(bytes & 0x7f), bytes);
        return b;
    }
  }
  bool deallocate(block const& b) {
    bool intact = true;
    switch (b.pool) {
      case 0:
        plain.deallocate(stream, b.p, b.bytes);
        break;
      case 1:
        counted.deallocate(stream, b.p, b.bytes);
        break;
      default:
        for (std::size_t i = 0; i < b.bytes; ++i)
          intact = intact && static_cast<unsigned char*>(b.p)[i] == (b.bytes & 0x7f);
        host.deallocate_sync(b.p, b.bytes);
    }
    return intact;
  }
  /// Allocates and frees; of two blocks one is left to another thread.
  bool work(unsigned seed, int calls) {
    bool intact = true;
    for (int i = 0; i < calls; ++i) {
      seed = seed * 1664525 + 1013904223;
      block const mine =
          allocate(1 + seed % (seed % 16 == 0 ? 3'000'000 : 3'000), seed >> 8 & 1 ? 2 : seed >> 9 & 1);
      block theirs = mine;
      {
        std::lock_guard const guard(mutex);
        if (passed_on.empty() || (seed >> 12 & 1) != 0) {
          passed_on.push_back(mine);
          continue;
        }
        theirs = passed_on.back();
        passed_on.back() = mine;
      }
      intact = deallocate(theirs) && intact;
    }
    return intact;
  }
  bool free_all() {
    bool intact = true;
    for (block const& b : passed_on) intact = deallocate(b) && intact;
    passed_on.clear();
    return intact && memory_allocated(counted) == 0 && memory_allocated(host) == 0;
  }
};
memories* all = nullptr;

char const* version() {
  return TARN_TEST_TEXT(TARN_NAMESPACE);
}

bool begin() {
  all = new memories;
  return all->work(1, 50);
}
bool run_threads() {
  std::array<bool, 4> fine{};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < fine.size(); ++t)
    threads.emplace_back([&fine, t] { fine[t] = all->work(t, 2'000); });
  for (std::thread& t : threads) t.join();
  return fine == std::array{true, true, true, true};
}
bool use() {
  return all->work(7, 100);
}
bool end() {
  bool const fine = all->free_all();
  delete all;
  all = nullptr;
  return fine;
}

bool works_in_child() {
  bool refused = false;
  try {
    (void)all->host.allocate_sync(100);
  } catch (cuda_error const& e) {
    refused = e.kind() == failure::forked;
  }
  memories fresh;
  return refused && fresh.work(3, 500) && fresh.free_all();
}

void raise(tarn_error which) {
  auto memory = host_memory{} | pooled{} | limited{1_MiB};
  switch (which) {
    case tarn_error::no_memory:
      (void)memory.allocate_sync(2_MiB);
      break;
    case tarn_error::overflow:
      (void)make_device_buffer<double>(memory, ~std::size_t{0} / 2, stream_ref{});
      break;
    case tarn_error::alignment:
      (void)memory.allocate_sync(100, 3);
      break;
    case tarn_error::captured: {
      sim_machine const machine;
      auto pool = make_plain(machine.driver());
      sim_stream const s{machine.driver()};
      (void)machine.begin_capture(s);
      (void)pool.allocate(stream_ref::from(s.get()), 100);
    }
  }
}
caught_as catch_from(void (*raise_it)(tarn_error), tarn_error which) {
  try {
    raise_it(which);
    return caught_as::nothing;
  } catch (out_of_memory const&) {
    return caught_as::own_type;
  } catch (tarn::length_error const&) {
    return caught_as::own_type;
  } catch (bad_alignment const&) {
    return caught_as::own_type;
  } catch (cuda_error const&) {
    return caught_as::own_type;
  } catch (std::exception const& e) {
    bool fits = std::strlen(e.what()) > 10;
    if (which == tarn_error::no_memory) fits = fits && dynamic_cast<std::bad_alloc const*>(&e) != nullptr;
    if (which == tarn_error::overflow) fits = fits && dynamic_cast<std::length_error const*>(&e) != nullptr;
    if (which == tarn_error::alignment)
      fits = fits && dynamic_cast<std::invalid_argument const*>(&e) != nullptr;
    return fits ? caught_as::standard_type : caught_as::nothing;
  }
}
bool pass_through(void (*raise_it)(tarn_error), tarn_error which) {
  auto handler = [=](out_of_memory const&, unsigned) {
    raise_it(which);
    return false;
  };
  auto memory = host_memory{} | pooled{} | limited{1_MiB} | retry_on_oom{handler} | tracked{};
  bool passed = false;
  try {
    (void)memory.allocate_sync(2_MiB);
  } catch (std::exception const&) {
    passed = catch_from([](tarn_error) { throw; }, which) == caught_as::standard_type;
  }
  void* const p = memory.allocate_sync(1000);
  memory.deallocate_sync(p, 1000);
  return passed && memory_allocated(memory) == 0;
}

bool begin_capture() {
  all->scope.emplace(all->of_graphs, all->stream);
  if (!all->machine.begin_capture(all->stream).ok()) return false;
  void* const p = all->plain.allocate(all->stream, 5'000);
  all->plain.deallocate(all->stream, p, 5'000);
  return p != nullptr;
}
bool end_capture() {
  sim_graph graph;
  bool const valid = all->machine.end_capture(all->stream, graph).ok();
  all->scope.reset();
  return valid && all->machine.invalidated_captures() == 0;
}
bool sees_capture() {
  return detail::capture_gate::has_captures();
}
bool sees_own_thread() {
  return detail::capture_gate::may_be_mine();
}
bool may_mark_device() {
  sim_marking_driver const driver(all->driver);
  event_handle event = nullptr;
  if (!driver.create_event(event).ok()) return false;
  bool const marked = detail::record_all_work(driver, event).ok();
  (void)driver.destroy_event(event);
  return marked;
}
bool use_captured_stream() {
  sim_stream const s{all->driver};
  if (!all->machine.begin_capture(s).ok()) return false;
  bool used = true;
  try {
    void* const p = all->plain.allocate(stream_ref::from(s.get()), 100);
    all->plain.deallocate(stream_ref::from(s.get()), p, 100);
  } catch (cuda_error const&) {
    used = false;
  }
  sim_graph graph;
  return all->machine.end_capture(s, graph).ok() && used;
}

constexpr part_calls calls{
    version,         begin,           run_threads,        use,           works_in_child, end,
    raise,           catch_from,      pass_through,       begin_capture, end_capture,    sees_capture,
    sees_own_thread, may_mark_device, use_captured_stream};
}  // namespace

extern "C" __attribute__((visibility("default"))) part_calls const* TARN_TEST_PART() {
  return &calls;
}
