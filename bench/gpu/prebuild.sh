#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bench/gpu.sh prebuild [all]: programs for a machine with the CPU and the C library of this one or newer ones. Carry .gpu-deps/built with
# the rest of .gpu-deps, and build again after a change of tarn's headers.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
deps=$root/.gpu-deps
export BUILD=${BUILD:-$root/build-clients}
failed=0 rest=OFF

say() { printf '%s\n' "$*"; }

# All that the stage build made, for its next run on another machine.
pack_programs() {
  local file programs=()
  while read -r file; do
    strip "$file" && programs+=("${file#"$BUILD"/}")
  done < <(find "$BUILD" -path '*/CMakeFiles/*' -prune -o -type f \( -executable -o -name '*.so*' \) -print |
    while read -r file; do ! file -b "$file" | grep -q '^ELF' || say "$file"; done)
  tar -C "$BUILD" -czf "$deps/built/programs.tar.gz" "${programs[@]}" &&
    say "${TARN_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}" >"$deps/built/COMMIT"
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

[ "${1:-}" != all ] || rest=ON
move_sources "$BUILD/sources" "$deps"
rm -rf "$deps/built"
mkdir -p "$deps/built"
CUDAARCHS=${ARCH:-90} TARN_BUILD_REST=$rest python3 bench/gpu/run.py --now configure || exit
if [ $rest = ON ]; then
  python3 bench/gpu/run.py --now build || failed=1
  pack_programs || failed=1
fi
# What an earlier call made must not be packed again where it is not made now.
clients=(bench/tarn_nanovdb bench/tarn_tcnn bench/tarn_amrex examples/libtarn_c.so tarn_torch/tarn_torch.so)
for file in "${clients[@]}"; do rm -f "$BUILD/$file"; done
python3 bench/gpu/run.py --now clients_build || failed=1
python3 bench/gpu/run.py --now torch_library || [ $? = 77 ] || failed=1
for file in "${clients[@]}"; do
  if [ -f "$BUILD/$file" ]; then pack_program "$BUILD/$file" || failed=1; else say "skipped $file: not made, see above"; fi
done
if [ $failed = 0 ]; then
  rm -rf "$BUILD/sources"
  move_sources "$deps" "$BUILD/sources"
fi
ls -l "$deps/built"
du -sh "$deps"
exit $failed
