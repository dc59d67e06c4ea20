#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What including tarn costs: seconds of `g++ -std=c++20 -fsyntax-only`, the median of several, interleaved."""
import os
import pathlib
import statistics
import subprocess
import sys
import time

root = pathlib.Path(__file__).resolve().parent.parent
cases = {
    "<memory_resource> + <mutex> + <map>": "#include <memory_resource>\n#include <mutex>\n#include <map>\n",
    "<tarn/tarn.hpp> without CUDA": "#include <tarn/tarn.hpp>\n",
    "<tarn/sim.hpp>": "#include <tarn/sim.hpp>\n",
    "<thrust/device_vector.h>": "#include <thrust/device_vector.h>\n",
}
flags = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", "-DTARN_NO_CUDA", "-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP", "-I", str(root / "include"), "-x", "c++", "-"]
times = {name: [] for name in cases}
for _ in range(9):
    for name, source in cases.items():
        start = time.perf_counter()
        run = subprocess.run(flags, input=source, text=True, capture_output=True)
        if run.returncode == 0:
            times[name].append(time.perf_counter() - start)
base = statistics.median(times["<memory_resource> + <mutex> + <map>"])
for name, seconds in times.items():
    if seconds:
        print(f"{name:40} {statistics.median(seconds):6.3f} s   {statistics.median(seconds) / base:5.2f}x")
    else:
        print(f"{name:40} skipped: does not compile here")
ratio = statistics.median(times["<tarn/tarn.hpp> without CUDA"]) / base
print(f"ratio {ratio:.2f}, at most 1.6 wanted")
sys.exit(ratio > 1.6)
