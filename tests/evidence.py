#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collects the tests' result lines, `evidence: WHAT KEY=VALUE...`, in one table.

evidence.py LOG...   the first log is the current run, the others are results of earlier runs on a GPU, each with its
                     machine and date. Exit status 1 if a required line or key is missing, or a line reports a failure. What was skipped is
                     listed: it was not tested.
"""
import sys

# Required lines of a complete run.
WANTED = ["host_tests", "simulation", "simulation_without_pages", "simulation_without_memory_pools", "tests_without_pages", "tests_without_memory_pools", "tests_without_pages_memory_pools", "old_headers", "soak", "free_threads", "driver_fault_sites", "driver_faults", "host_faults", "endings",
          "misuse_host_sanitizers", "misuse_nvtx_calls", "asan_ubsan_tarn_tests", "asan_ubsan_tarn_tests_half", "tsan", "mutants", "random_mutants", "coverage",
          "warnings"]
# Keys whose value must be 0.
BAD = {"failed", "failures", "findings", "missed", "false_reports", "errors", "out_of_date",
       "unreached_unexplained", "with_warnings"}
# Figures that one line must have: the other value says that this was skipped.
TESTED = {"snapshots": "memory_viz=read"}
SKIPPED = "skipped, nothing was tested"  # what a test case prints


def read(path):
    machine, lines, skipped = {}, [], 0
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            for key in ("gpu", "date", "commit"):
                if line.startswith(key + ": ") and key not in machine:
                    machine[key] = line.split(": ", 1)[1].strip()
            skipped += SKIPPED in line
            if line.startswith("evidence: "):
                lines.append(line.split()[1:])
                if skipped and " skipped=" not in line:
                    lines[-1].append(f"skipped={skipped}")
                skipped = 0
    return machine, lines


def main():
    said, wrong, skipped, tested = set(), [], [], set()
    for number, path in enumerate(sys.argv[1:]):
        machine, lines = read(path)
        if not lines:
            continue
        if number:
            print(f"\n{path}: {', '.join(machine.values())}")
        for what, *figures in lines:
            said.add(what)
            print(f"  {what:24} {'  '.join(figures)}")
            tested.update(what for figure in figures if figure == TESTED.get(what))
            for figure in figures:
                key, _, value = figure.partition("=")
                if (key in BAD and value not in ("0", "")) or figure == "FAILED" or figure == "verdict=fail":
                    wrong.append(f"{what}: {figure}")
                if key == "skipped" and value != "0" or value == "skipped":
                    skipped.append(f"{what}: {figure} ({path})")
    wrong += [f"{what}: no line has {TESTED[what]}" for what in TESTED.keys() - tested]
    wrong += [f"{what}: said nothing" for what in WANTED if what not in said]
    print()
    for line in skipped:
        print(f"NOT TESTED  {line}")
    for line in wrong:
        print(f"WRONG  {line}")
    if not wrong:
        print("nothing is missing, and no line reports a failure")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
