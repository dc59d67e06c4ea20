# SPDX-License-Identifier: Apache-2.0
"""Mistakes that must not compile, and the words that the first error or its notes must contain. Each case is a .cpp here whose second
line is `// error: words`, and whose third may be `// flags: options`. Runs with each installed compiler, because a user reads the
first error of any of them."""
import pathlib
import shutil
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
compilers = [sys.argv[2]]
if "clang" not in sys.argv[2] and shutil.which("clang++"):
    compilers.append("clang++")
bad = count = 0
for case in sorted((root / "tests" / "compile_fail").glob("*.cpp")):
    lines = case.read_text().splitlines()
    words = lines[1].split("error: ", 1)[1]
    flags = lines[2].split("flags: ", 1)[1].split() if lines[2].startswith("// flags: ") else []
    for compiler in compilers:
        count += 1
        run = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", "-DTARN_NO_CUDA", *flags, "-I", str(root / "include"), str(case)], text=True, capture_output=True)
        # A deleted function explains itself in the line that declares it, which the error's note shows.
        first = "".join(run.stderr.partition(" error: ")[2].partition(" error: ")[0])
        if run.returncode == 0:
            print(f"{case.name}, {compiler}: compiles, but must not compile")
            bad += 1
        elif words not in first:
            print(f"{case.name}, {compiler}: the first error does not contain '{words}'\n{run.stderr[:1500]}")
            bad += 1
print(f"{count - bad} of {count} mistakes are named in the first error ({', '.join(compilers)})")
sys.exit(bool(bad) or not count)
