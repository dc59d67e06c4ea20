// SPDX-License-Identifier: Apache-2.0
// The sources alone: blocks of each kind, with and without a stream, and pages by hand.
#include <concepts>
#include <optional>
#include <utility>

#include "contract/unique_pages.hpp"
#include "faults/scene_memory.hpp"
#include "faults/scenes.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/source/cuda_async.hpp"
#include "tarn/source/cuda_malloc.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/managed.hpp"
#include "tarn/source/pinned_host.hpp"
#include "tarn/source/registered_host.hpp"

namespace tarn_test {

namespace of_source {

sim_options small_machine() {
  sim_options o = machine_of(16_MiB, 16_MiB);
  o.backing = sim_backing::address_only;
  return o;
}

/// Blocks of the host's own pages, which need not be a multiple of 2 MiB.
template <class Driver>
struct registered_usual : basic_registered<Driver> {
  explicit registered_usual(Driver driver)
      : basic_registered<Driver>(std::move(driver), {.pages = host_page_size::usual}) {}
};

template <template <class> class Source>
void blocks(trial& t) {
  basic_stream<sited_driver> const s(t.driver());
  Source<sited_driver> memory(t.driver());
  auto const pair = [&](std::size_t bytes, std::size_t alignment,
                        step_outcome expected = step_outcome::served) {
    void* p = nullptr;
    t.attempt(
        "allocate", [&] { p = memory.allocate(s, bytes, alignment); }, expected);
    memory.deallocate(s, p, bytes, alignment);
  };
  auto const pair_sync = [&](std::size_t bytes) {
    void* p = nullptr;
    t.attempt("allocate_sync", [&] { p = memory.allocate_sync(bytes); });
    memory.deallocate_sync(p, bytes);
  };
  pair(1000, 256);
  pair(1000, 4_KiB);  // a device block of that size may lie anywhere in its page: a whole page is taken
  pair(3_MiB, 2_MiB);
  pair(40_MiB, 256, step_outcome::refused);
  pair_sync(1000);
  // What is freed on a captured stream is never given back where that would not wait.
  if constexpr (!std::derived_from<Source<sited_driver>, basic_registered<sited_driver>>) {
    if (t.begin_capture(s)) {
      pair(1000, 256);
      (void)t.end_capture(s);
    }
  }
  t.heal();
  pair(8_MiB, 256);
  pair_sync(8_MiB);
}

/// A block that is freed on a destroyed stream whose work runs still, and given out again.
void block_of_a_lost_stream(trial& t) {
  stream const a(t.driver());
  auto memory = basic_async<sited_driver>(t.driver()) | order_watched{t.machine()};
  stream_ref gone;
  void* p = nullptr;
  {
    stream const b(t.driver());
    t.attempt("identify", [&] { gone = identified(memory, stream_ref(b)); });
    t.attempt("allocate", [&] { p = memory.allocate(gone, 2_MiB, default_alignment); });
    write(t, gone, p, 2_MiB);
  }
  memory.deallocate(gone, p, 2_MiB, default_alignment);
  p = nullptr;
  t.attempt("allocate again", [&] { p = memory.allocate(a, 2_MiB, default_alignment); });
  write(t, a, p, 2_MiB);
  memory.deallocate(a, p, 2_MiB, default_alignment);
}

void release_threshold(trial& t) {
  basic_async<sited_driver> const memory(t.driver());
  t.attempt("set_release_threshold", [&] { set_release_threshold(memory, 1_MiB); });
}

void pages_by_hand(trial& t) {
  using pages = basic_pages<sited_driver>;
  pages source(t.driver());
  void* range = nullptr;
  if (!t.attempt("reserve", [&] { range = source.reserve(8_MiB); })) return;
  {
    std::optional<unique_pages<pages>> owned;
    bool mapped = false;
    t.attempt("create", [&] { owned.emplace(source, 2_MiB); });
    t.attempt(
        "create too much", [&] { unique_pages<pages> const none(source, 64_MiB); }, step_outcome::refused);
    if (owned) mapped = t.attempt("map", [&] { source.map(range, 2_MiB, owned->get()); });
    if (mapped) source.unmap(range, 2_MiB);
  }
  source.unreserve(range, 8_MiB);
}

constexpr scene all[] = {
    {"cuda_malloc", small_machine, blocks<basic_malloc>},
    {"cuda_async", small_machine, blocks<basic_async>, false, false, true},
    {"cuda_async_pinned", small_machine, blocks<basic_async_pinned>, false, false, true},
    {"pinned_host", small_machine, blocks<basic_pinned>},
    {"registered_host", small_machine, blocks<basic_registered>, false, false, true},
    {"registered_host_usual", small_machine, blocks<registered_usual>, false, false, true},
    {"managed", small_machine, blocks<basic_managed>},
    {"block_of_a_lost_stream", small_machine, block_of_a_lost_stream, false, false, true},
    {"release_threshold", small_machine, release_threshold},
    {"pages_by_hand", small_machine, pages_by_hand},
};

}  // namespace of_source

std::span<scene const> source_scenes() {
  return of_source::all;
}

}  // namespace tarn_test
