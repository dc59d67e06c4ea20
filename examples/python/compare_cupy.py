#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tarn beside CuPy's own allocators, on the programs of workloads.py:

  compare_cupy.py [--repeats N] [--passes N] [--json FILE]

Each allocator runs in processes of its own, in turn, after one that does not count. Times are medians: `first_ms` of the first pass on an empty pool over the
processes, `warm_ms` of the later passes of all of them, `pair_ns` of one allocation and free of 4 KiB. `held_bytes` is the most
that an allocator held from the driver, `live_bytes` the most in arrays at once, rounded as tarn rounds."""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

POOLS = ("tarn", "cupy_pool", "cupy_async", "cupy_async_kept")
SEED = 20261124


def use(name):
    """Installs an allocator; returns functions: empty it and start a peak; the bytes held at most; the live bytes at most; the
    driver calls so far. The last two are None where the allocator does not know."""
    import cupy

    if name == "tarn":
        import tarn_c
        import tarn_cupy

        pool = tarn_cupy.install()

        def start():
            pool.free_all_blocks()
            pool.reset_peaks()

        return start, pool.peak_total_bytes, pool.peak_used_bytes, lambda: tarn_c.Pool(0).numbers().driver_calls
    if name == "cupy_pool":  # never gives memory back by itself, so what it holds at the end is the most
        pool = cupy.get_default_memory_pool()
        return pool.free_all_blocks, pool.total_bytes, lambda: None, lambda: None

    runtime = cupy.cuda.runtime
    pool = cupy.cuda.MemoryAsyncPool()
    handle = runtime.deviceGetDefaultMemPool(0)
    held_high, used_high = 6, 8  # cudaMemPoolAttrReservedMemHigh, cudaMemPoolAttrUsedMemHigh
    # By default the driver's pool gives all free memory back whenever a stream is synchronised.
    if name == "cupy_async_kept":
        pool.set_limit(size=(1 << 63) - 1)
    cupy.cuda.set_allocator(pool.malloc)

    def start():
        pool.free_all_blocks()
        runtime.memPoolSetAttribute(handle, held_high, 0)
        runtime.memPoolSetAttribute(handle, used_high, 0)

    return start, lambda: runtime.memPoolGetAttribute(handle, held_high), lambda: None, lambda: None


def child(name, passes):
    import cupy

    import workloads

    device = cupy.cuda.Device()
    for work in workloads.ALL.values():  # compiles the kernels, with CuPy's own pool
        work(1) if work is not workloads.small_arrays else work(1, 50)
    device.synchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.fft.config.get_plan_cache().clear()
    start, held, live, driver_calls = use(name)
    cupy.cuda.alloc(4096)
    for _ in range(2000):
        cupy.cuda.alloc(4096)
    began = time.perf_counter_ns()
    for _ in range(20000):
        cupy.cuda.alloc(4096)
    out = {"pair_ns": (time.perf_counter_ns() - began) / 20000, "works": {}}
    for work_name, work in workloads.ALL.items():
        cupy.fft.config.get_plan_cache().clear()
        device.synchronize()
        start()
        times, calls, sums = [], [driver_calls()], set()
        for _ in range(passes):
            began = time.perf_counter()
            sums.add(work(SEED))
            device.synchronize()
            times.append((time.perf_counter() - began) * 1e3)
            calls.append(driver_calls())
        out["works"][work_name] = {"first": times[0], "later": times[1:], "held": held(), "live": live(),
                                   "calls": [b - a for a, b in zip(calls, calls[1:])] if calls[0] is not None else None,
                                   "sums": sorted(sums)}
    print(json.dumps(out))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child, options.passes)

    found = {name: [] for name in POOLS}
    subprocess.run([sys.executable, __file__, "--child", "cupy_pool", "--passes", "1"], stdout=subprocess.DEVNULL, timeout=120)
    for repeat in range(options.repeats):
        for name in POOLS[repeat % len(POOLS):] + POOLS[:repeat % len(POOLS)]:
            done = subprocess.run([sys.executable, __file__, "--child", name, "--passes", str(options.passes)],
                                  capture_output=True, text=True, timeout=120)
            if done.returncode != 0:
                sys.exit(f"{name} ended with {done.returncode}\n{done.stderr}")
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    import cupy

    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"],
                         capture_output=True, text=True).stdout.strip().split(", ")
    facts = {"gpu": smi[0], "driver": smi[-1], "cupy": cupy.__version__, "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(),
             "python": sys.version.split()[0], "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
             "commit": os.environ.get("TARN_COMMIT", "unknown"), "seed": SEED, "repeats": options.repeats, "passes": options.passes}
    rows, failed = [], False
    for work in found["tarn"][0]["works"]:
        sums = {json.dumps(run["works"][work]["sums"]) for runs in found.values() for run in runs}
        if len(sums) != 1:
            print(f"{work}: the checksums differ: {sums}")
            failed = True
        for name, runs in found.items():
            mine = [run["works"][work] for run in runs]
            rows.append({"benchmark": "clients_cupy", "pool": name, "work": work,
                         "first_ms": round(statistics.median(m["first"] for m in mine), 2),
                         "warm_ms": round(statistics.median(t for m in mine for t in m["later"]), 2),
                         "held_bytes": max(m["held"] for m in mine),
                         "live_bytes": max((m["live"] for m in mine if m["live"] is not None), default=None),
                         "driver_calls_of_pass": mine[0]["calls"],
                         "same_checksums": len(sums) == 1,
                         "pair_ns": round(statistics.median(run["pair_ns"] for run in runs)), **facts})
    print(f"{'work':<20}{'pool':<18}{'first ms':>10}{'warm ms':>10}{'held MiB':>10}{'pair ns':>9}")
    for row in rows:
        print(f"{row['work']:<20}{row['pool']:<18}{row['first_ms']:>10}{row['warm_ms']:>10}{row['held_bytes'] / 2**20:>10.0f}"
              f"{row['pair_ns']:>9}")
    if options.json:
        with open(options.json, "w") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
