#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program of tests under something that watches it, shows the end of what it prints, and reports what ran.

    watched.py WHAT PROGRAM ARGUMENT...   the last line is `evidence: WHAT cases=N assertions=N skipped=N findings=0`

All of the output is in WHAT.log in the current folder. Exit status 77 where the program is not installed, or
ThreadSanitizer cannot start on this kernel.
"""
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = "skipped, nothing was tested"  # what a test case prints
# ThreadSanitizer cannot start where a recent kernel spreads addresses more widely than it knows.
SPREAD = "unexpected memory mapping"


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return done.returncode, done.stdout


def figures_of(text):
    """What Catch2 counted; nothing of other programs, which report on their own."""
    counted = re.findall(r"^All tests passed \((\d+) assertions? in (\d+) test cases?\)", text, re.M)
    return "".join(f" cases={cases} assertions={assertions} skipped={text.count(SKIPPED)}" for assertions, cases in counted[-1:])


def main(what, *command):
    if not shutil.which(command[0]):
        print(f"SKIPPED: {what}: {command[0]} is not installed")
        return 77
    status, text = run(command)
    if status and SPREAD in text and shutil.which("setarch"):
        status, text = run(["setarch", "-R", *command])
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
