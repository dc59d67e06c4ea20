#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tarn beside CuPy's own allocators, on the programs of workloads.py:

  compare_cupy.py [--repeats N] [--passes N] [--seconds S] [--json FILE]

In each repeat all allocators run at the same time, each in a process of its own, and take turns: each makes one pass of a program, then
each the next, beginning with another one each time. A process that does not count compiles the kernels first. A repeat after the first
begins only if it will probably end within --seconds.

Times are medians: `first_ms` of the first pass on an empty pool over the repeats, `warm_ms` of the later passes of all of them, `pair_ns`
of one allocation and free of 4 KiB. `to_cupy_pool` is the time of a later pass over that of CuPy's pool in the same turn, of all of them
the median, and their quartiles. `held_bytes` is the most that an allocator held from the driver, `live_bytes` the most in arrays at once,
rounded as tarn rounds."""
import argparse
import datetime
import json
import os
import select
import statistics
import subprocess
import sys
import time

PAIRS = 20000
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


class Measured:
    """One allocator in this process. Each method is a request of the process that compares."""

    def __init__(self, name):
        import cupy

        import workloads

        self.cupy, self.works, self.device = cupy, workloads.ALL, cupy.cuda.Device()
        for work in self.works.values():  # compiles and loads the kernels, with CuPy's own pool
            work(1) if work is not workloads.small_arrays else work(1, 50)
        self.device.synchronize()
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.fft.config.get_plan_cache().clear()
        self.start, self.held, self.live, self.driver_calls = use(name)
        for _ in range(2000):
            cupy.cuda.alloc(4096)

    def pair(self):
        alloc = self.cupy.cuda.alloc
        began = time.perf_counter_ns()
        for _ in range(PAIRS):
            alloc(4096)
        return (time.perf_counter_ns() - began) / PAIRS

    def begin(self):
        self.cupy.fft.config.get_plan_cache().clear()
        self.device.synchronize()
        self.start()

    def one_pass(self, work):
        calls, began = self.driver_calls(), time.perf_counter()
        checksum = self.works[work](SEED)
        self.device.synchronize()
        ms = (time.perf_counter() - began) * 1e3
        return {"ms": ms, "sum": checksum, "calls": None if calls is None else self.driver_calls() - calls}

    def end(self):
        return {"held": self.held(), "live": self.live()}


def child(name):
    measured = Measured(name)
    print(json.dumps(list(measured.works)), flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(measured, method)(*arguments)), flush=True)


class Child:
    """A process that measures one allocator. Its constructor does not wait for it."""

    def __init__(self, name):
        self.name = name
        self.process = subprocess.Popen([sys.executable, __file__, "--child", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def answer(self):
        if not select.select([self.process.stdout], [], [], 120)[0]:
            self.process.kill()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with {self.process.wait()}, or gave no answer for 120 s")
        return json.loads(line)

    def ask(self, method, *arguments):
        print(json.dumps([method, *arguments]), file=self.process.stdin, flush=True)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


def in_turn(children, first, ask):
    """Asks each child, beginning with another one each time; returns the answers by name."""
    begin = first % len(children)
    return {one.name: ask(one) for one in children[begin:] + children[:begin]}


def measure(passes, repeat):
    """One repeat: the pairs, and of each program its passes and what was held, by allocator."""
    children = [Child(name) for name in POOLS]
    works = [one.answer() for one in children][0]
    pairs = [in_turn(children, repeat + number, lambda one: one.ask("pair")) for number in range(5)]
    found = {}
    for work in works:
        for one in children:
            one.ask("begin")
        made = [in_turn(children, repeat + number, lambda one: one.ask("one_pass", work)) for number in range(passes)]
        found[work] = {"passes": made, "end": {one.name: one.ask("end") for one in children}}
    for one in children:
        one.end()
    return pairs, found


def rows_of(repeats, facts):
    """The rows of all repeats, and whether all checksums are the same."""
    rows, all_same = [], True
    for work in repeats[0][1]:
        of_work = [found[work] for _, found in repeats]
        passes = [made for one in of_work for made in one["passes"]]
        sums = {made[name]["sum"] for made in passes for name in POOLS}
        if len(sums) != 1:
            print(f"{work}: the checksums differ: {sums}")
            all_same = False
        later = [made for one in of_work for made in one["passes"][1:]]
        for name in POOLS:
            low, middle, high = statistics.quantiles((made[name]["ms"] / made["cupy_pool"]["ms"] for made in later), n=4,
                                                     method="inclusive")
            ends = [one["end"][name] for one in of_work]
            rows.append({"benchmark": "clients_cupy", "pool": name, "work": work,
                         "first_ms": round(statistics.median(one["passes"][0][name]["ms"] for one in of_work), 2),
                         "warm_ms": round(statistics.median(made[name]["ms"] for made in later), 2),
                         "to_cupy_pool": round(middle, 4), "to_cupy_pool_quartiles": [round(low, 4), round(high, 4)],
                         "held_bytes": max(end["held"] for end in ends),
                         "live_bytes": max((end["live"] for end in ends if end["live"] is not None), default=None),
                         "driver_calls_of_pass": [made[name]["calls"] for made in of_work[0]["passes"]] if name == "tarn" else None,
                         "same_checksums": len(sums) == 1,
                         "pair_ns": round(statistics.median(turn[name] for pairs, _ in repeats for turn in pairs)), **facts})
    return rows, all_same


def facts_of_machine():
    import cupy

    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"],
                         capture_output=True, text=True).stdout.strip().split(", ")
    return {"gpu": smi[0], "driver": smi[-1], "cupy": cupy.__version__, "cuda_runtime": cupy.cuda.runtime.runtimeGetVersion(),
            "python": sys.version.split()[0], "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
            "commit": os.environ.get("TARN_COMMIT", "unknown")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child)

    began = time.monotonic()
    first = Child("cupy_pool")
    facts = facts_of_machine()
    first.answer()
    first.end()
    repeats, longest = [], 0
    while len(repeats) < options.repeats and (not repeats or time.monotonic() - began + longest < options.seconds):
        start = time.monotonic()
        repeats.append(measure(options.passes, len(repeats)))
        longest = max(longest, time.monotonic() - start)
        rows, all_same = rows_of(repeats, {**facts, "seed": SEED, "repeats": len(repeats), "passes": options.passes})
        if options.json:  # after each repeat: one that is stopped costs no figures
            with open(options.json, "w") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{'work':<20}{'pool':<18}{'first ms':>10}{'warm ms':>10}{'of CuPy':>9}{'25 %':>7}{'75 %':>7}{'held MiB':>10}{'pair ns':>9}")
    for row in rows:
        low, high = row["to_cupy_pool_quartiles"]
        print(f"{row['work']:<20}{row['pool']:<18}{row['first_ms']:>10}{row['warm_ms']:>10}{row['to_cupy_pool']:>9.3f}{low:>7.3f}"
              f"{high:>7.3f}{row['held_bytes'] / 2**20:>10.0f}{row['pair_ns']:>9}")
    return 0 if all_same else 1


if __name__ == "__main__":
    sys.exit(main())
