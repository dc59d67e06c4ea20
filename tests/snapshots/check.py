# SPDX-License-Identifier: Apache-2.0
"""Loads a snapshot's pickle and checks what PyTorch's viewers rely on: the types and keys, blocks that tile segments, and a
history that can be undone from its end to its start with every block in a segment at each step. If torch is installed, its
torch/cuda/_memory_viz.py also reads the file.

check.py FILE.pickle|PROGRAM [MEMORY_VIZ.py]     PROGRAM is tarn_snapshots, which writes the files. A .pickle is compared with
its .json and .trace.json. Prints a line of evidence, or exits with status 1 and the reason."""
import bisect
import contextlib
import importlib.util
import io
import json
import os
import pickle
import pickletools
import subprocess
import sys
import tempfile

KEYS = {
    "segment": {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
                "segment_pool_id", "is_expandable", "frames", "blocks"},
    "block": {"address", "size", "requested_size", "state", "frames"},
    "event": {"action", "size", "stream", "time_us", "pool_id", "frames"},
}
# The opcodes of protocol 4 that MemoryViz.js unpickles.
OPCODES = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1",
           "NEWTRUE", "NEWFALSE", "TUPLE2", "MEMOIZE", "BINGET", "LONG_BINGET", "STOP"}


def need(truth, *what):
    if not truth:
        sys.exit("snapshots: " + " ".join(map(str, what)))


def check_opcodes(data):
    """The viewer passes all items of a batch as arguments of one call."""
    marks = []
    items = 0
    for opcode, argument, _ in pickletools.genops(data):
        need(opcode.name in OPCODES, "opcode", opcode.name)
        if opcode.name == "MARK":
            marks.append(items)
            items = 0
        elif opcode.name in ("APPENDS", "SETITEMS"):
            need(opcode.name == "SETITEMS" or items <= 1000, "a batch of", items)
            items = marks.pop()
        elif opcode.name == "TUPLE2":
            items -= 1
        elif opcode.name not in ("PROTO", "MEMOIZE", "STOP"):
            items += 1
        if opcode.name == "LONG1":
            need(argument < 1 << 63, "a number beyond 63 bits", argument)
    need(not marks, "a mark is left over")


def check_frames(frames):
    need(isinstance(frames, list), "frames", frames)
    for f in frames:
        need(isinstance(f["filename"], str) and isinstance(f["name"], str) and isinstance(f["line"], int), "frame", f)


def check_segments(snapshot):
    end = 0
    for s in snapshot["segments"]:
        need(set(s) == KEYS["segment"], "keys", set(s))
        need(s["address"] >= end, "segments overlap at", hex(s["address"]))
        need(s["segment_type"] in ("small", "large"), s["segment_type"])
        need(s["segment_pool_id"][0] == 0 and s["segment_pool_id"][1] >= 0, "segment_pool_id", s["segment_pool_id"])
        check_frames(s["frames"])
        at, sums = s["address"], {"active_allocated": 0, "active_pending_free": 0, "inactive": 0}
        requested = 0
        for b in s["blocks"]:
            need(set(b) == KEYS["block"], "keys", set(b))
            need(b["address"] == at and b["size"] > 0, "blocks leave a gap or overlap at", hex(at))
            need(0 <= b["requested_size"] <= b["size"], "requested", b)
            sums[b["state"]] += b["size"]
            requested += b["requested_size"] if b["state"] != "inactive" else 0
            check_frames(b["frames"])
            at += b["size"]
        end = at
        need(at == s["address"] + s["total_size"], "blocks do not fill", hex(s["address"]))
        need(s["allocated_size"] == sums["active_allocated"] and s["requested_size"] == requested, "sums of", hex(s["address"]))
        need(s["active_size"] == sums["active_allocated"] + sums["active_pending_free"], "active of", hex(s["address"]))


class Stretches:
    """Segments as the viewer keeps them while it undoes: by address, joined where they touch. The viewer joins segments of one
    stream and keeps those of two apart, so each change must lie in one of those that were put in."""

    def __init__(self, segments):
        self.begin = [s["address"] for s in segments]
        self.end = [s["address"] + s["total_size"] for s in segments]

    def covers(self, address):
        i = bisect.bisect_right(self.begin, address) - 1
        return i >= 0 and address < self.end[i]

    def put(self, first, last):
        i = bisect.bisect_left(self.begin, first)
        need(i == 0 or self.end[i - 1] <= first, "an undone segment overlaps another at", hex(first))
        need(i == len(self.begin) or last <= self.begin[i], "an undone segment overlaps another at", hex(first))
        self.begin.insert(i, first)
        self.end.insert(i, last)

    def take(self, first, last, whole):
        i = bisect.bisect_right(self.begin, first) - 1
        need(i >= 0 and last <= self.end[i], "no segment to undo at", hex(first))
        b, e = self.begin[i], self.end[i]
        need(not whole or (b, e) == (first, last), "not the segment that was added at", hex(first))
        parts = [(x, y) for x, y in ((b, first), (last, e)) if x < y]
        self.begin[i:i + 1] = [x for x, _ in parts]
        self.end[i:i + 1] = [y for _, y in parts]


def undo(snapshot, device, trace):
    stretches = Stretches(snapshot["segments"])
    live, deferred, starts = {}, set(), []
    for s in snapshot["segments"]:
        for b in s["blocks"]:
            if b["state"] != "inactive":
                live[b["address"]] = b
                bisect.insort(starts, b["address"])
                if b["state"] == "active_pending_free":
                    deferred.add(b["address"])
    waiting = set(deferred)
    for e in reversed(trace):
        action, address = e["action"], e.get("addr")
        if action == "alloc":
            need(address in live and address not in waiting, "allocated, but neither freed nor live:", hex(address))
            need("size" not in live[address] or e["size"] <= live[address]["size"], "size of", hex(address))
            del live[address]
            starts.pop(bisect.bisect_left(starts, address))
        elif action == "free_completed":
            need(address not in live, "freed twice:", hex(address))
            need(stretches.covers(address), "a block outside every segment:", hex(address))
            live[address] = {}
            bisect.insort(starts, address)
            waiting.add(address)
        elif action == "free_requested":
            need(address in waiting, "a free without a waiting block:", hex(address))
            waiting.discard(address)
        elif action in ("segment_alloc", "segment_map"):
            stretches.take(address, address + e["size"], action == "segment_alloc")
            i = bisect.bisect_left(starts, address)
            need(i == len(starts) or starts[i] >= address + e["size"], "a block outlives its segment", hex(address))
        elif action in ("segment_free", "segment_unmap"):
            stretches.put(address, address + e["size"])
        else:
            need(action == "oom" and "device_free" in e, "action", action)
    return live


def check_trace(snapshot):
    devices = {s["device"] for s in snapshot["segments"]}
    need(not devices or max(devices) < len(snapshot["device_traces"]), "no trace of device", devices)
    events = 0
    for device, trace in enumerate(snapshot["device_traces"]):
        time = 0
        for e in trace:
            need(KEYS["event"] <= set(e) and ("addr" in e) == (e["action"] != "oom"), "keys", set(e))
            need(e["time_us"] >= time, "time decreases")
            need("category" not in e, "category")
            check_frames(e["frames"])
            time = e["time_us"]
        undo(snapshot, device, trace)
        events += len(trace)
    return events


def run_viewer(path, snapshot):
    if path is None:
        return False
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    viz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(viz)
    plain = lambda lines: lines  # noqa: E731: the flame graph's script would be fetched
    need("total_reserved" in viz.segsum(snapshot), "segsum")
    viz.trace(snapshot)
    need(viz.segments(snapshot, plain) or not snapshot["segments"], "segments")
    viz.memory(snapshot, plain)
    viz.compare(snapshot["segments"], snapshot["segments"], plain)
    for plot in (viz.segment_plot, viz.trace_plot):
        need("<html>" in plot(snapshot), "plot")
    viz.trace_plot(pickle.loads(pickle.dumps(snapshot)), filter_freed=True)
    return True


def find_viewer():
    if len(sys.argv) > 2:
        return sys.argv[2]
    found = importlib.util.find_spec("torch")
    return found.submodule_search_locations[0] + "/cuda/_memory_viz.py" if found else None


def check_json(path, snapshot):
    """The same segments and blocks in JSON; a trace for Perfetto that ends with the same bytes."""
    with open(path + ".json", encoding="utf-8") as file:
        same = json.load(file)
    uses = {"live": "active_allocated", "deferred": "active_pending_free", "cached": "inactive"}
    ours = [(int(s["address"], 16), s["bytes"], s["small"],
             [(int(b["address"], 16), b["bytes"], uses[b["use"]]) for b in s["blocks"]]) for s in same["segments"]]
    theirs = [(s["address"], s["total_size"], s["segment_type"] == "small",
               [(b["address"], b["size"], b["state"]) for b in s["blocks"]]) for s in snapshot["segments"]]
    need(ours == theirs, "JSON and pickle differ")
    need(sum(s["bytes"] for s in same["segments"]) == same["pool"]["reserved"], "segments do not sum to reserved bytes")
    with open(path + ".trace.json", encoding="utf-8") as file:
        counted = {e["name"]: e["args"]["bytes"] for e in json.load(file)["traceEvents"] if e["ph"] == "C"}
    live = sum(b["bytes"] for s in same["segments"] for b in s["blocks"] if b["use"] == "live")
    need(counted["live bytes"] == live and counted["reserved bytes"] == same["pool"]["reserved"], "Perfetto's counters", counted)


def check_graphs(path, snapshot):
    """The memory of captured graphs: segments with a segment_pool_id of their own. FILE.graphs has what each graph_memory reported:
    its number, and its reserved, allocated and kept bytes. Returns the number of those segments."""
    expected = {}
    if os.path.exists(path + ".graphs"):
        with open(path + ".graphs", encoding="utf-8") as file:
            expected = {number: rest for number, *rest in (map(int, line.split()) for line in file)}
    graphs = [s for s in snapshot["segments"] if s["segment_pool_id"] != (0, 0)]
    for s in graphs:
        need(s["segment_pool_id"][1] in expected, "a segment of an unknown graph_memory", s["segment_pool_id"])
    with open(path + ".json", encoding="utf-8") as file:
        ours = json.load(file)["segments"]
    for number, (reserved, allocated, kept) in expected.items():
        of_owner = [s for s in graphs if s["segment_pool_id"][1] == number]
        need(sum(s["total_size"] for s in of_owner) == reserved, "reserved bytes of graph_memory", number)
        need(sum(s["allocated_size"] for s in of_owner) == allocated, "allocated bytes of graph_memory", number)
        held = [b for s in ours for b in s["blocks"] if b.get("graph_memory") == number]
        need(sum(b["bytes"] for b in held) == kept, "kept bytes of graph_memory", number)
        need(all(b["use"] == "deferred" for b in held), "a block of a graph that is not deferred", number)
    same = [s.get("graph_memory", 0) for s in ours]
    need(same == [s["segment_pool_id"][1] for s in snapshot["segments"]], "JSON and pickle differ in graph_memory")
    return len(graphs)


def check(path):
    with open(path, "rb") as file:
        content = file.read()
    check_opcodes(content)
    loaded = pickle.loads(content)
    need(set(loaded) == {"segments", "device_traces", "allocator_settings"}, "keys", set(loaded))
    check_segments(loaded)
    events = check_trace(loaded)
    stem = path[:-len(".pickle")]
    graphs = 0
    if os.path.exists(stem + ".json"):
        check_json(stem, loaded)
        graphs = check_graphs(stem, loaded)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it compares
        viewer = run_viewer(find_viewer(), loaded)
    states = [b["state"] for s in loaded["segments"] for b in s["blocks"]]
    return len(loaded["segments"]), states.count("active_allocated"), states.count("active_pending_free"), events, graphs, viewer


def main():
    if os.access(sys.argv[1], os.X_OK):  # the program that writes them
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.argv[1], folder, "24"], check=True)
            found = [check(f"{folder}/{name}") for name in sorted(os.listdir(folder)) if name.endswith(".pickle")]
    else:
        found = [check(sys.argv[1])]
    segments, live, deferred, events, graphs = (sum(f[i] for f in found) for i in range(5))
    viewer = found[0][5]
    print(f"evidence: snapshots files={len(found)} segments={segments} graph_segments={graphs} live={live} deferred={deferred} "
          f"events={events} "
          f"memory_viz={'read' if viewer else 'skipped'}")


main()
