#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes results/waste.txt and results/passes.txt: where the bytes between live and reserved are, and the memory reserved in each of
20 passes, of traces and generated patterns on the simulated device.

    waste.py REPLAY [TRACE...]   REPLAY is tarn_replay; without TRACEs those of examples/traces
"""
import os
import pathlib
import subprocess
import sys

import passes

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main(replay, *traces):
    simulated = [replay, "--device", "sim"]
    traces = traces or sorted(map(str, ROOT.glob("examples/traces/*.trace.gz")))
    at = f"tarn_replay on the simulated device; commit {os.environ.get('TARN_COMMIT', 'unknown')}."

    def run(*arguments):
        return subprocess.run([*simulated, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout

    waste = run("--pattern", "all", "--pool", "tarn", "--passes", "5", "--waste", *traces)
    lines = run("--pattern", "all", "--pool", "tarn,tarn_segments", "--passes", "20", "--json", *traces)
    for threads in "12":
        workloads = sorted(map(str, ROOT.glob("examples/traces/workloads/*.trace.gz")))
        lines += run("--pool", "tarn", "--passes", "20", "--json", "--threads", threads, *workloads)
    # Both or none: a file is replaced only when all has run.
    results = ROOT / "bench" / "results"
    report = passes.report(lines.splitlines())
    (results / "waste.txt").write_text(f"{at} 5 passes.\n{waste.partition(chr(10))[2]}")
    (results / "passes.txt").write_text(f"{at}\n{report}")


if __name__ == "__main__":
    main(*sys.argv[1:])
