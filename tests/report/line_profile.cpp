// SPDX-License-Identifier: Apache-2.0
#include "tarn/report/line_profile.hpp"

#include <thread>
#include <vector>

#include "catch.hpp"
#include "child_process.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {
using buffer = device_buffer<std::byte, sim_pool>;
buffer some(sim_pool const& pool, std::size_t bytes) {
  return make_device_buffer<std::byte>(pool, bytes, stream_ref{});
}

profiled_line line_at(int line) {
  for (profiled_line const& l : line_profile()) {
    if (l.where.line == line && std::string_view(l.where.file) == source_location::current().file) return l;
  }
  return {};
}
}  // namespace

// The first use of the process, so that it stands here.
TEST_CASE("line_profile works in a child that was forked while another thread used it first",
          "[raii][line_profile][at_fork]") {
  CHECK(child_forked_during([] { reset_line_profile(); }, [] { return line_profile().empty(); }) == 0);
}

TEST_CASE("TARN_PROFILE_LINE records a line's calls, change and peak above the start",
          "[raii][line_profile]") {
  reset_line_profile();
  sim_pool pool;
  std::vector<buffer> kept;
  kept.push_back(some(pool, 10_MiB));
  for (int i = 0; i < 3; ++i) {
    TARN_PROFILE_LINE(pool);
    kept.push_back(some(pool, 1_MiB));
    some(pool, 4_MiB).reset();
  }
  profiled_line const l = line_at(__LINE__ - 4);
  CHECK(l.calls == 3);
  CHECK(l.change == 3 * static_cast<std::int64_t>(1_MiB));
  CHECK(l.peak == 5_MiB);
  CHECK(l.blocks == 6);
  {
    line_profile_scope const all{pool, peak_of::all_threads};
    kept.clear();
  }
  CHECK(line_at(__LINE__ - 3).change == -13 * static_cast<std::int64_t>(1_MiB));
  CHECK(line_at(__LINE__ - 4).peak == 0);
  reset_line_profile();
  CHECK(line_profile().empty());
}

TEST_CASE("TARN_PROFILE_EXPRESSION returns the value of its expression", "[raii][line_profile]") {
  reset_line_profile();
  sim_pool pool;
  buffer const made = TARN_PROFILE_EXPRESSION(pool, make_device_buffer<std::byte>(pool, 2_MiB, stream_ref{}));
  int const line = __LINE__ - 1;
  CHECK(made.size() == 2_MiB);
  CHECK(line_at(line).calls == 1);
  CHECK(line_at(line).change == static_cast<std::int64_t>(2_MiB));
}

TEST_CASE("line_profile_scope nests and counts only its own thread", "[raii][line_profile][threads]") {
  reset_line_profile();
  sim_pool pool;
  int outer_line = 0;
  int inner_line = 0;
  {
    line_profile_scope const outer{pool};
    outer_line = __LINE__ - 1;
    auto const a = some(pool, 3_MiB);
    {
      line_profile_scope const inner{pool};
      inner_line = __LINE__ - 1;
      some(pool, 2_MiB).reset();
    }
    std::thread([&] { some(pool, 100_MiB).reset(); }).join();
  }
  CHECK(line_at(outer_line).peak == 5_MiB);
  CHECK(line_at(outer_line).change == 0);
  CHECK(line_at(inner_line).peak == 2_MiB);
  std::vector<std::thread> threads;
  int shared_line = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool] {
      for (int i = 0; i < 50; ++i) {
        TARN_PROFILE_LINE(pool);
        some(pool, 1000).reset();
      }
    });
  }
  shared_line = __LINE__ - 5;
  for (auto& thread : threads) thread.join();
  CHECK(line_at(shared_line).calls == 200);
  CHECK(line_at(shared_line).change == 0);
}

TEST_CASE("line_registry keeps a fixed number of lines and counts the calls that it drops",
          "[raii][line_profile]") {
  detail::line_registry lines;
  for (int i = 0; i < 4100; ++i) {
    profiled_line l;
    l.where = {"some file", i + 1, "some function"};
    l.calls = 1;
    lines.add(l);
    lines.add(l);
  }
  std::size_t kept = 0;
  lines.for_each([&](profiled_line const& l) { kept += l.calls == 2 ? 1 : 0; });
  CHECK(kept == 4096);
  CHECK(lines.dropped() == 8);
  lines.reset();
  CHECK(lines.dropped() == 0);
}

TEST_CASE("line_profile_table reports the number of calls that it does not show", "[raii][line_profile]") {
  reset_line_profile();
  for (int i = 0; i < 4098; ++i)
    detail::line_registry::of_process().add({.where = {"some file", i + 1, "some function"}, .calls = 1});
  CHECK(line_profile_table(source_text::left_out).find("2 calls of further lines are not shown") !=
        std::string::npos);
  reset_line_profile();
  CHECK(line_profile_table(source_text::left_out).find("not shown") == std::string::npos);
}
