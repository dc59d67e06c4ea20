# SPDX-License-Identifier: Apache-2.0
"""Two versions of tarn in one program: two shared libraries, one from the headers of ROOT and one from those of another version
(other_version.py), linked with a program, and opened by another with RTLD_LOCAL. program.cpp has the checks. With equal namespaces the
same libraries must fail: otherwise this test could not.
Use: check.py ROOT COMPILER"""
import os
import pathlib
import subprocess
import sys
import tempfile

import other_version

root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
here = root / "tests" / "versions"
is_clang = b"clang" in subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
errors = ["-Werror"] if os.environ.get("TARN_WARNINGS_AS_ERRORS") else []
flags = [compiler, "-std=c++20", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", *errors, "-DTARN_NO_CUDA", "-pthread"]


def start(folder, output, source, *more):
    return subprocess.Popen([*flags, str(here / source), "-o", str(folder / output), *more])


def finish(*compilations):
    if any([c.wait() for c in compilations]):
        sys.exit("FAILED: the compiler's message is above")


def run(folder, program, *libraries, seconds=60):
    """Returns how it ended, and what it printed."""
    command = [str(folder / program), *(str(folder / f"lib{name}.so") for name in libraries)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "a hang", ""
    return ended.returncode, ended.stdout + ended.stderr


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    shared = ["-fPIC", "-shared"]
    includes = {"first": root / "include", "second": folder / "another", "same": folder / "same"}
    other_version.write(root, includes["second"], False)
    other_version.write(root, includes["same"], True)
    libraries = [start(folder, f"lib{library}.so", "part.cpp", *shared, f"-I{include}",
                       f"-DTARN_TEST_PART={'first' if library == 'first' else 'second'}_part")
                 for library, include in includes.items()]
    gate = start(folder, "libgate.so", "gate.cpp", *shared, "-fvisibility=hidden", f"-I{root / 'include'}")
    loader = start(folder, "loader", "program.cpp", "-ldl")
    finish(*libraries, gate, loader)
    finish(start(folder, "linked", "program.cpp", "-DTARN_TEST_LINKED", f"-L{folder}", f"-Wl,-rpath,{folder}",
                 "-lfirst", "-lsecond", "-lgate"))
    for way, libraries in (("linked", ()), ("loader", ("first", "second", "gate"))):
        status, text = run(folder, way, *libraries)
        if status != 0:
            sys.exit(f"FAILED: {way} ended with {status}\n{text}")
        print(f"{way}: {text.strip()}")
    status, text = run(folder, "loader", "first", "same", "gate", seconds=20)
    # clang makes no unique symbols: with RTLD_LOCAL its libraries share nothing but the types of errors.
    if status == 0 or (not is_clang and "have different namespaces" in text):
        sys.exit(f"FAILED: versions with one namespace work, so this test finds nothing\n{text}")
    print(f"with equal namespaces the program ends with {status}")
