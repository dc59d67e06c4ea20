// SPDX-License-Identifier: Apache-2.0
#pragma once
// Grids of NanoVDB from growing sets of points: the work, and what is measured of it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tarn_nanovdb {

/// Which memory the temporaries and the grids get.
enum class way {
  async,        ///< both from cudaMallocAsync, NanoVDB's default
  kept,         ///< the same; its pool's release threshold is raised, so that it keeps all memory
  temporaries,  ///< temporaries from a device_pool, grids from cudaMallocAsync with the threshold raised
  one_pool      ///< both from one device_pool
};
[[nodiscard]] char const* name_of(way w) noexcept;

/// The work: `rounds` sets of points on a sphere's shell, of `first` points and `growth` times more in each
/// round. The grids of the last `kept` rounds stay alive.
struct work {
  int rounds = 24;
  std::size_t first = 1'000'000;
  double growth = 1.12;
  int kept = 4;
  int passes = 5;     ///< timed, after the first
  double beside = 0;  ///< above 0: a second process leaves so many times the live peak, and what it takes
};

/// Bytes and milliseconds of one process.
struct figures {
  double first_ms = 0;             ///< the first pass, which gets the memory
  std::vector<double> later_ms;    ///< the later ones
  std::size_t live = 0;            ///< peak of the bytes that NanoVDB asked for, in both pools
  std::size_t held = 0;            ///< peak held from the driver by both pools, by their own numbers
  std::size_t held_on_device = 0;  ///< peak, by cudaMemGetInfo
  std::size_t held_after = 0;      ///< once the last grid is freed, by cudaMemGetInfo
  std::size_t points = 0;          ///< of all rounds
  std::uint64_t checksum = 0;      ///< of the bytes of all grids
  int asked = 0;                   ///< by the second process
  int refused = 0;
};

/// Runs the work in this process, which has not used CUDA before. Throws what the memory throws; NanoVDB ends
/// the process where cudaMallocAsync fails.
[[nodiscard]] figures measure(way w, work const& what);

/// "32.9.2"
[[nodiscard]] std::string nanovdb_version();

}  // namespace tarn_nanovdb
