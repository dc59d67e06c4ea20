#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Soaks of the random programs. soak.txt has a line for each; every soak goes on where the last one ended.

    soak.py PROGRAM SECONDS [SEED]   runs tarn_simulation on all processors and adds a line; with a SEED it starts there
    soak.py                          what all soaks so far add up to
"""
import os
import pathlib
import re
import subprocess
import sys

RECORD = pathlib.Path(__file__).with_name("soak.txt")


def total():
    lines = re.findall(r"^seeds .*", RECORD.read_text(), re.M)
    sums = {key: sum(int(n) for line in lines for n in re.findall(rf"\b{key} (\d+)", line)) for key in ("programs", "calls", "pins", "findings")}
    print(f"evidence: soak runs={len(lines)} programs={sums['programs']} operations={sums['calls']} pins={sums['pins']} findings={sums['findings']}")
    return int(sums["findings"] != 0)


def main(program, seconds="600", seed=None):
    seed = seed or 1 + max(map(int, re.findall(r"^seeds \d+\.\.(\d+)", RECORD.read_text(), re.M)))
    print(f"\n== random programs for {seconds} s from seed {seed}, {os.cpu_count()} at once", flush=True)
    return subprocess.run([program, "--seconds", seconds, "--seeds", str(seed), "--jobs", str(os.cpu_count()), "--record", RECORD]).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if sys.argv[1:] else total())
