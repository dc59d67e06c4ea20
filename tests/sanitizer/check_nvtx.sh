#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What a tool receives through NVTX's headers: a fake tool prints it. No GPU is needed, only CUDA's headers.
#   check_nvtx.sh ROOT COMPILER FOLDER    exit status 77: CUDA's headers are missing
set -u
root=$1 compiler=$2 folder=$3
errors=${TARN_WARNINGS_AS_ERRORS:+-Werror}
cuda=${CUDA_PATH:-/usr/local/cuda}/include
[ -e "$cuda/nvtx3/nvToolsExtMem.h" ] || { echo "SKIPPED: no nvtx3/nvToolsExtMem.h in $cuda"; exit 77; }
mkdir -p "$folder"
"$compiler" -std=c++20 -Wall -Wextra $errors -isystem "$cuda" -shared -fPIC "$root/tests/sanitizer/fake_tool.cpp" -o "$folder/fake_tool.so" &&
  "$compiler" -std=c++20 -Wall -Wextra -Wconversion $errors -isystem "$cuda" -I"$root/include" "$root/tests/sanitizer/nvtx_memory_calls.cpp" -o "$folder/nvtx_memory_calls" || exit 1
failed=0
# expect NAME WANTED GOT
expect() { [ "$2" = "$3" ] || { failed=1; printf 'FAILED: %s\nexpected:\n%s\nprinted:\n%s\n' "$1" "$2" "$3"; }; }
unset NVTX_INJECTION64_PATH
expect "without a tool nothing is reported" "attached 0" "$("$folder/nvtx_memory_calls")"
expect "a library that is not a tool receives nothing" "attached 0" "$(NVTX_INJECTION64_PATH=libc.so.6 "$folder/nvtx_memory_calls")"
expect "a tool receives every call with valid arguments" "attached 1
heap 0x10000 4096 sound
region 0x10100 1000 of 0x10000 sound
region ends 0x10100 sound
heap reset 0x10000
heap ends 0x10000" "$(NVTX_INJECTION64_PATH=$folder/fake_tool.so "$folder/nvtx_memory_calls")"
[ $failed -eq 0 ] && echo "evidence: misuse_nvtx_calls told=5 sound=5"
exit $failed
