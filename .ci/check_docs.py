#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs what the Markdown files print.

A ```cpp block with a main() is a program: it runs on the simulated device, and must print the block without a language that follows
it. With nvcc it is compiled as CUDA, too. Any other ```cpp block is the body of a function with `n`, `stream`, `device` and `pool`;
one that is followed by output is run. Those of a page are compiled as one program, and where that fails one by one. Blocks marked ```cpp cuda need nvcc.

A block marked with a file's name (```cpp program.cpp) is that file, for the commands of its page. Of README.md each line of each ```sh
block is run as it is printed, in a folder with these files and tarn's include/; the block must print the block without a language
that follows it. Lines with ./dev are those that .ci/run runs. The CMake lines are built by tests/package/check.sh.
What needs nvcc, CUDA or Catch2 is named as skipped where they are absent. No cell of README.md's tables has more than 15 words."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
prelude = """#include <tarn/tarn.hpp>
#include <tarn/thrust.hpp>
#include <tarn/transfer.hpp>
#include <tarn/diagnostics.hpp>
#include <tarn/sharing.hpp>
#include <thrust/device_vector.h>
#include <thrust/sort.h>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <vector>
using namespace tarn::literals;
"""
parameters = """([[maybe_unused]] std::size_t n, [[maybe_unused]] tarn::stream_ref stream, [[maybe_unused]] tarn::device_id device, [[maybe_unused]] tarn::device_pool pool) {
"""
simulated = [os.environ.get("CXX", "g++"), "-std=c++20", "-DTARN_NO_CUDA", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP",
             "-I", str(root / "include"), "-include", "tarn/sim.hpp"]
# Where Thrust is: Debian's libthrust-dev, or the one of CUDA.
thrust = next((f for f in ("/usr/include", "/usr/local/cuda/include/cccl", "/usr/local/cuda/include") if os.path.exists(f"{f}/thrust/sort.h")), None)
if thrust is None:
    print("SKIPPED: no Thrust, which the documents use")
    sys.exit(77)
if thrust != "/usr/include":
    simulated += ["-isystem", thrust]
nvcc = shutil.which("nvcc")
cuda = pathlib.Path("/usr/local/cuda/lib64/libcudart_static.a")


def run(command, source=None, **more):
    return subprocess.run(command, input=source, text=True, capture_output=True, **more)


def as_cuda(source):
    return run([nvcc, "-std=c++20", "-x", "cu", "-I", str(root / "include"), "-c", "-o", "/dev/null", "-"], source)


def program(code, output):
    """What is wrong with a program, compiled and run on the simulated device. None if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        made = run([*simulated, "-x", "c++", "-", "-o", f"{folder}/program", "-pthread", "-ldl"], code)
        if made.returncode:
            return "this does not compile:\n" + made.stderr[:2000]
        ran = run([f"{folder}/program"])
        if ran.returncode or ran.stdout != output:
            return f"this printed, with status {ran.returncode}:\n{ran.stdout}{ran.stderr}instead of:\n{output}"
    return None


ready = """() {
  [[maybe_unused]] std::size_t n = 1 << 20;
  tarn::device_pool pool;
  tarn::stream stream;
"""


def check_together(blocks):
    """(code, what is wrong with it) of blocks without a main(), compiled as one program, whose argument says which of them runs."""
    functions = [f"static void block_{k}" + (ready if output else parameters) + code + "}\n" for k, (code, output) in enumerate(blocks)]
    choices = "".join(f"  if (std::atoi(argv[1]) == {k}) block_{k}();\n" for k, (_, output) in enumerate(blocks) if output)
    with tempfile.TemporaryDirectory() as folder:
        source = prelude + "".join(functions) + "int main(int, [[maybe_unused]] char** argv) {\n" + choices + "}\n"
        made = run([*simulated, "-x", "c++", "-", "-o", f"{folder}/program", "-pthread", "-ldl"], source)
        if made.returncode:
            if len(blocks) == 1:
                return [(blocks[0][0], "this does not compile:\n" + made.stderr[:2000])]
            return [wrong for block in blocks for wrong in check_together([block])]
        ran = [(code, output, run([f"{folder}/program", str(k)])) for k, (code, output) in enumerate(blocks) if output]
    return [(code, f"this printed, with status {done.returncode}:\n{done.stdout}{done.stderr}instead of:\n{output}")
            for code, output, done in ran if done.returncode or done.stdout != output]


def check(tag, code, output):
    """What is wrong with a program, or a block for nvcc, None if nothing."""
    if tag != "cuda":
        wrong = program(code, output)
        if not wrong and nvcc and (compiled := as_cuda(code)).returncode:
            wrong = "this does not compile as CUDA:\n" + compiled.stderr[:2000]
        return wrong
    if not nvcc:
        print("skipped a block that needs nvcc")
        return None
    done = as_cuda(prelude + "void block(std::size_t n, cudaStream_t stream) {\n" + code + "}\n")
    return done.stderr[:2000] if done.returncode else None


def missing_for(command, files):
    """What this machine lacks to run a command, or None."""
    if command.startswith("nvcc") and not nvcc:
        return "no nvcc"
    if "cudart" in command and not cuda.exists():
        return "no CUDA in /usr/local/cuda"
    named = "".join(text for name, text in files.items() if name in command)
    if "<catch2/catch.hpp>" in named and not os.path.exists("/usr/include/catch2/catch.hpp"):
        return "no Catch2 2"
    return None


def check_commands(commands, output, files):
    """What is wrong with the lines of a shell block, None if nothing."""
    printed = ""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(root / "include", f"{folder}/include")
        for name, text in files.items():
            (pathlib.Path(folder) / name).write_text(text)
        for command in filter(None, (line.split("#")[0].strip() for line in commands.replace("\\\n", " ").splitlines())):
            if command.startswith("./dev "):
                if f"counted {command}\n" not in (root / ".ci/run").read_text():
                    return f".ci/run does not run this: {command}"
                continue
            if missing := missing_for(command, files):
                print(f"skipped, {missing}: {command}")
                continue
            done = run(["bash", "-c", command], cwd=folder)
            if "unexpected memory mapping" in done.stderr:
                print(f"skipped, ThreadSanitizer cannot start on this kernel: {command}")
            elif done.returncode:
                return f"this ends with status {done.returncode}: {command}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"
            else:
                printed += done.stdout
    if output and printed != output:
        return f"this printed:\n{printed}instead of:\n{output}"
    return None


def jobs_of(page):
    """(how many blocks, a function that returns (code, what is wrong)...) for what of a page is checked together."""
    block = re.compile(r"^```(cpp|sh) *([\w.]*)\n(.*?)^```\n(?:\n```\n(.*?)^```$)?", re.M | re.S)
    found = block.findall(page.read_text())
    files = {tag: code for language, tag, code, _ in found if language == "cpp" and "." in tag}
    together = [(code, output) for language, tag, code, output in found if language == "cpp" and not tag and "int main" not in code]
    if together:
        yield len(together), lambda: check_together(together)

    def alone(code, act, *arguments):
        return 1, lambda: [(code, wrong)] if (wrong := act(*arguments)) else []

    for language, tag, code, output in found:
        if language == "cpp" and tag not in files and (code, output) not in together:
            yield alone(code, check, tag, code, output)
        elif language == "sh" and page == root / "README.md":
            yield alone(code, check_commands, code, output, files)


bad = 0
for line in (root / "README.md").read_text().splitlines():
    for cell in line.split("|")[1:-1] if line.startswith("|") else []:
        if len(re.sub(r"<!--.*?-->", "", cell).split()) > 15:
            bad += 1
            print(f"README.md: this cell has more than 15 words: {cell.strip()}")
pages = sorted([*root.glob("*.md"), *root.glob("*/*.md")])
if len(sys.argv) > 1:
    pages = [pathlib.Path(page).resolve() for page in sys.argv[1:]]
jobs = [(page, count, act) for page in pages for count, act in jobs_of(page)]
with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
    for (page, _, _), mistakes in zip(jobs, pool.map(lambda job: job[2](), jobs)):
        for code, wrong in mistakes:
            bad += 1
            print(f"{page.relative_to(root)}: {wrong}\n{code}")
print(f"{sum(count for _, count, _ in jobs)} blocks were compiled or run; {bad} mistakes")
sys.exit(bool(bad))
