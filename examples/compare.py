# SPDX-License-Identifier: Apache-2.0
"""Runs an example, shows what it prints, and compares its standard output with NAME.expected; on CUDA with NAME.cuda.expected if
there is one. A line that begins with ~ is a regular expression; one that begins with ~* matches any number of lines."""
import pathlib
import re
import subprocess
import sys

run = subprocess.run(sys.argv[2:], text=True, capture_output=True, timeout=120)
print(run.stderr + run.stdout, end="")
if run.returncode == 0 and "skipped: " in run.stderr:
    sys.exit(77)

expected = pathlib.Path(sys.argv[1])
on_cuda = expected.with_suffix(".cuda.expected")
if on_cuda.exists() and "running on CUDA" in run.stderr:
    expected = on_cuda


def pattern(line):
    if line.startswith("~*"):
        return f"(?:{line[2:].strip()}\n)*"
    return (line[1:].strip() if line.startswith("~") else re.escape(line.strip())) + "\n"


wanted = expected.read_text().splitlines()
printed = "".join(line.strip() + "\n" for line in run.stdout.splitlines())
if run.returncode or not re.fullmatch("".join(map(pattern, wanted)), printed):
    print(f"exit status {run.returncode}; {expected.name}:\n" + "\n".join(wanted))
    sys.exit(1)
