#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tarn_moving measures, in PyTorch: pinned memory from its caching host allocator, and a loader as its users write it.

  torch_moving.py FILE    appends JSON lines to FILE; exit status 77 without torch or a GPU

The loader stages each batch in pinned memory (one allocation a batch, from the allocator's cache) and copies it on a stream of
its own, one batch ahead. From memory, and from a file by torch.from_file. Times hold Python's own.
"""
import datetime
import json
import os
import statistics
import sys
import tempfile
import time

try:
    import torch
except ImportError:
    print("skipped: no torch")
    sys.exit(77)
if not torch.cuda.is_available():
    print("skipped: no GPU")
    sys.exit(77)

MIB, GIB = 2**20, 2**30
TOTAL = 2 * GIB
BATCHES = (16 * MIB, 32 * MIB)


def cpu_name():
    with open("/proc/cpuinfo") as info:
        names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {len(os.sched_getaffinity(0))} cores"


gib = (torch.cuda.get_device_properties(0).total_memory + GIB // 2) // GIB
CONTEXT = {
    "gpu": f"{torch.cuda.get_device_name(0)}, {gib} GiB", "driver": os.environ.get("TARN_DRIVER", "unknown"), "cpu": cpu_name(),
    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
    "commit": os.environ.get("TARN_COMMIT", "unknown"), "torch": torch.__version__,
}


def report(out, work, way, unit, values, reference=None):
    row = {"work": work, "way": f"PyTorch, {way}", "device": "cuda", "unit": unit, "value": statistics.median(values),
           "best": min(values) if unit != "GB/s" else max(values), "worst": max(values) if unit != "GB/s" else min(values)}
    if reference:
        row["of_reference"] = row["value"] / reference
    out.write(json.dumps({**row, **CONTEXT}) + "\n")
    out.flush()
    print(f"{work}: {row['way']}: {row['value']:.2f} {unit}", flush=True)
    return row["value"]


def timed(act, repetitions=5):
    seconds = []
    for i in range(repetitions + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        act()
        torch.cuda.synchronize()
        if i:
            seconds.append(time.perf_counter() - begin)
    return seconds


def load(source, batch):
    """A loader one batch ahead, as tutorials have it."""
    lane, main = torch.cuda.Stream(), torch.cuda.current_stream()
    staged = None
    for at in range(0, source.numel(), batch):
        part = source[at:at + batch]
        with torch.cuda.stream(lane):
            following = (part if part.is_pinned() else part.pin_memory()).to("cuda", non_blocking=True)
        if staged is not None:
            main.wait_stream(lane)
            staged.record_stream(main)
        staged = following
    main.wait_stream(lane)


def main():
    with open(sys.argv[1], "a") as out:
        torch.cuda.init()
        begin = time.perf_counter()
        cold = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
        report(out, "pin", "pinned memory, cold", "ms/GiB", [1000 * (time.perf_counter() - begin)])
        del cold
        for size in (4 * 1024, MIB, 32 * MIB):
            def pairs():
                for _ in range(10_000):
                    torch.empty(size, dtype=torch.uint8, pin_memory=True)
            report(out, "pin", f"warm pair of {size} B", "ns", [s / 10_000 * 1e9 for s in timed(pairs)])
        if hasattr(torch.cuda, "host_memory_stats"):
            before = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
            odd = torch.empty(259 * MIB // 2, dtype=torch.uint8, pin_memory=True)
            held = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0) - before
            report(out, "pin", "held for 129.5 MiB", "bytes", [held])
            del odd
        pinned = torch.zeros(TOTAL, dtype=torch.uint8, pin_memory=True)
        slot = torch.empty(BATCHES[0], dtype=torch.uint8, device="cuda")

        def plain():
            for at in range(0, TOTAL, BATCHES[0]):
                slot.copy_(pinned[at:at + BATCHES[0]], non_blocking=True)

        def rate(act):
            return [TOTAL / s * 1e-9 for s in timed(act)]
        reference = report(out, "to the device", "pinned, plain copies", "GB/s", rate(plain))
        def loader(source, what):
            for batch in BATCHES:
                report(out, "to the device", f"{what}, loader, batches of {batch // MIB} MiB", "GB/s", rate(lambda: load(source, batch)),
                     reference)
        loader(pinned, "pinned")
        loader(torch.zeros(TOTAL, dtype=torch.uint8), "pageable")
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(TOTAL))
            file.flush()
            loader(torch.from_file(file.name, shared=True, size=TOTAL, dtype=torch.uint8), "file in the page cache")


if __name__ == "__main__":
    main()
