// SPDX-License-Identifier: Apache-2.0
// Random programs, with snapshots of each at random moments in all formats, for check.py. The first argument
// is the output folder, the second the number of programs.

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tarn/debug/with_history.hpp"
#include "tarn/policy/limited.hpp"
#include "tarn/policy/tagged.hpp"
#include "tarn/raii/graph_memory.hpp"
#include "tarn/raii/stream.hpp"
#include "tarn/report/save_snapshot.hpp"
#include "tarn/sim.hpp"

using namespace tarn;

namespace {

constexpr char const* names[] = {"weights", "activations", "gradients", "awk\"ward\\ \x01 \xff name"};

/// The memory of captured graphs beside the rest of a program: each capture allocates, frees part of it, and
/// frees blocks that the pool allocated before, which are kept.
template <class Memory>
class graph_owners {
 public:
  graph_owners(Memory memory, sim_driver const& driver) : memory_(memory), driver_(driver), stream_(driver) {
    for (auto& owner : owners_) owner.emplace(memory);
  }
  graph_owners(graph_owners const&) = delete;
  graph_owners& operator=(graph_owners const&) = delete;
  ~graph_owners() {
    for (auto const& [p, bytes] : live_) memory_.deallocate(stream_, p, bytes);
  }

  /// Captures for one of the owners. Does nothing if it is out of memory.
  void capture(std::mt19937& random) {
    auto& owner = *owners_[random() % 2];
    std::size_t const before = 1 + random() % 300'000;
    try {
      void* const freed_inside = memory_.allocate(stream_, before);
      capture_scope const scope(owner, stream_);
      sim_graph graph;
      require(driver_.begin_capture(stream_).ok());
      memory_.deallocate(stream_, freed_inside, before);
      try {
        for (int i = 0; i < 3; ++i) {
          std::size_t const bytes = 1 + random() % (std::size_t{1} << (4 + random() % 18));
          tag_scope const here{names[random() % 4]};
          void* const p = memory_.allocate(stream_, bytes);
          if (live_.size() < 12 && random() % 2 == 0) {
            live_.emplace_back(p, bytes);
          } else {
            memory_.deallocate(stream_, p, bytes);
          }
        }
      } catch (out_of_memory const&) {
      }
      require(driver_.end_capture(stream_, graph).ok());
    } catch (out_of_memory const&) {
    }
  }
  /// Writes for check.py what each owner holds: number, reserved, allocated and kept bytes.
  void write_expected(std::string const& file) const {
    std::ofstream out(file);
    for (auto const& owner : owners_) {
      graph_state const s = owner->state();
      out << s.number << " " << s.reserved << " " << s.allocated << " " << s.kept << "\n";
    }
  }

 private:
  static void require(bool good) {
    if (!good) throw std::runtime_error("the capture failed");
  }
  Memory memory_;
  sim_driver driver_;
  sim_stream stream_;
  std::optional<graph_memory<Memory>> owners_[2];
  std::vector<std::pair<void*, std::size_t>> live_;
};

template <class Memory>
void run(Memory memory, sim_driver const& driver, std::mt19937& random, std::string const& file) {
  if (random() % 4 != 0) remember_growth(memory, 1 + random() % 200);
  basic_stream const a{driver};
  basic_stream const b{driver};
  stream_ref const streams[] = {a, b};
  std::vector<std::tuple<void*, std::size_t, std::size_t>> live;
  auto const free_one = [&] {
    std::size_t const k = random() % live.size();
    auto const [p, bytes, stream] = live[k];
    live[k] = live.back();
    live.pop_back();
    if (random() % 16 == 0) memory.record_stream(p, bytes, streams[1 - stream]);
    memory.deallocate(streams[stream], p, bytes);
  };
  std::size_t const most = 1 + random() % 150;
  unsigned const largest = 12 + static_cast<unsigned>(random() % 12);
  std::size_t const steps = random() % 15000;
  std::optional<graph_owners<Memory>> graphs;
  if (random() % 3 != 0) graphs.emplace(memory, driver);
  for (std::size_t i = 0; i < steps; ++i) {
    if (live.size() < most && random() % 2 == 0) {
      tag_scope const here{names[random() % 4]};
      std::size_t const bytes = (std::size_t{1} << (random() % largest)) + random() % 5000;
      std::size_t const stream = random() % 2;
      try {
        live.emplace_back(memory.allocate(streams[stream], bytes), bytes, stream);
      } catch (out_of_memory const&) {
      }
    } else if (!live.empty()) {
      free_one();
    }
    if (random() % 64 == 0) (void)driver.launch(streams[random() % 2], 1000 * (random() % 1000));
    if (random() % 3000 == 0) memory.trim(0);
    if (graphs && random() % 400 == 0) graphs->capture(random);
  }
  if (graphs) graphs->write_expected(file + ".graphs");
  snapshot const s = take_snapshot(memory, "awk\"ward \xff title");
  for (char const* const extension : {".pickle", ".json", ".trace.json"}) save_snapshot(s, file + extension);
  while (!live.empty()) free_one();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: tarn_snapshots FOLDER COUNT\n";
    return 2;
  }
  sim_machine const machine{sim_options{.backing = sim_backing::address_only}};
  for (unsigned seed = 1; seed <= static_cast<unsigned>(std::atoi(argv[2])); ++seed) {
    std::mt19937 random(seed);
    std::string const file = std::string(argv[1]) + "/" + std::to_string(seed);
    std::size_t const cap = (100 + random() % 400) * 1_MiB;
    with_history const options{.history = random() % 20000};
    if (seed % 4 == 0) {
      run(sim_malloc{machine.driver(0)} | limited{cap} | pooled{} | options, machine.driver(0), random, file);
    } else {
      run(sim_pages{machine.driver(0)} | limited{cap} | pooled{} | options, machine.driver(0), random, file);
    }
  }
  return 0;
}
