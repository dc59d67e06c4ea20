#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Instructions of a warm allocate+free pair, counted by valgrind's callgrind: they do not move with the machine's load,
# so a change of one instruction shows. Writes bench/results/instructions.json.
#
#   bench/instructions.sh          needs valgrind, g++ (or CXX), python3; Debian: valgrind libmimalloc2.0
#
# The same program is counted with few and with many pairs; the difference leaves out what starts and warms it.
set -eu
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || { echo "valgrind is not installed" >&2; exit 1; }
few=2000 many=22000
compiler=${CXX:-g++}
options="-std=c++20 -O2 -DNDEBUG"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086
$compiler $options -Iinclude -Ibench bench/hot_paths/hot_pair.cpp bench/hot_paths/hot_pair_watched.cpp -o "$work/hot_pair" -pthread -ldl

# count POOL BYTES PAIRS: instructions of the whole program.
count() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$work/hot_pair" "$@" 2>&1 >/dev/null |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

for pool in tarn tarn_tracked tarn_any tarn_watched mimalloc host_malloc std_pmr; do
  status=0
  "$work/hot_pair" $pool 256 1 || status=$?
  if [ $status -eq 77 ]; then echo "skipped $pool: not installed" >&2 && continue; fi
  [ $status -eq 0 ]
  for bytes in 256 65536; do
    echo "$pool $bytes $(count $pool $bytes $few) $(count $pool $bytes $many)" >>"$work/counts"
  done
done

COMMIT=${TARN_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)} \
  HOW="callgrind, $($compiler --version | head -n 1), $options, simulated device" \
  python3 - "$work/counts" $((many - few)) >bench/results/instructions.json <<'END'
import datetime, json, os, platform, sys

pairs = []
for line in open(sys.argv[1]):
    pool, size, few, many = line.split()
    pairs.append({"pool": pool, "bytes": int(size), "instructions_per_pair": (int(many) - int(few)) / int(sys.argv[2])})
print(json.dumps({"how": os.environ["HOW"], "processor": platform.machine(), "commit": os.environ["COMMIT"],
                  "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"), "pairs": pairs}, indent=1))
END
python3 - <<'END'
import json

for row in json.load(open("bench/results/instructions.json"))["pairs"]:
    print(f"{row['pool']:14} {row['bytes']:6} B  {row['instructions_per_pair']:8.1f} instructions per pair")
END
