// SPDX-License-Identifier: Apache-2.0
// Blocks of a pool that MPI sends and receives itself: mpirun -n 2 tarn_mpi [one | several]. One block lies
// in one physical handle, one in several; an argument selects one of them. On the simulated device, whose
// memory is the host's, any MPI can. On CUDA it needs one that is built with CUDA support. Open MPI does not
// know whether the UCX below it has that: TARN_TEST_MPI_HAS_CUDA=1 in the environment says so.
//
// Exit status: 0 the contents arrived, 1 they did not, 77 skipped.

#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tarn/sharing.hpp"
#include "tarn/sim.hpp"
#include "tarn/tarn.hpp"

namespace {

using namespace tarn;

constexpr std::size_t bytes = 24_MiB + 4096;

std::vector<unsigned char> pattern(unsigned seed) {
  std::vector<unsigned char> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<unsigned char>((i >> 12) * 7 + i + seed);
  return all;
}

/// The first process sends a block; the second one receives it in a block of its own and sends that back.
template <class Source>
bool passes(Source const& source, pooled options, char const* what, bool is_in_one) {
  int rank = 0;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  auto pool = source | options | tracked{};
  basic_stream stream{source.driver()};
  auto const wanted = pattern(options.handles == handles_per_block::one ? 3 : 4);
  auto block = make_device_buffer<unsigned char>(pool, bytes, stream);
  if (rank == 0) {
    copy(source.driver(), std::span(wanted), block.span(), stream);
  } else {
    block.zero();
  }
  // MPI knows no streams.
  stream.synchronize();
  bool holds = source.has_pages() && (segments_of(pool, block.data(), bytes).size() == 1) == is_in_one;
  if (!holds) std::printf("the block is not %s\n", what);
  auto const count = static_cast<int>(bytes);
  if (rank == 0) {
    (void)MPI_Send(block.data(), count, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
    block.zero();
    stream.synchronize();
    (void)MPI_Recv(block.data(), count, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    (void)MPI_Recv(block.data(), count, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    (void)MPI_Send(block.data(), count, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
  }
  std::vector<unsigned char> arrived(bytes);
  copy_sync(source.driver(), std::span<unsigned char const>(block.span()), std::span(arrived), stream);
  if (arrived != wanted) {
    std::printf("process %d: the contents of a block %s did not arrive\n", rank, what);
    holds = false;
  }
  int here = holds ? 1 : 0;
  int everywhere = 0;
  (void)MPI_Allreduce(&here, &everywhere, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0 && everywhere != 0) std::printf("MPI sent and received a block %s\n", what);
  return everywhere != 0;
}

/// @param which  "one", "several", or empty: both
template <class Source>
int run(Source const& source, std::string_view which) {
  bool all = true;
  if (which != "several")
    all = passes(source, pooled{.handles = handles_per_block::one}, "in one handle", true) && all;
  if (which != "one")
    all = passes(source, pooled{.largest_handle = 2_MiB}, "in several handles", false) && all;
  return all ? 0 : 1;
}

/// Whether MPI can send device memory.
[[maybe_unused]] bool has_cuda_support() {
  char const* const stated = std::getenv("TARN_TEST_MPI_HAS_CUDA");
  if (stated != nullptr && std::string_view(stated) == "1") return true;
#if defined(MPIX_CUDA_AWARE_SUPPORT)
  return MPIX_Query_cuda_support() == 1;
#else
  return false;
#endif
}

int run_on_device(std::string_view which) {
#if TARN_HAS_CUDA
  int rank = 0;
  int devices = 0;
  (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    if (!has_cuda_support()) {
      if (rank == 0) {
        std::printf(
            "skipped: this MPI has no CUDA support. Ask for an Open MPI that is configured --with-cuda (and "
            "for a "
            "UCX that is), or for your cluster's module of one; MPIX_Query_cuda_support() then returns 1\n");
      }
      return 77;
    }
    device_id const device{rank % devices};
    device_guard const here(device);
    return run(cuda_pages{device}, which);
  }
  if (rank == 0) std::printf("skipped: there is no CUDA device\n");
  return 77;
#else
  sim_options options;
  options.capacity = 256_MiB;
  options.taken = 0;
  sim_machine const machine(options);
  return run(sim_pages{machine.driver(0)}, which);
#endif
}

}  // namespace

int main(int arguments, char** values) {
  (void)MPI_Init(nullptr, nullptr);
  int size = 0;
  (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
  int status = 77;
  try {
    if (size == 2) {
      status = run_on_device(arguments > 1 ? values[1] : "");
    } else {
      std::printf("skipped: start two processes (mpirun -n 2)\n");
    }
  } catch (std::exception const& error) {
    std::printf("%s\n", error.what());
    (void)MPI_Abort(MPI_COMM_WORLD, 1);  // the other one may wait for this process
  }
  (void)MPI_Finalize();
  return status;
}
