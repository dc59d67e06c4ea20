#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a profiler receives through NVTX: a fake profiler prints it. No GPU is needed, only CUDA's headers.
#   check.sh ROOT COMPILER FOLDER    exit status 77: CUDA's headers are missing
set -u
root=$1 compiler=$2 folder=$3
errors=${TARN_WARNINGS_AS_ERRORS:+-Werror}
cuda=${CUDA_PATH:-/usr/local/cuda}/include
here=$root/tests/debug/nvtx
[ -e "$cuda/nvtx3/nvToolsExtCudaRt.h" ] || { echo "SKIPPED: no nvtx3/nvToolsExtCudaRt.h in $cuda"; exit 77; }
mkdir -p "$folder"
"$compiler" -std=c++20 -Wall -Wextra $errors -isystem "$cuda" -shared -fPIC "$here/fake_profiler.cpp" -o "$folder/fake_profiler.so" || exit 1
for way in with without; do
  flag=; [ $way = with ] || flag=-DTARN_NO_CUDA
  "$compiler" -std=c++20 -Wall -Wextra -Wconversion $errors $flag -isystem "$cuda" -I"$root/include" "$here/nvtx_calls.cpp" -o "$folder/nvtx_calls_$way" -pthread -ldl || exit 1
done
failed=0
# expect NAME WANTED GOT
expect() { [ "$2" = "$3" ] || { failed=1; printf 'FAILED: %s\nexpected:\n%s\nprinted:\n%s\n' "$1" "$2" "$3"; }; }
unset NVTX_INJECTION64_PATH
quiet="again, warm
refused"
expect "without a profiler nothing is reported" "built 1
$quiet" "$("$folder/nvtx_calls_with")"
expect "without CUDA nothing is reported even to a profiler" "built 0
$quiet" "$(NVTX_INJECTION64_PATH=$folder/fake_profiler.so "$folder/nvtx_calls_without")"
# The blocks that the pool takes from the host have sizes of its own choice.
got=$(NVTX_INJECTION64_PATH=$folder/fake_profiler.so "$folder/nvtx_calls_with" | sed 's/\(\[host: .*\] \)[0-9]* /\1N /')
expect "a profiler receives each call, with the pool's host allocations inside it" "built 1
domain tarn
category 1 host
category 2 weights
push tarn [weights: allocate] 1000 in 2
push tarn [host: allocate] N in 1
pop
pop
push tarn [weights: deallocate] 1000 in 2
pop
again, warm
push tarn [weights: allocate] 1000 in 2
pop
push tarn [weights: deallocate] 1000 in 2
pop
push tarn [weights: allocate] 2097152 in 2
mark tarn [weights: refused] 2097152 in 2
pop
refused
push tarn [weights: allocate] 500 in 2
pop
push tarn [weights: deallocate] 500 in 2
pop
stream 0x40 loader
push tarn [one's own] 7 in 0
pop
push tarn [host: deallocate] N in 1
pop" "$got"
[ $failed -eq 0 ] && echo "a profiler receives valid calls"
exit $failed
