// SPDX-License-Identifier: Apache-2.0
// tarn_frontier FILE...: the effect of the handle size and of the slack over the peak: utilisation against
// the driver's modelled milliseconds, for each trace, on the simulated device. The pool's defaults were
// chosen from its output.

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "context.hpp"
#include "peers/simulated_device.hpp"
#include "replay/run.hpp"
#include "replay/trace_reader.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/source/sim_sources.hpp"

namespace {

using namespace tarn;
using namespace tarn::bench;

constexpr unsigned passes = 5;

struct outcome {
  double utilisation = 0;  ///< over all passes
  double cold_ms = 0;      ///< driver time of the first pass
  double warm_ms = 0;      ///< driver time of a later pass, mean
};

template <template <class> class Source>
outcome replay(trace const& t, std::vector<event> const& left_over, pooled const& options) {
  setup made_for;
  made_for.streams = t.stream_numbers.size();
  simulated_device device(made_for);
  auto memory = Source<sim_driver>(device.driver()) | options;
  std::vector<void*> blocks(t.slots, nullptr);
  auto const play = [&](std::vector<event> const& events) {
    for (event const& e : events) {
      if (e.what == operation::allocate) {
        blocks[e.slot] = memory.allocate(device.stream(e.stream), e.bytes);
      } else {
        memory.deallocate(device.stream(e.stream), blocks[e.slot], e.bytes);
      }
    }
  };
  outcome o;
  std::uint64_t before = device.driver_ns();
  for (unsigned pass = 0; pass < passes; ++pass) {
    play(t.events);
    play(left_over);
    double const ms = static_cast<double>(device.driver_ns() - before) / 1e6;
    before = device.driver_ns();
    (pass == 0 ? o.cold_ms : o.warm_ms) += pass == 0 ? ms : ms / (passes - 1);
  }
  o.utilisation = static_cast<double>(t.peak_live) / static_cast<double>(memory->state().reserved_peak);
  return o;
}

template <template <class> class Source = basic_pages>
void row(std::string const& name, std::vector<trace> const& traces,
         std::vector<std::vector<event>> const& left_over, pooled const& options) {
  std::printf("%-22s", name.c_str());
  for (std::size_t i = 0; i < traces.size(); ++i) {
    outcome const o = replay<Source>(traces[i], left_over[i], options);
    std::printf(" | %.3f %6.1f %6.1f", o.utilisation, o.cold_ms, o.warm_ms);
    std::fflush(stdout);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: tarn_frontier FILE...\n");
    return 2;
  }
  std::vector<trace> traces;
  std::vector<std::vector<event>> left_over;
  try {
    for (int i = 1; i < argc; ++i) {
      traces.push_back(read_trace(argv[i]));
      left_over.push_back(bench::detail::missing_frees(traces.back()));
    }
  } catch (tarn::bench::trace_error const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  context const where = find_context(found_cuda{});
  std::printf("Simulated device, modelled driver; %u passes; commit %s, %s.\n", passes, where.commit.c_str(),
              where.date.c_str());
  std::printf(
      "Each column: utilisation over all passes, driver ms of the first pass, of a later one (mean).\n\n");
  std::printf("%-22s", "largest handle, slack");
  for (trace const& t : traces) std::printf(" | %-19.19s", t.name.c_str());
  std::printf("\n");
  row("defaults", traces, left_over, {});
  for (std::size_t const mib : {2U, 4U, 8U, 16U, 20U, 32U, 64U, 96U}) {
    for (unsigned const slack : {0U, 6U, 12U}) {
      pooled options;
      options.largest_handle = mib * 1_MiB;
      options.slack_per_mille = slack;
      row(std::to_string(mib) + " MiB, " + std::to_string(slack) + " per mille", traces, left_over, options);
    }
  }
  pooled stay;
  stay.remap = remapping::off;
  row("no remapping", traces, left_over, stay);
  pooled single;
  single.handles = handles_per_block::one;
  row("one handle per block", traces, left_over, single);
  row<basic_malloc>("segments of cudaMalloc", traces, left_over, {});
}
