#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tarn_replay as a process: what it prints, where, and its exit status.
# Use: tool.sh PATH_OF_TARN_REPLAY FOLDER_OF_TRACES
set -u
tool=$1
traces=$2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

fail() {
  echo "FAILED: $1" >&2
  sed 's/^/  out: /' out >&2
  sed 's/^/  err: /' err >&2
  failures=$((failures + 1))
}
# expect STATUS TITLE ARGUMENTS...: runs the tool, standard input as given, output to the files out and err
expect() {
  status=$1 title=$2
  shift 2
  "$tool" "$@" >out 2>err
  got=$?
  [ "$got" -eq "$status" ] || fail "$title: exit status $got, not $status"
}
says() { grep -q -e "$2" "$1" || fail "$title: $1 lacks '$2'"; }
quiet() { [ ! -s "$1" ] || fail "$title: $1 is not empty"; }

demucs=$traces/demucs_train.trace.gz
gzip -dc "$demucs" >plain.trace
last=$(wc -l <plain.trace)

expect 0 "a table of a gzip trace, quiet on standard error" --device sim --pool std_pmr "$demucs"
says out '^demucs_train: 10,645 events, peak live 5,953.6 MiB$'
says out 'PyTorch, default \*  *7,290.0 MiB'
says out 'PyTorch, expandable \*  *6,462.0 MiB'
quiet err

expect 0 "a plain trace gives the same table as the gzip trace" --device sim --pool std_pmr plain.trace
says out '^plain: 10,645 events, peak live 5,953.6 MiB$'

expect 0 "standard input, plain" --device sim --pool std_pmr --passes 1 - <plain.trace
says out '^stdin: 10,645 events'
expect 0 "standard input, gzip" --device sim --pool std_pmr --passes 1 - <"$demucs"
says out '^stdin: 10,645 events'

expect 0 "one JSON object per trace and pool" --device sim --json --passes 2 --pool std_pmr,host_malloc "$demucs" plain.trace
[ "$(wc -l <out)" -eq 4 ] || fail "$title: not four lines"
[ "$(grep -c '^{"trace":.*}$' out)" -eq 4 ] || fail "$title: not four objects"
for field in trace pool device events peak_live peak_reserved utilisation driver_calls driver_calls_warm \
  cold_ns_per_event warm_ns_per_event out_of_memory; do
  [ "$(grep -c "\"$field\":" out)" -eq 4 ] || fail "$title: no $field"
done
says out '"peak_live":6242808528'
quiet err

expect 0 "a cap reports which pools survive" --device sim --pool tarn --cap 0.5,1.10 "$demucs"
says out '^  tarn  0.50 x peak live, 2,978.0 MiB: first refusal at event [1-9][0-9,]* (.* asked, .* live), [1-9][0-9,]* in all$'
says out '^  tarn  1.10 x peak live, 6,550.0 MiB: survived$'
quiet err
expect 0 "a cap reports survival as JSON" --device sim --pool tarn --cap 0.5,1.10 --json "$demucs"
[ "$(wc -l <out)" -eq 2 ] || fail "$title: not two lines"
says out '"factor":0.5,"cap":3122659328,"free_at_start":3122659328,"survived":false,"events":10645,"refusals":[1-9]'
says out '"factor":1.1,.*"survived":true,"events":10645,"refusals":0,"first_refusal":0'
expect 2 "a cap that is not a number" --device sim --cap little "$demucs"

expect 0 "a pattern is played like a trace" --device sim --json --passes 2 --pool tarn,std_pmr --pattern streams:2,server
[ "$(wc -l <out)" -eq 4 ] || fail "$title: not four lines"
[ "$(grep -c '^{"trace":"streams:2","pool":"' out)" -eq 2 ] || fail "$title: not two rows of streams:2"
[ "$(grep -c '"out_of_memory":0,' out)" -eq 4 ] || fail "$title: a request was refused"
quiet err
expect 0 "a pattern has another title with another seed" --device sim --passes 1 --pattern server --seed 3
says out '^server, seed 3: [0-9,]* events'
expect 0 "a pattern and a trace" --device sim --passes 1 --pattern server "$demucs"
says out '^server: '
says out '^demucs_train: '
expect 0 "the patterns are listed" --pattern list
for pattern in attention_cache mesh_refinement streams:2 streams:16 server burst; do says out "^$pattern$"; done
for wrong in nothing streams:1 streams:17 all,nothing; do
  expect 2 "a pattern of '$wrong'" --device sim --pattern "$wrong"
  says err '^tarn_replay: no pattern'
  quiet out
done
expect 2 "a seed without a pattern" --device sim --seed 3 "$demucs"
says err '[-][-]pattern'
for wrong in -1 1.5 0x3 "" many; do
  expect 2 "a seed of '$wrong'" --device sim --pattern server --seed "$wrong"
  says err '[^ ]'
done

expect 0 "the pools are listed" --pool list
for pool in tarn tarn_no_remap host_malloc std_pmr; do says out "^$pool "; done

expect 0 "tarn is the default pool, with high utilisation" --device sim --json "$demucs" "$traces"/resnet50_train.trace.gz "$traces"/gcn_sampled.trace.gz
[ "$(grep -c '"pool":"tarn","device":"sim".*"utilisation":0\.9[5-9]' out)" -eq 3 ] || fail "$title: not three at 0.95 or more"
expect 0 "four passes have a peak of each" --device sim --json --passes 4 "$demucs"
says out '"peak_reserved_first":[1-9][0-9]*,"peak_reserved_last":[1-9][0-9]*,"peak_reserved_of_pass":\[[0-9]*,[0-9]*,[0-9]*,[0-9]*\]'
expect 0 "a table of three passes compares the last with the first" --device sim --passes 3 "$demucs"
says out '^  pool  .*  last/first pass  '
says out '^  tarn  .* MiB  *0\.9[0-9]*  *[01]\.[0-9][0-9][0-9]  '
expect 0 "a table of two passes does not" --device sim --passes 2 "$demucs"
if grep -q '^  pool .*last/first' out; then fail "$title"; fi
expect 0 "tarn_no_remap makes no driver call in the second pass" --device sim --json --pool tarn_no_remap \
  "$demucs" "$traces"/resnet50_train.trace.gz "$traces"/gcn_sampled.trace.gz
[ "$(grep -c '"driver_calls_warm":0,' out)" -eq 3 ] || fail "$title: not three zeros"
expect 0 "the table of a simulated device shows the cost of its calls" --device sim "$demucs"
says out 'driver ns cold'
says out '^  tarn  *6,[0-9,.]* MiB'

expect 0 "a device that is too small refuses, and its row shows the refusals" --device sim --capacity 3GiB --json --pool tarn,std_pmr,host_malloc "$demucs"
[ "$(grep -c '"out_of_memory":[1-9]' out)" -eq 3 ] || fail "$title: not three rows out of memory"
[ "$(grep -c '"utilisation":null' out)" -eq 3 ] || fail "$title: a refused replay has a utilisation"

printf 'a 1 100 0\nnonsense\n' >bad.trace
expect 2 "a broken line" --device sim --pool std_pmr bad.trace
says err '^bad.trace:2: no event; expected'
quiet out
printf 'a 1 100 0\nf 2\n' >bad.trace
expect 2 "an unknown id" --device sim --pool std_pmr bad.trace
says err '^bad.trace:2: unknown id 2'
printf 'a 1 100 0\nf 1\n\nf 1\n' | gzip >bad.trace.gz
expect 2 "a double free, in gzip" --device sim --pool std_pmr bad.trace.gz
says err '^bad.trace.gz:4: double free of id 1'
head -c 20000 "$demucs" >cut.trace.gz
expect 2 "a truncated gzip" --device sim --pool std_pmr cut.trace.gz
says err '^cut.trace.gz:[0-9]*: .*truncated'
line=$(sed 's/^cut.trace.gz:\([0-9]*\):.*/\1/' err)
[ "$line" -gt 1000 ] && [ "$line" -lt "$last" ] || fail "$title: line $line is not the end of the data"
expect 2 "a truncated gzip on standard input" --device sim --pool std_pmr - <cut.trace.gz
says err '^stdin:[0-9]*: .*truncated'
{ cat "$demucs" && printf 'xxxx'; } >tail.trace.gz
expect 2 "garbage after the gzip data" --device sim --pool std_pmr tail.trace.gz
says err '^tail.trace.gz:[0-9]*: .*corrupt'
expect 2 "a missing file" --device sim --pool std_pmr absent.trace
says err '^absent.trace: cannot be opened'
mkdir folder
expect 2 "a folder" --device sim --pool std_pmr folder
says err '^folder: cannot be read'

expect 2 "an unknown pool" --device sim --pool nothing "$demucs"
says err "no pool 'nothing'"
expect 2 "an unknown device" --device tpu "$demucs"
expect 2 "an unknown option" --fast "$demucs"
expect 2 "a capacity for a CUDA device" --device cuda --capacity 3GiB "$demucs"
says err '^tarn_replay: --capacity applies to the simulated device'
expect 2 "no passes" --passes 0 "$demucs"
for wrong in -1 0 1.5GiB -5GiB +5 0x10 "" nonsense 5QiB 18446744073709551616 16EiB 2EiB 99999999999GiB; do
  expect 2 "a capacity of '$wrong'" --device sim --capacity "$wrong" "$demucs"
  says err '[^ ]'
  quiet out
done
for wrong in -1 0 1001 1.5 +3 0x3 "" many 4294967299 99999999999999999999; do
  expect 2 "passes of '$wrong'" --device sim --passes "$wrong" "$demucs"
  says err '[^ ]'
  quiet out
done
for wrong in -1 0 0.001 1001 nan inf 1e1 +1 0x1 "" 1.1.1 1,-1; do
  expect 2 "caps of '$wrong'" --device sim --cap "$wrong" "$demucs"
  says err '[^ ]'
  quiet out
done
expect 2 "--cap with --passes, which it would ignore" --device sim --cap 1.1 --passes 2 "$demucs"
says err '[-][-]passes'
expect 2 "--cap with --capacity, which it would ignore" --device sim --cap 1.1 --capacity 3GiB "$demucs"
says err '[-][-]capacity'
expect 2 "--waste with --cap, which it would ignore" --device sim --cap 1.1 --waste "$demucs"
says err '[-][-]waste'
expect 2 "--report with --waste, which it would ignore" --device sim --waste --report none.html "$demucs"
says err '[-][-]waste'
expect 2 "--report with --passes, which it would ignore" --device sim --passes 2 --report none.html "$demucs"
says err '[-][-]passes'
expect 2 "--cap with --threads, which it would ignore" --device sim --cap 1.1 --threads 2 "$demucs"
says err '[-][-]threads'
expect 2 "no threads" --threads 0 "$demucs"
expect 0 "two threads hold what one thread holds, or more" --device sim --json --passes 2 --threads 2 "$demucs"
says out '"threads":2'
expect 0 "a capacity of one byte refuses every request" --device sim --capacity 1 --passes 1 "$demucs"

if [ -w /dev/full ]; then
  for arguments in --help "--pool list" "--device sim --pool std_pmr $demucs" "--device sim --pool std_pmr --json $demucs" \
    "--device sim --cap 1.1 $demucs" "--device sim --cap 1.1 --json $demucs" \
    "--device sim --waste $demucs" "--device sim --waste --json $demucs" "--device sim --report page.html $demucs"; do
    title="output to a full disk: $arguments"
    # shellcheck disable=SC2086
    "$tool" $arguments >/dev/full 2>err
    got=$?
    : >out
    [ "$got" -eq 1 ] || fail "$title: exit status $got, not 1"
    says err '^tarn_replay: standard output cannot be written'
  done
fi

expect 2 "no trace"
says err 'no trace given'
expect 0 "help" --help
says out '^Usage: tarn_replay'

expect 0 "--report writes a page and prints one line about it" --device sim --report out.html "$demucs"
says out '^out.html: demucs_train on tarn, 10,645 calls, peak 5,953.6 MiB in 285 blocks at call 2,241, 6,016.0 MiB reserved$'
says out.html '^<!doctype html>$'
says out.html '^</html>$'
quiet err
expect 0 "a report of a device that is too small counts the refused requests" --device sim --capacity 3GiB --report small.html "$demucs"
says out ', [1-9][0-9,]* requests refused$'
expect 0 "a report of an empty trace" --device sim --report empty.html - </dev/null
says out '^empty.html: stdin on tarn, 0 calls'
expect 2 "a report of a pool without statistics" --device sim --pool std_pmr --report none.html "$demucs"
says err "no report of pool 'std_pmr'"
[ ! -e none.html ] || fail "$title: a file was left behind"
expect 2 "a report of a trace and a pattern" --device sim --report none.html --pattern server "$demucs"
says err '^tarn_replay: --report takes one trace and one pool'
expect 2 "a report of two traces" --device sim --report none.html "$demucs" plain.trace
says err '^tarn_replay: --report takes one trace and one pool'
expect 2 "a report of all pools" --device sim --pool all --report none.html "$demucs"
expect 2 "a report and a cap" --device sim --cap 1 --report none.html "$demucs"
expect 2 "a report without a name" --device sim --report "" "$demucs"
gzip -dc "$demucs" >own.trace && cp own.trace own.copy && ln -sf own.trace own.link
expect 2 "a report over its own trace" --device sim --report own.trace own.trace
says err '^tarn_replay: --report names the trace own.trace, which it would overwrite'
expect 2 "a report over its own trace, by a link" --device sim --report own.link own.trace
expect 2 "a report over its own trace, from standard input" --device sim --report own.trace - <own.trace
cmp -s own.trace own.copy || fail "$title: the trace was changed"
expect 1 "a report in a folder that does not exist" --device sim --report absent/out.html "$demucs"
says err '^tarn_replay: tarn: absent/out.html: the page cannot be written.*No such file'
if [ -w /dev/full ]; then
  expect 1 "a report on a full disk" --device sim --report /dev/full "$demucs"
  says err '^tarn_replay: tarn: /dev/full: writing the page failed.*No space'
fi

expect 0 "--waste prints the parts of the reserved memory at both peaks" --device sim --waste "$demucs" "$traces"/resnet50_train.trace.gz
says out '^demucs_train on tarn: 10,645 events, peak live 5,953.6 MiB, peak reserved [56],.* MiB, utilisation 0\.9'
says out '^  peak .*: first after event [1-9][0-9,]* of pass [123], an allocation of [0-9,.]* MiB$'
says out '^  requested by live blocks  .* 5,953.61  *9[0-9.]*  *285'
says out '^  reserved  .* 100.00 '
says out '^resnet50_train on tarn: '
quiet err
peak_reserved() { grep -o '"peak_reserved":[0-9]*' "$1"; }
expect 0 "the peaks without --waste" --device sim --passes 4 --json --pool tarn,tarn_no_remap,tarn_tracked "$demucs"
mv out measured
expect 0 "--waste --json has the peaks of a run without it, at the same number of passes" --device sim --waste --passes 4 --json \
  --pool tarn,tarn_no_remap,tarn_tracked "$demucs"
[ "$(wc -l <out)" -eq 3 ] || fail "$title: not three lines"
[ "$(peak_reserved out)" = "$(peak_reserved measured)" ] || fail "$title: other peaks than $(peak_reserved measured)"
says out '"at_peak_reserved":{"pass":[1-4],"event":[1-9].*,"bytes":{"requested":[1-9]'
quiet err
expect 0 "--waste of a device that is too small counts the refused requests" --device sim --capacity 3GiB --waste "$demucs"
says out '^  [1-9][0-9,]* requests refused in 3 passes'
expect 0 "--waste of an empty trace" --device sim --waste - </dev/null
says out '^  no memory was reserved$'
expect 2 "--waste of a pool that cannot be inspected" --device sim --pool tarn,std_pmr --waste "$demucs"
says err "no waste of pool 'std_pmr': only tarn's pools report what they hold"
quiet out

expect 0 "--brief prints a line for each trace and pool" --device sim --brief "$demucs" plain.trace
says out '^demucs_train: 10,645 calls, 5,953.6 MiB in use at the peak; tarn held 6,[0-9.]* MiB, PyTorch 7,290.0 MiB, with expand'
says out '^plain: 10,645 calls, .*; tarn held 6,[0-9.]* MiB$'
[ "$(wc -l <out)" -eq 4 ] || fail "$title: not the device, an empty line and two lines"
expect 0 "--choose-options ends with a recommendation and its figures" --device sim --choose-options --report chosen.html "$demucs"
says out '^  pooled{}  *6,[0-9,.]* MiB '
says out '^  pooled{.remap = remapping::off}  *6,[0-9,.]* MiB '
says out '^recommended: pooled{.*}: [56],[0-9,.]* MiB held (0[.]9[0-9]* in use at the peak), first pass [0-9.]* ms$'
says out '^tightest:  *pooled{.largest_handle = \|^tightest:  *pooled{.slack'
says out '^fastest:  *pooled{.remap = remapping::off}'
says out '^chosen.html: demucs_train on tarn'
says chosen.html '^</html>$'
quiet err
expect 0 "--choose-options --json names the options of each line" --device sim --choose-options --passes 1 --json "$demucs"
says out '"pool":"tarn","device":"sim","options":"pooled{.remap = remapping::off}"'
expect 0 "options of tarn's pools" --device sim --passes 1 --largest-handle 8MiB --slack 0 --release-threshold 0 "$demucs"
says out '^options pooled{.slack_per_mille = 0, .largest_handle = 8_MiB, .release_threshold = 0}$'
says out '^  tarn  *5,9[0-9.]* MiB'
expect 2 "options of a pool that has none" --device sim --pool tarn,std_pmr --slack 0 "$demucs"
says err "no options of pool 'std_pmr': only tarn's pools have them"
expect 2 "a choice of options for two pools" --device sim --pool tarn,tarn_tracked --choose-options "$demucs"
expect 2 "a choice of options that are given" --device sim --slack 3 --choose-options "$demucs"
expect 2 "a slack that is too large" --device sim --slack 1001 "$demucs"

[ "$failures" -eq 0 ] || { echo "$failures failed" >&2; exit 1; }
echo "tarn_replay: all checks passed"
