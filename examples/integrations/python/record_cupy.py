#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the allocations of a CuPy program as a trace for tarn_replay: record_cupy.py FILE.trace

Simulates a flow by FFTs on a grid that changes, and solves sparse systems of random size on a second stream, in turn."""
import sys

import cupy

import tarn_c
import tarn_cupy
import workloads


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    pool = tarn_c.Pool(0, trace=sys.argv[1])
    tarn_cupy.install()
    solver = cupy.cuda.Stream(non_blocking=True)
    sums = []
    for seed in range(6):
        sums.append(workloads.spectral_flow(seed, windows=10, steps=6))
        with solver:
            sums.append(workloads.conjugate_gradient(seed, problems=5, iterations=40))
            solver.synchronize()
    cupy.cuda.Device().synchronize()
    if not pool.flush():
        sys.exit(f"{sys.argv[1]}: not all was written")
    now = pool.numbers()
    print(f"at most {now.peak_allocated / 2**20:.0f} MiB live, {now.peak_reserved / 2**20:.0f} MiB held; checksums {sums}")


if __name__ == "__main__":
    main()
