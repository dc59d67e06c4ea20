# SPDX-License-Identifier: Apache-2.0
"""Mistakes that must not compile, and the words that the first error or its notes must contain. Each case is a .cpp here whose second
line is `// error: words`, and whose third may be `// flags: options`, where HERE is this folder. With TARN_THOROUGH, set by ./dev evidence, runs with
each installed compiler, because a user reads the first error of any of them."""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
compilers = [sys.argv[2]]
if os.environ.get("TARN_THOROUGH") and "clang" not in sys.argv[2] and shutil.which("clang++"):
    compilers.append("clang++")


def check(case, compiler):
    """Returns what is wrong with the compiler's first error, or nothing."""
    lines = case.read_text().splitlines()
    words = lines[1].split("error: ", 1)[1]
    flags = lines[2].split("flags: ", 1)[1].replace("HERE", str(case.parent)).split() if lines[2].startswith("// flags: ") else []
    command = [compiler, "-std=c++20", "-fsyntax-only", "-DTARN_NO_CUDA", *flags, "-I", str(root / "include"), str(case)]
    run = subprocess.run(command, text=True, capture_output=True)
    # A deleted function explains itself in the line that declares it, which the error's note shows.
    first = "".join(run.stderr.partition(" error: ")[2].partition(" error: ")[0])
    if run.returncode == 0:
        return f"{case.name}, {compiler}: compiles, but must not compile"
    if words not in first:
        return f"{case.name}, {compiler}: the first error does not contain '{words}'\n{run.stderr[:1500]}"
    return None


cases = [(case, compiler) for case in sorted((root / "tests" / "compile_fail").glob("*.cpp")) for compiler in compilers]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    wrong = [result for result in pool.map(lambda case: check(*case), cases) if result]
for result in wrong:
    print(result)
count, bad = len(cases), len(wrong)
print(f"{count - bad} of {count} mistakes are named in the first error ({', '.join(compilers)})")
sys.exit(bool(bad) or not count)
