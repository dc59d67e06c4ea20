#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles tarn with all warnings enabled, as a user does: the headers by -I, no warning option of tarn's own.

Every example, every header that a user includes (include/tarn/*.hpp) and the tests of the interop headers, with
-Wall -Wextra -Wpedantic -Wconversion -Wshadow, by each compiler that is installed, the programs at -O0 and at higher levels:
g++ 11 to 16, clang++ 14 to 23, some of them with libc++, and nvcc from 12.4 on. tests/package/cuda_program.cu is also run.

    compile_as_user.py            each file by itself
    compile_as_user.py --short    all examples and headers in one file, by each compiler at one level, as .ci/run does
    compile_as_user.py --only RE  the jobs whose names match
    compile_as_user.py --list     name the jobs and stop

Thrust, CUDA and Catch2 are included by -isystem, because their warnings are not tarn's. NVTX, which tarn includes itself, is
once more included by -I, in a copy that has a variable named `module`, as some of its releases have: nvcc warns of it.
A compiler or a library that is missing is named as skipped.
Exit status: 0 no warning, 1 some, 77 none of the compilers is installed.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]
# clang's warnings come from its front end, which knows of the level only that there is one. nvcc passes the level to g++, which finds
# most at -O3. A header alone gives next to no code to optimize.
GXX_LEVELS, CLANG_LEVELS, NVCC_LEVELS, HEADER_LEVEL = ["-O0", "-O2", "-O3"], ["-O0", "-O2"], ["-O0", "-O3"], "-O3"
# In one file of all examples main() is an ordinary function, which returns nothing.
NO_MAIN, NO_MAIN_NVCC = ["-Wno-return-type"], ["-Xcompiler=-Wno-return-type", "-diag-suppress=940"]
HOST = ["-DTARN_NO_CUDA", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"]
SIMULATED = ["-include", "tarn/sim.hpp"]  # gives CUDA's names to the simulated device
COMPILERS = {name: [name] for name in [f"g++-{n}" for n in range(11, 17)] + [f"clang++-{n}" for n in range(14, 24)]}
COMPILERS |= {f"clang++-{n} libc++": [f"clang++-{n}", "-stdlib=libc++"] for n in (16, 19, 22)}  # the name in the report: the command
NVCC_VERSIONS = ["12.4", "13.0", "13.1", "13.2", "13.3", "13.5"]


def first_folder(*candidates):
    return next((pathlib.Path(c) for c in candidates if c and os.path.isdir(c)), None)


cuda = first_folder(os.environ.get("CUDA_HOME"), "/usr/local/cuda")
cccl = first_folder(*([cuda / "include/cccl", cuda / "include"] if cuda else []))
mpi = None  # the options of a program that includes mpi.h
if shutil.which("pkg-config"):
    asked = subprocess.run(["pkg-config", "--cflags", "mpi-c"], capture_output=True, text=True)
    mpi = asked.stdout.replace("-I", "-isystem").split() if asked.returncode == 0 else None
thrust = next((f for f in (pathlib.Path("/usr/include"), cccl) if f and (f / "thrust/sort.h").exists()), None)
catch = next((v for v, f in ((2, "catch2/catch.hpp"), (3, "catch2/catch_all.hpp")) if os.path.exists(f"/usr/include/{f}")), 0)


def compiles(command, source, language="c++"):
    run = subprocess.run([*command, "-x", language, "-"], input=source, text=True, capture_output=True)
    return run.returncode == 0


def nvccs():
    """The versions of nvcc that are installed, and the command of each: in the path, and where NVIDIA and Debian install them."""
    found = {}
    for candidate in ["nvcc", *sorted(map(str, pathlib.Path("/usr/local").glob("cuda*/bin/nvcc"))), "/usr/bin/nvcc"]:
        if command := shutil.which(candidate):
            text = subprocess.run([command, "--version"], text=True, capture_output=True).stdout
            if version := re.search(r"release ([\d.]+)", text):
                found.setdefault(version.group(1), command)
    return found


class Job:
    def __init__(self, name, command, text, runs=False):
        self.name, self.command, self.text, self.runs = name, command, text, runs

    def run(self, folder, number):
        """The warnings and errors, or nothing."""
        source = pathlib.Path(folder) / f"{number}.{'cu' if 'nvcc' in self.command[0] else 'cpp'}"
        source.write_text(self.text)
        made = f"{source}.o"
        # clang from 21 on warns of -c beside -fsyntax-only.
        whole = self.runs or "-fsyntax-only" in self.command
        run = subprocess.run([*self.command, *([] if whole else ["-c"]), str(source), "-o", made], text=True, capture_output=True)
        if run.returncode == 0 and self.runs:
            run = subprocess.run([made], text=True, capture_output=True)
        pathlib.Path(made).unlink(missing_ok=True)
        said = (run.stdout + run.stderr).strip()
        if run.returncode == 0 and not re.search(r"\bwarning\b", said):
            return ""
        return said or f"exit status {run.returncode}"


def of_file(path):
    return f'#include "{path}"\n'


def all_in_one(files):
    """One file of many programs, each in a namespace of its own, with all that they include before them."""
    includes, programs = {}, ""
    for file in files:
        for line in file.read_text().splitlines():
            name = re.match(r"#include ([<\"].*[>\"])", line)
            if name:
                includes[name.group(1)] = None
    for number, file in enumerate(files):
        programs += f"namespace program_{number} {{\n{of_file(file)}}}\n"
    guarded = "".join(f"#if __has_include({name})\n#include {name}\n#endif\n" for name in includes)
    return guarded + programs


def is_cuda_only(header):
    return header.name == "cuda_mr.hpp"


def nvtx_with_module(folder):
    """A copy of CUDA's NVTX with a variable named `module`, or None where there is no NVTX."""
    source = cuda / "include/nvtx3" if cuda else None
    if not source or not (source / "nvtxDetail/nvtxExtImplMem_v1.h").exists():
        return None
    shutil.copytree(source, pathlib.Path(folder) / "nvtx3")
    header = pathlib.Path(folder) / "nvtx3/nvtxDetail/nvtxExtImplMem_v1.h"
    header.write_text(header.read_text().replace("module_info", "module"))
    return folder


def jobs_and_skipped(short, folder):
    unit_test = ROOT / "examples/layer_test.cpp"
    examples = sorted(set((ROOT / "examples").glob("*.cpp")) - {unit_test}) + sorted((ROOT / "examples/cmake_consumer").glob("*.cpp")) + [
        ROOT / "examples/integrations/data_parallel/data_parallel.cpp"]
    headers = sorted((INCLUDE / "tarn").glob("*.hpp"))
    interop = sorted((ROOT / "tests/interop").glob("*.cpp"))
    jobs, skipped, absent = [], [], []

    def names_thrust(file):
        return re.search(r"#include (<thrust/|\"tarn/thrust.hpp)", file.read_text()) or file.name.startswith("thrust.")

    for name, command in COMPILERS.items():
        if not shutil.which(command[0]):
            absent.append(name)
            continue
        command = [*command, "-std=c++20", f"-I{INCLUDE}", f"-I{ROOT / 'examples'}"]
        if not compiles([*command, "-fsyntax-only"], "#include <concepts>\n#include <memory_resource>\n"):
            skipped.append(f"{name}: its C++ library is not installed, or is older than libc++ 16")
            continue
        # /usr/include is searched as a system folder anyway.
        system = [] if not thrust or str(thrust) == "/usr/include" else ["-isystem", str(thrust)]
        has_thrust = thrust and compiles([*command, *HOST, *system, "-fsyntax-only"], "#include <thrust/device_vector.h>\n#include <thrust/sort.h>\n")
        if not has_thrust:
            skipped.append(f"{name}: what needs Thrust ({'it does not compile' if thrust else 'no Thrust'} here)")
        if not catch:
            skipped.append(f"{name}: the tests of the interop headers (no Catch2)")
        if not cuda:
            skipped.append(f"{name}: the headers with CUDA's beside them (no CUDA)")
        host = [*command, *HOST, *system]
        tests = [f"-I{ROOT / 'tests'}", f"-DTARN_CATCH2={catch}", *(mpi or [])]
        with_cuda = [*command, *(["-isystem", str(cccl), "-isystem", str(cuda / "include")] if cuda else [])]
        has_cccl = cuda and compiles([*with_cuda, "-fsyntax-only"], "#include <cuda/memory_resource>\n#include <cuda/std/functional>\n")
        if cuda and not has_cccl:
            skipped.append(f"{name}: tarn/cuda_mr.hpp and tarn/thrust.hpp with CUDA (CUDA's C++ library does not compile here)")
        cuda_headers = [h for h in headers if cuda and (has_cccl or h.name not in ("cuda_mr.hpp", "thrust.hpp"))]
        usable = [e for e in examples if has_thrust or not names_thrust(e)]
        plain = [h for h in headers if not is_cuda_only(h) and (has_thrust or not names_thrust(h))]
        interop_here = [d for d in interop if catch and (has_thrust or not names_thrust(d)) and (mpi is not None or "<mpi.h>" not in d.read_text())]
        levels = CLANG_LEVELS if "clang" in name else GXX_LEVELS

        def add(level, what, flags, text):
            more = ["-fsyntax-only"] if "clang" in name else []
            jobs.append(Job(f"{name} {level} {what}", [*flags[:1], *WARNINGS, *flags[1:], level, *more], text))

        if short:
            # ./dev test compiles the examples at -O0, with these warnings as errors in .ci/run.
            add(levels[-1], "all examples and headers", [*host, *SIMULATED, *NO_MAIN], "".join(map(of_file, plain)) + all_in_one(usable))
            if cuda_headers:
                add(levels[-1], "all headers with CUDA", with_cuda, "".join(map(of_file, cuda_headers)))
            continue
        for level in levels:
            for example in [*usable, *([unit_test] if catch == 2 else [])]:
                add(level, example.relative_to(ROOT), [*host, *SIMULATED], of_file(example))
            for test in interop_here:
                add(level, test.relative_to(ROOT), [*host, *tests], of_file(test))
        for header in plain:
            add(HEADER_LEVEL, header.relative_to(ROOT), host, of_file(header))
        for header in cuda_headers:
            add(HEADER_LEVEL, f"{header.relative_to(ROOT)} with CUDA", with_cuda, of_file(header))

    installed = nvccs()
    absent += [f"nvcc {version}" for version in NVCC_VERSIONS if version not in installed]
    if absent:
        skipped.append(f"not installed: {', '.join(absent)}")
    if mpi is None:
        skipped.append("the test that includes mpi.h (pkg-config knows no MPI here)")
    nvtx = nvtx_with_module(folder)
    if not nvtx:
        skipped.append("nvcc: another NVTX (CUDA has none here)")
    both = examples + sorted((ROOT / "examples").glob("*.cu"))
    interop = sorted((ROOT / "tests/interop").glob("*.cu")) if catch else []
    program = ROOT / "tests/package/cuda_program.cu"
    for version, nvcc in installed.items():
        name = f"nvcc {version}"
        command = [nvcc, "-std=c++20", "--extended-lambda", f"-I{INCLUDE}", f"-I{ROOT / 'examples'}", "-arch=compute_75"]
        command += [f"-ccbin={c}" for c in ("g++-12",) if shutil.which(c)]
        # -Wpedantic calls each line marker of nvcc's own output a GCC extension.
        command.append("-Xcompiler=" + ",".join(w for w in WARNINGS if w != "-Wpedantic"))
        jobs.append(Job(f"{name} -O0 {program.relative_to(ROOT)}", [*command, "-O0"], of_file(program), runs=True))
        if nvtx:
            jobs.append(Job(f"{name} -O0 all headers, another NVTX", [*command, f"-I{nvtx}", "-O0"], "".join(map(of_file, headers))))
        if short:
            everything = "".join(map(of_file, headers)) + all_in_one(both)
            jobs.append(Job(f"{name} -O0 all examples and headers", [*command, *NO_MAIN_NVCC, "-O0"], everything))
            continue
        for level in NVCC_LEVELS:
            for file in [*both, *interop, *(headers if level == HEADER_LEVEL else [])]:
                tests = [f"-I{ROOT / 'tests'}", f"-DTARN_CATCH2={catch}"] if file in interop else []
                jobs.append(Job(f"{name} {level} {file.relative_to(ROOT)}", [*command, *tests, level], of_file(file)))
    return jobs, skipped


def main():
    parser = argparse.ArgumentParser(description="Compiles what users compile, with all warnings.")
    parser.add_argument("--short", action="store_true", help="one file of all, for each compiler and level")
    parser.add_argument("--only", default="", metavar="RE", help="the jobs whose names match")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="compilers at once")
    parser.add_argument("--list", action="store_true", help="name the jobs and stop")
    parser.add_argument("-v", action="store_true", help="the time of each")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run_all(options, folder)


def run_all(options, folder):
    jobs, skipped = jobs_and_skipped(options.short, folder)
    jobs = [job for job in jobs if re.search(options.only, job.name)]
    for line in skipped:
        print(f"SKIPPED: {line}")
    if options.list:
        print("\n".join(job.name for job in jobs))
        return 0
    if not jobs:
        print("SKIPPED: none of the compilers is installed")
        return 77
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        def timed(numbered):
            start = time.monotonic()
            said = numbered[1].run(folder, numbered[0])
            return said, time.monotonic() - start

        for job, (said, seconds) in zip(jobs, pool.map(timed, enumerate(jobs))):
            if options.v:
                print(f"{seconds:6.1f} s  {job.name}", flush=True)
            if said:
                bad += 1
                lines = [line for line in said.splitlines() if re.search(r"\b(warning|error)\b", line)]
                print(f"WARNINGS: {job.name}\n{said[:3000]}\n", flush=True)
                for line in dict.fromkeys(lines):
                    print(f"  {line[:300]}", flush=True)
    kinds = sorted({re.match(r"\S+( libc\+\+)?", job.name).group(0) for job in jobs})
    print(f"evidence: warnings compilations={len(jobs)} with_warnings={bad} compilers={','.join(k.replace(' ', '_') for k in kinds)}"
          f" skipped={len(skipped)}")
    return int(bad != 0)


if __name__ == "__main__":
    sys.exit(main())
