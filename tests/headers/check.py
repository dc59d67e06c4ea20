# SPDX-License-Identifier: Apache-2.0
"""Compiles every header, included twice in one file, with the project's warnings: without CUDA, and what uses CUDA also with CUDA.
Each compiler reads all of them in one file. With TARN_THOROUGH, set by ./dev evidence, each also compiles each header alone;
./dev checks does that by clang-tidy. A program that only includes the headers does nothing before main(). The headers that users
include also compile where names are macros of other libraries, and beside `using namespace std`."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

root = pathlib.Path(sys.argv[1])
compilers = [sys.argv[2]]
if "clang" not in sys.argv[2] and shutil.which("clang++"):
    compilers.append("clang++")
include = root / "include"
# Set by .ci/run. With other compilers a warning is printed but is not an error.
errors = ["-Werror"] if os.environ.get("TARN_WARNINGS_AS_ERRORS") else []
flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", *errors, "-I", str(include), "-x", "c++", "-"]
without_cuda = ["-DTARN_NO_CUDA", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"]
headers = sorted(h.relative_to(include) for h in include.rglob("*.hpp"))


def folder_of(*candidates):
    return next((f for f in map(pathlib.Path, candidates) if f.exists()), None)


cuda = folder_of("/usr/local/cuda/include")
host_thrust = folder_of("/usr/include/thrust", "/usr/local/cuda/include/cccl/thrust", "/usr/local/cuda/include/thrust")
cuda_flags = ["-isystem", str(cuda / "cccl"), "-isystem", str(cuda)] if cuda else []
skipped, together, together_flags, with_cuda = [], [], [], []
for header in headers:
    text = (include / header).read_text()
    needs_cuda = header.parts[1] == "driver" and header.name.startswith("cuda_") or header.name == "cuda_mr.hpp"
    needs_thrust = "#include <thrust/" in text
    if needs_thrust and not host_thrust:
        skipped.append(f"{header} without CUDA: no Thrust")
    elif not needs_cuda:
        together.append(header)
        if needs_thrust and str(host_thrust.parent) != "/usr/include":
            together_flags = ["-isystem", str(host_thrust.parent)]
    if needs_cuda or needs_thrust or "TARN_HAS_CUDA" in text or header.name == "tarn.hpp":
        if cuda:
            with_cuda.append(header)
        else:
            skipped.append(f"{header} with CUDA: no CUDA headers")


def groups_of(files):
    return ([[f] for f in files] if os.environ.get("TARN_THOROUGH") else []) + ([files] if files else [])


# Qt's, Windows', X11's, complex.h's, and those of macOS and of debugging allocators, which have parameters.
MACROS = ["slots", "signals", "emit", "foreach", "forever", "near", "far", "small", "interface", "IN", "OUT", "OPTIONAL", "ERROR",
          "DELETE", "None", "Bool", "Status", "True", "False", "Success", "Always", "Complex", "I", "linux", "unix",
          "check(x)", "require(x)", "verify(x)", "free(x)", "malloc(x)", "major(x)", "minor(x)", "min(x, y)", "max(x, y)"]


def other_macros():
    """Includes what the headers include of others, then defines the macros: what is left of them does not compile."""
    texts = [(include / header).read_text() for header in headers]
    others = sorted({name for text in texts for name in re.findall(r"^#include <([\w./]+)>", text, re.MULTILINE)})
    others = [name for name in others if cuda or "/cuda/" not in name]  # Debian has Thrust's headers for CUDA, but no CUDA
    lines = [f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in others]
    return "".join(lines + [f"#undef {m.split('(')[0]}\n#define {m} @\n" for m in MACROS])


def entries(files):
    return [f for f in files if len(f.parts) == 2 and f.name != "nccl.hpp"]


jobs = [(compiler, group, without_cuda + together_flags, "") for compiler in compilers for group in groups_of(together)]
jobs += [(compilers[0], group, cuda_flags, "") for group in groups_of(with_cuda)]
jobs += [(compiler, entries(together), without_cuda + together_flags, other_macros()) for compiler in compilers]
both_namespaces = (pathlib.Path(__file__).parent / "using_namespaces.cpp").read_text()
jobs += [(compiler, [], without_cuda, both_namespaces) for compiler in compilers]
if cuda:
    memory_resource = "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE"  # cuda_mr.hpp would define it, but is not the first
    jobs.append((compilers[0], entries(with_cuda), [*cuda_flags, memory_resource], other_macros()))


def check(job):
    compiler, group, extra, before = job
    source = before + "".join(f'#include "{header}"\n' for header in [*group, *group])
    run = subprocess.run([compiler, *extra, *flags], input=source, text=True, capture_output=True)
    name = group[0] if len(group) == 1 else f"{len(group)} headers" + (" after macros of the same names" if before else "")
    if not group:
        name = "using_namespaces.cpp"
    return compiler, name, run.returncode, run.stderr


with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    results = list(pool.map(check, jobs))
bad = [result for result in results if result[2]]
for compiler, header, failed, said in results:
    if said:
        print(f"{compiler}: {header} {'does not compile' if failed else 'compiles with warnings'}\n{said[:1500]}")


def works_before_main():
    """What runs before main() has its address in the section .init_array of an object file. Thrust's and CUB's headers are left out."""
    alone = [h for h in together if "#include <thrust/" not in (include / h).read_text()]
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "all.o"
        source = "".join(f'#include "{header}"\n' for header in alone)
        subprocess.run([compilers[0], "-std=c++20", "-w", *without_cuda, "-I", str(include), "-x", "c++", "-", "-c", "-o", str(made)],
                       input=source, text=True, check=True)
        return any(name in made.read_bytes() for name in (b".init_array", b"__mod_init_func"))


if works_before_main():
    print("a program that only includes the headers runs code before main(): a variable in a header is initialised dynamically")
    bad.append(None)
for line in skipped:
    print(f"skipped {line}")
print(f"{len(jobs) - len(bad)} of {len(jobs)} compilations of headers passed ({', '.join(compilers)})")
sys.exit(bool(bad) or not jobs)
