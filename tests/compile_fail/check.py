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


def without_cuda(compiler):
    """Options that leave CUDA's headers out of the compiler's folders, where a system has put them."""
    said = subprocess.run([compiler, "-xc++", "-E", "-v", os.devnull], text=True, capture_output=True).stderr
    folders = [line.strip() for line in said.partition("search starts here:\n#include <...> search starts here:\n")[2].splitlines()]
    folders = folders[:folders.index("End of search list.")]
    kept = [f for f in folders if not os.path.exists(os.path.join(f, "cuda_runtime_api.h"))]
    return [] if kept == folders else ["-nostdinc", *(option for f in kept for option in ("-isystem", f))]


def check(case, compiler):
    """Returns what is wrong with the compiler's first error, or nothing."""
    lines = case.read_text().splitlines()
    words = lines[1].split("error: ", 1)[1]
    flags = lines[2].split("flags: ", 1)[1].replace("HERE", str(case.parent)).split() if lines[2].startswith("// flags: ") else []
    if "-UTARN_NO_CUDA" in flags:
        flags += without_cuda(compiler)
    command = [compiler, "-std=c++20", "-fsyntax-only", "-DTARN_NO_CUDA", *flags, "-I", str(root / "include"), str(case)]
    run = subprocess.run(command, text=True, capture_output=True)
    # A deleted function explains itself in the line that declares it, which the error's note shows; a message of a header comes before.
    first = "".join(run.stderr.split(" error: ")[:2])
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
