// SPDX-License-Identifier: Apache-2.0
// A snapshot: what a pool holds, by name, and its history. Written for PyTorch's memory_viz (drop the .pickle
// on pytorch.org/memory_viz), for Perfetto (ui.perfetto.dev) and as JSON; also read directly here.
//
//   ./snapshot [FOLDER]      FOLDER keeps the files

#include <tarn/diagnostics.hpp>
#include <tarn/tarn.hpp>

#include <filesystem>
#include <iostream>
#include <map>
#include <string>

using namespace tarn::literals;

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  fs::path const folder = argc > 1 ? fs::path(argv[1]) : fs::temp_directory_path() / "tarn_example_snapshot";
  fs::create_directories(folder);

  auto memory = tarn::cuda_pages{} | tarn::pooled{} | tarn::with_history{};
  tarn::stream const stream;
  auto const buffer_of = [&](char const* name, std::size_t bytes) {
    tarn::tag_scope const here{name};
    return tarn::make_device_buffer<std::byte>(memory, bytes, stream);
  };

  auto const weights = buffer_of("weights", 300_MiB);
  for (int step = 0; step < 3; ++step) {
    auto const activations = buffer_of("activations", 80_MiB);
    auto const small = buffer_of("bias", 1000);
  }
  auto const gradients = buffer_of("gradients", 300_MiB);

  tarn::snapshot const s = tarn::take_snapshot(memory);
  std::map<std::string, std::size_t> live;
  std::size_t cached = 0;
  for (tarn::snapshot_segment const& segment : s.segments) {
    for (tarn::snapshot_block const& block : segment.blocks) {
      if (block.use == tarn::block_use::live) live[s.tags[block.tag].name] += block.bytes;
      if (block.use == tarn::block_use::cached) cached += block.bytes;
    }
  }
  for (auto const& [name, bytes] : live) std::cout << name << ": " << (bytes >> 20) << " MiB\n";
  std::size_t sum = cached;
  for (auto const& [name, bytes] : live) sum += bytes;
  std::cout << "cached and live are what is reserved: " << (sum == s.pool.reserved ? "yes" : "no") << "\n";

  std::map<tarn::snapshot_event_kind, int> events;
  for (tarn::snapshot_event const& e : s.events) ++events[e.kind];
  std::cout << "history: " << events[tarn::snapshot_event_kind::allocate] << " allocations, "
            << events[tarn::snapshot_event_kind::free] << " frees\n";

  for (char const* const name : {"snapshot.pickle", "snapshot.trace.json", "snapshot.json"}) {
    tarn::save_snapshot(s, folder / name);
    std::cout << name << ": written\n";
  }
  if (argc < 2) fs::remove_all(folder);
}
