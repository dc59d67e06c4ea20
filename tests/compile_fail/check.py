# SPDX-License-Identifier: Apache-2.0
"""Mistakes that must not compile, and the words that the error must contain. Each case is a .cpp here with a first line
`// error: words`."""
import pathlib
import subprocess
import sys

root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
bad = 0
cases = sorted((root / "tests" / "compile_fail").glob("*.cpp"))
for case in cases:
    words = case.read_text().splitlines()[1].split("error: ", 1)[1]
    run = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-DTARN_NO_CUDA", "-I", str(root / "include"), str(case)], text=True, capture_output=True)
    if run.returncode == 0:
        print(f"{case.name}: compiles, but must not")
        bad += 1
    elif words not in run.stderr:
        print(f"{case.name}: the error does not say '{words}'\n{run.stderr[:1500]}")
        bad += 1
print(f"{len(cases) - bad} of {len(cases)} mistakes are told clearly")
sys.exit(bool(bad) or not cases)
