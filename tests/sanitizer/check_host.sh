#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Mistakes that a user's host-side test may make on the simulated device: AddressSanitizer and ThreadSanitizer must report
# each, and must report nothing without a mistake.
#   check_host.sh ROOT COMPILER FOLDER    FOLDER receives the programs. Exit status 77: this machine can run neither
set -u
root=$1 compiler=$2 folder=$3
mkdir -p "$folder"
source=$root/tests/sanitizer/planted_host.cpp
caught=0 missed=0 false=0 clean=0 tried=0

# run COMMAND...: its output in $log, its status returned; without address randomisation, which older ThreadSanitizers need.
run() {
  local fixed=()
  setarch -R true 2>/dev/null && fixed=(setarch -R)
  "${fixed[@]}" "$@" >"$log" 2>&1
}
build() {
  "$compiler" -std=c++20 -O0 -g1 -w -DTARN_NO_CUDA -I"$root/include" -fsanitize="$1" -pthread "$source" -o "$folder/planted_$1"
}
# expect TOOL CASE TEXT: the report's line; empty if nothing may be reported.
expect() {
  local status=0
  log=$folder/$1.$2.log
  run "$folder/planted_$1" "$2" || status=$?
  if [ -z "$3" ]; then
    if [ $status -eq 0 ]; then clean=$((clean + 1)) && return; fi
    false=$((false + 1))
    echo "FALSE REPORT $1 $2: status $status" && head -n 30 "$log"
  elif [ $status -ne 0 ] && grep -q "$3" "$log"; then
    caught=$((caught + 1))
  else
    missed=$((missed + 1))
    echo "MISSED $1 $2: status $status" && head -n 20 "$log"
  fi
}

if build address; then
  tried=1
  export TARN_SIM_TOOL=attached
  expect address clean ""
  for name in kernel_past_requested host_past_requested kernel_after_free host_after_free copy_past_requested; do
    expect address $name 'AddressSanitizer: use-after-poison'
  done
  unset TARN_SIM_TOOL
else
  echo "SKIPPED AddressSanitizer: $compiler cannot build for it"
fi

if build thread; then
  log=$folder/thread.log
  run "$folder/planted_thread" clean
  if grep -q 'unexpected memory mapping' "$log"; then
    echo "SKIPPED ThreadSanitizer: this kernel randomizes more address bits than it supports, and setarch -R is not permitted"
  else
    tried=1
    expect thread clean ""
    for name in host_reads_before_waiting host_reads_after_a_while host_reads_after_recording streams_without_event \
      event_recorded_too_early; do
      expect thread $name 'ThreadSanitizer: data race'
    done
  fi
else
  echo "SKIPPED ThreadSanitizer: $compiler cannot build for it"
fi

[ $tried -eq 1 ] || exit 77
echo "evidence: misuse_host_sanitizers planted=$((caught + missed)) caught=$caught clean_programs=$((clean + false)) false_reports=$false"
[ $missed -eq 0 ] && [ $false -eq 0 ] && [ $caught -ne 0 ]
