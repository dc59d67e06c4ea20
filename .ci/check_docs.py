#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every ```cpp block of the Markdown files. A block with a main() is a program: it is run on the simulated device, and
must print the block without a language that follows it. With nvcc it is compiled as CUDA, too. Any other block is the body of a
function with `n`, `stream`, `device` and `pool`; one that is followed by output is run. Blocks marked ```cpp cuda need nvcc."""
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
#include <tarn/sim.hpp>
#include <tarn/thrust.hpp>
#include <tarn/transfer.hpp>
#include <tarn/diagnostics.hpp>
#include <tarn/sharing.hpp>
#include <thrust/device_vector.h>
#include <thrust/sort.h>
#include <iostream>
#include <vector>
using namespace tarn::literals;
"""
simulated = "#include <tarn/sim.hpp>\n#include <tarn/tarn.hpp>\n"
body = simulated + """
[[maybe_unused]] static void block([[maybe_unused]] std::size_t n, [[maybe_unused]] tarn::stream_ref stream, [[maybe_unused]] tarn::device_id device, [[maybe_unused]] tarn::device_pool pool) {
"""
host = [os.environ.get("CXX", "g++"), "-std=c++20", "-DTARN_NO_CUDA", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP",
        "-I", str(root / "include")]
nvcc = shutil.which("nvcc")


def run(command, source=None):
    return subprocess.run(command, input=source, text=True, capture_output=True)


def as_cuda(source):
    return run([nvcc, "-std=c++20", "-x", "cu", "-I", str(root / "include"), "-c", "-o", "/dev/null", "-"], source)


def program(code, output):
    """What is wrong with a program, compiled and run on the simulated device. None if nothing."""
    with tempfile.TemporaryDirectory() as folder:
        made = run([*host, "-x", "c++", "-", "-o", f"{folder}/program", "-pthread", "-ldl"], simulated + code)
        if made.returncode:
            return "this does not compile:\n" + made.stderr[:2000]
        ran = run([f"{folder}/program"])
        if ran.returncode or ran.stdout != output:
            return f"this printed, with status {ran.returncode}:\n{ran.stdout}{ran.stderr}instead of:\n{output}"
    return None


ready = """#include <cstdio>
int main() {
  [[maybe_unused]] std::size_t n = 1 << 20;
  tarn::device_pool pool;
  tarn::stream stream;
"""
def check(tag, code, output):
    """What is wrong with a block, None if nothing."""
    if "int main" in code:
        wrong = program(code, output)
        if not wrong and nvcc and (compiled := as_cuda(code)).returncode:
            wrong = "this does not compile as CUDA:\n" + compiled.stderr[:2000]
        return wrong
    if output:
        return program(prelude + ready + code + "}\n", output)
    if tag == "cuda":
        if not nvcc:
            print("skipped a block that needs nvcc")
            return None
        done = as_cuda(prelude.replace("#include <tarn/sim.hpp>\n", "") + "void block(std::size_t n, cudaStream_t stream) {\n" + code + "}\n")
    else:
        done = run([*host, "-fsyntax-only", "-x", "c++", "-"], prelude + body + code + "}\n")
    return done.stderr[:2000] if done.returncode else None


bad = 0
block = re.compile(r"^```cpp *(\w*)\n(.*?)^```\n(?:\n```\n(.*?)^```$)?", re.M | re.S)
blocks = [(page, found) for page in sorted([*root.glob("*.md"), *root.glob("*/README.md")]) for found in block.findall(page.read_text())]
with concurrent.futures.ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
    for (page, found), wrong in zip(blocks, pool.map(lambda b: check(*b[1]), blocks)):
        if wrong:
            bad += 1
            print(f"{page.relative_to(root)}: {wrong}\n{found[1]}")
print(f"{len(blocks) - bad} of {len(blocks)} blocks compile, and programs print what the page says")
sys.exit(bool(bad))
