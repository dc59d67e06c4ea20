#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collects the tests' result lines, `evidence: WHAT KEY=VALUE...`, in one table.

evidence.py LOG...   the first log is the current run, the others are results of earlier runs on a GPU, each with its
                     machine and date. Exit status 1 if a required line is missing or reports a failure.
"""
import sys

# Required lines of a complete run.
WANTED = ["host_tests", "simulation", "simulation_without_pages", "simulation_without_memory_pools", "tests_without_pages", "tests_without_memory_pools", "tests_without_pages_memory_pools", "old_headers", "soak", "free_threads", "driver_fault_sites", "driver_faults", "host_faults", "endings",
          "misuse_host_sanitizers", "misuse_nvtx_calls", "asan_ubsan_tarn_tests", "asan_ubsan_tarn_tests_half", "tsan", "mutants", "coverage",
          "warnings"]
# Keys whose value must be 0.
BAD = {"failed", "failures", "findings", "missed", "false_reports", "errors", "out_of_date",
       "unreached_unexplained", "with_warnings"}


def read(path):
    machine, lines = {}, []
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            for key in ("gpu", "date", "commit"):
                if line.startswith(key + ": ") and key not in machine:
                    machine[key] = line.split(": ", 1)[1].strip()
            if line.startswith("evidence: "):
                lines.append(line.split()[1:])
    return machine, lines


def main():
    said, wrong = set(), []
    for number, path in enumerate(sys.argv[1:]):
        machine, lines = read(path)
        if not lines:
            continue
        if number:
            print(f"\n{path}: {', '.join(machine.values())}")
        for what, *figures in lines:
            said.add(what)
            print(f"  {what:24} {'  '.join(figures)}")
            for figure in figures:
                key, _, value = figure.partition("=")
                if (key in BAD and value not in ("0", "")) or figure == "FAILED" or figure == "verdict=fail":
                    wrong.append(f"{what}: {figure}")
    wrong += [f"{what}: said nothing" for what in WANTED if what not in said]
    print()
    for line in wrong:
        print(f"WRONG  {line}")
    if not wrong:
        print("nothing is missing, and no line reports a failure")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
