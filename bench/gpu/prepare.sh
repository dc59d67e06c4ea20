#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bench/gpu.sh prepare [clients]: gathers into .gpu-deps/ what a GPU machine without network lacks; see bench/gpu.sh.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
deps=$root/.gpu-deps

say() { printf '%s\n' "$*"; }

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

missing=()
only=${1:-}
packages=(catch2 libcli11-dev nlohmann-json3-dev zlib1g-dev libmimalloc2.0)
[ "$only" != clients ] || packages=(libcli11-dev nlohmann-json3-dev)
for package in "${packages[@]}"; do
  dpkg -L "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -ne 0 ]; then
  say "missing: ${missing[*]}; first: apt-get install -y ${missing[*]}" >&2
  exit 1
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
# The versions that the READMEs in examples/integrations name.
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
  [ ! -e "$(dirname "$TORCH_TESTS")/../version.txt" ] || cp "$(dirname "$TORCH_TESTS")/../version.txt" "$deps/torch_tests"
else
  fetch_sources torch_tests https://github.com/pytorch/pytorch 70d99e998b4955e0049d13a98d77ae1b14db1f45 test/test_cuda.py version.txt
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
