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

# Catch2, which only the tests need, may be missing, and nothing need be built before the library is installed.
quietly cmake -S "$source" -B "$work/tarn" -DCMAKE_DISABLE_FIND_PACKAGE_Catch2=ON -DTARN_USE_CUDA=OFF -DCMAKE_CXX_COMPILER="$own"
grep -q 'skipped the tests (no Catch2)' "$work/log" || { echo "FAILED: the tests are not named as skipped"; exit 1; }
quietly cmake --install "$work/tarn" --prefix "$work/prefix"
other=$(find "$work/prefix/include" ! -name '*.hpp' ! -type d)
[ -z "$other" ] || { echo "FAILED: files other than headers were installed: $other"; exit 1; }
[ -e "$work/prefix/share/tarn/tarn_gdb.py" ] || { echo "FAILED: gdb's pretty printers were not installed"; exit 1; }
cmp -s "$source/LICENSE" "$work/prefix/share/doc/tarn/LICENSE" || { echo "FAILED: the licence was not installed"; exit 1; }
# A package for all architectures may have nothing there.
[ ! -e "$work/prefix/lib" ] || { echo "FAILED: files were installed to lib/"; exit 1; }
# Another folder for headers, and a prefix that is moved after the installation.
quietly cmake -S "$source" -B "$work/tarn" -DTARN_BUILD_TESTS=OFF -DTARN_BUILD_EXAMPLES=OFF -DTARN_BUILD_BENCH=OFF \
  -DCMAKE_INSTALL_INCLUDEDIR=include/elsewhere
quietly cmake --install "$work/tarn" --prefix "$work/before"
mv "$work/before" "$work/moved"

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
try "moved, headers elsewhere" "$consumer" consumer -DCMAKE_CXX_COMPILER="$own" -DCMAKE_PREFIX_PATH="$work/moved" -DTARN_SOURCE=/nonexistent
export PKG_CONFIG_PATH="$work/moved/share/pkgconfig"
pkg_config=$(command -v pkg-config || true)
if [ -n "$pkg_config" ]; then
  # shellcheck disable=SC2046
  quietly "$own" -std=c++20 "$consumer/main.cpp" $(pkg-config --cflags --libs tarn) -o "$work/by_pkg_config"
  quietly python3 "$source/examples/compare.py" "$consumer/main.expected" "$work/by_pkg_config"
  echo "pkg-config works"
else
  echo "skipped pkg-config: not installed"
fi
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
    for program in saxpy copy_back; do
      status=0
      "$work/cuda/$program" >"$work/log" 2>&1 || status=$?
      if [ "$status" -ne 1 ] || ! grep -q '^tarn: .*check that a device and its driver are installed' "$work/log"; then
        cat "$work/log"
        echo "FAILED: without a GPU $program ended with status $status, or without the reason"
        exit 1
      fi
    done
    echo "installed, CUDA compiles; without a GPU the programs print the reason"
  fi
else
  echo "skipped CUDA: no nvcc"
fi
# README's program, built by README's lines, with the installed package and with tarn as a folder; CMake's language CUDA is
# enabled or not. On a machine without CUDA the component is refused, and the message says what is missing.
readme=$work/readme
mkdir -p "$readme"
# block LANGUAGE WORDS: the first block of the language that has these words.
block() {
  awk -v fence="\`\`\`$1" -v words="$2" '
    index($0, fence) == 1 {inside = 1; text = ""; next}
    /^```/ {if (inside && index(text, words)) {printf "%s", text; exit} inside = 0}
    inside {text = text $0 "\n"}' "$source/README.md"
}
block cpp 'int main()' >"$readme/main.cpp"
block cmake 'find_package(tarn' >"$readme/lines.cmake"
cat >"$readme/CMakeLists.txt" <<'end'
cmake_minimum_required(VERSION 3.22)
project(app LANGUAGES ${APP_LANGUAGES})
add_executable(app main.cpp)
include(lines.cmake)
end
# readme_builds WAY RUNTIME CMAKE_ARGUMENT...: RUNTIME says how the program must link CUDA's runtime, Static or Shared.
readme_builds() {
  way=$1 runtime=$2
  shift 2
  quietly cmake -S "$readme" -B "$work/$way" -DCMAKE_CXX_COMPILER="$own" "$@"
  quietly cmake --build "$work/$way"
  linked=Static
  if readelf -d "$work/$way/app" | grep -q 'NEEDED.*libcudart'; then linked=Shared; fi
  [ $linked = "$runtime" ] || { echo "FAILED: $way linked CUDA's runtime as $linked, not as $runtime"; exit 1; }
  [ $linked = Shared ] || ! nm "$work/$way/app" | grep ' w cuda' || { echo "FAILED: $way lacks calls of CUDA's runtime"; exit 1; }
  if nvidia-smi >/dev/null 2>&1; then quietly "$work/$way/app"; fi
  echo "$way builds, with CUDA's runtime as $linked"
}
if [ -n "$nvcc" ]; then
  readme_builds "README, installed" Static -DAPP_LANGUAGES=CXX -DCMAKE_PREFIX_PATH="$work/prefix"
  for cuda_runtime in Static Shared; do
    readme_builds "README, installed, as CUDA, $cuda_runtime" $cuda_runtime "-DAPP_LANGUAGES=CXX;CUDA" -DCMAKE_PREFIX_PATH="$work/prefix" \
      -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_HOST_COMPILER="$own" -DCMAKE_CUDA_ARCHITECTURES=75 -DCMAKE_CUDA_RUNTIME_LIBRARY=$cuda_runtime
  done
  sed "s|^find_package(tarn.*|add_subdirectory($source tarn)|" "$readme/lines.cmake" >"$readme/lines" && mv "$readme/lines" "$readme/lines.cmake"
  readme_builds "README, folder" Shared -DAPP_LANGUAGES=CXX -DCMAKE_CUDA_RUNTIME_LIBRARY=Shared
  if [ -n "$pkg_config" ]; then
    line=$(sed -n 's/.*`\(nvcc [^`]*pkg-config[^`]*\)`.*/\1/p' "$source/README.md")
    [ -n "$line" ] || { echo "FAILED: README has no line for pkg-config"; exit 1; }
    mv "$readme/main.cpp" "$readme/program.cpp"
    (cd "$readme" && PATH="$PATH:$(dirname "$nvcc")" NVCC_CCBIN="$own" && export PATH NVCC_CCBIN && quietly sh -c "$line")
    if nvidia-smi >/dev/null 2>&1; then quietly "$readme/program"; fi
    echo "README, pkg-config builds"
  fi
fi

# The same program where CUDA's headers are found and its runtime is not linked: one undefined function, and the name of its caller
# says what to do.
if [ -n "$nvcc" ]; then
  block cpp 'int main()' >"$readme/unlinked.cpp"
  for level in -O0 -O2; do
    if LC_ALL=C "$own" -std=c++20 $level -I "$source/include" -idirafter "$(dirname "$nvcc")/../include" "$readme/unlinked.cpp" \
      -o "$work/unlinked" -ldl -pthread >"$work/log" 2>&1; then echo "FAILED: a program without CUDA's runtime was linked"; exit 1; fi
    if [ "$(grep -c 'undefined reference' "$work/log")" -ne 1 ] || ! grep -q 'link_cudart_or_define_TARN_NO_CUDA' "$work/log"; then
      cat "$work/log"
      echo "FAILED: without CUDA's runtime the linker reports more than one undefined reference, or not what to do"
      exit 1
    fi
  done
  echo "without CUDA's runtime the linker says what to do"
fi

# One program of translation units with CUDA's headers and without.
if [ -n "$nvcc" ] && "$own" --version | grep -q 'Free Software Foundation'; then
  quietly cmake -S "$source/tests/package/one_program" -B "$work/one" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$own"
  quietly cmake --build "$work/one"
  quietly "$work/one/one_program"
  echo "units with CUDA's headers and without are one program"
else
  echo "skipped one program with CUDA's headers and without: it needs g++ and CUDA"
fi

# refused WHAT ARGUMENTS WORDS: find_package(tarn ARGUMENTS) fails, and the message has the words.
refused() {
  printf 'cmake_minimum_required(VERSION 3.22)\nproject(refused LANGUAGES CXX)\nfind_package(tarn %s)\n' "$2" >"$work/CMakeLists.txt"
  rm -rf "$work/refused"
  if cmake -S "$work" -B "$work/refused" -DCMAKE_CXX_COMPILER="$own" -DCMAKE_PREFIX_PATH="$work/prefix" $4 >"$work/log" 2>&1; then
    echo "FAILED: $1 was accepted"
    exit 1
  fi
  tr -s '\n ' '  ' <"$work/log" | grep -q "$3" || { cat "$work/log"; exit 1; }
  echo "$1 is refused"
}
refused "an unknown component" "REQUIRED COMPONENTS hip" "no component 'hip'" ""
refused "the component cuda without CUDA" "REQUIRED COMPONENTS cuda" "needs CUDA 12 or later" -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON
# A later minor version may differ before 1.0, so that another one must not pass for it; a range takes what is in it.
version=$(sed -n 's/^Version: //p' "$work/prefix/share/pkgconfig/tarn.pc")
major=${version%%.*} minor=${version#*.}
minor=${minor%.*}
this=$major.$minor earlier=$major.$((minor - 1)) later=$major.$((minor + 1))
refused "a later version" "$later CONFIG REQUIRED" 'requested version' ""
refused "an earlier minor version" "$earlier CONFIG REQUIRED" 'requested version' ""
refused "a range that ends before it" "$earlier...<$this CONFIG REQUIRED" 'requested version' ""
refused "a range that begins after it" "$later...$major.99 CONFIG REQUIRED" 'requested version' ""
for range in "$this" "$earlier...$version" "$this...<$major.99" "$version EXACT"; do
  printf 'cmake_minimum_required(VERSION 3.22)\nproject(accepted NONE)\nfind_package(tarn %s CONFIG REQUIRED)\n' "$range" >"$work/CMakeLists.txt"
  quietly cmake -S "$work" -B "$work/accepted" -DCMAKE_PREFIX_PATH="$work/prefix"
done
echo "its version and ranges around it are accepted"
