// SPDX-License-Identifier: Apache-2.0
// A memory report as a page for any browser: memory over time, the composition of the peak, the map of addresses.

#include <filesystem>
#include <fstream>
#include <iostream>

#include "tarn/policy/with_history.hpp"
#include "tarn/report/take_snapshot.hpp"
#include "tarn/report/timeline_html.hpp"
#if TARN_HAS_CUDA
#include "tarn/tarn.hpp"
using pages = tarn::cuda_pages;
#else
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"
using pages = tarn::sim_pages;
#endif

using namespace tarn::literals;

int main() {
  auto memory = pages{} | tarn::pooled{} | tarn::with_history{.history = 100'000};
  tarn::remember_growth(memory);
  {
    auto weights = tarn::make_device_buffer<std::byte>(memory, 40_MiB, tarn::stream_ref{});
    for (std::size_t step = 0; step < 100; ++step) {
      tarn::tag_scope const name("activations");
      auto activations =
          tarn::make_device_buffer<std::byte>(memory, (1 + step % 8) * 8_MiB, tarn::stream_ref{});
      auto scratch = tarn::make_device_buffer<std::byte>(memory, 3_MiB, tarn::stream_ref{});
    }
    std::filesystem::path const page = std::filesystem::temp_directory_path() / "tarn_timeline.html";
    std::ofstream file(page, std::ios::binary);
    tarn::snapshot const snapshot = tarn::take_snapshot(memory, "a hundred steps");
    tarn::write_timeline_html(file, snapshot);
    if (!file.flush()) return 1;
    std::cout << page.string() << ": " << std::filesystem::file_size(page) / 1024 << " KiB, "
              << snapshot.events.size() << " events\n";
    for (tarn::history_tag const& tag : snapshot.tags)
      std::cout << tag.name << ": peak " << tag.peak_bytes / 1_MiB << " MiB in " << tag.allocations
                << " allocations\n";
  }
}
