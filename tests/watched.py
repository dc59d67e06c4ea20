#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program of tests under something that watches it, shows the end of what it prints, and reports what ran.

    watched.py WHAT PROGRAM ARGUMENT...   the last line is `evidence: WHAT cases=N assertions=N skipped=N findings=0`

With TARN_TEST_JOBS=N the program is one of Catch2's and runs in N processes at once, each with a part of the cases.
All of the output is in WHAT.log in the current folder. Exit status 77 where the program is not installed, or
ThreadSanitizer cannot start on this kernel.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = "skipped, nothing was tested"  # what a test case prints
# ThreadSanitizer cannot start where a recent kernel spreads addresses more widely than it knows.
SPREAD = "unexpected memory mapping"


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode and SPREAD in done.stdout and command[0] != "setarch" and shutil.which("setarch"):
        return run(["setarch", "-R", *command])
    return done.returncode, done.stdout


def run_in_parts(command, jobs):
    """Runs the selected cases in many parts of every n-th case, so that no process has much more to do than the others."""
    for options in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):  # Catch2 2, Catch2 3
        status, text = run([*command, *options])
        if "Unrecognised token" not in text:
            break
    if SPREAD in text or "setarch: failed" in text:
        return status, text
    # A comma, a bracket, a quote and a backslash mean something in a list of names.
    names = [re.sub(r"([,\[\\\"])", r"\\\1", name) for name in text.splitlines()]
    parts = min(len(names), 8 * jobs)
    filters = [word for word in command[1:] if "[" in word]

    def run_part(number):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(names[number::parts]) + "\n")
            file.flush()
            return run([*(word for word in command if word not in filters), "--input-file", file.name])

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(run_part, range(parts)))
    failed = [result for result in results if result[0]]
    text = "\n".join(output for _, output in failed or results)
    ran = sum(cases for cases, _ in counted(text))
    if not failed and (ran != len(names) or not names):
        return 1, f"{text}\n{ran} of {len(names)} cases ran"
    return (failed[0][0] if failed else 0), text


def counted(text):
    """The cases and assertions of each run of Catch2's."""
    found = re.findall(r"^All tests passed \((\d+) assertions? in (\d+) test cases?\)", text, re.M)
    without = re.findall(r"^test cases: +(\d+) \| +\1 passed\nassertions: - none -", text, re.M)
    return [(int(cases), int(assertions)) for assertions, cases in found] + [(int(cases), 0) for cases in without]


def figures_of(text):
    """What Catch2 counted; nothing of other programs, which report on their own."""
    cases, assertions = map(sum, zip(*(counted(text) or [(0, 0)])))
    return f" cases={cases} assertions={assertions} skipped={text.count(SKIPPED)}" if cases else ""


def main(what, *command):
    if not shutil.which(command[0]):
        print(f"SKIPPED: {what}: {command[0]} is not installed")
        return 77
    jobs = int(os.environ.get("TARN_TEST_JOBS", 0))
    status, text = run_in_parts(command, jobs) if jobs else run(command)
    log = pathlib.Path(f"{what}.log").absolute()
    log.write_text(text)
    lines = text.splitlines()
    if status and (SPREAD in text or "setarch: failed" in text):
        print(f"SKIPPED: {what}: this kernel spreads addresses more widely than ThreadSanitizer supports, and setarch -R is not permitted")
        return 77
    print("\n".join(lines[-60 if status else -3:]))
    if status:
        print(f"{what}: exit status {status}; all of the output is in {log}")
        return 1
    print(f"evidence: {what}{figures_of(text)} findings=0")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
