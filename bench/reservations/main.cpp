// SPDX-License-Identifier: Apache-2.0
// tarn_reservations: tasks whose peaks add up to three times all memory of the device. They come in a random
// order, and each starts when reserve() has its peak. Compared in the same run with the best of many orders
// that were chosen by hand. All memory is the device's own: pages of a pool, under a limit of what was free
// at the start.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "context_json.hpp"
#include "peers/find_cuda.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"
#include "tarn/transfer/available_memory.hpp"
#include "tarn/transfer/reservation.hpp"

namespace {

using namespace tarn;
using namespace tarn::bench;
using namespace std::chrono_literals;

struct extent {
  unsigned tasks = 16;
  unsigned steps = 5;  ///< of each task: each writes all of its memory once; together three times the device
  unsigned orders = 24;      ///< that are tried by hand, the largest first among them
  unsigned repetitions = 9;  ///< of tasks that come in a random order
  unsigned percent = 95;     ///< of the free memory that the limit allows
  bool writes = true;
};
struct task {
  std::size_t peak = 0;
  unsigned steps = 0;
};
struct outcome {
  double seconds = 0;
  unsigned out_of_memory = 0;
};

void check(status const& s) {
  if (!s.ok()) throw cuda_error(s, 0);
}

/// Work on a device of type Driver, under a limit.
template <class Memory>
class work {
 public:
  work(Memory memory, extent const& e, unsigned seed) : memory_(std::move(memory)), extent_(e) {
    std::mt19937_64 random(seed);
    std::vector<double> parts;
    for (unsigned t = 0; t < e.tasks; ++t) parts.push_back(0.2 + static_cast<double>(random() % 1000) / 1000);
    double const sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    std::size_t free = 0;
    check(memory_.driver().memory_info(free, card_));
    for (double const part : parts) {
      double const peak = 3 * static_cast<double>(card_) * part / sum;
      tasks_.push_back({align_up(static_cast<std::size_t>(peak), 64_KiB),
                        1 + e.steps / 2 + static_cast<unsigned>(random() % e.steps)});
      if (tasks_.back().peak > memory_->limit())
        throw std::runtime_error("a task alone does not fit: less than a third of the device is free");
    }
  }
  [[nodiscard]] std::vector<task> const& tasks() const noexcept { return tasks_; }
  /// All memory of the device, bytes.
  [[nodiscard]] std::size_t card() const noexcept { return card_; }

  /// All tasks come at once, and wait for their peaks.
  [[nodiscard]] outcome come_at_once(std::vector<unsigned> const& order) {
    return timed([&](std::vector<std::jthread>& threads) {
      for (unsigned const t : order) {
        threads.emplace_back(
            [this, t] { counted([&] { run(t, reserve(memory_, tasks_[t].peak, 10min)); }); });
      }
    });
  }
  /// Each task is started as soon as its peak fits, in exactly this order.
  [[nodiscard]] outcome start_in(std::vector<unsigned> const& order) {
    return timed([&](std::vector<std::jthread>& threads) {
      for (unsigned const t : order) {
        auto room = reserve(memory_, tasks_[t].peak, 10min);
        threads.emplace_back(
            [this, t, held = std::move(room)]() mutable { counted([&] { run(t, std::move(held)); }); });
      }
    });
  }
  /// One after the other.
  [[nodiscard]] outcome one_by_one() {
    return timed([&](std::vector<std::jthread>&) {
      for (unsigned t = 0; t < tasks_.size(); ++t) counted([&] { run(t, reserve(memory_, tasks_[t].peak)); });
    });
  }

 private:
  template <class Start>
  outcome timed(Start const& start) {
    refused_ = 0;
    auto const begin = std::chrono::steady_clock::now();
    std::vector<std::jthread> threads;
    start(threads);
    for (std::jthread& thread : threads) thread.join();
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
    return {took.count(), refused_};
  }
  template <class Call>
  void counted(Call const& call) {
    try {
      call();
    } catch (out_of_memory const& error) {
      if (refused_++ == 0) std::cerr << error.what() << '\n';
    }
  }
  template <class Reservation>
  void run(unsigned number, Reservation const held) {
    task const& t = tasks_[number];
    auto const& driver = memory_.driver();
    basic_stream<typename Memory::driver_type> const stream{driver};
    unsigned char value = 0;
    auto const weights = make_device_buffer<std::byte>(held.resource(), t.peak / 2, stream);
    for (unsigned step = 0; step < t.steps; ++step) {
      auto const half = make_device_buffer<std::byte>(held.resource(), t.peak / 4, stream);
      auto const rest = make_device_buffer<std::byte>(held.resource(), t.peak / 4, stream);
      if (!extent_.writes) continue;
      value = static_cast<unsigned char>(number * extent_.steps * 2 + step);
      for (auto const* buffer : {&weights, &half, &rest})
        check(driver.fill(stream.get(), const_cast<std::byte*>(buffer->data()), value, buffer->size()));
    }
    check(driver.synchronize_stream(stream.get()));
    if (extent_.writes) require_bytes(driver, stream.get(), weights, value);
  }
  /// No other task may have written here: reads the first and the last MiB back.
  static void require_bytes(auto const& driver, stream_ref stream, auto const& buffer, unsigned char value) {
    std::vector<unsigned char> found(2_MiB);
    check(driver.copy(stream, found.data(), buffer.data(), 1_MiB));
    check(driver.copy(stream, found.data() + 1_MiB, buffer.data() + (buffer.size() - 1_MiB), 1_MiB));
    check(driver.synchronize_stream(stream));
    if (std::any_of(found.begin(), found.end(), [&](unsigned char b) { return b != value; }))
      throw std::runtime_error("the memory of a task was written by another");
  }

  Memory memory_;
  extent const extent_;
  std::size_t card_ = 0;
  std::vector<task> tasks_;
  std::atomic<unsigned> refused_{0};
};

struct figure {
  std::string way;
  double seconds = 0;
  double of_best = 0;  ///< throughput as a ratio to the best order by hand
  unsigned out_of_memory = 0;
  std::size_t card = 0;   ///< all memory of the device, bytes
  std::size_t limit = 0;  ///< for the tasks, bytes
  std::size_t peaks = 0;  ///< of all tasks together, bytes
};

template <class Source>
void measure(Source const& source, extent const& e, unsigned seed, auto const& on_figure) {
  auto const pool = pool_over<Source>{source};
  auto const memory = pool | limited{available_memory(pool).bytes / 100 * e.percent};
  work all(memory, e, seed);
  std::mt19937_64 random(seed);
  std::vector<unsigned> order(all.tasks().size());
  std::iota(order.begin(), order.end(), 0U);
  (void)all.come_at_once(order);  // the pool makes its pages
  outcome const alone = all.one_by_one();

  std::vector<unsigned> largest_first = order;
  std::sort(largest_first.begin(), largest_first.end(),
            [&](unsigned a, unsigned b) { return all.tasks()[a].peak > all.tasks()[b].peak; });
  outcome best = all.start_in(largest_first);
  for (unsigned i = 1; i < e.orders; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    outcome const o = all.start_in(order);
    if (o.seconds < best.seconds) best = o;
  }
  std::vector<double> times;
  unsigned refused = 0;
  for (unsigned i = 0; i < e.repetitions; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    outcome const o = all.come_at_once(order);
    times.push_back(o.seconds);
    refused += o.out_of_memory;
  }
  std::sort(times.begin(), times.end());
  std::size_t peaks = 0;
  for (task const& t : all.tasks()) peaks += t.peak;
  auto const report = [&](std::string const& way, double seconds, unsigned out_of_memory) {
    on_figure({way, seconds, best.seconds / seconds, out_of_memory, all.card(), memory->limit(), peaks});
  };
  report("one task after the other", alone.seconds, alone.out_of_memory);
  report("the best of " + std::to_string(e.orders) + " orders by hand", best.seconds, best.out_of_memory);
  report("reserve(), random orders, median of " + std::to_string(e.repetitions), times[times.size() / 2],
         refused);
  report("reserve(), random orders, slowest", times.back(), refused);
}

}  // namespace

int main(int argc, char** argv) {
  extent e;
  std::string device = "auto";
  std::string json;
  bool quick = false;
  unsigned seed = 1;
  CLI::App app("Runs tasks whose peaks exceed the device three times.", "tarn_reservations");
  app.add_option("--device", device, "auto, cuda or sim (a simulated GPU, without valid times)")
      ->check(CLI::IsMember({"auto", "cuda", "sim"}))
      ->default_str("auto");
  app.add_option("--json", json, "also appends one JSON object per line to this file");
  app.add_option("--seed", seed, "of the tasks and the orders");
  app.add_option("--percent", e.percent, "of the free memory, that the tasks may have together")
      ->check(CLI::Range(40, 100))
      ->capture_default_str();
  app.add_flag("--quick", quick, "little work: tests that everything runs, without valid times");
  CLI11_PARSE(app, argc, argv);
  if (quick) {
    e.steps = 2;
    e.orders = 2;
    e.repetitions = 3;
  }
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
    unsigned refused = 0;
    auto const on_figure = [&](figure const& f) {
      refused += f.out_of_memory;
      std::cout << std::left << std::setw(48) << f.way << std::right << std::fixed << std::setprecision(1)
                << std::setw(10) << f.seconds * 1e3 << " ms" << std::setprecision(3) << std::setw(8)
                << f.of_best << " of the best; out of memory " << f.out_of_memory << "; peaks "
                << std::setprecision(2) << static_cast<double>(f.peaks) / static_cast<double>(f.card)
                << " of the device" << std::endl;
      if (!file.is_open()) return;
      nlohmann::ordered_json line;
      line["work"] = "tasks with three times the memory";
      line["way"] = f.way;
      line["device"] = device;
      line["unit"] = "ms";
      line["value"] = f.seconds * 1e3;
      line["of_best_order"] = f.of_best;
      line["out_of_memory"] = f.out_of_memory;
      line["card"] = f.card;
      line["limit"] = f.limit;
      line["peaks"] = f.peaks;
      write_context(line, where);
      file << line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << std::endl;
    };
    if (device == "sim") {
      e.writes = quick;
      sim_options options;
      if (quick) options.capacity = 256_MiB;
      options.taken = 0;
      sim_machine const machine{options};
      measure(sim_pages{machine.driver(device_id{0})}, e, seed, on_figure);
    } else {
      if (!gpu.found) throw std::runtime_error(gpu.text);
#ifdef TARN_BENCH_CUDA
      measure(cuda_pages{}, e, seed, on_figure);
#endif
    }
    return refused == 0 ? 0 : 1;
  } catch (std::exception const& error) {
    std::cerr << "tarn_reservations: " << error.what() << '\n';
    return 2;
  }
}
