#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the allocation traces of the workloads of compare_workloads.py, under PyTorch's own allocator.

    python3 record_traces.py FOLDER [--workloads a,b] [--passes 3] [--steps 8]

FOLDER gets torch_WORKLOAD.trace.gz for each: every request and free of the process, in order, with the bytes that the program asked
for (examples/traces/README.md has the format). Sizes come from one seed, so that a second run records the same. Each workload
runs in a process of its own. Needs a GPU.
"""

import argparse
import gzip
import os
import pathlib
import random
import sys

import compare_workloads
import torch

EVENTS = 3_000_000  # that PyTorch keeps


def events_of(workload, steps, passes):
    """What PyTorch's history has after the passes of a workload."""
    torch.cuda.memory._record_memory_history(max_entries=EVENTS, context=None, stacks="python")
    torch.manual_seed(compare_workloads.SEED)
    torch.cuda.manual_seed(compare_workloads.SEED)
    losses = compare_workloads.WORKLOADS[workload](steps, random.Random(compare_workloads.SEED))
    for _ in range(steps * passes):
        next(losses)
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    if len(events) == EVENTS:
        raise RuntimeError(f"{workload}: more than {EVENTS} events")
    return events


def lines_of(events):
    """The lines of a trace, and its peak of live bytes."""
    lines, live, streams = [], {}, {}
    now = peak = number = 0
    for event in events:
        if event["action"] == "alloc":
            number += 1
            live[event["addr"]] = number, event["size"]
            now += event["size"]
            peak = max(peak, now)
            lines.append(f"a {number} {event['size']} {streams.setdefault(event['stream'], len(streams))}")
        elif event["action"] == "free_requested" and event["addr"] in live:
            freed, size = live.pop(event["addr"])
            now -= size
            lines.append(f"f {freed}")
    return lines, peak, len(streams)


def record(workload, folder, steps, passes):
    lines, peak, streams = lines_of(events_of(workload, steps, passes))
    head = [
        f"# {workload} of compare_workloads.py: {steps * passes} training or decoding steps, PyTorch {torch.__version__} on an "
        f"{torch.cuda.get_device_name()}",
        "# a <id> <bytes> <stream> | f <id>",
        f"# peak live {peak} bytes, {len(lines)} events, {streams} streams",
    ]
    path = folder / f"torch_{workload}.trace.gz"
    with open(path, "wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write(("\n".join(head + lines) + "\n").encode())
    print(f"{path}: {len(lines):,} events, peak live {peak / 2**20:,.1f} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--workloads", default=",".join(compare_workloads.WORKLOADS))
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="of each pass")
    arguments = parser.parse_args()
    failed = False
    for workload in arguments.workloads.split(","):
        child = os.fork()  # before CUDA is used
        if child == 0:
            try:
                record(workload, arguments.folder, arguments.steps, arguments.passes)
            except Exception as error:
                print(f"{workload}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        failed = os.waitpid(child, 0)[1] != 0 or failed
    return failed


if __name__ == "__main__":
    sys.exit(main())
