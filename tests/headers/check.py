# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone, with the project's warnings; and two files that include all of tarn link together."""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
compilers = [sys.argv[2]]
if "clang" not in sys.argv[2] and shutil.which("clang++"):
    compilers.append("clang++")
include = root / "include"
flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-DTARN_NO_CUDA", "-I", str(include)]
headers = sorted(h.relative_to(include) for h in include.rglob("*.hpp"))
# The drivers and doors that need others' headers are compiled by their own tests.
needs_cuda = {"tarn/thrust.hpp", "tarn/cuda_mr.hpp"}


def check(job):
    compiler, header = job
    run = subprocess.run([compiler, *flags, "-x", "c++", "-"], input=f'#include "{header}"\n#include "{header}"\n', text=True, capture_output=True)
    return (compiler, header, run.stderr if run.returncode else "")


jobs = [(c, h) for c in compilers for h in headers if str(h) not in needs_cuda and "/cuda_" not in str(h.with_suffix("")).replace("source/cuda_", "")]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    bad = [r for r in pool.map(check, jobs) if r[2]]
for compiler, header, errors in bad:
    print(f"{compiler}: {header} does not compile alone\n{errors[:1500]}")
print(f"{len(jobs) - len(bad)} of {len(jobs)} compiled alone ({', '.join(compilers)})")
sys.exit(bool(bad))
