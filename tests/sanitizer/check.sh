#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Plants one mistake per run inside a pool's blocks and checks that compute-sanitizer reports it, and reports nothing without
# a mistake. Needs a GPU. Prints one line per case and a verdict at the end. Exit status 1 if something was missed, 77 if it
# could not run.
#   check.sh FOLDER             of tarn_planted and tarn_diagnose
#   check.sh FOLDER --diagnose  prints the tool's answer to each NVTX call instead, for each kind of memory
set -u
folder=$1
tool=${COMPUTE_SANITIZER:-compute-sanitizer}
command -v "$tool" >/dev/null || { echo "SKIPPED: compute-sanitizer is not installed"; exit 77; }
nvidia-smi -L >/dev/null 2>&1 || { echo "SKIPPED: no GPU here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export tool folder work
options="--report-api-errors no --destroy-on-device-error kernel --show-backtrace no --print-limit 3 --launch-timeout 60"
export options

diagnose() {
  # shellcheck disable=SC2086
  timeout 60 "$tool" --tool "$2" $options "$folder/tarn_diagnose" "$1" >"$work/diagnose.$1.$2" 2>&1
  local status=$?
  echo "$2: $(grep '^kind=' "$work/diagnose.$1.$2" || echo "kind=$1 printed nothing") status=$status reports=$(grep -c 'Invalid __global__' "$work/diagnose.$1.$2")"
  grep -E 'Invalid|Address 0x|NVTX|nvtx|rror:|warn' "$work/diagnose.$1.$2" | grep -v '^kind=' | sort | uniq -c | head -n 8 | sed 's/^/    /'
}
export -f diagnose
if [ "${2:-}" = --diagnose ]; then
  "$tool" --version | sed -n 's/^Version //p'
  echo "alone: $(timeout 60 "$folder/tarn_diagnose" malloc)"
  for kind in none malloc part page pages_apart pages_as_one async; do echo "$kind memcheck"; done |
    xargs -P 4 -L 1 bash -c 'diagnose "$0" "$1" >"$work/out.$0"'
  for kind in none malloc part page pages_apart pages_as_one async; do cat "$work/out.$kind"; done
  exit
fi

# SOURCE CASE TOOL WANTED: what a report's line must match, or "nothing".
cases=()
for source in pages limited malloc async; do
  for name in clean clean_copies; do
    cases+=("$source $name memcheck nothing" "$source $name initcheck nothing")
  done
  for name in write_past_requested write_before write_past_large use_after_free use_after_free_and_new_blocks \
    use_after_free_on_another_stream; do
    cases+=("$source $name memcheck Invalid.__global__.write")
  done
  cases+=("$source read_past_requested memcheck Invalid.__global__.read")
  cases+=("$source uninitialised_read initcheck Uninitialized.__global__.memory.read")
  cases+=("$source uninitialised_read_of_reused initcheck Uninitialized.__global__.memory.read")
done

try() {
  local log=$work/$1.$2.$3 verdict report status
  # shellcheck disable=SC2086
  timeout 120 "$tool" --tool "$3" $options --error-exitcode 9 "$folder/tarn_planted" "$1" "$2" >"$log" 2>&1
  status=$?
  report=$(grep -m 1 -E 'Invalid|Uninitialized|rror:' "$log" | sed 's/^=* *//')
  if [ "$4" = nothing ]; then
    verdict=clean
    [ $status -eq 0 ] && grep -q 'ERROR SUMMARY: 0 errors' "$log" || verdict=FALSE_REPORT
  else
    verdict=caught
    [ $status -eq 9 ] && grep -qE "$4" "$log" || verdict=MISSED
  fi
  printf '%-12s %-7s %-34s %-9s %s\n' $verdict "$1" "$2" "$3" "${report:-status $status}"
  case $verdict in MISSED | FALSE_REPORT)
    grep -vE '^=* *$|COMPUTE-SANITIZER$' "$log" | uniq -c | head -n 3 |
      awk '{ n = $1; sub(/^ *[0-9]+ /, ""); print "      | " $0 (n > 1 ? " (" n " times)" : "") }' ;;
  esac
}
export -f try
printf '%s\n' "${cases[@]}" | xargs -P "${JOBS:-8}" -L 1 bash -c 'try "$@" >"$work/verdict.$1.$2.$3"' try
cat "$work"/verdict.*
missed=$(cat "$work"/verdict.* | grep -c '^MISSED')
false=$(cat "$work"/verdict.* | grep -c '^FALSE_REPORT')
caught=$(cat "$work"/verdict.* | grep -c '^caught')
clean=$(cat "$work"/verdict.* | grep -c '^clean')
echo "evidence: misuse_compute_sanitizer planted=$((caught + missed)) caught=$caught clean_programs=$((clean + false)) false_reports=$false"
[ "$missed" -eq 0 ] && [ "$false" -eq 0 ] && [ "$caught" -ne 0 ]
