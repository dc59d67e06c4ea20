#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, within ten minutes: builds, runs the CUDA tests and examples, the replay and the hot
# paths with their peers, and writes bench/results/; logs are in build-gpu/logs/. Needs no network there.
#
#   bench/gpu.sh prepare     on a Debian or Ubuntu machine: gathers into .gpu-deps/ what a GPU machine lacks
#                            (Catch2, CLI11, nlohmann-json, zlib, mimalloc; Open MPI if it is installed; RMM and DALI's core
#                            if pip has them; the sources of NanoVDB, tiny-cuda-nn and AMReX, and the tests of RMM and of PyTorch's
#                            allocator, if git can fetch them)
#   bench/gpu.sh prepare clients    gathers only what the stage clients needs
#   bench/gpu.sh prepare mpi        on Debian: builds Debian's Open MPI with CUDA support, which its packages lack, and takes a UCX with CUDA
#                            support from pip, into .gpu-mpi/, for the stage mpi. Needs nvcc's headers, and sources in apt's lists;
#                            ten minutes on one core, 12 MiB
#   bench/gpu.sh prebuild    on a machine with nvcc, after prepare: compiles the programs of clients for ARCH into .gpu-deps/built,
#                            from where clients_build takes them; with PyTorch in python3, its extension, too. Sources that are
#                            compiled then need not travel: they move to build-clients/sources, and back for the next prebuild
#   bench/gpu.sh prebuild all    compiles all other programs for ARCH, too; the stage build takes those of the same commit
#   bench/gpu.sh             on the GPU machine, with .gpu-deps/ (and .gpu-mpi/) in the repository root: runs all stages
#   bench/gpu.sh two_gpus    on a machine with several GPUs: only the stages whose results more than one GPU changes
#   bench/gpu.sh --list      names the stages, with their limits
#   bench/gpu.sh --dry-run [STAGE...]  prints the commands that these stages run on this machine, each with its environment
#   bench/gpu.sh STAGE...    runs only these; a first word of a name means all that begin with it (replay, hot_paths).
#                            Stages after build need a build that is there
#
#   configure  build  replay_tarn  replay_torch_expandable  replay_torch  replay_cuda  replay_rmm  replay_dali
#   in_turn: device_pool and PyTorch's expandable segments, pass by pass in turn
#   workloads_tarn  workloads_torch_expandable  workloads_torch: traces of PyTorch's programs, replayed by two threads
#   hot_paths_cuda  hot_paths_host  hot_paths_torch  hot_paths_torch_expandable  hot_paths_rmm  hot_paths_dali
#   patterns_tarn  patterns_torch_expandable  patterns_torch  patterns_cuda  patterns_rmm  patterns_dali
#   moving  sleep  compact  reservations  convert  graphs  nccl  tests  endings  sanitize  planted  examples  snapshots  mpi  summary
#   survival_tarn  survival_cuda  survival_torch_expandable  survival_torch  survival_rmm  torch_devices: only where they are named
#   clients_build  clients_nanovdb  clients_cupy  clients_tcnn  clients_amrex  clients_rmm  clients_torch_tests  clients_torch: other people's programs on
#   tarn, only where they are named. clients means all of them, and needs no other stage: clients_build configures and builds what
#   they need
#
# Environment: TARN_COMMIT    commit that the results are of, where there is no .git
#              MIRRORS        folder of bare repositories, also of forks, that prepare takes the sources from, instead of GitHub
#              TRACES         folder of more traces to replay; prepare takes a copy of them along
#              TORCH_TESTS    PyTorch's test/test_cuda.py, for clients_torch_tests; prepare takes it instead of fetching it
#              TORCH_COMPARE  arguments for compare_workloads.py in clients_torch, as --allocators native+expandable+tarn+tarn:slack_per_mille=4
#              TORCH_DIAGNOSE a workload whose passes compare_workloads.py --diagnose prints first
#              OUT            folder that gets the results once more, packed
#              JOBS           compile jobs (all cores)
#              ARCH           compute capability that prebuild compiles for (90)
#              TOTAL_SECONDS  after which the stages that are left get no time (570; with clients 1900). If it is less than the stages
#                             of clients may take together, each gets its share, and those that measure make fewer repeats
# A stage that fails or takes too long costs only its own figures; the exit status reports it. One that is skipped did not pass: the last
# lines list and count both. What tests found is in bench/results/tests.jsonl.
# The stages are rows in gpu/stages.py, and gpu/run.py runs them.
cd "$(dirname "$0")/.." || exit 1
case ${1:-} in
  prepare) if [ "${2:-}" = mpi ]; then exec bash bench/gpu/prepare_mpi.sh; else exec bash bench/gpu/prepare.sh "${2:-}"; fi ;;
  prebuild) exec bash bench/gpu/prebuild.sh "${2:-}" ;;
  *) exec python3 bench/gpu/run.py "$@" ;;
esac
