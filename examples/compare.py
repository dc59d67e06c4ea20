# SPDX-License-Identifier: Apache-2.0
"""Runs an example and compares what it prints with NAME.expected; a line that begins with ~ is a regular expression."""
import pathlib
import re
import subprocess
import sys

expected = pathlib.Path(sys.argv[1]).read_text().splitlines()
run = subprocess.run(sys.argv[2:], text=True, capture_output=True, timeout=120)
printed = run.stdout.splitlines()


def same(want, got):
    return re.fullmatch(want[1:].strip(), got.strip()) is not None if want.startswith("~") else want.rstrip() == got.rstrip()


if run.returncode or len(expected) != len(printed) or not all(map(same, expected, printed)):
    print(f"exit status {run.returncode}; printed:\n{run.stdout}{run.stderr}\nexpected:\n" + "\n".join(expected))
    sys.exit(1)
