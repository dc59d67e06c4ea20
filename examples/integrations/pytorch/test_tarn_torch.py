#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tarn_torch: each feature of PyTorch's allocator runs under PyTorch's own and under tarn, and the results are compared.

    python3 test_tarn_torch.py            all tests (needs a GPU; without one, only those of the installation run)
    python3 -m unittest -v test_tarn_torch.OneDevice.test_graphs

A feature is a function that returns a dictionary. All features of one allocator run in one process, since importing torch takes
10 s or more; those that change the process (sharing, installation) run in processes of their own.
"""

import gc
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import unittest

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
FEATURES = {}


def feature(function):
    FEATURES[function.__name__] = function
    return function


# ---- what runs in the child processes


def fresh():
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()


def block(mib):
    import torch

    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


@feature
def statistics():
    import torch

    fresh()
    start = torch.cuda.memory_allocated()
    a, b = block(4), block(6)
    two = torch.cuda.memory_allocated() - start
    del a
    one = torch.cuda.memory_allocated() - start
    peak = torch.cuda.max_memory_allocated() - start
    torch.cuda.reset_peak_memory_stats()
    peak_after_reset = torch.cuda.max_memory_allocated() - start
    stats = torch.cuda.memory_stats()
    reserved_covers = torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    small = [torch.empty(100, device="cuda") for _ in range(7)]
    with_small = torch.cuda.memory_stats()
    result = {
        "two": two,
        "one": one,
        "peak": peak,
        "peak_after_reset": peak_after_reset,
        "keys": sorted(stats),
        "blocks": with_small["allocation.all.allocated"],
        "small_blocks": with_small["allocation.small_pool.allocated"] - stats["allocation.small_pool.allocated"],
        "freed": with_small["allocation.all.freed"],
        "requested": with_small["requested_bytes.all.current"] - stats["requested_bytes.all.current"],
        "active_is_allocated": stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"],
        "reserved_covers": reserved_covers,
        "max_reserved_covers": torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved(),
    }
    del b, small
    before = torch.cuda.memory_reserved()
    fresh()
    result["empty_cache_returns"] = before - torch.cuda.memory_reserved() >= 10 * MIB
    result["at_end"] = torch.cuda.memory_allocated() - start
    torch.cuda.reset_accumulated_memory_stats()
    result["totals_after_reset"] = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    return result


@feature
def summary():
    import torch

    x = block(2)
    text = torch.cuda.memory_summary()
    del x
    labels = [line.split("|")[1].strip() for line in text.splitlines() if line.count("|") > 4]
    return {"labels": labels, "width": max(map(len, text.splitlines()))}


@feature
def limit():
    """set_per_process_memory_fraction, OutOfMemoryError, observers, num_ooms."""
    import torch

    fresh()
    total = torch.cuda.get_device_properties(0).total_memory
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
    torch.cuda.set_per_process_memory_fraction(0.05)
    fraction = torch.cuda.get_per_process_memory_fraction()
    text = kind = ""
    large = total // 10 // (2 * MIB) * (2 * MIB)
    try:
        torch.empty(large, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as e:
        text, kind = str(e), type(e).__name__
    fits = torch.empty(total // 100, dtype=torch.uint8, device="cuda")
    ooms = torch.cuda.memory_stats()["num_ooms"]
    del fits
    fresh()
    torch.cuda.set_per_process_memory_fraction(1.0)
    after = torch.empty(total // 10, dtype=torch.uint8, device="cuda")
    del after
    too_much = ""
    try:
        torch.empty(1 << 61, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as e:
        too_much = str(e)
    more_than_all = ""
    try:
        torch.empty(total * 2, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as e:
        more_than_all = str(e)
    fresh()
    return {
        "fraction": fraction,
        "kind": kind,
        "text": text,
        "more_than_all": more_than_all,
        "exabyte": "more than 1EB" in too_much,
        "ooms": ooms,
        "observer": [seen[0][0], seen[0][1] == large, len(seen[0])] if seen else None,
    }


@feature
def record_stream():
    import torch

    fresh()
    side = torch.cuda.Stream()
    wrong = 0
    reused_early = 0
    for i in range(20):
        x = torch.full((MIB,), float(i), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            y = x * 1
        x.record_stream(side)
        address = x.data_ptr()
        del x
        pending = torch.cuda.memory_stats()
        z = torch.full((MIB,), -1.0, device="cuda")
        reused_early += z.data_ptr() == address and not side.query()
        torch.cuda.synchronize()
        wrong += int((y != float(i)).sum())
        del y, z
    fresh()  # tarn notices at the latest now that the streams have finished with the blocks above
    x = torch.ones(MIB, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
    x.record_stream(side)
    del x
    waiting = torch.cuda.memory_stats()
    waits = waiting["active_bytes.all.current"] - waiting["allocated_bytes.all.current"]
    torch.cuda.synchronize()
    return {"wrong": wrong, "reused_early": reused_early, "waits": waits, "pending": "active.all.peak" in pending}


@feature
def streams():
    """Blocks wander between streams and threads; each is checked before it is freed."""
    import torch

    fresh()
    wrong = []

    def work(seed):
        torch.cuda.set_device(0)
        generator = __import__("random").Random(seed)
        own = [torch.cuda.Stream() for _ in range(3)]
        live = []
        for step in range(400):
            s = generator.choice(own)
            with torch.cuda.stream(s):
                if generator.random() < 0.55 or not live:
                    size = generator.choice([100, 5000, 70_000, 300_000, 2_000_000])
                    value = seed * 1000 + step
                    live.append((torch.full((size,), value, device="cuda", dtype=torch.int32), value, s))
                else:
                    x, value, made_on = live.pop(generator.randrange(len(live)))
                    s.wait_stream(made_on)
                    bad = (x != value).sum()
                    x.record_stream(s)
                    wrong.append(bad)
        torch.cuda.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    torch.cuda.synchronize()
    count, bad = len(wrong), sum(int(w) for w in wrong)
    del wrong
    fresh()
    return {"checked": count > 500, "bad": bad, "left": torch.cuda.memory_allocated()}


def check_segments(snapshot):
    import torch

    tiled = True
    reserved = allocated = 0
    for segment in snapshot["segments"]:
        at = segment["address"]
        for b in segment["blocks"]:
            tiled &= b["address"] == at
            at += b["size"]
            allocated += b["size"] if b["state"] == "active_allocated" else 0
        tiled &= at == segment["address"] + segment["total_size"]
        reserved += segment["total_size"]
    return {
        "tiled": tiled,
        "reserved": reserved == torch.cuda.memory_reserved(),
        "allocated": allocated == torch.cuda.memory_allocated(),
    }


@feature
def history():
    import torch
    from torch.cuda import _memory_viz

    fresh()
    torch.cuda.memory._record_memory_history(max_entries=10_000)

    def named_function():
        return block(8)

    kept = named_function()
    gone = named_function()
    address = gone.data_ptr()
    del gone
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    snapshot = torch.cuda.memory._snapshot()
    actions = [e["action"] for e in snapshot["device_traces"][0]]
    of_block = [
        e["action"]
        for e in snapshot["device_traces"][0]
        if e.get("addr") == address and not e["action"].startswith("segment")
    ]
    frames = [
        f["name"]
        for segment in snapshot["segments"]
        for b in segment["blocks"]
        if b["address"] == kept.data_ptr()
        for f in b["frames"]
    ]
    times = [e["time_us"] for e in snapshot["device_traces"][0]]
    result = check_segments(snapshot)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as f:
            loaded = pickle.load(f)
    plots = [
        "html" in _memory_viz.trace_plot(loaded).lower(),
        "html" in _memory_viz.segment_plot(loaded).lower(),
        len(_memory_viz.segsum(loaded)) > 20,
        len(_memory_viz.trace(loaded)) > 20,
    ]
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(context="alloc", max_entries=10_000)
    gone = named_function()
    del gone
    of_free = [
        any(f["name"] == "named_function" for f in e.get("frames", ()))
        for e in torch.cuda.memory._snapshot()["device_traces"][0]
        if e["action"] in ("free_requested", "free_completed")
    ]
    torch.cuda.memory._record_memory_history(enabled=None)
    result.update(
        {
            "of_free": of_free,
            "has": {a: a in actions for a in ("alloc", "free_requested", "free_completed", "oom")},
            "grows": any(a in actions for a in ("segment_map", "segment_alloc")),
            "of_block": of_block[-3:],
            "named": "named_function" in frames,
            "in_order": times == sorted(times),
            "keys": sorted(snapshot),
            "segment_keys": sorted(snapshot["segments"][0]),
            "plots": plots,
            "empty_after": len(torch.cuda.memory._snapshot()["device_traces"][0]),
        }
    )
    del kept
    return result


def names_in(event):
    return {frame["name"] for frame in event.get("frames", ())}


def recorded():
    """The events of the device, with one name for what PyTorch's allocator and its expandable segments call differently."""
    import torch

    same = {"segment_map": "segment_alloc", "segment_unmap": "segment_free"}
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    return [{**e, "action": same.get(e["action"], e["action"])} for e in events if e["action"] != "snapshot"]


@feature
def growth_history():
    """What is taken from the device and given back: its place among the other events, and its stack."""
    import torch

    def record(enabled="all", **options):
        torch.cuda.memory._record_memory_history(enabled, **{"context": "all", "stacks": "python", **options})

    def grows():
        return block(256)

    def gives_back():
        torch.cuda.empty_cache()

    torch._C._cuda_clearCublasWorkspaces()
    fresh()
    record()
    x = grows()
    events = recorded()
    result = {
        "begins": [events[0]["action"], "grows" in names_in(events[0])],
        "ends": [events[-1]["action"], events[-1]["size"], events[-1]["addr"] == x.data_ptr()],
    }
    record()  # once more, which keeps the events
    result["kept"] = [e["action"] for e in recorded()] == [e["action"] for e in events]
    del x
    gives_back()
    events = recorded()
    result["given_back"] = [events[-1]["action"], "gives_back" in names_in(events[-1])]
    result["named"] = [sum(e["size"] for e in events if e["action"] == action and name in names_in(e)) >= 256 * MIB
                       for action, name in (("segment_alloc", "grows"), ("segment_free", "gives_back"))]  # fmt: skip

    # What was held before is no event.
    record(None)
    held = grows()
    freed = grows()
    del freed
    record()
    x = grows()
    result["of_cached"] = [e["action"] for e in recorded()]
    del held, x
    record(None)
    fresh()

    # No stack where none was asked for; as many events as were asked for.
    result["without"] = []
    for context in ("state", None):
        record(context=context)
        x = grows()
        del x
        gives_back()
        result["without"].append(any(names_in(e) for e in recorded()))
        record(None)
    record(max_entries=3)
    blocks = [grows() for _ in range(4)]
    result["most"] = [len(recorded()), recorded()[-1]["action"]]
    del blocks
    record(None)
    fresh()
    record(enabled="state")
    x = grows()
    del x
    gives_back()
    result["last"] = [e["action"] for e in recorded()]
    record(None)
    return result


@feature
def growth_of_threads():
    """Each growth has the stack of the thread that caused it, whose block lies in the new memory."""
    import torch

    fresh()
    torch.cuda.memory._record_memory_history("all", stacks="python")
    kept = {}

    def work(name):
        torch.cuda.set_device(0)
        text = f"def {name}(blocks):\n    for _ in range(40):\n        blocks.append(block(21))\n"
        scope = {"block": block}
        exec(compile(text, name, "exec"), scope)
        kept[name] = []
        scope[name](kept[name])

    threads = [threading.Thread(target=work, args=(f"grows_{i}",)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    unnamed = wrong = 0
    growth = [e for e in recorded() if e["action"] == "segment_alloc"]
    for e in growth:
        names = names_in(e) & set(kept)
        unnamed += len(names) != 1
        for name in names:
            starts = [x.data_ptr() for x in kept[name]]
            wrong += not any(p < e["addr"] + e["size"] and e["addr"] < p + 21 * MIB for p in starts)
    torch.cuda.memory._record_memory_history(None)
    kept.clear()
    fresh()
    return {"unnamed": unnamed, "wrong": wrong, "grew": len(growth) >= 4}


def network():
    import torch

    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
    ).cuda()


@feature
def graphs():
    import torch

    fresh()
    torch.backends.cuda.matmul.allow_tf32 = False
    model = network()
    x = torch.randn(64, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    before = torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
        y.sum().backward()
    pool = graph.pool()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=pool):
        z = (x * 2 + 1).relu() * 3
    graph_bytes = sum(
        s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool)
    )
    wrong = 0
    others = []
    for i in range(10):
        x.copy_(torch.full((64, 256), i / 10, device="cuda"))
        graph.replay()
        result = y.clone()
        gradient = model[0].weight.grad.clone()
        second.replay()
        others.append(torch.full((64, 512), -1.0, device="cuda"))  # must not be the graph's memory
        wrong += not torch.equal(z, (x * 2 + 1).relu() * 3)
        model.zero_grad(set_to_none=False)
        with torch.no_grad():
            wrong += not torch.allclose(result, model(x), rtol=1e-4, atol=1e-5)
        wrong += not bool(torch.isfinite(gradient).all())
        wrong += sum(int((o != -1).sum()) for o in others)
    handle = torch.cuda.graph_pool_handle()
    third = torch.cuda.CUDAGraph()
    fork = torch.cuda.Stream()  # allocates for the first time inside the capture
    with torch.cuda.graph(third, pool=handle):
        w = x * 1
        fork.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(fork):
            forked = torch.ones_like(x) * 1
        torch.cuda.current_stream().wait_stream(fork)
        w = w + forked
    third.replay()
    wrong += not torch.equal(w, x + 1)
    called = torch.cuda.make_graphed_callables(network(), (torch.randn(64, 256, device="cuda", requires_grad=True),))
    w2 = called(x)
    w2.sum().backward()
    with torch.no_grad():
        wrong += not torch.allclose(w2, network()(x), rtol=1e-4, atol=1e-5)
    del w2, called
    y = z = w = result = gradient = forked = None
    model = others = None
    graph.reset()
    second.reset()
    third.reset()
    del graph, second, third
    torch._C._cuda_clearCublasWorkspaces()  # cuBLAS keeps one that it took in the capture
    fresh()
    return {
        "wrong": wrong,
        "graph_has_segments": graph_bytes > 0,
        "returned": torch.cuda.memory_reserved() <= before + 2 * MIB,
    }


@feature
def failed_capture():
    """A capture that fails leaves the allocator usable, and the next one on the same stream works."""
    import torch

    fresh()
    stream = torch.cuda.Stream()
    failed = ""
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            x = torch.ones(1000, device="cuda")
            x.cpu()  # not allowed
    except RuntimeError:
        failed = True
    x = None
    y = torch.ones(1000, device="cuda") + 1
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            torch.cuda.synchronize()  # not allowed, before the first allocation
    except RuntimeError:
        failed = failed and "twice"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        z = y + 1
    graph.replay()
    total = float(z.sum())
    del y, z, graph
    return {"failed": failed, "total": total}


@feature
def destroyed_graph():
    """What a stream reads of a graph that was destroyed is not reused before it has been read."""
    import torch

    fresh()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    x = torch.ones(16 * MIB, device="cuda")
    with torch.cuda.graph(graph, stream=stream):
        out = x * 2
    graph.replay()
    torch.cuda.synchronize()
    del graph
    torch.cuda._sleep(200_000_000)
    y = out + 1
    del out
    with torch.cuda.stream(stream):
        takers = [torch.full((16 * MIB,), -1.0, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    wrong = int((y != 3).sum())
    del x, y, takers
    fresh()
    return {"wrong": wrong}


@feature
def pools_in_captures():
    """What a graph uses of a MemPool, and of its own pool after that was closed and opened again, stays its own."""
    import torch

    fresh()
    x = torch.ones(MIB, device="cuda")
    handle, other = torch.cuda.graph_pool_handle(), torch.cuda.MemPool()
    graph, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=handle):
        first = x * 2
        torch._C._cuda_endAllocateToPool(0, handle)
        with torch.cuda.use_mem_pool(other):
            a = first + 1
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, handle)
        t = a * 2
        y = t + 1
        del t
    with torch.cuda.graph(second):
        with torch.cuda.use_mem_pool(other):
            u = x * 3
        z = u + 1
    del u
    fresh()
    takers = [torch.full_like(x, -1) for _ in range(12)]
    graph.replay()
    second.replay()
    result = {"values": [float(y[0]), float(y[-1]), float(z[0]), float(z[-1])]}
    result["overwritten"] = sum(int((taken != -1).sum()) for taken in takers)
    del a, first, takers, x, y, z, graph, second, other
    fresh()
    return result


@feature
def parked_blocks():
    """A block that a checkpoint keeps lowers no peak, and is not reused while another stream reads it."""
    import torch

    fresh()
    stream, side = torch.cuda.Stream(), torch.cuda.Stream()
    handle, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, pool=handle):
        y = torch.ones(MIB, device="cuda")
    state = torch._C._cuda_getCheckpointState(0, handle)
    graph.replay()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        out = y * 1
    y.record_stream(side)
    peak = torch.cuda.max_memory_allocated()
    del y
    result = {"peak_fell": torch.cuda.max_memory_allocated() < peak}
    with torch.cuda.stream(stream):
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, handle)
        z = torch.full((MIB,), -1.0, device="cuda")
        torch._C._cuda_endAllocateToPool(0, handle)
    torch.cuda.synchronize()
    result["wrong"] = int((out != 1).sum())
    del out, z, state, graph
    fresh()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        x = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    state = torch._C._cuda_getCheckpointState(0, graph.pool())
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated() - 256 * MIB
    del x
    y = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
    peaks = [torch.cuda.max_memory_allocated() - start]
    del state
    peaks.append(torch.cuda.max_memory_allocated() - start)
    result["peaks"] = [peak // MIB for peak in peaks]
    del y, graph
    fresh()
    return result


@feature
def mem_pool():
    import torch

    fresh()
    start = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    outside = block(3)
    uses = [pool.use_count()]
    with torch.cuda.use_mem_pool(pool):
        uses.append(pool.use_count())
        inside = block(5)
        gone = block(7)
        address = gone.data_ptr()
        del gone
        again = block(7)
        reused = again.data_ptr() == address
        seen = []

        def other_thread():
            torch.cuda.set_device(0)
            seen.append(block(5))

        t = threading.Thread(target=other_thread)
        t.start()
        t.join()
    uses.append(pool.use_count())
    after = block(5)
    of_pool = {
        b["address"]
        for s in torch.cuda.memory_snapshot()
        if tuple(s["segment_pool_id"]) == tuple(pool.id)
        for b in s["blocks"]
        if b["state"] == "active_allocated"
    }
    only = {s["address"] for s in pool.snapshot()}
    result = {
        "uses": uses,
        "reused": reused,
        "in_pool": [t.data_ptr() in of_pool for t in (outside, inside, again, seen[0], after)],
        "own_snapshot": len(only) > 0,
    }
    inside.fill_(7)
    del pool  # what is live stays valid
    fresh()
    more = [block(5) for _ in range(8)]
    for m in more:
        m.fill_(1)
    result["live_after_pool"] = int((inside != 7).sum())
    del inside, again, outside, after, more, m, seen
    fresh()
    result["returned"] = torch.cuda.memory_reserved() <= start
    inner, outer = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        with torch.cuda.use_mem_pool(inner):
            x = block(2)
        y = block(2)
    of = {
        b["address"]: tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot() for b in s["blocks"]
    }
    result["nested"] = [of[x.data_ptr()] == tuple(inner.id), of[y.data_ptr()] == tuple(outer.id)]
    del x, y
    with torch.cuda.use_mem_pool(outer):
        graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=inner.id):
        z = torch.ones(100, device="cuda") * 5
    graph.replay()
    result["graph_in_pool"] = float(z.sum())
    del z, graph, inner, outer
    fresh()
    return result


@feature
def pool_on_oom():
    import torch

    fresh()
    torch.cuda.set_per_process_memory_fraction(0.05)
    total = torch.cuda.get_device_properties(0).total_memory
    part = int(total * 0.04)
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(part, dtype=torch.uint8, device="cuda")
    del x
    served = True
    try:
        y = torch.empty(part, dtype=torch.uint8, device="cuda")
        del y
    except torch.OutOfMemoryError:
        served = False
    del pool
    fresh()
    torch.cuda.set_per_process_memory_fraction(1.0)
    return {"served": served}


@feature
def pool_on_oom_in_capture():
    """What a graph uses of a MemPool that served it for lack of memory stays its own."""
    import torch

    if torch.cuda.get_allocator_backend() != "tarn":
        return {}  # PyTorch's own pool ends the process where a capture begins without memory

    def blocks_until_oom(size):
        made = []
        try:
            while True:
                made.append(torch.full((size,), 7, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            return made

    fresh()
    stream = torch.cuda.Stream()
    torch.cuda.set_per_process_memory_fraction(0.005)
    room = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    small = [torch.ones(8, device="cuda") for _ in range(100)]  # leaves room for what a graph needs besides
    filled = [blocks_until_oom(size * MIB) for size in (64, 8, 2, 1)]
    del room
    torch.cuda.empty_cache()
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        kept = blocks_until_oom(MIB)
    del small[1:], kept[1::2]  # no two free blocks are neighbours, so that their memory cannot be given back
    handle, graph = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    served, used = True, None
    with torch.cuda.graph(graph, pool=handle, stream=stream):
        torch._C._cuda_endAllocateToPool(0, handle)
        try:
            used = torch.full((MIB,), 3, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            served = False
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, handle)
    first = used.data_ptr() if served else 0
    of_pool = any(s["address"] <= first < s["address"] + s["total_size"] for s in pool.snapshot())
    del used
    with torch.cuda.use_mem_pool(pool), torch.cuda.stream(stream):
        takers = blocks_until_oom(MIB)
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()
    torch.cuda.set_per_process_memory_fraction(1.0)
    result = {"of_pool": of_pool, "others_free": len(takers) > 8}
    result["overwritten"] = sum(int((taken != 7).sum()) for taken in takers)
    del takers, filled, small, kept, graph, pool
    fresh()
    return result


@feature
def uncached():
    import torch

    fresh()
    start = torch.cuda.memory_allocated()
    torch.cuda.memory.caching_allocator_enable(False)
    x = torch.ones(MIB, device="cuda")
    counted = torch.cuda.memory_allocated() - start
    total = float(x.sum())
    torch.cuda.memory.caching_allocator_enable(True)
    del x
    p = torch.cuda.caching_allocator_alloc(3 * MIB)
    raw = torch.cuda.memory_allocated() - start
    torch.cuda.caching_allocator_delete(p)
    foreign = ""
    try:
        torch.cuda.caching_allocator_delete(p)
    except RuntimeError as e:
        foreign = "invalid device pointer" in str(e)
    return {"counted": counted > 0, "total": total, "raw": raw, "foreign": foreign,
            "end": torch.cuda.memory_allocated() - start}  # fmt: skip


@feature
def external_stream():
    import ctypes

    import torch

    fresh()
    runtime = ctypes.CDLL(next(m for m in open("/proc/self/maps").read().split() if "libcudart" in m))
    wrong = 0
    for i in range(20):
        handle = ctypes.c_void_p()
        assert runtime.cudaStreamCreate(ctypes.byref(handle)) == 0
        with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
            x = torch.full((MIB,), float(i), device="cuda")
            y = x + 1
            del x
            wrong += int((y != i + 1).sum())
        torch.cuda.synchronize()
        assert runtime.cudaStreamDestroy(handle) == 0
        del y  # after its stream
        z = torch.full((MIB,), -2.0, device="cuda")
        wrong += int((z != -2).sum())
        del z
    fresh()
    return {"wrong": wrong, "left": torch.cuda.memory_allocated()}


@feature
def training():
    """The backward thread allocates; the losses are those of PyTorch's allocator, bit by bit."""
    import torch

    fresh()
    torch.use_deterministic_algorithms(True, warn_only=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(30):
        batch = int(torch.randint(16, 400, (), generator=generator))
        x = torch.randn(batch, 256, generator=generator).cuda()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()).hex())
    torch.use_deterministic_algorithms(False)
    del model, optimizer, x, loss
    fresh()
    return {"losses": losses}


@feature
def profiler():
    import torch

    fresh()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        x = block(16)
        del x
    seen = max((getattr(e, "self_device_memory_usage", 0) for e in profile.key_averages()), default=0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        with open(path) as f:
            events = [e["args"] for e in json.load(f)["traceEvents"] if e.get("name") == "[memory]"]
    sizes = [e["Bytes"] for e in events if abs(e["Bytes"]) >= 16 * MIB]
    totals = [e["Total Allocated"] for e in events if abs(e["Bytes"]) >= 16 * MIB]
    return {"seen": seen >= 16 * MIB, "sizes": sizes, "fell_by": totals[0] - totals[-1]}


@feature
def compiled():
    """torch.compile with trees of CUDA graphs: checkpoints of the pool's state."""
    import torch

    fresh()
    import torch._dynamo

    @torch.compile(backend="cudagraphs")
    def f(x):
        return (x @ x).relu() + 1

    @torch.compile(backend="cudagraphs")
    def g(x, y):
        return x * 2 + y.sum()

    wrong = 0
    x = torch.randn(128, 128, device="cuda")
    for i in range(12):
        torch.compiler.cudagraph_mark_step_begin()
        a = f(x)
        # Two ways to go on from the same graph: each path is recorded, and later replayed.
        b = g(a, x) if i % 3 != 2 else g(a * 0.5, x)
        expect_a = (x @ x).relu() + 1
        expect_b = (expect_a if i % 3 != 2 else expect_a * 0.5) * 2 + x.sum()
        wrong += not torch.allclose(a, expect_a, rtol=1e-3, atol=1e-3)
        wrong += not torch.allclose(b, expect_b, rtol=1e-3, atol=1e-2)
        del a, b
    from torch._inductor import cudagraph_trees

    manager = cudagraph_trees.get_manager(0, create_if_none_exists=False)
    graphs = manager.new_graph_id().id if manager is not None else 0
    return {"wrong": wrong, "graphs": graphs >= 2}


@feature
def checkpoint():
    """The calls that trees of CUDA graphs make, one by one."""
    import torch

    fresh()
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, pool=pool):
        x = torch.ones(1000, device="cuda")
        y = torch.ones(300_000, device="cuda")
    live = {x.data_ptr(), y.data_ptr()}
    check = [torch._C._cuda_checkPoolLiveAllocations(0, pool, live)]
    state = torch._C._cuda_getCheckpointState(0, pool)
    allocated = torch.cuda.memory_allocated()
    address = y.data_ptr()
    del y
    check.append(torch._C._cuda_checkPoolLiveAllocations(0, pool, live))
    freed = allocated - torch.cuda.memory_allocated()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, stream=stream, pool=pool):
        z = torch.ones(300_000, device="cuda")
    reused = z.data_ptr() == address
    stale = [z.untyped_storage()._cdata, x.untyped_storage()._cdata]
    torch._C._cuda_setCheckpointPoolState(0, state, stale, [])
    check.append(torch._C._cuda_checkPoolLiveAllocations(0, pool, live))
    same = torch.cuda.memory_allocated() == allocated
    result = {"check": check, "freed": freed >= 1_200_000, "reused": reused, "restored": same}
    torch.cuda.synchronize()
    del z, x, state, graph, second
    gc.collect()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = torch.ones(300_000, device="cuda")
    address = y.data_ptr()
    state = torch._C._cuda_getCheckpointState(0, graph.pool())
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    del y
    torch._C._cuda_setCheckpointPoolState(0, state, [], [])  # no storage takes the block: it is freed again
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    result["events"] = [e["action"] for e in snapshot["device_traces"][0] if e.get("addr") == address]
    del state, graph
    return result


COUNTING_ALLOCATOR = """
#include <cstddef>
extern "C" {
int cudaMalloc(void** p, std::size_t bytes);
int cudaFree(void* p);
int taken = 0, given = 0;
void* take(std::size_t bytes, int, void*) { void* p = nullptr; ++taken; return cudaMalloc(&p, bytes) == 0 ? p : nullptr; }
void give(void* p, std::size_t, int, void*) { ++given; cudaFree(p); }
}
"""


@feature
def other_allocator():
    """A MemPool whose memory comes from another allocator."""
    import ctypes

    import torch

    fresh()
    runtime = next(m for m in open("/proc/self/maps").read().split() if "libcudart" in m)
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "counting.cpp"), os.path.join(folder, "counting.so")
        with open(source, "w") as f:
            f.write(COUNTING_ALLOCATOR)
        subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source, runtime], check=True)
        other = torch.cuda.memory.CUDAPluggableAllocator(library, "take", "give")
        counts = ctypes.CDLL(library)
    taken, given = (ctypes.c_int.in_dll(counts, name) for name in ("taken", "given"))
    start = [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
    pool = torch.cuda.MemPool(other.allocator())
    before = taken.value
    with torch.cuda.use_mem_pool(pool):
        x = block(5).fill_(3)
        gone = block(5)
        address = gone.data_ptr()
        del gone
        y = block(5).fill_(4)
    outside = block(5)
    result = {
        "before": before,
        "taken": taken.value > 0,
        "given": given.value,
        "reused": y.data_ptr() == address,
        "allocated": torch.cuda.memory_allocated() - start[0],
        "reserved": torch.cuda.memory_reserved() - start[1] >= 15 * MIB,
        "in_pool": sorted(
            b["size"] for s in pool.snapshot() for b in s["blocks"] if b["state"] == "active_allocated"
        ),
    }
    side = torch.cuda.Stream()
    x.record_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        z = y + 1
    graph.replay()
    result["values"] = [int(x.max()), int(y.max()), int(z.max())]
    del x, y, z, graph, outside
    fresh()
    second = torch.cuda.MemPool(other.allocator())
    allowed = torch.cuda.memory_reserved() + 4 * MIB
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    try:
        with torch.cuda.use_mem_pool(second):
            block(16)
        result["refused"] = False
    except torch.OutOfMemoryError:
        result["refused"] = True
    torch.cuda.set_per_process_memory_fraction(1.0)
    result["given_while_in_use"] = given.value
    del pool, second
    third = torch.cuda.MemPool(other.allocator())
    with torch.cuda.use_mem_pool(third):
        x = block(5)
    del third
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
        start_time = time.perf_counter()
        del x
        result["waits"] = time.perf_counter() - start_time > 1
    fresh()
    result["all_given"] = taken.value == given.value
    result["end"] = torch.cuda.memory_allocated() - start[0]
    return result


@feature
def own_errors():
    """What tarn does not do is refused with a text that says so."""
    import torch

    texts = []
    try:
        torch.cuda.MemPool(no_split=True)
    except (RuntimeError, NotImplementedError) as e:
        texts.append(str(e))
    return {"texts": texts}


def run_features(which, path):
    sys.path.insert(0, str(HERE))
    import torch

    if which == "tarn":
        import tarn_torch

        tarn_torch.install()
    only = os.environ.get("TARN_TORCH_FEATURES", "").split(",")
    results = {"backend": torch.cuda.get_allocator_backend()}
    for name, function in sorted(FEATURES.items(), key=lambda f: f[0] == "failed_capture"):
        if only != [""] and name not in only:
            continue
        print(f"{which}: {name}", flush=True)
        try:
            results[name] = function()
        except Exception:
            results[name] = {"error": traceback.format_exc()}
            print(results[name]["error"], flush=True)
            try:
                torch.cuda.set_per_process_memory_fraction(1.0)
            except Exception:
                pass
        with open(path, "w") as f:
            json.dump(results, f)
    torch.cuda.synchronize()


def share_with_child(queue, answers):
    import signal

    import torch

    torch.cuda.init()
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)  # as a profiler's
    x, y = queue.get(timeout=60)
    signal.setitimer(signal.ITIMER_REAL, 0)
    answers.put([float(x.sum()), float(y.sum())])
    x.fill_(5)
    torch.cuda.synchronize()
    del x, y
    answers.put("done")


def run_sharing(path):
    sys.path.insert(0, str(HERE))
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=share_with_child, args=(queue, answers))
    child.start()
    x = torch.ones(5 * MIB, device="cuda")
    y = torch.full((300,), 2.0, device="cuda")
    queue.put((x, y))
    sums = answers.get(timeout=120)
    done = answers.get(timeout=60)
    child.join(60)
    torch.cuda.synchronize()
    result = {"sums": sums, "done": done, "changed": float(x.min()), "exit": child.exitcode}
    result["allocated"] = torch.cuda.memory_allocated() > 20 * MIB
    del x, y
    gc.collect()
    torch.cuda.ipc_collect()
    fresh()
    result["left"] = torch.cuda.memory_allocated()
    with open(path, "w") as f:
        json.dump(result, f)


def run_devices(which, path):
    """Two GPUs: tensors are copied between them, and each has statistics of its own."""
    sys.path.insert(0, str(HERE))
    import torch

    if which == "tarn":
        import tarn_torch

        tarn_torch.install()
    zero, one = torch.device("cuda:0"), torch.device("cuda:1")

    def allocated():
        return [torch.cuda.memory_allocated(d) for d in (zero, one)]

    def counts(key):
        return [torch.cuda.memory_stats(d).get(key, 0) for d in (zero, one)]

    result = {"backend": torch.cuda.get_allocator_backend(), "start": allocated()}
    x = torch.arange(3 * MIB, dtype=torch.int32, device=zero)
    result["of_first"] = allocated()
    there = x.to(one)
    result["of_both"] = allocated()
    back = (there + 1).to(zero)
    result["wrong"] = int((back != x + 1).sum())
    # The current device does not matter, but the tensor's.
    with torch.cuda.device(one):
        more = torch.full((5 * MIB,), 7, dtype=torch.uint8, device=zero)
        result["of_named_device"] = allocated()
    # Copies on streams of their own, of blocks that are freed at once and allocated again.
    streams = [torch.cuda.Stream(device=d) for d in (zero, one)]
    bad = torch.zeros((), dtype=torch.int64, device=one)
    streams[1].wait_stream(torch.cuda.current_stream(one))
    for i in range(50):
        with torch.cuda.stream(streams[0]):
            part = torch.full((MIB + i,), i, dtype=torch.int32, device=zero)
        with torch.cuda.stream(streams[1]):
            streams[1].wait_stream(streams[0])
            copied = part.to(one, non_blocking=True)
            bad += (copied != i).sum()
        # What used the block ends before it is used again.
        streams[0].wait_stream(streams[1])
        del part, copied
    for s in streams:
        s.synchronize()
    result["bad"] = int(bad)
    result["reserved"] = [torch.cuda.memory_reserved(d) >= a for d, a in zip((zero, one), allocated())]
    result["peak"] = [torch.cuda.max_memory_allocated(d) >= a for d, a in zip((zero, one), allocated())]
    torch.cuda.reset_peak_memory_stats(one)
    result["peak_of_second"] = torch.cuda.max_memory_allocated(one) == torch.cuda.memory_allocated(one)
    result["peak_of_first"] = torch.cuda.max_memory_allocated(zero) > torch.cuda.memory_allocated(zero)
    result["allocations"] = [n > 0 for n in counts("allocation.all.allocated")]
    result["segments_by_device"] = sorted({s["device"] for s in torch.cuda.memory_snapshot()})
    # All of one device is freed; the other keeps what it has.
    del there, bad
    gc.collect()
    result["after_second"] = allocated()
    torch.cuda.empty_cache()
    result["reserved_by_second"] = torch.cuda.memory_reserved(one)
    result["values"] = [int(x[-1]), int(more.sum()) == 7 * 5 * MIB]
    del x, back, more
    gc.collect()
    torch.cuda.empty_cache()
    result["end"] = allocated() + [torch.cuda.memory_reserved(d) for d in (zero, one)]
    with open(path, "w") as f:
        json.dump(result, f)
    for d in (zero, one):
        torch.cuda.synchronize(d)


if os.environ.get("TARN_TORCH_SHARING") == "tarn":  # in the parent, and in the child that multiprocessing starts
    sys.path.insert(0, str(HERE))
    import tarn_torch as _tarn_torch

    _tarn_torch.install()


# ---- the tests


def python(*arguments, **variables):
    environment = {**os.environ, "PYTHONPATH": str(HERE), **variables}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=HERE, capture_output=True, text=True, timeout=400
    )


def start_python(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def has_gpu():
    return pathlib.Path("/dev/nvidiactl").exists()


def gpu_count():
    """Without CUDA, which stays uninitialised in this process."""
    try:
        return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())
    except OSError:
        return 0


class Installation(unittest.TestCase):
    """Needs no GPU."""

    def test_install_replaces_the_allocator_once(self):
        done = python(
            "-c",
            "import tarn_torch, torch; a = torch.cuda.get_allocator_backend(); tarn_torch.install(); tarn_torch.install();"
            "print(a, torch.cuda.get_allocator_backend(), tarn_torch.is_installed(), torch.cuda.is_initialized(),"
            "torch.cuda.memory_allocated(), torch.cuda.memory_stats())",
        )
        self.assertEqual(done.stdout.split(), "native tarn True False 0 OrderedDict()".split(), done.stderr)

    def test_options_of_the_pool_are_refused_once_installed(self):
        done = python(
            "-c",
            "import tarn_torch\n"
            "tarn_torch.install(remap=False, slack_per_mille=50); tarn_torch.install()\n"
            "for options in ({'slack_per_mille': 20}, {'largest_handle': -1}):\n"
            "    try: tarn_torch.install(**options)\n"
            "    except (RuntimeError, ValueError) as e: print(type(e).__name__, e)",
        )
        self.assertRegex(done.stdout, r"^RuntimeError .* cannot change\nValueError .* must not be negative\n$", done.stderr)

    def test_standard_library_is_that_of_the_process(self):
        # A compiler that links the C++ library statically made torch.OutOfMemoryError end with SIGSEGV: the copy's locales read the
        # tables of PyTorch's, which was of another version.
        from tarn_torch import LINK_SHARED_CPP

        source = (
            '#include "standard_library.hpp"\n'
            'extern "C" int own() { return tarn_torch::has_own_standard_library(reinterpret_cast<void const*>(&own)); }'
        )
        with tempfile.TemporaryDirectory() as folder:
            for name, flags in (
                ("usual", []),
                ("own", ["-static-libstdc++"]),
                ("as_built", ["-static-libstdc++", "-static-libgcc", *LINK_SHARED_CPP]),
            ):
                subprocess.run(
                    ["c++", "-std=c++20", "-shared", "-fPIC", f"-I{HERE}", "-x", "c++", "-", "-o", f"{folder}/{name}.so", *flags],
                    input=source, text=True, check=True,
                )  # fmt: skip
            done = python(
                "-c",
                "import ctypes, torch\n"
                f"for name in ('usual', 'own', 'as_built'): print(name, ctypes.CDLL('{folder}/' + name + '.so').own())",
            )
        self.assertEqual(done.stdout.split(), "usual 0 own 1 as_built 0".split(), done.stderr)

    def test_library_with_its_own_standard_library_is_refused(self):
        source = (
            "#include <cstddef>\n#include <cstring>\n"
            'extern "C" int tarn_torch_install(char* e, std::size_t n) { std::strncpy(e, "a copy", n); return 2; }\n'
            'extern "C" int tarn_torch_set_pool() { return 0; }\nextern "C" int tarn_torch_pool_counters() { return 1; }'
        )
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/other.so"
            subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", path], input=source, text=True, check=True)
            done = python(
                "-c",
                "import tarn_torch\ntry: tarn_torch.install()\nexcept RuntimeError as e: print(e)",
                TARN_TORCH_LIBRARY=path,
            )
        self.assertEqual(done.stdout, f"tarn_torch.install(): {path}: a copy\n", done.stderr)

    @unittest.skipUnless(has_gpu(), "needs a GPU")
    def test_options_reach_the_pool_and_pool_counters_count(self):
        done = python(
            "-c",
            "import tarn_torch, torch; tarn_torch.install(largest_handle=2 << 20)\n"
            "a = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')\n"
            "c = tarn_torch.pool_counters(); del a; torch.cuda.empty_cache(); d = tarn_torch.pool_counters()\n"
            "print(c['creates'] >= 32, c['maps'] >= 32, d['destroys'] >= 32, d['unmaps'] >= 32)",
        )
        self.assertEqual(done.stdout.split(), ["True"] * 4, done.stderr)

    @unittest.skipIf(has_gpu(), "there is a GPU")
    def test_without_a_gpu_the_error_is_pytorchs(self):
        done = python(
            "-c",
            "import tarn_torch, torch; tarn_torch.install()\n"
            "try: torch.ones(3, device='cuda')\n"
            "except RuntimeError as e: print(type(e).__name__, e)",
        )
        plain = python(
            "-c",
            "import torch\ntry: torch.ones(3, device='cuda')\nexcept RuntimeError as e: print(type(e).__name__, e)",
        )
        self.assertIn("NVIDIA", plain.stdout)
        self.assertEqual(done.stdout, plain.stdout, done.stderr)

    @unittest.skipUnless(has_gpu(), "needs a GPU")
    def test_install_after_cuda_was_used_is_refused(self):
        done = python(
            "-c",
            "import tarn_torch, torch; torch.ones(3, device='cuda')\n"
            "try: tarn_torch.install()\n"
            "except RuntimeError as e: print(e)",
        )
        self.assertIn("must come before the first use of CUDA", done.stdout, done.stderr)


class Comparison(unittest.TestCase):
    """compare_workloads.py; needs no GPU."""

    def test_runs_take_turns_and_one_that_dies_costs_only_its_own_result(self):
        done = python(
            "-c",
            "import compare_workloads as c\n"
            "c.PASSES = 3\n"
            "def run(workload, allocator, steps, wait_for_turn):\n"
            "    for number in range(c.PASSES):\n"
            "        wait_for_turn()\n"
            "        print(allocator, number, flush=True)\n"
            "        if (allocator, number) == ('b', 1): raise ValueError('dies')\n"
            "    return {'of': allocator}\n"
            "c.run = run\n"
            "print(c.run_in_turn('work', ['a', 'b', 'c'], 1, first=1))",
        )
        lines = done.stdout.splitlines()
        self.assertEqual(lines[:3], ["b 0", "c 0", "a 0"], done.stderr)
        self.assertEqual(lines[3:6], ["c 1", "a 1", "b 1"])
        self.assertEqual(lines[6:], ["a 2", "c 2", "[{'of': 'a'}, None, {'of': 'c'}]"])
        self.assertIn("work b: ValueError: dies", done.stderr)


# In place of PyTorch and of tarn's library, for the program that runs PyTorch's tests.
FAKE_TORCH = """
__version__ = "0"
class version: cuda = "0"
class cuda:
    is_available = is_initialized = staticmethod(lambda: False)
"""
FAKE_LIBRARY = """
extern "C" int tarn_torch_install(char*, unsigned long) { return 0; }
extern "C" int tarn_torch_set_pool(int, long, long) { return 0; }
extern "C" int tarn_torch_pool_counters(int, void*) { return 0; }
"""
FAKE_TESTS = """
import os, subprocess, sys, time, unittest, urllib.request, weakref
class Garbage:
    left = None
    def __init__(self): self.itself, Garbage.left = self, weakref.ref(self)
class TestCuda(unittest.TestCase):
    def test_memory_dies(self): os._exit(5)
    def test_memory_downloads(self): urllib.request.urlretrieve("http://localhost:1/file")
    def test_memory_fails(self): self.assertEqual(1, 2)
    def test_memory_fails_on_tarn(self): self.assertNotIn("tarn_torch", sys.modules)
    def test_memory_hangs(self): time.sleep(60)
    def test_memory_starts_a_process(self): subprocess.run(["false"], check=True)
    def test_other(self): self.fail("not of the allocator")
class TestMemPool(unittest.TestCase):
    def test_leaves_a_count(self): Garbage.count = 1
    def test_leaves_garbage(self): Garbage()
    def test_mempool_no_split(self): raise NotImplementedError("no_split")
    def test_sees_no_count(self): self.assertFalse(hasattr(Garbage, "count"))
    def test_sees_no_garbage(self): self.assertIsNone(Garbage.left and Garbage.left())
"""


class TorchTests(unittest.TestCase):
    """run_torch_tests.py; needs neither PyTorch nor a GPU."""

    def test_failures_are_compared_with_the_list_and_with_pytorchs_allocator(self):
        with tempfile.TemporaryDirectory() as folder:
            at = pathlib.Path(folder)
            (at / "torch.py").write_text(FAKE_TORCH)
            (at / "test_cuda.py").write_text(FAKE_TESTS)
            subprocess.run(
                ["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(at / "fake.so")],
                input=FAKE_LIBRARY, text=True, check=True,
            )  # fmt: skip
            done = python(
                str(HERE / "run_torch_tests.py"), str(at / "test_cuda.py"), "--json", str(at / "out.jsonl"),
                "--test-seconds", "2", "--seconds", "120",
                PYTHONPATH=folder, TARN_TORCH_LIBRARY=str(at / "fake.so"), PYTHONDONTWRITEBYTECODE="1",
            )  # fmt: skip
            rows = {row["class"]: row for row in map(json.loads, (at / "out.jsonl").read_text().splitlines())}
        self.assertEqual(done.returncode, 1, done.stderr)
        of_cuda, of_pool = rows["TestCuda"], rows["TestMemPool"]
        self.assertEqual(list(rows), ["TestCuda", "TestMemPool"])
        self.assertEqual([of_cuda["passed"], of_cuda["skipped"], of_cuda["not_run"]], [0, 2, []], of_cuda)
        failed = {
            one["test"].split(".")[1]: [one["error"], one["on_pytorchs_allocator"], one["alone_on_tarn"]]
            for one in of_cuda["failed"]
        }
        self.assertEqual(failed.pop("test_memory_dies"), ["the process ended with 5", "failed", "not run"])
        self.assertEqual(failed.pop("test_memory_hangs"), ["took more than 2 s", "failed", "not run"])
        self.assertEqual(failed.pop("test_memory_fails"), ["AssertionError: 1 != 2", "failed", "not run"])
        self.assertEqual(failed.pop("test_memory_fails_on_tarn")[1:], ["passed", "failed"])
        self.assertEqual(failed, {})
        self.assertEqual([of_pool["passed"], of_pool["skipped"]], [3, 0], of_pool)
        self.assertEqual([(one["test"], one["on_pytorchs_allocator"], one["alone_on_tarn"]) for one in of_pool["failed"]],
                         [("TestMemPool.test_mempool_no_split", "not run", "not run"),
                          ("TestMemPool.test_sees_no_count", "passed", "passed")])  # fmt: skip
        self.assertIn("FAILED: 1 failures that README.md does not list: TestCuda.test_memory_fails_on_tarn\n", done.stdout)
        self.assertRegex(done.stdout, r"slowest: TestCuda.test_memory_hangs [23]\.\d s, TestCuda\.")

    def test_what_an_earlier_run_had_no_time_for_comes_first(self):
        from run_torch_tests import by_need

        def failure(name, listed, native):
            return {"test": name, "listed": listed, "on_pytorchs_allocator": native}

        earlier = [
            {"not_run": ["C.e"], "failed": [failure("C.a", None, "failed"), failure("C.d", None, "passed")]},
            {"not_run": [], "failed": [failure("C.b", "a reason", "not run")]},
        ]
        tests = ["C.a", "C.b", "C.c", "C.d", "C.e"]
        self.assertEqual(by_need(tests, earlier), ["C.e", "C.d", "C.b", "C.c", "C.a"])
        self.assertEqual(by_need(tests, []), tests)


@unittest.skipUnless(has_gpu(), "needs a GPU")
class OneDevice(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = {}
        with tempfile.TemporaryDirectory() as folder:
            paths = {which: os.path.join(folder, which) for which in ("native", "tarn")}
            children = {
                which: start_python("-X", "faulthandler", __file__, "--features", which, path)
                for which, path in paths.items()
            }
            for which, child in children.items():
                output, _ = child.communicate(timeout=400)
                try:
                    with open(paths[which]) as f:
                        cls.results[which] = json.load(f)
                except (OSError, ValueError):
                    cls.results[which] = {}
                cls.results[which]["log"] = output[-6000:] + f"\nexit status {child.returncode}"

    def of(self, which, name):
        results = self.results[which]
        if name not in results:
            self.fail(f"{which} did not reach {name}: {results.get('log')}")
        if "error" in results[name]:
            self.fail(f"{which}: {results[name]['error']}")
        return results[name]

    def both(self, name):
        return self.of("native", name), self.of("tarn", name)

    def assert_same(self, name, but=()):
        native, tarn = self.both(name)
        for key in native:
            if key not in but:
                self.assertEqual(tarn[key], native[key], key)
        return native, tarn

    def test_child_ends_well(self):
        self.assertEqual(self.results["tarn"].get("backend"), "tarn")
        self.assertTrue(self.results["tarn"]["log"].endswith("exit status 0"), self.results["tarn"]["log"])

    def test_statistics(self):
        native, tarn = self.assert_same("statistics")
        self.assertEqual(tarn["two"], 10 * MIB)
        self.assertEqual(tarn["peak"], 10 * MIB)
        self.assertEqual(tarn["one"], 6 * MIB)
        self.assertTrue(tarn["empty_cache_returns"])
        self.assertEqual(tarn["requested"], 2800)
        self.assertEqual(tarn["totals_after_reset"], 0)

    def test_summary(self):
        self.assert_same("summary")

    def test_limit_and_out_of_memory(self):
        native, tarn = self.assert_same("limit", but=("text", "more_than_all"))
        self.assertEqual(tarn["kind"], "OutOfMemoryError")
        for part in ("CUDA out of memory. Tried to allocate ", "GPU 0 has a total capacity of ", "allowed"):
            self.assertIn(part, native["text"])
            self.assertIn(part, tarn["text"])
        self.assertIn("tarn: ", tarn["text"])
        self.assertIn("refused by limited", tarn["text"])
        self.assertIn("Tried to allocate", tarn["more_than_all"])
        self.assertEqual(tarn["observer"], [0, True, 4])

    def test_record_stream(self):
        tarn = self.of("tarn", "record_stream")
        self.assertEqual(tarn["wrong"], 0)
        self.assertEqual(tarn["reused_early"], 0)
        self.assertEqual(tarn["waits"], 4 * MIB)
        self.assertEqual(self.of("native", "record_stream")["waits"], 4 * MIB)

    def test_streams_and_threads(self):
        tarn = self.of("tarn", "streams")
        self.assertTrue(tarn["checked"])
        self.assertEqual(tarn["bad"], 0)

    def test_history(self):
        native, tarn = self.assert_same("history", but=("segment_keys",))
        self.assertTrue(all(tarn["has"].values()), tarn["has"])
        self.assertTrue(tarn["tiled"] and tarn["reserved"] and tarn["allocated"], tarn)
        self.assertTrue(tarn["named"] and tarn["grows"] and tarn["in_order"], tarn)
        self.assertEqual(tarn["of_block"][-3:], ["alloc", "free_requested", "free_completed"])
        self.assertEqual(tarn["plots"], [True] * 4)
        self.assertEqual(tarn["segment_keys"], native["segment_keys"])

    def test_growth_in_the_history(self):
        native, tarn = self.assert_same("growth_history")
        self.assertEqual(tarn["begins"], ["segment_alloc", True])
        self.assertEqual(tarn["ends"], ["alloc", 256 * MIB, True])
        self.assertEqual(tarn["given_back"], ["segment_free", True])
        self.assertEqual(tarn["named"], [True, True])
        self.assertEqual(tarn["of_cached"], ["alloc"])
        self.assertEqual(tarn["without"], [False, False])
        self.assertEqual(tarn["most"], [3, "alloc"])
        self.assertEqual(tarn["last"], ["segment_free"])

    def test_growth_has_the_stack_of_its_thread(self):
        self.assert_same("growth_of_threads")
        self.assertEqual(self.of("tarn", "growth_of_threads"), {"unnamed": 0, "wrong": 0, "grew": True})

    def test_graphs(self):
        native, tarn = self.assert_same("graphs")
        self.assertEqual(tarn["wrong"], 0)
        self.assertTrue(tarn["graph_has_segments"] and tarn["returned"], tarn)

    def test_failed_capture(self):
        self.assert_same("failed_capture")
        self.assertEqual(self.of("tarn", "failed_capture")["total"], 3000)

    def test_destroyed_graph(self):
        self.assertEqual(self.assert_same("destroyed_graph")[1], {"wrong": 0})

    def test_pools_in_captures(self):
        native, tarn = self.assert_same("pools_in_captures")
        self.assertEqual([tarn["values"], tarn["overwritten"]], [[7, 7, 4, 4], 0])

    def test_parked_blocks(self):
        native, tarn = self.assert_same("parked_blocks")
        self.assertEqual(tarn, {"peak_fell": False, "wrong": 0, "peaks": [512, 512]})

    def test_mem_pool(self):
        native, tarn = self.assert_same("mem_pool")
        self.assertEqual(tarn["uses"], [1, 2, 1])
        self.assertEqual(tarn["in_pool"], [False, True, True, False, False])
        self.assertEqual(tarn["live_after_pool"], 0)
        self.assertEqual(tarn["nested"], [True, True])
        self.assertTrue(tarn["reused"] and tarn["returned"], tarn)
        self.assertEqual(tarn["graph_in_pool"], 500)

    def test_pool_of_another_allocator(self):
        native, tarn = self.assert_same("other_allocator")
        self.assertEqual(tarn["values"], [3, 4, 5])
        self.assertTrue(tarn["taken"] and tarn["all_given"], tarn)
        self.assertTrue(tarn["refused"] and tarn["given_while_in_use"] == 0, tarn)

    def test_pool_on_oom(self):
        self.assert_same("pool_on_oom")
        self.assertTrue(self.of("tarn", "pool_on_oom")["served"])

    def test_pool_on_oom_in_capture(self):
        self.assertEqual(self.of("tarn", "pool_on_oom_in_capture"), {"of_pool": True, "others_free": True, "overwritten": 0})

    def test_uncached_and_raw_blocks(self):
        self.assert_same("uncached")

    def test_external_stream(self):
        tarn = self.of("tarn", "external_stream")
        self.assertEqual(tarn["wrong"], 0)

    def test_training_losses_are_bit_identical(self):
        native, tarn = self.assert_same("training")
        self.assertEqual(len(set(tarn["losses"])), 30)

    def test_profiler(self):
        self.assert_same("profiler")
        self.assertTrue(self.of("tarn", "profiler")["seen"])

    def test_checkpoints(self):
        native, tarn = self.assert_same("checkpoint")
        self.assertEqual(tarn["check"], [True, False, True])
        self.assertTrue(tarn["freed"] and tarn["reused"] and tarn["restored"], tarn)

    def test_compiled(self):
        native, tarn = self.assert_same("compiled")
        self.assertEqual(tarn["wrong"], 0)

    def test_what_is_refused(self):
        (text,) = self.of("tarn", "own_errors")["texts"]
        self.assertIn("no_split", text)


@unittest.skipUnless(has_gpu(), "needs a GPU")
class Processes(unittest.TestCase):
    def test_sharing(self):
        results = {}
        with tempfile.TemporaryDirectory() as folder:
            for which in ("native", "tarn"):
                path = os.path.join(folder, which)
                done = python(__file__, "--sharing", path, TARN_TORCH_SHARING=which)
                self.assertTrue(os.path.exists(path), done.stdout + done.stderr)
                with open(path) as f:
                    results[which] = json.load(f)
        self.assertEqual(results["tarn"], results["native"])
        self.assertEqual(results["tarn"]["sums"], [5 * MIB, 600])
        self.assertEqual(results["tarn"]["changed"], 5)


@unittest.skipUnless(gpu_count() >= 2, "needs two GPUs")
class TwoDevices(unittest.TestCase):
    def test_copies_and_statistics(self):
        results = {}
        with tempfile.TemporaryDirectory() as folder:
            for which in ("native", "tarn"):
                path = os.path.join(folder, which)
                done = python("-X", "faulthandler", __file__, "--devices", which, path)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                with open(path) as f:
                    results[which] = json.load(f)
        native, tarn = results["native"], results["tarn"]
        self.assertEqual(native.pop("backend"), "native")
        self.assertEqual(tarn.pop("backend"), "tarn")
        self.assertEqual(tarn, native)
        self.assertEqual([tarn["wrong"], tarn["bad"]], [0, 0])
        self.assertEqual(tarn["of_first"], [12 * MIB, 0])
        self.assertEqual(tarn["of_both"], [12 * MIB, 12 * MIB])
        self.assertEqual(tarn["segments_by_device"], [0, 1])
        self.assertEqual(tarn["reserved_by_second"], 0)
        self.assertEqual(tarn["end"], [0, 0, 0, 0])


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--devices":
        run_devices(sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 4 and sys.argv[1] == "--features":
        run_features(sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 3 and sys.argv[1] == "--sharing":
        run_sharing(sys.argv[2])
    else:
        unittest.main()
