// SPDX-License-Identifier: Apache-2.0
// A memory report as a page for any browser: memory over time, the composition of the peak, the map of
// addresses.

#include <tarn/diagnostics.hpp>
#include <tarn/tarn.hpp>

#include <filesystem>
#include <iostream>

using namespace tarn::literals;

int main() {
  auto memory = tarn::cuda_pages{} | tarn::pooled{} | tarn::with_history{};
  // Optional: without it, the page shows all through what is reserved at the end.
  tarn::remember_growth(memory);
  tarn::stream const stream;
  auto weights = tarn::make_device_buffer<std::byte>(memory, 40_MiB, stream);
  for (std::size_t step = 0; step < 100; ++step) {
    tarn::tag_scope const name("activations");
    auto activations = tarn::make_device_buffer<std::byte>(memory, (1 + step % 8) * 8_MiB, stream);
    auto scratch = tarn::make_device_buffer<std::byte>(memory, 3_MiB, stream);
  }
  std::filesystem::path const page = std::filesystem::temp_directory_path() / "tarn_timeline.html";
  tarn::snapshot const snapshot = tarn::take_snapshot(memory, "a hundred steps");
  tarn::save_timeline_html(snapshot, page.string());
  std::cout << page.string() << ": " << std::filesystem::file_size(page) / 1024 << " KiB, "
            << snapshot.events.size() << " events\n";
  for (tarn::history_tag const& tag : snapshot.tags)
    std::cout << tag.name << ": peak " << tag.peak_bytes / 1_MiB << " MiB in " << tag.allocations
              << " allocations\n";
}
