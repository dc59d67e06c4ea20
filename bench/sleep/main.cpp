// SPDX-License-Identifier: Apache-2.0
// tarn_sleep: how long a pool takes to sleep and to wake, with contents discarded and kept, compared with
// plain copies of pinned memory in the same run.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "context_json.hpp"
#include "peers/find_cuda.hpp"
#include "tarn/policy/pooled.hpp"
#include "tarn/raii/sleep.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

namespace {

using namespace tarn;
using namespace tarn::bench;

struct figure {
  std::string work;
  std::string way;
  std::string unit;  ///< "ms", "GB/s" (10^9 bytes), "bytes", "times" another figure
  double value = 0;
  double of_reference = 0;  ///< ratio to the plain pinned copy of the same run; 0: not compared
};

struct extent {
  std::size_t discarded = 100_GiB;  ///< at most nine tenths of what is free
  std::size_t kept = 8_GiB;
  std::size_t block = 64_MiB;
  int cycles = 1000;
  int repetitions = 5;
};

double seconds_of(auto const& call) {
  auto const start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}
std::string gib(std::size_t bytes) {
  std::ostringstream text;
  text << std::setprecision(4) << static_cast<double>(bytes) / static_cast<double>(1_GiB) << " GiB";
  return text.str();
}
double ms(double seconds) {
  return seconds * 1e3;
}

template <class Driver>
std::size_t free_of(Driver const& driver) {
  std::size_t free = 0;
  std::size_t total = 0;
  if (!driver.memory_info(free, total).ok()) throw std::runtime_error("memory_info failed");
  return free;
}
void check(status const& s) {
  if (!s.ok()) throw cuda_error(s, 0);
}
/// What the driver's management library reports as used on the device, as nvidia-smi shows it; negative if it
/// cannot be read.
template <class Driver>
double used_by_nvml(Driver const& driver) {
  device_account account;
  if (!driver.memory_account(account).ok() || account.free == device_account::unknown) return -1;
  return static_cast<double>(account.total - account.free);
}

/// The physical host memory of the process, bytes; negative where the system does not report it.
double resident_set() {
  std::ifstream file("/proc/self/statm");
  double pages = 0;
  double resident = 0;
  if (!(file >> pages >> resident)) return -1;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

/// Blocks that fill a pool.
template <class Memory>
struct filling {
  Memory memory;
  std::vector<void*> blocks;
  std::size_t each;
  filling(Memory const& m, std::size_t bytes, std::size_t block) : memory(m), each(block) {
    for (std::size_t at = 0; at + block <= bytes; at += block)
      blocks.push_back(memory.allocate(stream_ref{}, block));
  }
  filling(filling const&) = delete;
  filling& operator=(filling const&) = delete;
  ~filling() {
    for (void* p : blocks) memory.deallocate(stream_ref{}, p, each);
  }
  [[nodiscard]] std::size_t bytes() const { return blocks.size() * each; }
};

template <class Source>
void measure(Source const& source, extent const& e, auto const& on_figure) {
  auto const& driver = source.driver();
  {  // contents discarded
    std::size_t const bytes = std::min(e.discarded, free_of(driver) / 10 * 9);
    auto memory = source | pooled{};
    double const empty_nvml = used_by_nvml(driver);
    filling const held(memory, bytes, e.block);
    std::size_t const awake = free_of(driver);
    double const awake_nvml = used_by_nvml(driver);
    std::vector<double> down;
    std::vector<double> up;
    for (int i = 0; i < e.repetitions; ++i) {
      down.push_back(seconds_of([&] { (void)sleep(memory, contents::discarded); }));
      if (i == 0)
        on_figure({"seen by the driver", gib(bytes) + ": gone while asleep", "bytes",
                   static_cast<double>(free_of(driver) - awake), 0});
      double const asleep_nvml = used_by_nvml(driver);
      up.push_back(seconds_of([&] { (void)wake(memory); }));
      if (i != 0 || asleep_nvml < 0) continue;
      on_figure(
          {"used, as NVML reports it", gib(bytes) + ": before they were allocated", "bytes", empty_nvml, 0});
      on_figure({"used, as NVML reports it", gib(bytes) + ": allocated, awake", "bytes", awake_nvml, 0});
      on_figure({"used, as NVML reports it", gib(bytes) + ": asleep", "bytes", asleep_nvml, 0});
      on_figure({"used, as NVML reports it", gib(bytes) + ": awake again", "bytes", used_by_nvml(driver), 0});
    }
    on_figure({"sleep", gib(bytes) + " discarded", "ms", ms(median(down)), 0});
    on_figure({"wake", gib(bytes) + " discarded", "ms", ms(median(up)), 0});
  }
  {  // contents kept
    auto memory = source | pooled{};
    filling const held(memory, e.kept, e.block);
    std::size_t const bytes = held.bytes();
    void* pinned = nullptr;
    stream_ref stream;
    check(driver.create_stream(stream));
    check(driver.malloc_pinned(bytes, pinned));
    double plain[2];
    for (bool const up : {false, true}) {
      std::vector<double> times;
      for (int i = 0; i <= e.repetitions; ++i) {
        double const t = seconds_of([&] {
          auto* host = static_cast<unsigned char*>(pinned);
          for (void* p : held.blocks) {
            check(up ? driver.copy(stream, p, host, e.block) : driver.copy(stream, host, p, e.block));
            host += e.block;
          }
          check(driver.synchronize_stream(stream));
        });
        if (i != 0) times.push_back(t);
      }
      plain[up ? 1 : 0] = median(times);
    }
    check(driver.free_pinned(pinned));
    check(driver.destroy_stream(stream));
    auto const rate = [&](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
    on_figure({"plain pinned copy", gib(bytes) + " to the host", "GB/s", rate(plain[0]), 0});
    on_figure({"plain pinned copy", gib(bytes) + " to the device", "GB/s", rate(plain[1]), 0});
    std::string const way = gib(bytes) + " in pinned memory";
    std::vector<double> down;
    std::vector<double> up;
    for (int i = 0; i <= e.repetitions; ++i) {
      double const d = seconds_of([&] { (void)sleep(memory); });
      double const u = seconds_of([&] { (void)wake(memory, after_waking::keep_host_memory); });
      if (i == 0) {
        on_figure({"first sleep", way + ", which it allocates", "GB/s", rate(d), plain[0] / d});
        continue;
      }
      down.push_back(d);
      up.push_back(u);
    }
    on_figure({"sleep", way, "GB/s", rate(median(down)), plain[0] / median(down)});
    on_figure({"wake", way, "GB/s", rate(median(up)), plain[1] / median(up)});
  }
  {  // small cycles
    auto memory = source | pooled{};
    filling const held(memory, 64_MiB, 3_MiB);
    for (contents const where : {contents::in_pinned_memory, contents::discarded}) {
      (void)sleep(memory, where);
      (void)wake(memory);
    }
    std::size_t const before = free_of(driver);
    auto const host_before = static_cast<double>(detail::state_of(memory).host_bytes);
    double const resident_before = resident_set();
    double const t = seconds_of([&] {
      for (int i = 0; i < e.cycles; ++i) {
        (void)sleep(memory, i % 10 == 0 ? contents::in_pinned_memory : contents::discarded);
        (void)wake(memory);
      }
    });
    std::size_t const after = free_of(driver);
    double const resident_after = resident_set();
    on_figure({"small cycles", std::to_string(e.cycles) + " of 63 MiB", "ms each", ms(t) / e.cycles, 0});
    on_figure({"small cycles", "memory lost on the device", "bytes",
               static_cast<double>(before) - static_cast<double>(after), 0});
    on_figure({"small cycles", "the pool's host memory before", "bytes", host_before, 0});
    on_figure({"small cycles", "the pool's host memory after", "bytes",
               static_cast<double>(detail::state_of(memory).host_bytes), 0});
    if (resident_before >= 0) {
      on_figure({"small cycles", "resident set of the process before", "bytes", resident_before, 0});
      on_figure({"small cycles", "resident set of the process after", "bytes", resident_after, 0});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  extent e;
  std::string device = "auto";
  std::string json;
  bool quick = false;
  int cycles = 0;
  CLI::App app("Puts pools to sleep and wakes them.", "tarn_sleep");
  app.add_option("--device", device, "auto, cuda or sim (a simulated GPU, without valid times)")
      ->check(CLI::IsMember({"auto", "cuda", "sim"}))
      ->default_str("auto");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_flag("--quick", quick, "little memory: tests that everything runs, without valid times");
  app.add_option("--cycles", cycles, "small cycles (1000, with --quick 10)")->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  if (quick) {
    e.discarded = 64_MiB;
    e.kept = 16_MiB;
    e.block = 4_MiB;
    e.cycles = 10;
    e.repetitions = 1;
  }
  if (cycles != 0) e.cycles = cycles;
  try {
    found_cuda const gpu = find_cuda();
    context const where = find_context(gpu);
    if (device == "auto") device = gpu.found ? "cuda" : "sim";
    std::ofstream file;
    if (!json.empty()) {
      file.open(json, std::ios::app);
      if (!file) throw std::runtime_error("cannot write " + json);
    }
    std::cout << (device == "cuda" ? gpu.text : "simulated device, no valid times") << "; " << where.cpu
              << '\n';
    auto const on_figure = [&](figure const& f) {
      std::cout << std::left << std::setw(64) << f.work + ": " + f.way << std::right << std::fixed
                << std::setprecision(2) << std::setw(14) << f.value << ' ' << f.unit;
      if (f.of_reference != 0)
        std::cout << std::setprecision(3) << "  (" << f.of_reference << " of the plain copy)";
      std::cout << std::endl;
      if (!file.is_open()) return;
      nlohmann::ordered_json line;
      line["work"] = f.work;
      line["way"] = f.way;
      line["device"] = device;
      line["unit"] = f.unit;
      line["value"] = f.value;
      if (f.of_reference != 0) line["of_reference"] = f.of_reference;
      write_context(line, where);
      file << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
    };
    if (device == "sim") {
      sim_machine const machine{sim_options{}};
      measure(sim_pages{machine.driver(device_id{0})}, e, on_figure);
    } else {
      if (!gpu.found) throw std::runtime_error(gpu.text);
#ifdef TARN_BENCH_CUDA
      measure(cuda_pages{}, e, on_figure);
#endif
    }
    return 0;
  } catch (std::exception const& error) {
    std::cerr << "tarn_sleep: " << error.what() << '\n';
    return 2;
  }
}
