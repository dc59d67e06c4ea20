#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A project of a user's, built against tarn in each way that the README names.
set -eu
source=$1
work=$2
rm -rf "$work"
mkdir -p "$work"
cmake -S "$source" -B "$work/tarn" -DTARN_BUILD_TESTS=OFF -DTARN_BUILD_EXAMPLES=OFF -DTARN_BUILD_BENCH=OFF >"$work/log" 2>&1
cmake --install "$work/tarn" --prefix "$work/prefix" >>"$work/log" 2>&1
for compiler in g++ clang++; do
  command -v $compiler >/dev/null || { echo "skipped $compiler: not installed"; continue; }
  for way in installed subdirectory fetched; do
    build=$work/$way-$compiler
    { cmake -S "$source/tests/package" -B "$build" -DWAY=$way -DTARN_SOURCE="$source" -DCMAKE_CXX_COMPILER=$compiler \
      -DCMAKE_PREFIX_PATH="$work/prefix" && cmake --build "$build" && "$build/user"; } >"$work/log" 2>&1 ||
      { cat "$work/log"; echo "$way with $compiler failed"; exit 1; }
    [ ! -d "$build/tarn/tests" ] || { echo "$way built tarn's tests"; exit 1; }
    echo "$way with $compiler works"
  done
done
if command -v nvcc >/dev/null; then
  nvcc -std=c++20 -x cu -I "$work/prefix/include" "$source/tests/package/user.cpp" -o "$work/user_cu" && echo "as .cu with nvcc compiles"
fi
