// SPDX-License-Identifier: Apache-2.0
// Reports: snapshots of memory in all its states, written in all formats.
#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "faults/held_blocks.hpp"
#include "faults/scene_memory.hpp"
#include "faults/scenes.hpp"
#include "tarn/debug/with_history.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/line_profile.hpp"
#include "tarn/report/perfetto.hpp"
#include "tarn/report/pickle.hpp"
#include "tarn/report/save_snapshot.hpp"
#include "tarn/report/snapshot_json.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/source/cuda_pages.hpp"
#include "tarn/source/sim_sources.hpp"

namespace tarn_test {

namespace of_report {

sim_options small_machine() {
  return machine_of(24_MiB, sim_options{}.host_capacity);
}

/// One snapshot, written; its contents must be complete, whatever failed before.
template <class Memory>
void look(trial& t, Memory const& memory) {
  t.attempt("take_snapshot", [&] {
    snapshot const s = take_snapshot(memory);
    std::size_t reserved = 0;
    for (snapshot_segment const& segment : s.segments) {
      std::size_t bytes = 0;
      for (snapshot_block const& b : segment.blocks) bytes += b.bytes;
      t.check_equal(bytes, segment.bytes, "blocks cover their segment");
      reserved += segment.bytes;
    }
    t.check_equal(reserved, s.pool.reserved, "segments sum to reserved bytes");
    std::ostringstream out;
    write_pickle(out, s);
    write_json(out, s);
    write_perfetto(out, s);
  });
}

/// A file is complete or absent.
template <class Memory>
void save(trial& t, Memory const& memory) {
  std::string path;
  {
    host_faults::not_counted const own;
    path =
        (std::filesystem::temp_directory_path() / ("tarn_faults_" + std::to_string(::getpid()) + ".pickle"))
            .string();
  }
  bool const saved = t.attempt("save_snapshot", [&] { save_snapshot(memory, path); });
  host_faults::not_counted const own;
  t.check(std::filesystem::exists(path) == saved,
          "a failed save left a file, or a successful save left none");
  std::filesystem::remove(path);
}

/// A call that cannot be recorded is counted.
void lines(trial& t) {
  t.attempt("line profile", [&] {
    detail::line_registry lines;
    lines.add({.where = {"file", 1, "function"}, .calls = 1});
    std::uint64_t calls = lines.dropped();
    lines.for_each([&](profiled_line const& l) { calls += l.calls; });
    t.check_equal(calls, 1U, "the call of a line is recorded or counted as lost");
  });
}

/// Live, cached by a thread, deferred for another stream, remapped from pieces, released; and threads that
/// continue after the snapshot.
void snapshots(trial& t) {
  stream const a(t.driver());
  stream const b(t.driver());
  auto pages = basic_pages<sited_driver>(t.driver());
  held_blocks held(
      t, pages | limited{16_MiB} | pooled{} | order_watched{t.machine()} | with_history{.history = 16});
  t.attempt("remember_growth", [&] { remember_growth(held.memory(), 8); });
  look(t, held.memory());
  void* small[4];
  for (void*& p : small) p = held.get(a, 2_MiB);
  void* const kept = held.get(a, 1000);
  held.give(small[0]);
  held.give(small[2]);
  void* const large = held.get(a, 9_MiB);
  look(t, held.memory());
  save(t, held.memory());
  held.use(b, kept, 1000, 1'000'000);
  // A caller whose record_stream() was refused waits for that stream before the free.
  bool const recorded = t.attempt("record_stream", [&] { held.memory().record_stream(kept, 1000, b); });
  if (!recorded) t.wait_for(b);
  held.give(kept);
  held.give(large);
  look(t, held.memory());
  t.heal();
  look(t, held.memory());
  (void)held.get(a, 3_MiB);
  held.empty_out("after the inspection");
}

constexpr scene all[] = {{"snapshots", small_machine, snapshots}, {"line profile", small_machine, lines}};

}  // namespace of_report

std::span<scene const> report_scenes() {
  return of_report::all;
}

}  // namespace tarn_test
