#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one go: builds, runs the CUDA tests, the examples, the replay and the hot paths
# with their peers, and writes bench/results/. Needs no network there.
#
#   bench/gpu.sh prepare   on a Debian or Ubuntu machine: gathers into .gpu-deps/ what a GPU machine lacks
#                          (Catch2, CLI11, nlohmann-json, zlib, Google Benchmark, mimalloc; RMM if pip has it)
#   bench/gpu.sh           on the GPU machine, with .gpu-deps/ in the repository root: runs all stages
#   bench/gpu.sh --sanitize    adds compute-sanitizer over the CUDA tests
#   bench/gpu.sh STAGE...      runs only these: configure build tests sanitize examples replay hot_paths summary
#
# Environment: TARN_COMMIT   commit that the results are of, where there is no .git
#              TRACES        folder of more traces to replay; prepare takes a copy of them along
#              OUT           folder that gets the results once more, packed
#              JOBS          compile jobs (all cores)
# A stage that fails or takes too long does not stop the later ones; the exit status tells.
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
deps=$root/.gpu-deps
build=${BUILD:-$root/build-gpu}
results=$root/bench/results
jobs=${JOBS:-$(nproc)}
commit=${TARN_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
export TARN_COMMIT=$commit

say() { printf '%s\n' "$*"; }

prepare() {
  local missing=() package
  local packages=(catch2 libcli11-dev nlohmann-json3-dev zlib1g-dev libbenchmark-dev libbenchmark1debian
    libmimalloc-dev libmimalloc2.0)
  for package in "${packages[@]}"; do
    dpkg -L "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  if [ ${#missing[@]} -ne 0 ]; then
    say "missing: ${missing[*]}; first: apt-get install -y ${missing[*]}" >&2
    return 1
  fi
  rm -rf "$deps"
  mkdir -p "$deps"
  for package in "${packages[@]}"; do
    # libz.so is a link to a library that the GPU machine has or not; the archive always works.
    dpkg -L "$package" | grep -E '^/usr/(include|lib|share/cmake)' | grep -v '/libz\.so$' |
      while read -r file; do [ -d "$file" ] || printf '%s\n' "$file"; done |
      tar -C / -c -T <(sed 's|^/||') 2>/dev/null | tar -C "$deps" -x
  done
  if python3 -m pip download -q --no-deps --only-binary=:all: -d "$deps/wheels" librmm-cu13 'rapids-logger==0.3.*'; then
    mkdir "$deps/rmm"
    for package in "$deps"/wheels/*.whl; do python3 -m zipfile -e "$package" "$deps/rmm"; done
  else
    say "skipped RMM: pip could not fetch it"
  fi
  rm -rf "$deps/wheels"
  if [ -n "${TRACES:-}" ]; then
    mkdir "$deps/traces"
    cp "$TRACES"/*.trace.gz "$deps/traces"
  fi
  du -sh "$deps"
}

# stage NAME SECONDS FUNCTION: runs it with its log and its limit; remembers how it went.
declare -A outcome
order=()
wanted=()
stage() {
  local name=$1 seconds=$2 function=$3 start=$SECONDS status
  if [ ${#wanted[@]} -ne 0 ] && [[ " ${wanted[*]} " != *" $name "* ]]; then return; fi
  order+=("$name")
  say "== $name"
  export -f "$function"
  timeout --kill-after=10 "$seconds" bash -c "set -u; $function" >"$logs/$name.log" 2>&1
  status=$?
  case $status in
    0) outcome[$name]="ok" ;;
    77) outcome[$name]="skipped" ;;
    124 | 137) outcome[$name]="FAILED: over $seconds s" ;;
    *) outcome[$name]="FAILED: status $status" ;;
  esac
  outcome[$name]+=" ($((SECONDS - start)) s)"
  say "   ${outcome[$name]}"
  [[ ${outcome[$name]} == FAILED* ]] && tail -n 25 "$logs/$name.log" | sed 's/^/   | /'
}

find_python_packages() {
  torch_dir=$(python3 -c 'import os, importlib.util as u; s = u.find_spec("torch"); print(os.path.dirname(s.origin) if s else "")' 2>/dev/null)
  [ -f "$torch_dir/lib/libc10_cuda.so" ] || torch_dir=
  rmm_dir=
  [ -d "$deps/rmm/librmm" ] && rmm_dir=$deps/rmm
  [ -n "$torch_dir" ] || say "skipped PyTorch's allocator: no torch with CUDA in python3"
  [ -n "$rmm_dir" ] || say "skipped RMM: not in .gpu-deps"
  export torch_dir rmm_dir
}

environment() {
  local gpu driver
  gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader -i 0 2>/dev/null || echo none)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader -i 0 2>/dev/null || echo none)
  cat <<EOF
gpu: $gpu
driver: $driver
cuda toolkit: $(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
compiler: $(g++ --version | head -n 1)
cpu: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores
torch: $([ -n "$torch_dir" ] && python3 -c 'import torch; print(torch.__version__)' 2>/dev/null || echo none)
rmm: $(cat "$deps/rmm/librmm/VERSION" 2>/dev/null || echo none)
commit: $commit
date: $(date -u +%Y-%m-%dT%H:%MZ)
EOF
}

run_configure() {
  local generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$deps/usr" \
    -DCMAKE_CUDA_ARCHITECTURES=native -DTARN_BUILD_TESTS=ON -DTARN_BUILD_EXAMPLES=ON -DTARN_BUILD_BENCH=ON \
    -DTARN_BENCH_RMM_DIR="$rmm_dir" -DTARN_BENCH_TORCH_DIR="$torch_dir" "$@"
}

run_build() {
  cmake --build "$build" -j "$jobs" -- -k 0 2>/dev/null || cmake --build "$build" -j "$jobs" || return 1
  # A carried RMM that this system cannot load must cost its own figures only.
  if ! "$build/bench/replay/tarn_replay" --pool list && [ -n "$rmm_dir" ]; then
    say "skipped RMM: it does not load here"
    run_configure -DTARN_BENCH_RMM_DIR= && cmake --build "$build" -j "$jobs"
  fi
}

run_tests() { ctest --test-dir "$build" --output-on-failure --timeout 100 -j 4; }

run_sanitize() {
  command -v compute-sanitizer >/dev/null || { say "compute-sanitizer is not installed"; return 77; }
  local tests=()
  mapfile -t tests < <(find "$build/tests" -maxdepth 2 -type f -executable -name '*cuda*test*' -o -maxdepth 2 -type f -executable -name '*test*cuda*')
  [ ${#tests[@]} -ne 0 ] || { say "no CUDA tests were built"; return 1; }
  for program in "${tests[@]}"; do
    compute-sanitizer --tool memcheck --error-exitcode 9 "$program" '[cuda]' || return 1
  done
}

run_examples() {
  local failed=0 program
  while read -r program; do
    say "-- $(basename "$program")"
    timeout 60 "$program" || { say "FAILED with $?"; failed=1; }
  done < <(find "$build/examples" -maxdepth 2 -type f -executable ! -name '*.so' | sort)
  return $failed
}

# One process per pool: none sees what another left behind.
run_replay() {
  local tool=$build/bench/replay/tarn_replay failed=0 pool files=() small=("$root"/examples/traces/*.trace.gz)
  files=("${small[@]}")
  if [ -d "$more_traces" ]; then
    for trace in "$more_traces"/*.trace.gz; do
      [ -e "$root/examples/traces/$(basename "$trace")" ] || files+=("$trace")
    done
  fi
  "$tool" --device cuda --json --passes 1 --pool cuda_malloc "$root/examples/traces/demucs_train.trace.gz" || return 1
  : >"$results/replay.jsonl"
  add() { timeout 100 "$@" >>"$results/replay.jsonl" || { say "FAILED with $?: $*"; failed=1; }; }
  for pool in $("$tool" --pool list | awk '$2 == "cuda" { print $1 }'); do
    case $pool in
      # A driver call per block: short traces, twice.
      cuda_malloc | cub_default) add "$tool" --device cuda --json --passes 2 --pool "$pool" "${small[@]}" ;;
      *) add "$tool" --device cuda --json --passes 5 --pool "$pool" "${files[@]}" ;;
    esac
  done
  for pool in tarn tarn_no_remap host_malloc std_pmr; do
    add "$tool" --device sim --json --passes 5 --pool "$pool" "${files[@]}"
  done
  if [ -x "${tool}_torch" ]; then
    add "${tool}_torch" --device cuda --json --passes 5 --pool torch "${files[@]}"
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True \
      add "${tool}_torch" --device cuda --json --passes 5 --pool torch_expandable "${files[@]}"
  fi
  "$tool" --device cuda --pool tarn,tarn_no_remap --passes 5 "${files[@]}" >"$results/replay_tarn.txt" || failed=1
  return $failed
}

run_hot_paths() {
  local tool=$build/bench/tarn_hot_paths failed=0
  time_it() {
    local out=$1
    shift
    timeout 150 "$@" --benchmark_min_time=0.05 --benchmark_out="$results/$out.json" --benchmark_out_format=json ||
      { say "FAILED with $?: $*"; failed=1; }
  }
  time_it hot_paths "$tool"
  if [ -x "${tool}_torch" ]; then
    time_it hot_paths_torch "${tool}_torch"
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True time_it hot_paths_torch_expandable "${tool}_torch"
  fi
  return $failed
}

run_summary() { python3 "$root/bench/summary.py" "$results"; }

if [ "${1:-}" = prepare ]; then
  prepare
  exit
fi

sanitize=0
for argument in "$@"; do
  case $argument in
    --sanitize) sanitize=1 ;;
    -*) say "unknown option $argument" >&2; exit 2 ;;
    *) wanted+=("$argument") ;;
  esac
done
logs=$results
mkdir -p "$results"
more_traces=${TRACES:-$deps/traces}
export root deps more_traces build results jobs commit
export -f say run_configure
find_python_packages
environment | tee "$results/environment.txt"
[ -d "$deps" ] || say "no .gpu-deps: what this machine lacks is skipped (bench/gpu.sh prepare, on Debian, gathers it)"
export LD_LIBRARY_PATH=$deps/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

stage configure 60 run_configure
stage build 300 run_build
stage tests 150 run_tests
if [ $sanitize -eq 1 ] || [[ " ${wanted[*]:-} " == *" sanitize "* ]]; then stage sanitize 180 run_sanitize; fi
stage examples 90 run_examples
stage replay 200 run_replay
stage hot_paths 240 run_hot_paths
stage summary 60 run_summary

say ""
[ -f "$results/summary.txt" ] && cat "$results/summary.txt"
failed=0
for name in "${order[@]}"; do
  printf '%-10s %s\n' "$name" "${outcome[$name]}"
  [[ ${outcome[$name]} == FAILED* ]] && failed=1
done | tee "$results/stages.txt"
grep -q FAILED "$results/stages.txt" && failed=1
if [ -n "${OUT:-}" ]; then
  tar -czf "$OUT/results.tar.gz" -C "$root/bench" results
  cp "$results"/{summary.txt,stages.txt,environment.txt,tests.log} "$OUT"/ 2>/dev/null
fi
exit $failed
