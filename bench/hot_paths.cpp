// SPDX-License-Identifier: Apache-2.0
// tarn_hot_paths: what an allocate+free pair costs the host, for tarn and its peers in the same run. CUDA
// pools are timed where a device is found. `--benchmark_filter=REGEX` chooses, `--benchmark_out=FILE` writes
// JSON.

#include "hot_paths/hot_paths.hpp"

#include <cstdlib>

#include "peers/find_cuda.hpp"

int main(int argc, char** argv) {
  using namespace tarn::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  found_cuda const device = find_cuda();
  benchmark::AddCustomContext("device", device.text);
  if (char const* const commit = std::getenv("TARN_COMMIT")) benchmark::AddCustomContext("commit", commit);
#if defined(TARN_BENCH_TORCH)
  if (device.found) register_torch();
#else
  register_host_and_simulated();
#endif
#if defined(TARN_BENCH_CUDA)
  if (device.found) register_cuda();
#endif
#if defined(TARN_BENCH_RMM)
  if (device.found) register_rmm();
#endif
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
