#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bench/gpu.sh prepare mpi: Open MPI as Debian has it, but with CUDA support, and only what one machine needs; and a UCX with CUDA
# support. The sources come from where apt gets its packages.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
jobs=${JOBS:-$(nproc)}

say() { printf '%s\n' "$*"; }

work=$root/build-mpi out=$root/.gpu-mpi cuda=${CUDA_HOME:-/usr/local/cuda}
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
) >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 1; }
find "$out/openmpi" -name '*.la' -delete
rm -rf "$out/openmpi/share/man"
find "$out/openmpi" -type f \( -name '*.so.*' -o -name '*.so' -o -path '*/bin/*' \) -exec strip --strip-unneeded {} + 2>/dev/null
LD_LIBRARY_PATH=$out/openmpi/lib "$out/openmpi/bin/ompi_info" --parsable --level 9 --all |
  grep -q 'mpi_built_with_cuda_support:value:true' || { say "this Open MPI has no CUDA support" >&2; exit 1; }
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
