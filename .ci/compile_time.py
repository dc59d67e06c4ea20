#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What including tarn costs: user seconds of `g++ -std=c++20 -fsyntax-only`, the median of several, interleaved.

compile_time.py [--runs N]"""
import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parent.parent
base = "<memory_resource> + <mutex> + <map>"
plain = ["-DTARN_NO_CUDA"]
cuda = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
with_cuda = ["-isystem", str(cuda), "-isystem", str(cuda / "cccl")]
cases = {
    base: (plain, "#include <memory_resource>\n#include <mutex>\n#include <map>\n"),
    "<tarn/tarn.hpp> without CUDA": (plain, "#include <tarn/tarn.hpp>\n"),
    "<tarn/sim.hpp>": (plain, "#include <tarn/sim.hpp>\n"),
    "<tarn/tarn.hpp> with CUDA": (with_cuda, "#include <cuda_runtime.h>\n#include <tarn/tarn.hpp>\n"),
    "<thrust/device_vector.h>": (with_cuda, "#include <thrust/device_vector.h>\n"),
}
# A little above what was measured. The aims are 1.5 and 0.6.
most = {base: ("<tarn/tarn.hpp> without CUDA", 2.0), "<thrust/device_vector.h>": ("<tarn/tarn.hpp> with CUDA", 0.73)}


def user_seconds(flags, source):
    """None if the source does not compile here. The time of the processes alone: other load disturbs it little."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only", *flags, "-I", str(root / "include")]
    run = subprocess.run([*command, source], capture_output=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return spent if run.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    times = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(runs):
            for number, (name, (flags, text)) in enumerate(cases.items()):
                if None in times[name]:
                    continue
                source = pathlib.Path(folder) / f"{number}.cpp"
                source.write_text(text)
                times[name].append(user_seconds(flags, str(source)))
    median = {name: None if None in seconds else statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in median.items():
        print(f"{name:40} skipped: does not compile here" if seconds is None else
              f"{name:40} {seconds:6.3f} s   {seconds / median[base]:5.2f}x")
    failed = False
    for against, (name, bound) in most.items():
        if median[name] is None or median[against] is None:
            continue
        ratio = median[name] / median[against]
        failed |= ratio > bound
        print(f"{name} over {against}: {ratio:.2f}, at most {bound} allowed")
    return failed


if __name__ == "__main__":
    sys.exit(main())
