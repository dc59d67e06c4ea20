#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The records of `./dev evidence`, whose parts can be run one by one: tests/evidence/PART.txt, each of the newest run.

evidence.py                   prints what each part and each test on a GPU said, `evidence: WHAT KEY=VALUE...`, with its commit, and what
                              was skipped: it was not tested. Exit status 1 if a part has no record, a record lacks a line, a line
                              reports a failure, or the headers have changed by more than 1 % since a record: all parts take longer
                              than work pauses. Fewer changes are listed.
evidence.py --missing         names the parts that have no record of these headers
evidence.py --keep PART LOG   makes the record of a run
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORDS = ROOT / "tests" / "evidence"
ON_A_GPU = ROOT / "bench" / "results" / "tests.jsonl"
# The lines that a complete record has.
PARTS = {
    "host": ["host_tests", "simulation", "simulation_without_pages", "simulation_without_memory_pools", "tests_without_pages",
             "tests_without_memory_pools", "tests_without_pages_memory_pools", "free_threads", "driver_fault_sites", "driver_faults",
             "host_faults", "endings", "misuse_host_sanitizers", "misuse_nvtx_calls"],
    "sanitizers": ["asan_ubsan_tarn_tests", "tsan", "glibcxx_debug"],
    "valgrind": ["valgrind"],
    "checks": ["warnings"],
    "newest": ["host_tests", "simulation"],
    "planted": ["mutants"],
    "random": ["random_mutants"],
    "arm": ["aarch64_tests", "simulation"],
    "soak": ["soak"],
    "coverage": ["coverage"],
    "packages": [],
}
# Keys whose value must be 0.
BAD = {"failed", "failures", "findings", "missed", "false_reports", "errors", "out_of_date", "unreached_unexplained", "with_warnings"}
# Figures that one line must have: the other value says that this was skipped.
TESTED = {"snapshots": "memory_viz=read"}
CONTEXT = ("gpu", "driver", "cuda toolkit", "compiler", "cpu", "torch", "rmm", "dali", "nccl", "commit", "date")  # of a row of tests.jsonl
SKIPPED = "skipped, nothing was tested"  # what a test case prints
# What a record keeps of a log. The tables of planted bugs and of random changes are kept whole.
KEPT = re.compile(r"^(evidence|SKIPPED|FAILED|skipped) ?\b|^== |^passed in |^\d+ passed, \d+ failed|" + SKIPPED)
WHOLE = ("planted", "random")


def git(*arguments):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()


def changed_lines(commit):
    """The lines of headers that were added and removed since a commit; None where the commit is not known."""
    if not git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        return None
    counts = (line.split("\t") for line in git("diff", "--numstat", commit, "--", "include/*.hpp").splitlines())
    return sum(int(added) + int(removed) for added, removed, name in counts if not name.endswith("version.hpp"))


def record_of(part):
    """(commit, text) of a record; ("", "") if there is none."""
    path = RECORDS / f"{part}.txt"
    text = path.read_text(errors="replace") if path.exists() else ""
    commit = re.search(r"^# .*commit (\w+)", text)
    return (commit.group(1), text) if commit else ("", "")


def keep(part, log):
    commit = git("rev-parse", "--short=8", "HEAD")
    began = git("rev-parse", "--short=8", os.environ.get("TARN_COMMIT", "HEAD"))  # ./dev says at which commit the run began
    if not commit or commit != began or git("status", "--porcelain", "--", "include", "tests", ":!tests/evidence", ":!tests/simulation/soak.txt"):
        print("nothing is kept: include/ or tests/ differs from the commit at which the run began")
        return
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    system = re.search(r'PRETTY_NAME="(.*)"', pathlib.Path("/etc/os-release").read_text())
    head = [time.strftime("%Y-%m-%d"), system.group(1) if system else "", f"{os.cpu_count()} x {cpu.group(1) if cpu else 'unknown'}"]
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.rstrip().replace(f"{ROOT}/", "") for line in file if part in WHOLE or KEPT.search(line)]
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{part}.txt").write_text("\n".join([f"# {part}: commit {commit}, {', '.join(head)}", *lines]) + "\n")


def said_in(text):
    """(what, figures) of each line of evidence. A test case that was skipped counts for the next line."""
    skipped = 0
    for line in text.splitlines():
        skipped += SKIPPED in line
        if line.startswith("evidence: "):
            what, *figures = line.split()[1:]
            if skipped and " skipped=" not in line:
                figures.append(f"skipped={skipped}")
            skipped = 0
            yield what, figures


def on_a_gpu():
    """(what, figures, where) of each row of tests.jsonl."""
    for row in map(json.loads, ON_A_GPU.read_text().splitlines()):
        figures = [f"{key}={value}" for key, value in row.items() if key not in (*CONTEXT, "what", "outcome")]
        if row["outcome"].startswith("FAILED"):
            figures.append("FAILED")
        yield row["what"], figures, f"{row['gpu']}, {row['date'][:10]}, commit {row['commit']}"


def main():
    wrong, skipped, older, tested = [], [], [], set()
    lines_of_headers = sum(path.read_bytes().count(b"\n") for path in (ROOT / "include").rglob("*.hpp"))

    def show(what, figures, where):
        print(f"  {what:32} {'  '.join(figures)}{where and f'  ({where})'}")
        tested.update(what for figure in figures if figure == TESTED.get(what))
        for figure in figures:
            key, _, value = figure.partition("=")
            if (key in BAD and value not in ("0", "")) or figure == "FAILED" or figure == "verdict=fail":
                wrong.append(f"{what}: {figure}")
            if key == "skipped" and value != "0" or value == "skipped":
                skipped.append(f"{what}: {figure}" + (where and f" ({where})"))

    for part, wanted in PARTS.items():
        commit, text = record_of(part)
        if not commit:
            wrong.append(f"{part}: no record")
            continue
        print(text.splitlines()[0])
        lines = list(said_in(text))
        for what, figures in lines:
            show(what, figures, "")
        skipped += [f"{part}: {line}" for line in text.splitlines() if line.startswith("SKIPPED: ")]
        wrong += [f"{part}: {line}" for line in text.splitlines() if line.startswith("FAILED: ")]
        wrong += [f"{part}: {what} said nothing" for what in wanted if what not in dict(lines)]
        changed = changed_lines(commit)
        if changed is None:
            wrong.append(f"{part}: its commit is not in this repository")
        elif changed:
            (wrong if changed > lines_of_headers // 100 else older).append(f"{part}: of {lines_of_headers} lines of the headers {changed} have changed since")
    print("# on a GPU")
    for row in on_a_gpu():
        show(*row)
    wrong += [f"{what}: no line has {TESTED[what]}" for what in TESTED.keys() - tested]
    print()
    for line in skipped:
        print(f"NOT TESTED  {line}")
    for line in older:
        print(f"OLDER  {line}")
    for line in wrong:
        print(f"WRONG  {line}")
    if not wrong:
        print("nothing is missing, and no line reports a failure")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--missing"]:
        print(*(part for part in PARTS if changed_lines(record_of(part)[0] or "none") != 0))
    elif sys.argv[1:2] == ["--keep"]:
        keep(*sys.argv[2:])
    else:
        sys.exit(main())
