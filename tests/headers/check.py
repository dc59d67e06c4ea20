# SPDX-License-Identifier: Apache-2.0
"""Every header compiles alone, twice in one file, with the project's warnings: without CUDA under each compiler that is
there, and those that know CUDA once more with its headers."""
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
flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-I", str(include), "-x", "c++", "-"]
without_cuda = ["-DTARN_NO_CUDA", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"]
headers = sorted(h.relative_to(include) for h in include.rglob("*.hpp"))


def folder_of(*candidates):
    return next((f for f in map(pathlib.Path, candidates) if f.exists()), None)


cuda = folder_of("/usr/local/cuda/include")
host_thrust = folder_of("/usr/include/thrust", "/usr/local/cuda/include/cccl/thrust", "/usr/local/cuda/include/thrust")
jobs, skipped = [], []
for header in headers:
    text = (include / header).read_text()
    needs_cuda = header.parts[1] == "driver" and header.name.startswith("cuda_") or header.name == "cuda_mr.hpp"
    needs_thrust = "#include <thrust/" in text
    if needs_thrust and not host_thrust:
        skipped.append(f"{header} without CUDA: no Thrust")
    elif not needs_cuda:
        extra = ["-isystem", str(host_thrust.parent)] if needs_thrust and str(host_thrust.parent) != "/usr/include" else []
        jobs += [(c, header, without_cuda + extra) for c in compilers]
    if needs_cuda or needs_thrust or "TARN_HAS_CUDA" in text or header.name == "tarn.hpp":
        if cuda:
            jobs.append((compilers[0], header, ["-isystem", str(cuda / "cccl"), "-isystem", str(cuda)]))
        else:
            skipped.append(f"{header} with CUDA: no CUDA headers")


def check(job):
    compiler, header, extra = job
    source = f'#include "{header}"\n#include "{header}"\n'
    run = subprocess.run([compiler, *extra, *flags], input=source, text=True, capture_output=True)
    return compiler, header, run.returncode, run.stderr


with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    bad = [result for result in pool.map(check, jobs) if result[2]]
for compiler, header, _, errors in bad:
    print(f"{compiler}: {header} does not compile alone\n{errors[:1500]}")
for line in skipped:
    print(f"skipped {line}")
print(f"{len(jobs) - len(bad)} of {len(jobs)} compiled alone ({', '.join(compilers)})")
sys.exit(bool(bad) or not jobs)
