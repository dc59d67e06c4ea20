#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A project of a user's, built against tarn in each way that the README names, and its output compared.
# Use: check.sh ROOT WORK_FOLDER COMPILER
set -eu
source=$1
work=$2
own=$3
consumer=$source/examples/cmake_consumer
rm -rf "$work"
mkdir -p "$work"

quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; echo "FAILED: $*"; exit 1; }; }

quietly cmake -S "$source" -B "$work/tarn" -DTARN_BUILD_TESTS=OFF -DTARN_BUILD_EXAMPLES=OFF -DTARN_BUILD_BENCH=OFF \
  -DCMAKE_CXX_COMPILER="$own"
quietly cmake --install "$work/tarn" --prefix "$work/prefix"
other=$(find "$work/prefix/include" ! -name '*.hpp' ! -type d)
[ -z "$other" ] || { echo "FAILED: files other than headers were installed: $other"; exit 1; }

# try WAY PROJECT PROGRAM ARGUMENTS...: configures, builds and runs it.
try() {
  way=$1 project=$2 program=$3
  shift 3
  quietly cmake -S "$project" -B "$work/$way" "$@"
  quietly cmake --build "$work/$way"
  for folder in tests examples bench; do
    if [ -e "$work/$way/tarn/$folder" ] || [ -e "$work/$way/_deps/tarn-build/$folder" ]; then
      echo "$way built tarn's $folder"
      exit 1
    fi
  done
  quietly python3 "$source/examples/compare.py" "$consumer/main.expected" "$work/$way/$program"
  echo "$way works"
}

for compiler in "$own" clang++; do
  command -v "$compiler" >/dev/null || { echo "skipped $compiler: not installed"; continue; }
  name=$(basename "$compiler")
  # An installed tarn must be found, not the sources beside the example.
  try "installed, $name" "$consumer" consumer -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$work/prefix" -DTARN_SOURCE=/nonexistent
  try "fetched, $name" "$consumer" consumer -DCMAKE_CXX_COMPILER="$compiler" -DTARN_SOURCE="$source" -DCMAKE_DISABLE_FIND_PACKAGE_tarn=ON
  try "folder, $name" "$source/tests/package" user -DCMAKE_CXX_COMPILER="$compiler" -DTARN_SOURCE="$source"
done
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
if [ -n "$nvcc" ]; then
  try "folder, as CUDA" "$source/tests/package" user -DTARN_SOURCE="$source" -DUSER_CUDA=ON -DCMAKE_CXX_COMPILER="$own" \
    -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_HOST_COMPILER="$own" \
    -DCMAKE_CUDA_ARCHITECTURES=90
  # Compiled, and run where there is a device.
  quietly cmake -S "$source/examples/cuda_consumer" -B "$work/cuda" -DCMAKE_PREFIX_PATH="$work/prefix" -DTARN_SOURCE=/nonexistent \
    -DCMAKE_CXX_COMPILER="$own" -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_HOST_COMPILER="$own" -DCMAKE_CUDA_ARCHITECTURES=75
  quietly cmake --build "$work/cuda"
  if nvidia-smi >/dev/null 2>&1; then
    quietly "$work/cuda/saxpy"
    quietly "$work/cuda/copy_back"
    echo "installed, CUDA works"
  else
    echo "installed, CUDA compiles; not run: no GPU"
  fi
else
  echo "skipped CUDA: no nvcc"
fi
# A later minor version may differ before 1.0, so that an older one must not pass for it.
printf 'cmake_minimum_required(VERSION 3.22)\nproject(later LANGUAGES CXX)\nfind_package(tarn 0.99 CONFIG REQUIRED)\n' >"$work/CMakeLists.txt"
if cmake -S "$work" -B "$work/later" -DCMAKE_CXX_COMPILER="$own" -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" 2>&1; then
  echo "an older tarn was accepted as a later version"
  exit 1
fi
grep -q '0\.99' "$work/log" || { cat "$work/log"; exit 1; }
echo "a version that is too old is refused"
