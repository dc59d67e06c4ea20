#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what cmake/tarn_gdb.py prints in gdb with what the program itself reports of the same objects.

    check.py PROGRAM

Exits with 77, having said why, where there is no gdb with Python or it may not run programs.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
printers = here.parent.parent / "cmake" / "tarn_gdb.py"
source = here / "program.cpp"
line = next(n for n, text in enumerate(source.read_text().splitlines(), 1) if "the debugger stops here" in text)
names = re.findall(r'^  expect\("(\w+)"', source.read_text(), re.M)


def skip(why):
    print(f"SKIPPED: gdb's pretty printers ({why})")
    sys.exit(77)


if shutil.which("gdb") is None:
    skip("no gdb")
if subprocess.run(["gdb", "-nx", "-batch", "-ex", "python 1"], capture_output=True, text=True).returncode != 0:
    skip("this gdb has no Python")
with tempfile.TemporaryDirectory() as folder:
    expected = pathlib.Path(folder) / "expected"
    commands = ["set print thread-events off", f"source {printers}", f"break {source.name}:{line}", f"run >'{expected}'"]
    commands += [f'python print("\\n{n} = " + gdb.parse_and_eval("{n}").format_string())' for n in names]
    run = subprocess.run(["gdb", "-nx", "-q", "-batch", *(a for c in commands for a in ("-ex", c)), sys.argv[1]],
                         capture_output=True, text=True, timeout=300)
    reported = expected.read_text() if expected.exists() else ""
if "ptrace" in run.stderr:
    skip(run.stderr.strip().splitlines()[-1])

shown = {n: [(re.findall(rf"^{n} = (.*)$", text, re.M) or ["nothing"])[-1] for text in (reported, run.stdout)] for n in names}
wrong = [n for n in names if shown[n][0] != shown[n][1] or shown[n][0] == "nothing"]
for n in wrong:
    print(f"FAILED: {n}: the program reports the first and gdb prints the second\n  " + "\n  ".join(shown[n]))
if wrong or not names:
    print(run.stderr)
    sys.exit(1)
print(f"{len(names)} objects are printed as the program reports them, each in one line")
