// SPDX-License-Identifier: Apache-2.0
// tarn_growing: a cache of keys and values for sequences of random length, kept in five ways: memory held and
// copied, and the time to make room.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "context_json.hpp"
#include "peers/find_cuda.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/policy/tracked.hpp"
#include "tarn/raii/device_buffer.hpp"
#include "tarn/raii/growing_buffer.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/stats.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

namespace {

using namespace tarn;
using namespace tarn::bench;

constexpr std::size_t row = 64_KiB;      ///< the keys and values of one token
constexpr std::size_t most_rows = 4096;  ///< of the longest sequence that the model allows

/// Lengths in rows: 100 to 800, drawn once.
std::vector<std::size_t> lengths_of(std::size_t sequences) {
  std::mt19937 random(1);
  std::vector<std::size_t> lengths(sequences);
  for (std::size_t& n : lengths) n = 100 + random() % 701;
  return lengths;
}

/// Bytes, unless said.
struct figures {
  std::string way;
  int pass = 0;
  std::size_t live = 0;       ///< rows at the end
  std::size_t allocated = 0;  ///< the peak
  std::size_t reserved = 0;   ///< likewise
  std::size_t copied = 0;     ///< of rows that were there before
  std::size_t moves = 0;      ///< how often a sequence got another address
  double ms = 0;              ///< until the device has done all, wall time
  double driver_ms = 0;       ///< modelled time of driver calls, of a simulated device
};

// The ways. add_row() makes room for one more row and returns the bytes that it copied.

/// A buffer that grows in place.
template <class Memory>
struct in_place {
  in_place(Memory const& pool, stream_ref stream) : rows(pool, most_rows * row, stream) {}
  std::size_t add_row() {
    rows.resize(rows.size() + row);
    return 0;
  }
  growing_buffer<std::byte, Memory> rows;
};
/// A buffer that is as long as its rows.
template <class Memory>
struct exact {
  exact(Memory const& pool, stream_ref stream) : rows(pool, stream) {}
  std::size_t add_row() {
    std::size_t const before = rows.size();
    rows.resize(before + row);
    return before;
  }
  device_buffer<std::byte, Memory> rows;
};
/// A buffer that doubles.
template <class Memory>
struct doubling {
  doubling(Memory const& pool, stream_ref stream) : rows(pool, stream) {}
  std::size_t add_row() {
    std::size_t const before = rows.size();
    bool const grows = before + row > rows.capacity();
    if (grows) rows.reserve(2 * (before + row));
    rows.resize(before + row);
    return grows ? before : 0;
  }
  device_buffer<std::byte, Memory> rows;
};
/// A block that is extended where it is, by a half, and moves where it cannot be.
template <class Memory>
struct extended {
  extended(Memory const& memory, stream_ref s) : pool(memory), stream(s) {}
  extended(extended&& other) noexcept
      : pool(other.pool), stream(other.stream), p(std::exchange(other.p, nullptr)), bytes(other.bytes) {}
  ~extended() { pool.deallocate(stream, p, bytes); }
  std::size_t add_row() {
    if (size + row <= bytes) return size += row, 0;
    std::size_t const more = bytes < 2 * row ? 2 * row : bytes / 2 / row * row;
    if (p != nullptr && pool.extend(stream, p, bytes, more)) {
      bytes += more;
      return size += row, 0;
    }
    void* const moved = pool.allocate(stream, bytes + more);
    if (size != 0 && !pool.driver().copy(stream, moved, p, size).ok())
      throw std::runtime_error("a copy failed");
    pool.deallocate(stream, p, bytes);
    p = moved;
    bytes += more;
    return std::exchange(size, size + row);
  }
  Memory pool;
  stream_ref stream;
  void* p = nullptr;
  std::size_t bytes = 0;
  std::size_t size = 0;
};
/// Blocks of 16 rows in a table, as paged attention has them. Kernels look each address up.
template <class Memory>
struct paged {
  paged(Memory const& memory, stream_ref s) : pool(memory), stream(s) {}
  std::size_t add_row() {
    if (size++ % 16 == 0) blocks.emplace_back(pool, 16 * row, stream);
    return 0;
  }
  Memory pool;
  stream_ref stream;
  std::vector<device_buffer<std::byte, Memory>> blocks;
  std::size_t size = 0;
};

void check(status const& s) {
  if (!s.ok()) throw cuda_error(s, 0);
}

/// Fills the cache row by row, all sequences in turn, twice in one pool. Kernels that would write the rows
/// are left out: they are the same in each way.
template <template <class> class Way, class Source>
void measure(char const* name, Source const& source, std::vector<std::size_t> const& lengths,
             auto const& modelled_ns, auto const& on_figures) {
  auto pool = source | pooled{} | tracked{};
  using pool_type = decltype(pool);
  basic_stream<typename pool_type::driver_type> const stream(pool.driver());
  for (int pass = 1; pass <= 2; ++pass) {
    figures f;
    f.way = name;
    f.pass = pass;
    reset_peak_memory_stats(pool);
    check(pool.driver().synchronize_device());
    double const ns = modelled_ns();
    auto const start = std::chrono::steady_clock::now();
    {
      std::vector<Way<pool_type>> caches;
      caches.reserve(lengths.size());
      for (std::size_t s = 0; s < lengths.size(); ++s) caches.emplace_back(pool, stream);
      for (std::size_t step = 0; step < 800; ++step) {
        for (std::size_t s = 0; s < lengths.size(); ++s) {
          if (step >= lengths[s]) continue;
          std::size_t const copied = caches[s].add_row();
          f.copied += copied;
          f.moves += copied != 0;
          f.live += row;
        }
      }
      check(pool.driver().synchronize_device());
      f.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      f.driver_ms = (modelled_ns() - ns) / 1e6;
    }
    f.allocated = max_memory_allocated(pool);
    f.reserved = max_memory_reserved(pool);
    on_figures(f);
  }
}

template <class Source>
void measure_all(Source const& source, std::size_t sequences, auto const& modelled_ns,
                 auto const& on_figures) {
  std::vector<std::size_t> const lengths = lengths_of(sequences);
  measure<in_place>("growing_buffer", source, lengths, modelled_ns, on_figures);
  measure<exact>("device_buffer, resized", source, lengths, modelled_ns, on_figures);
  measure<doubling>("device_buffer, doubled", source, lengths, modelled_ns, on_figures);
  measure<extended>("blocks, extended by a half", source, lengths, modelled_ns, on_figures);
  measure<paged>("blocks of 16 rows", source, lengths, modelled_ns, on_figures);
}

double mib(std::size_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(1_MiB);
}

}  // namespace

int main(int argc, char** argv) {
  std::string device = "auto";
  std::string json;
  std::size_t sequences = 64;
  CLI::App app("Caches of sequences that grow.", "tarn_growing");
  app.add_option("--device", device, "auto, cuda or sim (a simulated GPU with modelled times)")
      ->check(CLI::IsMember({"auto", "cuda", "sim"}))
      ->default_str("auto");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_option("--sequences", sequences, "how many grow at once")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    found_cuda const gpu = find_cuda();
    context const where = find_context(gpu);
    if (device == "auto") device = gpu.found ? "cuda" : "sim";
    std::ofstream out;
    if (!json.empty()) {
      out.open(json, std::ios::app);
      if (!out) throw std::runtime_error("cannot write " + json);
    }
    std::cout
        << (device == "cuda" ? gpu.text : "simulated device; ms are modelled driver time") << "; "
        << where.cpu
        << "\nMiB                          pass     live allocated  reserved    copied   moves        ms\n";
    auto const on_figures = [&](figures const& f) {
      std::cout << std::left << std::setw(29) << f.way << std::right << std::setw(4) << f.pass << std::fixed
                << std::setprecision(0) << std::setw(9) << mib(f.live) << std::setw(10) << mib(f.allocated)
                << std::setw(10) << mib(f.reserved) << std::setw(10) << mib(f.copied) << std::setw(8)
                << f.moves << std::setprecision(2) << std::setw(10) << (device == "cuda" ? f.ms : f.driver_ms)
                << std::endl;
      if (!out.is_open()) return;
      nlohmann::ordered_json line;
      line["way"] = f.way;
      line["pass"] = f.pass;
      line["device"] = device;
      line["live"] = f.live;
      line["allocated"] = f.allocated;
      line["reserved"] = f.reserved;
      line["copied"] = f.copied;
      line["moves"] = f.moves;
      if (device == "cuda") {
        line["ms"] = f.ms;
      } else {
        line["driver_ms"] = f.driver_ms;
      }
      write_context(line, where);
      out << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
    };
    if (device == "sim") {
      sim_options options;
      options.backing = sim_backing::address_only;
      sim_machine const machine{options};
      measure_all(
          sim_pages{machine.driver(device_id{0})}, sequences,
          [&] { return static_cast<double>(machine.calls().driver_ns); }, on_figures);
    } else {
      if (!gpu.found) throw std::runtime_error(gpu.text);
#ifdef TARN_BENCH_CUDA
      measure_all(
          cuda_pages{}, sequences, [] { return 0.0; }, on_figures);
#endif
    }
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "tarn_growing: " << error.what() << '\n';
    return 2;
  }
}
