#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every ```cpp block of the Markdown files. A block with a main() is a program; any other is the body of a
function in which `pool`, `stream`, `n` and a simulated device stand ready. Blocks marked ```cpp cuda need nvcc."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
prelude = """#include <tarn/tarn.hpp>
#include <tarn/sim.hpp>
#include <tarn/thrust.hpp>
#include <thrust/device_vector.h>
#include <thrust/sort.h>
#include <iostream>
#include <vector>
using namespace tarn::literals;
"""
body = """namespace tarn { using device_pool = sim_pool; using cuda_pages = sim_pages; using pinned_host = sim_pinned_host; }
[[maybe_unused]] static void block([[maybe_unused]] std::size_t n, [[maybe_unused]] tarn::stream_ref stream, [[maybe_unused]] tarn::device_id device) {
"""
bad = count = 0
for page in sorted([root / "README.md", *root.glob("*/README.md")]):
    for tag, code in re.findall(r"^```cpp *(\w*)\n(.*?)^```", page.read_text(), re.M | re.S):
        count += 1
        whole = "int main" in code
        flags = ["-std=c++20", "-fsyntax-only", "-I", str(root / "include"), "-x", "c++", "-"]
        compiler = [os.environ.get("CXX", "g++"), "-DTARN_NO_CUDA", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"]
        if tag == "cuda":
            if not shutil.which("nvcc"):
                print(f"{page.name}: skipped a block that needs nvcc")
                continue
            source = code if whole else prelude.replace("#include <tarn/sim.hpp>\n", "") + "void block(std::size_t n, cudaStream_t stream) {\n" + code + "}\n"
            run = subprocess.run(["nvcc", "-std=c++20", "-x", "cu", "-I", str(root / "include"), "-c", "-o", "/dev/null", "-"], input=source, text=True, capture_output=True)
        else:
            source = code if whole else prelude + body + code + "}\n"
            run = subprocess.run([*compiler, *flags], input=source, text=True, capture_output=True)
        if run.returncode:
            bad += 1
            print(f"{page.relative_to(root)}: this does not compile:\n{code}\n{run.stderr[:2000]}")
print(f"{count - bad} of {count} blocks compile")
sys.exit(bool(bad))
