// SPDX-License-Identifier: Apache-2.0
#pragma once
// A hierarchy of grids that AMReX refines around a growing, moving shell: the work, and what is measured.
// Free of AMReX and of tarn.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tarn_amrex {

/// Where the memory of The_Arena() comes from.
enum class memory {
  carena,        ///< amrex::CArena as it is by default: begins with 3/4 of the device
  carena_grows,  ///< begins with nothing and releases nothing (the_arena_init_size = 0)
  carena_tight,  ///< releases what is unused at each allocation (the_arena_release_threshold = 0, too)
  cuda_malloc,   ///< each block by cudaMalloc and cudaFree; malloc without a GPU
  cuda_async,    ///< cudaMallocAsync, with AMReX's release threshold, which is raised; only with a GPU
  tarn  ///< one device_pool, for The_Async_Arena() as well; without a GPU one of the simulated device
};

/// The work: `steps` steps on `cells`^3 cells and up to `levels` finer levels, each of twice the resolution.
/// The finer levels follow the shell: new grids every `regrid` steps.
struct work {
  int cells = 128;
  int levels = 2;
  int grid = 64;  ///< cells of the largest box, in each direction; half as many for the smallest
  int components = 6;
  int steps = 24;
  int regrid = 2;
  bool watch = false;  ///< samples the device's memory, in place of times
  std::string trace;   ///< tarn: file that gets a trace of the arena's calls; empty: none
};

struct figures {
  std::vector<double> step_ms;  ///< with what was regridded before it, until the device has done it
  double run_ms = 0;            ///< from the first allocation of grids to the end of the last step
  double regrid_ms = 0;         ///< of it, while regridding
  int regrids = 0;
  std::size_t boxes = 0;         ///< of the last hierarchy
  std::size_t cells = 0;         ///< of the last hierarchy
  std::size_t held_peak = 0;     ///< on the device, beyond what a context holds; if watched
  std::size_t held_after = 0;    ///< the same after the last step
  std::size_t arena_after = 0;   ///< held by the arena after the last step, as it reports; 0: unknown
  std::size_t arena_peak = 0;    ///< tarn: the most that the pool held
  std::size_t live = 0;          ///< tarn: peak of the bytes in live blocks, as requested from all arenas
  std::uint64_t creates = 0;     ///< tarn: physical handles created
  std::uint64_t remaps = 0;      ///< tarn: of them, mapped at another address again
  std::uint64_t host_waits = 0;  ///< tarn: times the host waited for a stream
  std::uint64_t checksum = 0;    ///< of the final state on all levels
};

/// Returns whether AMReX is built for the CPU. Nothing is watched then.
[[nodiscard]] bool runs_on_cpu() noexcept;

/// Runs the work in an AMReX of its own. Once in a process. Throws what AMReX and the pool throw.
[[nodiscard]] figures measure(memory from, work const& what);

}  // namespace tarn_amrex
