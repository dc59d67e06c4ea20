#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collects the tests' result lines, `evidence: WHAT KEY=VALUE...`, in one table.

evidence.py LOG TESTS.jsonl   the log of the current run, and what bench/gpu.sh kept of earlier ones on a GPU, each with its machine and
                              date. Exit status 1 if a required line or key is missing, or a line reports a failure. What was skipped is
                              listed: it was not tested.
"""
import json
import sys

# Required lines of a complete run.
WANTED = ["host_tests", "simulation", "simulation_without_pages", "simulation_without_memory_pools", "tests_without_pages", "tests_without_memory_pools", "tests_without_pages_memory_pools", "soak", "free_threads", "driver_fault_sites", "driver_faults", "host_faults", "endings",
          "misuse_host_sanitizers", "misuse_nvtx_calls", "asan_ubsan_tarn_tests", "tsan", "mutants", "random_mutants", "coverage",
          "warnings"]
# Keys whose value must be 0.
BAD = {"failed", "failures", "findings", "missed", "false_reports", "errors", "out_of_date",
       "unreached_unexplained", "with_warnings"}
# Figures that one line must have: the other value says that this was skipped.
TESTED = {"snapshots": "memory_viz=read"}
CONTEXT = ("gpu", "driver", "cuda toolkit", "compiler", "cpu", "torch", "rmm", "dali", "nccl", "commit", "date")  # of a row of tests.jsonl
SKIPPED = "skipped, nothing was tested"  # what a test case prints


def read(path):
    """(what, figures) of each line of a log. A test case that was skipped counts for the next line."""
    skipped = 0
    with open(path, encoding="utf-8", errors="replace") as log:
        for line in log:
            skipped += SKIPPED in line
            if line.startswith("evidence: "):
                what, *figures = line.split()[1:]
                if skipped and " skipped=" not in line:
                    figures.append(f"skipped={skipped}")
                skipped = 0
                yield what, figures


def kept(path):
    """(what, figures, machine) of each row of tests.jsonl."""
    with open(path, encoding="utf-8") as rows:
        for row in map(json.loads, rows):
            figures = [f"{key}={value}" for key, value in row.items() if key not in (*CONTEXT, "what", "outcome")]
            if row["outcome"].startswith("FAILED"):
                figures.append("FAILED")
            yield row["what"], figures, f"{row['gpu']}, {row['date'][:10]}, commit {row['commit']}"


def main():
    said, wrong, skipped, tested = set(), [], [], set()
    log, results = sys.argv[1:]
    for what, figures, *machine in [*read(log), *kept(results)]:
        said.add(what)
        print(f"  {what:24} {'  '.join([*figures, *machine])}")
        tested.update(what for figure in figures if figure == TESTED.get(what))
        for figure in figures:
            key, _, value = figure.partition("=")
            if (key in BAD and value not in ("0", "")) or figure == "FAILED" or figure == "verdict=fail":
                wrong.append(f"{what}: {figure}")
            if key == "skipped" and value != "0" or value == "skipped":
                skipped.append(f"{what}: {figure} ({results if machine else log})")
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
