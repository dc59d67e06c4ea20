# SPDX-License-Identifier: Apache-2.0
"""compare.py [--gpu] NAME.expected COMMAND...

Runs an example, shows what it prints, and compares its standard output with NAME.expected. With --gpu it is skipped (77) where there is
no GPU, and compared with NAME.cuda.expected if there is one. A line that begins with ~ is a regular expression; one that begins with ~*
matches any number of lines."""
import pathlib
import re
import subprocess
import sys

arguments = sys.argv[1:]
on_gpu = arguments[0] == "--gpu"
if on_gpu:
    del arguments[0]
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except OSError:
        found = False
    if not found:
        print("skipped: no GPU")
        sys.exit(77)
run = subprocess.run(arguments[1:], text=True, capture_output=True, timeout=600)
print(run.stderr + run.stdout, end="")

expected = pathlib.Path(arguments[0])
if on_gpu and expected.with_suffix(".cuda.expected").exists():
    expected = expected.with_suffix(".cuda.expected")


def pattern(line):
    if line.startswith("~*"):
        return f"(?:{line[2:].strip()}\n)*"
    return (line[1:].strip() if line.startswith("~") else re.escape(line.strip())) + "\n"


wanted = expected.read_text().splitlines()
printed = "".join(line.strip() + "\n" for line in run.stdout.splitlines())
if run.returncode or not re.fullmatch("".join(map(pattern, wanted)), printed):
    print(f"exit status {run.returncode}; {expected.name}:\n" + "\n".join(wanted))
    sys.exit(1)
