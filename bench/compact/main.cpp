// SPDX-License-Identifier: Apache-2.0
// tarn_compact [TRACE...]: what compact() gives back, beside what trim() does: on checkerboards of blocks of
// which half are free, and on each trace, stopped after its peak where the fewest bytes are live.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "context_json.hpp"
#include "peers/find_cuda.hpp"
#include "replay/trace_reader.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/compact.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

namespace {

using namespace tarn;
using namespace tarn::bench;

constexpr std::size_t granule = 2_MiB;

/// Bytes, unless said.
struct figures {
  std::string work;
  std::size_t live = 0;
  std::size_t reserved = 0;   ///< before
  std::size_t trimmed = 0;    ///< reserved after trim(0)
  std::size_t compacted = 0;  ///< reserved after compact()
  std::size_t stretches = 0;  ///< of live bytes
  double ms = 0;              ///< of compact()
  /// What compact() promises. A stretch that fills its granules needs none of the two that it may share.
  [[nodiscard]] std::size_t bound() const { return live + 2 * stretches * granule; }
  /// The same with one granule for each stretch.
  [[nodiscard]] std::size_t bound_of_one() const { return live + stretches * granule; }
};

void check(status const& s) {
  if (!s.ok()) throw cuda_error(s, 0);
}

/// Trims and compacts a pool that no work uses.
template <class Memory>
figures compacted(std::string work, Memory const& memory) {
  figures f;
  f.work = std::move(work);
  f.reserved = memory_reserved(memory);
  check(memory.driver().synchronize_device());
  empty_cache(memory);
  f.trimmed = memory_reserved(memory);
  auto const start = std::chrono::steady_clock::now();
  compaction const c = compact(memory);
  f.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  f.compacted = c.reserved;
  f.live = c.live;
  f.stretches = c.stretches;
  return f;
}

/// Blocks of sizes at random, of which every other one is freed. A free block below 2 MiB contains no whole
/// granule, so that compact() can give nothing back; one from 4 MiB on always does.
template <class Source>
figures of_checkerboard(Source const& source, std::size_t count, std::size_t least, std::size_t most) {
  auto memory = source | pooled{};
  std::mt19937 random(1);
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t const bytes = least + random() % (most - least);
    blocks.emplace_back(memory.allocate(stream_ref{}, bytes), bytes);
  }
  for (std::size_t i = 0; i < count; i += 2)
    memory.deallocate(stream_ref{}, blocks[i].first, blocks[i].second);
  figures const f =
      compacted("checkerboard: " + std::to_string(count) + " blocks of " + std::to_string(least / 1_MiB) +
                    " to " + std::to_string(most / 1_MiB) + " MiB",
                memory);
  for (std::size_t i = 1; i < count; i += 2)
    memory.deallocate(stream_ref{}, blocks[i].first, blocks[i].second);
  return f;
}

/// Number of events up to the moment after the live peak at which the fewest bytes, but some, are live.
std::size_t emptiest(trace const& t) {
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  std::size_t at = t.events.size();
  for (std::size_t i = 0; i < t.events.size(); ++i) {
    event const& e = t.events[i];
    live = e.what == operation::allocate ? live + e.bytes : live - e.bytes;
    if (live > peak) {
      peak = live;
      least = std::numeric_limits<std::uint64_t>::max();
    } else if (live != 0 && live < least) {
      least = live;
      at = i + 1;
    }
  }
  return at;
}

template <class Source>
figures of_trace(Source const& source, trace const& t) {
  auto memory = source | pooled{};
  std::vector<stream_ref> streams(t.stream_numbers.size());
  for (stream_ref& s : streams) check(memory.driver().create_stream(s));
  struct block {
    void* p = nullptr;
    std::size_t bytes = 0;
    std::uint16_t stream = 0;
  };
  std::vector<block> blocks(t.slots);
  auto const free = [&](block& b) {
    memory.deallocate(streams[b.stream], std::exchange(b.p, nullptr), b.bytes);
  };
  std::size_t const end = emptiest(t);
  for (std::size_t i = 0; i < end; ++i) {
    event const& e = t.events[i];
    block& b = blocks[e.slot];
    if (e.what == operation::allocate) {
      b = {memory.allocate(streams[e.stream], e.bytes), e.bytes, e.stream};
    } else {
      free(b);
    }
  }
  figures const f = compacted(t.name, memory);
  for (block& b : blocks) {
    if (b.p != nullptr) free(b);
  }
  for (stream_ref const s : streams) check(memory.driver().destroy_stream(s));
  return f;
}

template <class Source>
void measure(Source const& source, std::size_t blocks, std::vector<trace> const& traces,
             auto const& on_figures) {
  on_figures(of_checkerboard(source, blocks, 1_MiB, 2_MiB));
  on_figures(of_checkerboard(source, (blocks + 2) / 3, 3_MiB, 6_MiB));  // about as many bytes
  for (trace const& t : traces) on_figures(of_trace(source, t));
}

double mib(std::size_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(1_MiB);
}

}  // namespace

int main(int argc, char** argv) {
  std::string device = "auto";
  std::string json;
  std::size_t blocks = 8192;
  std::vector<std::string> files;
  CLI::App app("Compacts pools.", "tarn_compact");
  app.add_option("--device", device, "auto, cuda or sim (a simulated GPU, without valid times)")
      ->check(CLI::IsMember({"auto", "cuda", "sim"}))
      ->default_str("auto");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_option("--blocks", blocks, "of the first checkerboard; the second has a third")
      ->check(CLI::Range(2, 1'000'000))
      ->capture_default_str();
  app.add_option("trace", files, "traces, as tarn_replay reads them");
  CLI11_PARSE(app, argc, argv);
  try {
    found_cuda const gpu = find_cuda();
    context const where = find_context(gpu);
    if (device == "auto") device = gpu.found ? "cuda" : "sim";
    std::vector<trace> traces;
    for (std::string const& file : files) traces.push_back(read_trace(file));
    std::ofstream out;
    if (!json.empty()) {
      out.open(json, std::ios::app);
      if (!out) throw std::runtime_error("cannot write " + json);
    }
    std::cout << (device == "cuda" ? gpu.text : "simulated device, no valid times") << "; " << where.cpu
              << "\nMiB                                               live  reserved   trimmed compacted     "
                 "bound  "
                 "stretches       ms\n";
    auto const on_figures = [&](figures const& f) {
      std::cout << std::left << std::setw(45) << f.work << std::right << std::fixed << std::setprecision(0)
                << std::setw(9) << mib(f.live) << std::setw(10) << mib(f.reserved) << std::setw(10)
                << mib(f.trimmed) << std::setw(10) << mib(f.compacted) << std::setw(10) << mib(f.bound())
                << std::setw(11) << f.stretches << std::setprecision(1) << std::setw(9)
                << (device == "cuda" ? f.ms : 0.0) << std::endl;
      if (f.compacted > f.bound())
        throw std::runtime_error(f.work + ": more is reserved than compact() promises");
      if (!out.is_open()) return;
      nlohmann::ordered_json line;
      line["work"] = f.work;
      line["device"] = device;
      line["live"] = f.live;
      line["reserved"] = f.reserved;
      line["trimmed"] = f.trimmed;
      line["compacted"] = f.compacted;
      line["bound"] = f.bound();
      line["bound_of_one_granule"] = f.bound_of_one();
      line["stretches"] = f.stretches;
      if (device == "cuda") line["ms"] = f.ms;
      write_context(line, where);
      out << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
    };
    if (device == "sim") {
      sim_options options;
      options.backing = sim_backing::address_only;
      sim_machine const machine{options};
      measure(sim_pages{machine.driver(device_id{0})}, blocks, traces, on_figures);
    } else {
      if (!gpu.found) throw std::runtime_error(gpu.text);
#ifdef TARN_BENCH_CUDA
      measure(cuda_pages{}, blocks, traces, on_figures);
#endif
    }
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "tarn_compact: " << error.what() << '\n';
    return 2;
  }
}
