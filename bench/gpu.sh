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
#   they need. Their logs, shortened, are bench/results/clients_*.log
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
# A stage that fails or takes too long costs only its own figures; the exit status reports it.
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
deps=$root/.gpu-deps
build=${BUILD:-$root/build-gpu}
logs=$build/logs
results=$root/bench/results
jobs=${JOBS:-$(nproc)}
total=${TOTAL_SECONDS:-}  # set below, where the stages are known
commit=${TARN_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
export TARN_COMMIT=$commit
# A fault in NVLink multicast can put all GPUs of a host out of service, which others may share.
export NCCL_NVLS_ENABLE=0

say() { printf '%s\n' "$*"; }

prepare() {
  local missing=() package only=${1:-}
  local packages=(catch2 libcli11-dev nlohmann-json3-dev zlib1g-dev libmimalloc2.0)
  [ "$only" != clients ] || packages=(libcli11-dev nlohmann-json3-dev)
  for package in "${packages[@]}"; do
    dpkg -L "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  if [ ${#missing[@]} -ne 0 ]; then
    say "missing: ${missing[*]}; first: apt-get install -y ${missing[*]}" >&2
    return 1
  fi
  rm -rf "$deps"
  mkdir -p "$deps"
  # Starts the processes of examples/data_parallel.
  if [ "$only" = clients ]; then
    :
  elif command -v mpicxx.openmpi >/dev/null; then
    for package in openmpi-bin openmpi-common libopenmpi-dev libopenmpi3 libhwloc15 libevent-core-2.1-7 libevent-pthreads-2.1-7 \
        libpmix2; do  # what one machine needs, no network's libraries
      dpkg -L "$package" >/dev/null 2>&1 && packages+=("$package")
    done
  else
    say "skipped Open MPI: not installed (openmpi-bin libopenmpi-dev)"
  fi
  for package in "${packages[@]}"; do
    # libz.so is a link to a library that the GPU machine has or not; the archive always works.
    dpkg -L "$package" | sed 's|^/lib/|/usr/lib/|' | grep -E '^/usr/(bin|include|lib|share/cmake|share/openmpi)' | grep -v '/libz\.so$' |
      while read -r file; do [ -d "$file" ] || printf '%s\n' "$file"; done |
      tar -C / -c -T <(sed 's|^/||') 2>/dev/null | tar -C "$deps" -x
  done
  say "downloading librmm-cu13 and rapids-logger with pip, into $deps"
  if python3 -m pip download -q --no-deps --only-binary=:all: -d "$deps/wheels" librmm-cu13 'rapids-logger==0.3.*'; then
    mkdir "$deps/rmm"
    for package in "$deps"/wheels/*.whl; do python3 -m zipfile -e "$package" "$deps/rmm"; done
  else
    say "skipped RMM: pip could not fetch it"
  fi
  rm -rf "$deps/wheels"
  [ "$only" = clients ] || say "downloading nvidia-dali-cuda130 with pip, 200 MB; its headers and core library are kept"
  if [ "$only" = clients ]; then
    :
  elif python3 -m pip download -q --no-deps --only-binary=:all: -d "$deps/wheels" nvidia-dali-cuda130; then
    python3 -m zipfile -e "$deps"/wheels/*.whl "$deps/wheels"
    mkdir -p "$deps/dali/include/dali"
    mv "$deps/wheels/nvidia/dali/libdali_core.so" "$deps/dali"
    mv "$deps/wheels/nvidia/dali/include/dali/core" "$deps/dali/include/dali"
    sed -n '/^Version: /{s///p;q}' "$deps"/wheels/*.dist-info/METADATA >"$deps/dali/VERSION"
  else
    say "skipped DALI: pip could not fetch it"
  fi
  rm -rf "$deps/wheels"
  # The versions that examples/clients.md names.
  fetch_sources nanovdb https://github.com/AcademySoftwareFoundation/openvdb 568538e9ecee4aa4da1735c2cbd7ad27bea1c2d1 nanovdb
  fetch_sources tcnn https://github.com/NVlabs/tiny-cuda-nn 6ee3546bda615f51abe684ce9edefeb414689135 include src dependencies data/images
  if [ -d "$deps/tcnn" ]; then
    fetch_sources tcnn/dependencies/cutlass https://github.com/NVIDIA/cutlass 82f5075946e2569589439d500733b700a3141374 \
      include tools/util/include
    fetch_sources tcnn/dependencies/fmt https://github.com/fmtlib/fmt fa2eb2d2e3ec5c21629f8ccd88ae05ec40b963fa include
  fi
  fetch_sources amrex https://github.com/AMReX-Codes/amrex 69f1ac884c6aba4d9881260819ade3bb25ed8aad CMakeLists.txt CHANGES Src Tools
  # RMM's own suites need GoogleTest.
  if dpkg -L libgtest-dev libgmock-dev >/dev/null 2>&1; then
    fetch_sources rmm_tests https://github.com/rapidsai/rmm 5d50a37b9612e29d53f8202fba792b1a36f88a79 cpp/tests
    dpkg -L libgtest-dev libgmock-dev | grep -E '^/usr/(include/g|lib/.*\.a$)' |
      while read -r file; do [ -d "$file" ] || printf '%s\n' "${file#/}"; done | tar -C / -c -T - | tar -C "$deps" -x
  else
    say "skipped RMM's test suites: they need libgtest-dev and libgmock-dev"
  fi
  # The tests of PyTorch 2.11.0, and the two packages they need.
  if [ -n "${TORCH_TESTS:-}" ]; then
    mkdir -p "$deps/torch_tests/test"
    cp "$TORCH_TESTS" "$deps/torch_tests/test/test_cuda.py"
  else
    fetch_sources torch_tests https://github.com/pytorch/pytorch 70d99e998b4955e0049d13a98d77ae1b14db1f45 test/test_cuda.py
  fi
  if [ -d "$deps/torch_tests" ]; then
    python3 -m pip install -q --no-deps --no-compile --only-binary=:all: --target "$deps/torch_tests/python" expecttest psutil ||
      say "skipped expecttest and psutil, for PyTorch's tests: pip could not fetch them"
  fi
  if [ -n "${TRACES:-}" ] && [ "$only" != clients ]; then
    mkdir "$deps/traces"
    cp "$TRACES"/*.trace.gz "$deps/traces"
  fi
  du -sh "$deps"/*
  du -sh "$deps"
}

# Open MPI as Debian has it, but with CUDA support, and only what one machine needs; and a UCX with CUDA support. The sources come from
# where apt gets its packages.
prepare_mpi() {
  local work=$root/build-mpi out=$root/.gpu-mpi cuda=${CUDA_HOME:-/usr/local/cuda} apt=() file
  rm -rf "$out" "$work"
  mkdir -p "$work"/{lists/partial,cache/archives/partial,parts} "$out/ucx/lib/ucx"
  for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources; do
    [ ! -f "$file" ] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/parts/$(basename "$file")"
  done
  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$work/sources.list" 2>/dev/null
  apt=(-o "Dir::Etc::sourcelist=$work/sources.list" -o "Dir::Etc::sourceparts=$work/parts" -o "Dir::State::lists=$work/lists"
    -o "Dir::Cache=$work/cache")
  say "building Open MPI with CUDA support"
  (
    cd "$work" && apt-get -qq "${apt[@]}" update && apt-get -qq "${apt[@]}" source --download-only openmpi &&
      tar -xf openmpi_*.orig.tar.* && mkdir build && cd build &&
      "$(echo ../openmpi-*/configure)" --prefix="$out/openmpi" "--with-cuda=$cuda" CC=gcc CXX=g++ CFLAGS='-O1 -DNDEBUG -w' \
        --without-{ucx,ofi,verbs,psm2,slurm,lsf,sge,tm} --disable-{mpi-fortran,oshmem,io-romio,static,man-pages,libompitrace} \
        --with-{hwloc,libevent,pmix}=internal \
        --enable-mca-no-build=coll-ml,fcoll,fs,fbtl,sharedfp,io,vprotocol,op-avx,mtl,osc-ucx,common-ofi &&
      make -j "$jobs" && make install
  ) >"$work/log" 2>&1 || { tail -n 20 "$work/log"; return 1; }
  find "$out/openmpi" -name '*.la' -delete
  rm -rf "$out/openmpi/share/man"
  find "$out/openmpi" -type f \( -name '*.so.*' -o -name '*.so' -o -path '*/bin/*' \) -exec strip --strip-unneeded {} + 2>/dev/null
  LD_LIBRARY_PATH=$out/openmpi/lib "$out/openmpi/bin/ompi_info" --parsable --level 9 --all |
    grep -q 'mpi_built_with_cuda_support:value:true' || { say "this Open MPI has no CUDA support" >&2; return 1; }
  say "downloading libucx-cu13 with pip"
  if python3 -m pip download -q --no-deps --only-binary=:all: -d "$work" libucx-cu13; then
    python3 -m zipfile -e "$work"/libucx_cu13-*.whl "$work/wheel"
    cp "$work"/wheel/libucx/lib/libuc{m,p,s,s_signal}.so.0 "$work"/wheel/libucx/lib/libuct.so.0 "$work"/wheel/libucx_cu13.libs/* "$out/ucx/lib"
    cp "$work"/wheel/libucx/UCX_WHEEL_VERSION.txt "$out/ucx/VERSION"
    cp "$work"/wheel/libucx/lib/ucx/libu{ct_cuda,cm_cuda,ct_cma}.so.0 "$out/ucx/lib/ucx"
    strip --strip-unneeded "$out"/ucx/lib/lib* "$out"/ucx/lib/ucx/*
  else
    say "skipped UCX: pip could not fetch it"
  fi
  rm -rf "$work"
  du -sh "$out"/*
}

# fetch_sources FOLDER URL COMMIT PATH...: these folders of a program's sources, into .gpu-deps/FOLDER. MIRRORS may name a folder of
# bare repositories, OWNER+NAME/repo, to take them from instead: of this owner, or of another who has the commit.
fetch_sources() {
  local folder=$deps/$1 url=$2 commit=$3 name=${2#https://github.com/} repository path
  shift 3
  for repository in "${MIRRORS:-}/${name/\//+}/repo" "${MIRRORS:-}"/*"+${name#*/}/repo"; do
    git -C "$repository" cat-file -e "$commit" 2>/dev/null && break
    repository=
  done
  if [ -z "$repository" ]; then
    repository=$deps/.repository
    rm -rf "$repository"
    git init -q --bare "$repository"
    git -C "$repository" fetch -q --depth 1 "$url" "$commit"
  fi
  mkdir -p "$folder"
  for path in "$@"; do  # a folder's own tree: a mirror may lack large files elsewhere
    if [ "$(git -C "$repository" cat-file -t "$commit:$path" 2>/dev/null)" = blob ]; then
      mkdir -p "$(dirname "$folder/$path")"
      git -C "$repository" show "$commit:$path" >"$folder/$path"
    else
      git -C "$repository" archive --prefix="$path/" "$commit:$path" 2>/dev/null | tar -C "$folder" -x 2>/dev/null
    fi
  done
  if [ -e "$folder/$1" ]; then
    say "$commit" >"$folder/COMMIT"
  else
    rmdir "$folder"
    say "skipped ${name#*/}: git could not fetch it"
  fi
  rm -rf "$deps/.repository"
}

# share_of NAME SECONDS LEFT: how many of the LEFT seconds the next stage of clients may take, so that the ones after it get theirs.
declare -A client_seconds=([clients_build]=400 [clients_nanovdb]=150 [clients_cupy]=400 [clients_tcnn]=150 [clients_amrex]=100 [clients_torch]=600
  [clients_torch_tests]=300 [clients_rmm]=300)
if { [ -f "$deps/built/tarn_tcnn.gz" ] || [ ! -d "$deps/tcnn" ]; } && { [ -f "$deps/built/tarn_amrex.gz" ] || [ ! -d "$deps/amrex" ]; }; then
  client_seconds[clients_build]=60
fi
share_of() {
  local other sum=0
  for other in "${!client_seconds[@]}"; do
    [ "$other" != clients_torch_tests ] || [ -f "$deps/torch_tests/test/test_cuda.py" ] || continue
    is_wanted "$other" && [ -z "${outcome[$other]:-}" ] && sum=$((sum + client_seconds[$other]))
  done
  if [ "$sum" -gt "$3" ]; then say $(($2 * $3 / sum)); else say "$3"; fi
}

# stage NAME SECONDS FUNCTION: runs it with its log and its limit; remembers how it went.
declare -A outcome
order=()
wanted=()
is_wanted() {
  [ ${#wanted[@]} -eq 0 ] && return 0
  local word
  for word in "${wanted[@]}"; do [[ $1 == "$word" || $1 == "${word}_"* ]] && return 0; done
  return 1
}
stage() {
  local name=$1 seconds=$2 function=$3 start=$SECONDS status file left=$((total - SECONDS))
  [[ $name != clients* ]] || left=$(share_of "$name" "$seconds" "$left")
  is_wanted "$name" || return
  order+=("$name")
  if [ "$left" -lt 5 ]; then
    outcome[$name]="FAILED: not begun, the time was over"
    return
  fi
  [ "$seconds" -le "$left" ] || seconds=$left
  say "== $name"
  # shellcheck disable=SC2163
  export -f "$function"
  export stage_seconds=$seconds
  timeout --kill-after=5 "$seconds" bash -c "set -u; $function" >"$logs/$name.log" 2>&1
  status=$?
  for file in "$results"/*.new; do  # what was done before a stage was stopped counts; no figures leave the earlier ones
    if grep -qs '^{' "$file"; then mv "$file" "${file%.new}"; else rm -f "$file"; fi
  done
  case $status in
    0) outcome[$name]="ok" ;;
    77) outcome[$name]="skipped" ;;
    124 | 137) outcome[$name]="FAILED: over $seconds s" ;;
    *) outcome[$name]="FAILED: status $status" ;;
  esac
  outcome[$name]+=" ($((SECONDS - start)) s)"
  say "   ${outcome[$name]}"
  if [[ $name == clients* && $status -ne 77 ]]; then
    { cat "$environment_file"; say "$name: ${outcome[$name]}"; tail -n 150 "$logs/$name.log" | cut -c 1-240 | sed "s|$root/||g"; } \
      >"$results/$name.log"
  fi
  [[ ${outcome[$name]} == FAILED* ]] && tail -n 25 "$logs/$name.log" | sed 's/^/   | /'
}

find_python_packages() {
  torch_dir=$(python3 -c 'import os, importlib.util as u; s = u.find_spec("torch"); print(os.path.dirname(s.origin) if s else "")' 2>/dev/null)
  [ -f "$torch_dir/lib/libc10_cuda.so" ] || torch_dir=
  rmm_dir=
  [ -d "$deps/rmm/librmm" ] && rmm_dir=$deps/rmm
  [ -n "$torch_dir" ] || say "skipped PyTorch's allocator: no torch with CUDA in python3"
  [ -n "$rmm_dir" ] || say "skipped RMM: not in .gpu-deps"
  dali_dir=
  [ -f "$deps/dali/libdali_core.so" ] && dali_dir=$deps/dali
  [ -n "$dali_dir" ] || say "skipped DALI's pool: not in .gpu-deps"
  # PyTorch's, which is often newer than the toolkit's.
  nccl_dir=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nccl").submodule_search_locations[0])' 2>/dev/null)
  nanovdb_dir=
  [ -f "$deps/nanovdb/nanovdb/nanovdb/NanoVDB.h" ] && nanovdb_dir=$deps/nanovdb/nanovdb
  tcnn_dir=
  [ -d "$deps/tcnn/dependencies/cutlass/include" ] || [ -f "$deps/built/tarn_tcnn.gz" ] && tcnn_dir=$deps/tcnn
  amrex_dir=
  [ -f "$deps/amrex/CMakeLists.txt" ] && amrex_dir=$deps/amrex
  mpi_dir=
  if [ -x "$deps/usr/bin/mpirun.openmpi" ]; then
    mpi_dir=$deps/usr
    # Its libraries find the rest of it by these.
    export OPAL_PREFIX=$mpi_dir PMIX_INSTALL_PREFIX=$mpi_dir/lib/x86_64-linux-gnu/pmix2 PMIX_MCA_pcompress_base_silence_warning=1
  fi
  export torch_dir rmm_dir dali_dir nccl_dir nanovdb_dir tcnn_dir amrex_dir mpi_dir
}

# Of the header that is compiled with.
nccl_version() {
  local header
  for header in "$nccl_dir/include/nccl.h" /usr/local/cuda/include/nccl.h /usr/include/nccl.h; do
    sed -n '/^#define NCCL_\(MAJOR\|MINOR\|PATCH\) /s/.* //p' "$header" 2>/dev/null | paste -sd.
  done | grep -m 1 . || echo none
}

# The version without importing torch, which takes many seconds on a machine that has just started.
environment() {
  cat <<EOF
gpu: $(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 2>/dev/null || echo none)
driver: ${TARN_DRIVER:-none}
cuda toolkit: $(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
compiler: $(g++ --version | head -n 1)
cpu: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores
torch: $([ -n "$torch_dir" ] && sed -n "s/^__version__ = '\(.*\)'/\1/p" "$torch_dir/version.py" 2>/dev/null || echo none)
rmm: $(cat "$deps/rmm/librmm/VERSION" 2>/dev/null || echo none)
dali: $(cat "$deps/dali/VERSION" 2>/dev/null || echo none)
nccl: $(nccl_version)
commit: $commit
date: $(date -u +%Y-%m-%dT%H:%MZ)
EOF
}

run_configure() {
  local generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  local mpi=() nccl=() tcnn_sources=  # beside a program that prebuild made, the image is enough
  [ -d "$tcnn_dir/dependencies/cutlass/include" ] && tcnn_sources=$tcnn_dir
  [ -f "$nccl_dir/lib/libnccl.so.2" ] &&
    nccl=(-DTARN_NCCL_INCLUDE="$nccl_dir/include" -DTARN_NCCL_LIBRARY="$nccl_dir/lib/libnccl.so.2")
  [ -n "$mpi_dir" ] && mpi=(-DMPI_CXX_COMPILER="$mpi_dir/bin/mpicxx.openmpi" -DMPIEXEC_EXECUTABLE="$mpi_dir/bin/mpirun.openmpi")
  cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$deps/usr" \
    -DTARN_BUILD_TESTS="${TARN_BUILD_REST:-ON}" -DTARN_BUILD_EXAMPLES=ON -DTARN_BUILD_BENCH="${TARN_BUILD_REST:-ON}" \
    -DTARN_WARNINGS_AS_ERRORS=OFF \
    -DTARN_BENCH_RMM_DIR="$rmm_dir" -DTARN_BENCH_TORCH_DIR="$torch_dir" \
    -DTARN_BENCH_DALI_DIR="$dali_dir" -DTARN_NANOVDB_DIR="$nanovdb_dir" -DTARN_TCNN_DIR="$tcnn_sources" -DTARN_AMREX_DIR="$amrex_dir" "${mpi[@]}" "${nccl[@]}"
}

# Only what runs here, each program once, and all that compiles even if one does not. The CUDA programs' compile times
# are at the end of the log.
run_build() {
  local targets=() with_torch=() keep_going=-k status packed=$deps/built/programs.tar.gz
  [ -n "$torch_dir" ] && [ -z "$only_two_gpus" ] && with_torch=(tarn_replay_torch tarn_hot_paths_torch)
  if [ -f "$packed" ] && [ "$(cat "$deps/built/COMMIT")" = "$commit" ]; then
    say "prebuilt"
    tar -C "$build" -xzf "$packed" || return
    [ ! -x "$build/bench/replay/tarn_replay_torch" ] || with_torch=()
  else
    targets=(cuda_programs)
    if [ -z "$only_two_gpus" ]; then
      targets+=(tarn_replay tarn_hot_paths tarn_moving tarn_sleep tarn_compact tarn_reservations)
      [ -n "$rmm_dir" ] && targets+=(tarn_replay_rmm tarn_hot_paths_rmm)
      [ -n "$dali_dir" ] && targets+=(tarn_replay_dali tarn_hot_paths_dali)
    fi
  fi
  targets+=("${with_torch[@]}")
  [ ${#targets[@]} -ne 0 ] || return 0
  [ -f "$build/build.ninja" ] && keep_going=-k0
  cmake --build "$build" -j "$jobs" --target "${targets[@]}" -- $keep_going
  status=$?
  if [ -f "$build/.ninja_log" ]; then
    say "slowest, in milliseconds:"
    awk -F '\t' 'NF == 5 { print $2 - $1, $4 }' "$build/.ninja_log" | sort -rn | head -n 15
  fi
  return $status
}

# counted LOG WHAT: what Catch2 said last, and how many cases said that they tested nothing, for ./dev evidence.
counted() {
  local figures
  figures=$(sed -n 's/^All tests passed (\([0-9]*\) assertions in \([0-9]*\) test cases).*/cases=\2 assertions=\1 failed=0/p' "$1" | tail -n 1)
  echo "evidence: $2 ${figures:-FAILED} skipped=$(grep -ac 'skipped, nothing was tested' "$1")" >>"$1"
}
export -f counted

# Collectives on a pool's memory; needs two GPUs.
run_nccl() {
  local program
  [ -n "$devices" ] || { say "there is one GPU"; return 77; }
  program=$(built tarn_nccl) || { say "tarn_nccl was not built"; return 77; }
  "$program" --repetitions 25 --json "$results/nccl.jsonl.new"
}

# two_processes MPIRUN NAME=VALUE... PROGRAM ARGUMENT...: also as root, on one GPU, and where there is no ssh.
two_processes() {
  local mpirun=$1
  shift
  timeout 40 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_btl_vader_single_copy_mechanism=none "$mpirun" -n 2 env "$@"
}
export -f two_processes

# Blocks that MPI sends and receives itself. Open MPI's own transports must carry blocks of one handle and of several, UCX those of one;
# what UCX does with several is only printed.
run_mpi() {
  local openmpi=$root/.gpu-mpi/openmpi ucx=$root/.gpu-mpi/ucx/lib log=$results/mpi$devices.log cuda=${CUDA_HOME:-/usr/local/cuda}
  local failed=0 way status path=${LD_LIBRARY_PATH:-} prefix=${OPAL_PREFIX:-}
  [ -x "$openmpi/bin/mpicxx" ] || { say "no .gpu-mpi"; return 77; }
  export OPAL_PREFIX=$openmpi LD_LIBRARY_PATH=$openmpi/lib:$path OMPI_CXX=g++
  "$openmpi/bin/mpicxx" -std=c++20 -O1 -I"$root/include" -I"$cuda/include" "$root/tests/interop/mpi.cpp" -o "$build/mpi_with_cuda" \
    -L"$cuda/lib64" -lcudart_static -pthread -ldl -lrt || return
  cp "$environment_file" "$log"
  {
    say "-- Open MPI with CUDA support, its own transports"
    (unset PMIX_INSTALL_PREFIX && two_processes "$openmpi/bin/mpirun" "$build/mpi_with_cuda") || { say "FAILED with $?"; failed=1; }
    say "-- the same without cudaIpc"
    (unset PMIX_INSTALL_PREFIX && two_processes "$openmpi/bin/mpirun" OMPI_MCA_btl_smcuda_use_cuda_ipc=0 "$build/mpi_with_cuda") ||
      { say "FAILED with $?"; failed=1; }
    # Debian's Open MPI, which prepare takes along.
    if [ -n "$mpi_dir" ] && [ -f "$ucx/libucp.so.0" ] && [ -x "$build/tests/tarn_mpi_cuda" ]; then
      export OPAL_PREFIX=$prefix LD_LIBRARY_PATH=$ucx:$path
      for way in one several; do
        say "-- Debian's Open MPI over UCX $(cat "$ucx/../VERSION") with CUDA support, blocks of $way"
        two_processes "$mpi_dir/bin/mpirun.openmpi" OMPI_MCA_pml=ucx OMPI_MCA_opal_common_ucx_tls=any \
          OMPI_MCA_opal_common_ucx_devices=any TARN_TEST_MPI_HAS_CUDA=1 "$build/tests/tarn_mpi_cuda" "$way"
        status=$?
        if [ $status -eq 0 ]; then continue; fi
        say "ended with $status"
        [ $way = several ] || { say "FAILED: UCX with blocks of one handle"; failed=1; }
      done
    else
      say "skipped UCX: it, or Debian's Open MPI, is not here"
    fi
  } >>"$log" 2>&1
  sed -i "s|$root/||g" "$log"
  say "evidence: mpi_with_cuda passed=$(grep -c '^MPI sent and received' "$log") failed=$failed" >>"$log"
  cat "$log"
  return $failed
}

run_tests() {
  [ -x "$build/tests/tarn_cuda_tests" ] || { say "tarn_cuda_tests was not built"; return 1; }
  local log=$results/cuda_tests$devices.log status
  cp "$environment_file" "$log"
  "$build/tests/tarn_cuda_tests" --durations yes >>"$log" 2>&1
  status=$?
  sed -i "s|$root/||g" "$log"
  counted "$log" gpu_tests
  return $status
}

run_endings() {
  local folder=$build/tests/faults
  [ -x "$folder/tarn_endings_cuda" ] || { say "tarn_endings_cuda was not built"; return 1; }
  cp "$environment_file" "$results/endings_cuda.log"
  python3 "$root/tests/faults/endings.py" "$folder/tarn_endings_cuda" "$folder/libtarn_ending_plugin_cuda.so" \
    >>"$results/endings_cuda.log" 2>&1
}

run_sanitize() {
  command -v compute-sanitizer >/dev/null || { say "compute-sanitizer is not installed"; return 77; }
  local log=$results/sanitize$devices.log
  # Not the refusals: the tests provoke them.
  compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 "$build/tests/tarn_cuda_tests" '[cuda]' \
    >"$log" 2>&1 || return
  sed -i -e "s|$root/||g" -e "1r $environment_file" "$log"
  counted "$log" "gpu_memcheck errors=$(sed -n 's/.*ERROR SUMMARY: \([0-9]*\) .*/\1/p' "$log")"
}

# What a user's mistakes inside a pool look like to the tool; 33 runs, side by side.
run_planted() {
  command -v compute-sanitizer >/dev/null || { say "compute-sanitizer is not installed"; return 77; }
  local log=$results/sanitizer_planted.log status
  cp "$environment_file" "$log"
  bash "$root/tests/sanitizer/check.sh" "$build/tests" 2>&1 | tee -a "$log"
  status=${PIPESTATUS[0]}
  [ "$status" -eq 0 ] || bash "$root/tests/sanitizer/check.sh" "$build/tests" --diagnose
  return "$status"
}

run_examples() {
  local failed=0 program name log=$results/examples$devices.log
  cp "$environment_file" "$log"
  for program in "$build"/examples/*_cuda; do
    name=$(basename "$program" _cuda)
    say "-- $name"
    timeout 30 python3 "$root/examples/compare.py" --gpu "$root/examples/$name.expected" "$program" || { say "FAILED: $name"; failed=1; }
  done >>"$log" 2>&1
  # One process for each of two GPUs, or for the one.
  if [ -n "$mpi_dir" ] && [ -x "$build/examples/data_parallel_cuda_mpi" ]; then
    say "-- data_parallel, started by mpirun"
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated timeout 60 \
      python3 "$root/examples/compare.py" --gpu "$root/examples/data_parallel_mpi.expected" "$mpi_dir/bin/mpirun.openmpi" \
      -n $((${#devices} > 0 ? 2 : 1)) "$build/examples/data_parallel_cuda_mpi" || { say "FAILED: data_parallel_cuda_mpi"; failed=1; }
  fi >>"$log" 2>&1
  sed -i "s|$root/||g" "$log"
  grep -B 25 FAILED "$log"
  return $failed
}

# A snapshot of a pool on the GPU, read by Python and by the viewer of the PyTorch that is installed; a trace's report.
run_snapshots() {
  local program=$build/examples/snapshot_cuda folder=$logs/snapshot
  [ -x "$program" ] || { say "snapshot_cuda was not built"; return 1; }
  mkdir -p "$folder"
  cp "$environment_file" "$results/snapshots.log"
  "$program" "$folder" >>"$results/snapshots.log" 2>&1 &&
    python3 "$root/tests/snapshots/check.py" "$folder/snapshot.pickle" >>"$results/snapshots.log" 2>&1 || return
  local traces=("$root"/examples/traces/*.trace.gz)
  program=$(built tarn_replay) && "$program" --device cuda --pool tarn --report "$folder/report.html" "${traces[0]}"
}

# built NAME: the path of a program of the benches; the stage is skipped where it was not built.
built() {
  local program
  for program in "$build/bench/$1" "$build/bench/replay/$1"; do
    [ -x "$program" ] && say "$program" && return
  done
  return 1
}

# Sets `all` to the traces of the repository and the other ones, and `small` to the short ones of the repository.
find_traces() {
  all=("$root"/examples/traces/*.trace.gz)
  mapfile -t small < <(find "$root/examples/traces" -name '*.trace.gz' -size -200k | sort)
  [ -d "$more_traces" ] || return 0
  for trace in "$more_traces"/*.trace.gz; do
    [ -e "$root/examples/traces/$(basename "$trace")" ] || all+=("$trace")
  done
}

# one_by_one FILE PROGRAM COMMAND...: each allocator in a process of its own, so that none sees what another left behind
# and the death of one leaves the figures of the others. COMMANDs are arguments, split at blanks; @ALL and @SMALL are the
# traces, @WORKLOADS those of PyTorch's programs, @PATTERNS the generated ones.
one_by_one() {
  local file=$results/$1.new program all small trace command arguments failed=0
  program=$(built "$2") || { say "$2 was not built"; return 77; }
  shift 2
  find_traces
  : >"$file"
  for command in "$@"; do
    read -r -a arguments <<<"$command"
    case ${arguments[-1]} in
      @ALL) arguments=("${arguments[@]:0:${#arguments[@]}-1}" "${all[@]}") ;;
      @SMALL) arguments=("${arguments[@]:0:${#arguments[@]}-1}" "${small[@]}") ;;
      @WORKLOADS) arguments=("${arguments[@]:0:${#arguments[@]}-1}" "$root"/examples/pytorch/traces/*.trace.gz) ;;
      @PATTERNS) arguments=("${arguments[@]:0:${#arguments[@]}-1}" --pattern all) ;;
      *) arguments+=(--json "$file") ;;
    esac
    say "-- $command"
    if [[ $command == *@* ]]; then
      timeout 60 "$program" "${arguments[@]}" >>"$file"
    else
      timeout 90 "$program" "${arguments[@]}"
    fi || { say "FAILED with $?"; failed=1; echo >>"$file"; }  # its last line may have no end
  done
  return $failed
}

# A machine that has just started is slow, whoever runs first: the simulated device and the host's pools come before the
# GPU's, and the GPU's first process does not count. PyTorch follows at once.
run_replay_tarn() {
  local runs=() pool program all small trace
  find_traces
  program=$(built tarn_replay) && "$program" --device cuda --passes 20 --pool tarn "${all[@]}"
  for pool in tarn tarn_no_remap host_malloc std_pmr mimalloc; do
    runs+=("--device sim --json --passes 6 --pool $pool @ALL")
  done
  for pool in tarn tarn_identified tarn_no_remap tarn_tracked; do
    runs+=("--device cuda --json --passes 6 --pool $pool @ALL")
  done
  one_by_one replay_tarn.jsonl tarn_replay "${runs[@]}"
}
run_replay_cuda() {
  local runs=() pool
  for pool in cuda_async cub thrust_mr; do runs+=("--device cuda --json --passes 6 --pool $pool @ALL"); done
  # A driver call per block: short traces, twice.
  for pool in cub_default cuda_malloc; do runs+=("--device cuda --json --passes 2 --pool $pool @SMALL"); done
  # Fills the device, and is refused after that.
  runs+=("--device cuda --json --passes 2 --pool stack_arena @SMALL")
  one_by_one replay_cuda.jsonl tarn_replay "${runs[@]}"
}
# PyTorch reads its settings once per process.
run_replay_torch() {
  one_by_one replay_torch.jsonl tarn_replay_torch "--device cuda --json --passes 6 --pool torch @ALL"
}
run_replay_torch_expandable() {
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True one_by_one replay_torch_expandable.jsonl tarn_replay_torch \
    "--device cuda --json --passes 6 --pool torch_expandable @ALL"
}
run_replay_rmm() {
  one_by_one replay_rmm.jsonl tarn_replay_rmm "--device cuda --json --passes 6 --pool rmm_pool @ALL" \
    "--device cuda --json --passes 6 --pool rmm_arena @ALL" "--device cuda --json --passes 6 --pool rmm_binning @ALL" \
    "--device cuda --json --passes 6 --pool cccl @ALL"
}
run_replay_dali() { one_by_one replay_dali.jsonl tarn_replay_dali "--device cuda --json --passes 6 --pool dali @ALL"; }

# What is measured at the same moments can be compared although the machine is shared. Two processes, each with a pool of its own.
run_in_turn() {
  local file=$results/in_turn.jsonl.new tarn torch all small trace failed=0
  tarn=$(built tarn_replay) && torch=$(built tarn_replay_torch) || { say "tarn_replay_torch was not built"; return 77; }
  find_traces
  torch="env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True $torch --device cuda --pool torch_expandable"
  tarn="$tarn --device cuda --pool"
  rm -f "$file"
  in_turn() {
    python3 "$root/bench/replay/in_turn.py" "$file" --seconds $((stage_seconds - SECONDS - 5)) --passes 21 --turn 4 \
      --run "$torch" --run "$tarn $1" "${@:2}" || failed=1
  }
  in_turn tarn_tracked --repeats 4 "${all[@]}"
  in_turn tarn_tracked --repeats 3 --threads 2 "$root"/examples/pytorch/traces/*.trace.gz
  in_turn tarn_identified --repeats 2 "${all[@]}"
  return $failed
}

# Recorded from programs of PyTorch, whose backward pass has a thread of its own.
run_workloads_tarn() {
  one_by_one workloads_tarn.jsonl tarn_replay "--device sim --json --passes 6 --threads 2 --pool tarn @WORKLOADS" \
    "--device cuda --json --passes 6 --threads 2 --pool tarn @WORKLOADS" \
    "--device cuda --json --passes 6 --threads 2 --pool tarn_tracked @WORKLOADS"
}
run_workloads_torch() {
  one_by_one workloads_torch.jsonl tarn_replay_torch "--device cuda --json --passes 6 --threads 2 --pool torch @WORKLOADS"
}
run_workloads_torch_expandable() {
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True one_by_one workloads_torch_expandable.jsonl tarn_replay_torch \
    "--device cuda --json --passes 6 --threads 2 --pool torch_expandable @WORKLOADS"
}

# Patterns that are hard on pools, on the same pools but those that call the driver for each block.
run_patterns_tarn() {
  local runs=() pool
  for pool in tarn tarn_segments host_malloc std_pmr mimalloc; do
    runs+=("--device sim --json --passes 6 --pool $pool @PATTERNS")
  done
  for pool in tarn tarn_identified tarn_no_remap tarn_segments tarn_tracked; do
    runs+=("--device cuda --json --passes 6 --pool $pool @PATTERNS")
  done
  one_by_one patterns_tarn.jsonl tarn_replay "${runs[@]}"
}
run_patterns_cuda() {
  local runs=() pool
  for pool in cuda_async cub thrust_mr; do runs+=("--device cuda --json --passes 6 --pool $pool @PATTERNS"); done
  runs+=("--device cuda --json --passes 2 --pool stack_arena @PATTERNS")
  one_by_one patterns_cuda.jsonl tarn_replay "${runs[@]}"
}
run_patterns_torch() {
  one_by_one patterns_torch.jsonl tarn_replay_torch "--device cuda --json --passes 6 --pool torch @PATTERNS"
}
run_patterns_torch_expandable() {
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True one_by_one patterns_torch_expandable.jsonl tarn_replay_torch \
    "--device cuda --json --passes 6 --pool torch_expandable @PATTERNS"
}
run_patterns_rmm() {
  one_by_one patterns_rmm.jsonl tarn_replay_rmm "--device cuda --json --passes 6 --pool rmm_pool @PATTERNS" \
    "--device cuda --json --passes 6 --pool rmm_arena @PATTERNS" "--device cuda --json --passes 6 --pool rmm_binning @PATTERNS" \
    "--device cuda --json --passes 6 --pool cccl @PATTERNS"
}
run_patterns_dali() {
  one_by_one patterns_dali.jsonl tarn_replay_dali "--device cuda --json --passes 6 --pool dali @PATTERNS"
}

# Several processes, so that the peers' slow windows do not cost the other works their time. Not with a
# million blocks: what takes minutes to free them (thrust_mr), and cuda_malloc.
run_hot_paths_cuda() {
  one_by_one hot_paths_cuda.jsonl tarn_hot_paths \
    "--device cuda --limit 60 --filter ^(hot_pair|two_streams|other_thread|threads|tail)" \
    "--device cuda --limit 60 --filter ^window" \
    "--device cuda --limit 40 --filter ^live --pool tarn,tarn_tracked,tarn_identified,cuda_async,cub" \
    "--device cuda --limit 20 --filter ^fail/(above|limited)" \
    "--device cuda --limit 40 --filter ^fail/full --pool tarn,tarn_tracked,cuda_async,cub,thrust_mr"
}
run_hot_paths_host() { one_by_one hot_paths_host.jsonl tarn_hot_paths "--device sim --limit 45" "--device host --limit 40"; }
run_hot_paths_torch() {
  one_by_one hot_paths_torch.jsonl tarn_hot_paths_torch "--limit 20 --filter ^[^f]" "--limit 15 --filter ^fail"
}
run_hot_paths_torch_expandable() {
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True one_by_one hot_paths_torch_expandable.jsonl tarn_hot_paths_torch \
    "--limit 20 --filter ^[^f]" "--limit 15 --filter ^fail"
}
run_hot_paths_rmm() {
  local runs=() pool
  for pool in rmm_binning rmm_pool rmm_arena cccl; do runs+=("--pool $pool --limit 25 --filter ^[^f]"); done
  for pool in rmm_binning rmm_pool rmm_arena cccl; do runs+=("--pool $pool --limit 15 --filter ^fail"); done
  one_by_one hot_paths_rmm.jsonl tarn_hot_paths_rmm "${runs[@]}"
}
run_hot_paths_dali() {
  one_by_one hot_paths_dali.jsonl tarn_hot_paths_dali "--limit 25 --filter ^[^f]" "--limit 15 --filter ^fail"
}

# Batches between host and device, and pinning; PyTorch's after it, whose import alone takes many seconds.
run_moving() {
  local file=$results/moving.jsonl.new program failed=0
  program=$(built tarn_moving) || { say "tarn_moving was not built"; return 77; }
  : >"$file"
  timeout 25 "$program" --device cuda --json "$file" || failed=1
  if [ -n "$torch_dir" ]; then
    timeout 40 python3 "$root/bench/moving/torch_moving.py" "$file" || say "PyTorch's loader ended with $?"
  fi
  return $failed
}

# Sleep and wake.
run_sleep() {
  local program
  program=$(built tarn_sleep) || { say "tarn_sleep was not built"; return 77; }
  "$program" --device cuda --json "$results/sleep.jsonl.new"
}

# Compaction of a checkerboard and of each trace.
run_compact() {
  local program all small trace
  program=$(built tarn_compact) || { say "tarn_compact was not built"; return 77; }
  find_traces
  "$program" --device cuda --json "$results/compact.jsonl.new" "${all[@]}"
}

# Tasks whose peaks exceed the device.
run_reservations() {
  local program
  program=$(built tarn_reservations) || { say "tarn_reservations was not built"; return 77; }
  "$program" --device cuda --json "$results/reservations.jsonl.new"
}

# Conversions, and copies between two GPUs where there are two.
run_convert() {
  local program
  program=$(built tarn_convert) || { say "tarn_convert was not built"; return 77; }
  "$program" --json "$results/convert$devices.jsonl.new"
}

# Captures with the pool, against memory allocated before.
run_graphs() {
  local program
  program=$(built tarn_graphs) || { say "tarn_graphs was not built"; return 77; }
  "$program" --json "$results/graphs.jsonl.new"
}

# Who survives on a GPU that has 1.00, 1.01, 1.02 and 1.05 times a trace's peak live bytes: a ballast takes the rest of it.
caps=1.00,1.01,1.02,1.05
run_survival_tarn() {
  one_by_one survival_tarn.jsonl tarn_replay "--device sim --json --cap $caps --pool tarn @ALL" \
    "--device sim --json --cap $caps --pool tarn_no_remap @ALL" "--device sim --json --cap $caps --pool std_pmr @ALL" \
    "--device cuda --json --cap $caps --pool tarn @ALL" "--device cuda --json --cap $caps --pool tarn_no_remap @ALL"
}
run_survival_cuda() {
  # The pools that ask the driver again at each refusal take minutes on the others.
  one_by_one survival_cuda.jsonl tarn_replay "--device cuda --json --cap $caps --pool cuda_async @ALL" \
    "--device cuda --json --cap $caps --pool cub @SMALL" "--device cuda --json --cap $caps --pool thrust_mr @SMALL" \
    "--device cuda --json --cap $caps --pool cuda_malloc @SMALL"
}
run_survival_torch() {
  one_by_one survival_torch.jsonl tarn_replay_torch "--device cuda --json --cap $caps --pool torch @ALL"
}
run_survival_torch_expandable() {
  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True one_by_one survival_torch_expandable.jsonl tarn_replay_torch \
    "--device cuda --json --cap $caps --pool torch_expandable @ALL"
}
run_survival_rmm() {
  one_by_one survival_rmm.jsonl tarn_replay_rmm "--device cuda --json --cap $caps --pool rmm_pool @ALL" \
    "--device cuda --json --cap $caps --pool rmm_arena @ALL" "--device cuda --json --cap $caps --pool rmm_binning @ALL"
}

# Other people's programs on tarn. Each takes stage_seconds at most.
#
# What they need, and nothing else: configured without tests and benches where there is no build yet. tiny-cuda-nn and AMReX take minutes
# to compile; what prebuild made is taken as it is.
run_clients_build() {
  local program file targets=() keep_going=-k
  for file in bench/tarn_nanovdb bench/tarn_tcnn bench/tarn_amrex examples/libtarn_c.so tarn_torch/tarn_torch.so; do
    program=$deps/built/$(basename "$file").gz
    [ -f "$program" ] || continue
    say "prebuilt: $(basename "$file")"
    mkdir -p "$(dirname "$build/$file")"
    gunzip -c "$program" >"$build/$file" && chmod +x "$build/$file"
  done
  [ -f "$deps/built/libtarn_c.so.gz" ] || targets+=(example_tarn_c_cuda)
  if [ -n "$nanovdb_dir" ] && [ ! -f "$deps/built/tarn_nanovdb.gz" ]; then targets+=(tarn_nanovdb); fi
  if [ -n "$tcnn_dir" ] && [ ! -f "$deps/built/tarn_tcnn.gz" ]; then targets+=(tarn_tcnn); fi
  if [ -n "$amrex_dir" ] && [ ! -f "$deps/built/tarn_amrex.gz" ]; then targets+=(tarn_amrex); fi
  [ ${#targets[@]} -ne 0 ] || return 0
  if [ ! -f "$build/CMakeCache.txt" ]; then
    TARN_BUILD_REST=OFF run_configure || return
  fi
  [ -f "$build/build.ninja" ] && keep_going=-k0
  cmake --build "$build" -j "$jobs" --target "${targets[@]}" -- $keep_going
}
# client PROGRAM FILE ARGUMENT...: appends nothing where the program was not built.
client() {
  local program file=$results/$2.new
  program=$(built "$1") || { say "skipped: $1 was not built, its sources are not in .gpu-deps"; return 77; }
  shift 2
  rm -f "$file"
  "$program" "$@" --json "$file"
}
export -f client run_configure
run_clients_nanovdb() { client tarn_nanovdb clients_nanovdb.jsonl --repeats $((stage_seconds < 120 ? 2 : 3)); }
run_clients_tcnn() {
  [ -n "$tcnn_dir" ] || { say "tiny-cuda-nn is not in .gpu-deps"; return 77; }
  client tarn_tcnn clients_tcnn.jsonl "$tcnn_dir/data/images/albert.jpg" --repeats $((stage_seconds < 90 ? 2 : 3))
}
run_clients_amrex() { client tarn_amrex clients_amrex.jsonl --repeats $((stage_seconds < 90 ? 3 : 5)); }
# CuPy and Numba: their tests, and the comparison with CuPy's allocators.
run_clients_cupy() {
  local folder=$root/examples/python failed=0
  export TARN_C_LIBRARY=$build/examples/libtarn_c.so PYTHONDONTWRITEBYTECODE=1
  python3 -c 'import cupy' 2>/dev/null || { say "python3 has no CuPy"; return 77; }
  [ -f "$TARN_C_LIBRARY" ] || { say "libtarn_c.so was not built"; return 77; }
  timeout $((stage_seconds / 3)) python3 "$folder/test_cupy.py" -v || { say "FAILED: test_cupy.py"; failed=1; }
  if python3 -c 'import numba.cuda' 2>/dev/null; then
    timeout $((stage_seconds / 5)) python3 "$folder/test_numba.py" -v || { say "FAILED: test_numba.py"; failed=1; }
  else
    say "skipped Numba: python3 has none"
  fi
  timeout $((stage_seconds - SECONDS - 2)) python3 "$folder/compare_cupy.py" --seconds $((stage_seconds - SECONDS - 5)) \
    --passes $((stage_seconds < 150 ? 3 : 5)) --json "$results/clients_cupy.jsonl.new" || failed=1
  return $failed
}
# PyTorch: builds the extension, runs its tests, and compares workloads under PyTorch's allocators and tarn. A workload's rows are in the
# file as soon as it is measured.
run_clients_torch() {
  local status=0 file=$results/clients_torch.jsonl
  [ -n "$torch_dir" ] || { say "no PyTorch with CUDA in python3"; return 77; }
  export MAX_JOBS=$jobs TARN_TORCH_LIBRARY=$build/tarn_torch/tarn_torch.so PYTHONDONTWRITEBYTECODE=1
  cd "$root/examples/pytorch" || return
  [ -f "$TARN_TORCH_LIBRARY" ] || python3 -c 'import tarn_torch; print(tarn_torch.build())' || return
  timeout $(((stage_seconds - SECONDS) * 2 / 5)) python3 -m unittest -v test_tarn_torch || { say "FAILED: test_tarn_torch"; status=1; }
  [ -z "${TORCH_DIAGNOSE:-}" ] || timeout $(((stage_seconds - SECONDS) / 4)) python3 compare_workloads.py --diagnose "$TORCH_DIAGNOSE" || status=1
  # shellcheck disable=SC2086
  timeout $((stage_seconds - SECONDS - 2)) python3 compare_workloads.py "$file" --seconds $((stage_seconds - SECONDS - 4)) \
    --repeats $((stage_seconds < 400 ? 2 : 3)) ${TORCH_COMPARE:-} || status=1
  return $status
}
# The tests of PyTorch on two GPUs alone.
run_torch_devices() {
  local log=$results/torch$devices.log status
  [ -n "$torch_dir" ] || { say "no PyTorch with CUDA in python3"; return 77; }
  export MAX_JOBS=$jobs TARN_TORCH_LIBRARY=$build/tarn_torch/tarn_torch.so PYTHONDONTWRITEBYTECODE=1
  mkdir -p "$build/tarn_torch"
  [ ! -f "$deps/built/tarn_torch.so.gz" ] || gunzip -c "$deps/built/tarn_torch.so.gz" >"$TARN_TORCH_LIBRARY"
  cd "$root/examples/pytorch" || return
  [ -f "$TARN_TORCH_LIBRARY" ] || python3 -c 'import tarn_torch; print(tarn_torch.build())' || return
  cp "$environment_file" "$log"
  timeout $((stage_seconds - 5)) python3 -m unittest -v test_tarn_torch.TwoDevices >>"$log" 2>&1
  status=$?
  sed -i "s|$root/||g" "$log"
  cat "$log"
  return $status
}
# PyTorch's own tests of its allocator, with tarn installed.
run_clients_torch_tests() {
  local tests=$deps/torch_tests
  [ -n "$torch_dir" ] || { say "no PyTorch with CUDA in python3"; return 77; }
  [ -f "$tests/test/test_cuda.py" ] || { say "PyTorch's tests are not in .gpu-deps"; return 77; }
  export MAX_JOBS=$jobs TARN_TORCH_LIBRARY=$build/tarn_torch/tarn_torch.so PYTHONDONTWRITEBYTECODE=1
  PYTHONPATH=$tests/python python3 "$root/examples/pytorch/run_torch_tests.py" "$tests/test/test_cuda.py" \
    --json "$results/clients_torch_tests.jsonl.new" --first "$results/clients_torch_tests.jsonl" --seconds $((stage_seconds - 5))
}
# RMM's own suites of resources, compiled here: 20 s of compiling each.
run_clients_rmm() {
  [ -n "$rmm_dir" ] || { say "RMM is not in .gpu-deps"; return 77; }
  [ -d "$deps/rmm_tests/cpp/tests" ] || { say "RMM's tests are not in .gpu-deps"; return 77; }
  python3 -B "$root/examples/rmm/run_suites.py" --rmm "$rmm_dir" --tests "$deps/rmm_tests/cpp/tests" --prefix "$deps/usr" \
    --build "$build/clients_rmm" --jobs "$jobs" --json "$results/clients_rmm.jsonl.new"
}

run_summary() {
  python3 "$root/bench/summary.py" "$results" || return 1
  if python3 -c 'import matplotlib'; then python3 "$root/bench/plots.py" "$results"; else say "skipped the picture: no matplotlib"; fi
}

# pack_programs: all that run_build made, for its next run on another machine.
pack_programs() {
  local file programs=()
  while read -r file; do
    strip "$file" && programs+=("${file#"$build"/}")
  done < <(find "$build" -path '*/CMakeFiles/*' -prune -o -type f \( -executable -o -name '*.so*' \) -print |
    while read -r file; do ! file -b "$file" | grep -q '^ELF' || say "$file"; done)
  tar -C "$build" -czf "$deps/built/programs.tar.gz" "${programs[@]}" && say "$commit" >"$deps/built/COMMIT"
}
pack_program() { strip -o "$1.stripped" "$1" && gzip -9 -c "$1.stripped" >"$deps/built/$(basename "$1").gz" && rm "$1.stripped"; }
# move_sources FROM TO: what of the sources of NanoVDB, tiny-cuda-nn and AMReX is only compiled, unless it is there already.
move_sources() {
  local path
  for path in nanovdb/nanovdb tcnn/include tcnn/src tcnn/dependencies amrex; do
    if [ ! -d "$1/$path" ] || [ -d "$2/$path" ]; then continue; fi
    mkdir -p "$(dirname "$2/$path")"
    mv "$1/$path" "$2/$path"
  done
}
# prebuild: programs for a machine with the CPU and the C library of this one or newer ones. Carry .gpu-deps/built with
# the rest of .gpu-deps, and build again after a change of tarn's headers.
prebuild() {
  local failed=0 program file target sources rest=OFF
  [ "${1:-}" != all ] || rest=ON
  move_sources "$build/sources" "$deps"
  find_python_packages >/dev/null
  rm -rf "$deps/built"
  mkdir -p "$deps/built"
  CUDAARCHS=${ARCH:-90} TARN_BUILD_REST=$rest run_configure || return
  if [ $rest = ON ]; then
    run_build || failed=1
    pack_programs || failed=1
  fi
  for program in bench/tarn_nanovdb:tarn_nanovdb:$nanovdb_dir bench/tarn_tcnn:tarn_tcnn:$tcnn_dir bench/tarn_amrex:tarn_amrex:$amrex_dir \
      examples/libtarn_c.so:example_tarn_c_cuda:yes; do
    IFS=: read -r file target sources <<<"$program"
    [ -n "$sources" ] || { say "skipped $target: its sources are not in .gpu-deps"; continue; }
    if cmake --build "$build" -j "$jobs" --target "$target"; then pack_program "$build/$file"; else failed=1; fi
  done
  if [ -n "$torch_dir" ]; then
    file=$build/tarn_torch/tarn_torch.so
    rm -f "$file"
    if (cd "$root/examples/pytorch" && MAX_JOBS=$jobs TARN_TORCH_LIBRARY=$file PYTHONDONTWRITEBYTECODE=1 \
        python3 -c 'import tarn_torch; tarn_torch.build()'); then
      pack_program "$file"
    else
      failed=1
    fi
  fi
  if [ $failed = 0 ]; then
    rm -rf "$build/sources"
    move_sources "$deps" "$build/sources"
  fi
  ls -l "$deps/built"
  du -sh "$deps"
  return $failed
}

only_two_gpus=  # whether build makes only what the stages of two_gpus need
[ "$*" != two_gpus ] || only_two_gpus=yes
case ${1:-} in
  prepare)
    if [ "${2:-}" = mpi ]; then prepare_mpi; else prepare "${2:-}"; fi
    exit
    ;;
  prebuild)
    build=${BUILD:-$root/build-clients}
    prebuild "${2:-}"
    exit
    ;;
esac

for argument in "$@"; do
  case $argument in
    two_gpus) wanted+=(configure build nccl examples tests mpi convert torch_devices summary) ;;
    -*) say "unknown option $argument" >&2; exit 2 ;;
    *) wanted+=("$argument") ;;
  esac
done
only_clients=yes  # whether no other stage is wanted: then environment.txt stays that of the other results
for argument in "${wanted[@]:-all}"; do [[ $argument == clients* ]] || only_clients=; done
if [ -z "$total" ]; then
  total=570
  for argument in "${wanted[@]:-all}"; do [ "$argument" != clients ] || total=1900; done
fi
mkdir -p "$results" "$logs"
more_traces=${TRACES:-$deps/traces}
TARN_DRIVER=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0 2>/dev/null)
devices=  # in the names of results that more than one GPU changes
[ "$(nvidia-smi -L 2>/dev/null | wc -l)" -lt 2 ] || devices=_two_devices
export caps devices only_two_gpus TARN_DRIVER root deps more_traces build logs results jobs commit
export -f say built find_traces one_by_one
find_python_packages
# That in bench/results/ is of the results of one GPU.
environment_file=$results/environment.txt
[ -z "$only_clients$devices" ] || environment_file=$logs/environment.txt
export environment_file
environment | tee "$environment_file"
[ -d "$deps" ] || say "no .gpu-deps: what this machine lacks is skipped (bench/gpu.sh prepare, on Debian, gathers it)"
# Prebuilt programs name the folders of the machine that built them.
for folder in "$deps/usr/lib/x86_64-linux-gnu" "$deps/dali" "$deps/rmm/librmm/lib64" "$deps/rmm/rapids_logger/lib64" ${nccl_dir:+"$nccl_dir/lib"} ${torch_dir:+"$torch_dir/lib"}; do
  [ ! -d "$folder" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH

# Limits, not what they take: together more than ten minutes, of which TOTAL_SECONDS keeps them.
stage configure 40 run_configure
stage build 200 run_build
stage replay_tarn 120 run_replay_tarn
stage replay_torch_expandable 40 run_replay_torch_expandable
stage replay_torch 40 run_replay_torch
stage in_turn 220 run_in_turn
stage replay_cuda 100 run_replay_cuda
stage workloads_tarn 40 run_workloads_tarn
stage workloads_torch_expandable 20 run_workloads_torch_expandable
stage workloads_torch 20 run_workloads_torch
stage hot_paths_cuda 240 run_hot_paths_cuda
stage hot_paths_torch 55 run_hot_paths_torch
stage hot_paths_torch_expandable 55 run_hot_paths_torch_expandable
stage hot_paths_host 95 run_hot_paths_host
stage moving 70 run_moving
stage sleep 60 run_sleep
stage compact 60 run_compact
stage reservations 60 run_reservations
stage convert 20 run_convert
stage graphs 30 run_graphs
stage nccl 90 run_nccl
stage tests 90 run_tests
stage endings 60 run_endings
stage sanitize 120 run_sanitize
stage planted 120 run_planted
stage examples 80 run_examples
stage snapshots 40 run_snapshots
stage mpi 150 run_mpi
stage replay_rmm 60 run_replay_rmm
stage hot_paths_rmm 160 run_hot_paths_rmm
stage patterns_tarn 60 run_patterns_tarn
stage patterns_torch_expandable 30 run_patterns_torch_expandable
stage patterns_torch 30 run_patterns_torch
stage patterns_cuda 60 run_patterns_cuda
stage patterns_rmm 60 run_patterns_rmm
stage replay_dali 40 run_replay_dali
stage patterns_dali 30 run_patterns_dali
stage hot_paths_dali 45 run_hot_paths_dali
if [ ${#wanted[@]} -ne 0 ]; then  # beyond the ten minutes of all the others
  stage survival_tarn 150 run_survival_tarn
  stage survival_torch_expandable 60 run_survival_torch_expandable
  stage survival_torch 60 run_survival_torch
  stage survival_cuda 150 run_survival_cuda
  stage survival_rmm 90 run_survival_rmm
  stage torch_devices 180 run_torch_devices
  for name in build nanovdb cupy tcnn amrex rmm torch_tests torch; do  # the last one uses all the time that is left
    stage "clients_$name" "${client_seconds[clients_$name]}" "run_clients_$name"
  done
fi
total=$((total + 25))
stage summary 25 run_summary

say ""
[ -f "$results/summary.txt" ] && cat "$results/summary.txt"
for name in "${order[@]}"; do printf '%-26s %s\n' "$name" "${outcome[$name]}"; done | tee "$results/stages.txt"
if [ -n "${OUT:-}" ]; then
  tar -czf "$OUT/results.tar.gz" -C "$root/bench" results -C "$build" logs
  cp "$results"/{summary.txt,stages.txt} "$logs/build.log" "$OUT"/
fi
! grep -q FAILED "$results/stages.txt"
