#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks figures in the prose of the documents against the files that they come from.

A figure is followed by a marker, which readers do not see: `97 %<!-- figure: utilisation -->`. It must be the value of FIGURES,
rounded to the figure's digits; a range is two of them. The tables and the picture must be those that bench/summary.py --readme writes.
Exit status 1 where one is wrong, or where a value has no figure."""
import pathlib
import re
import statistics
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import read_results as results  # noqa: E402
import summary  # noqa: E402

WORDS = {"one": "1", "two": "2", "three": "3", "five": "5", "seven": "7", "nine": "9", "ten": "10", "twelve": "12", "twice": "2"}


def of_gpu(rows, **keys):
    return [row for row in rows if row["device"] == "cuda" and all(row.get(key) == value for key, value in keys.items())]


def ends(values):
    return min(values), max(values)


def rows(name):
    return results.rows_of(results.RESULTS / f"{name}.jsonl")


def value_of(name, work, way, key="value"):
    """Of the one row of results/NAME.jsonl with this work and a way that begins so."""
    found = [row[key] for row in rows(name) if row["work"] == work and row["way"].startswith(way)]
    if len(found) != 1:
        sys.exit(f"{name}.jsonl has {len(found)} rows of '{work}', '{way}'")
    return found[0]


def lost(row):
    return 100 * (1 - row["peak_live"] / row["peak_reserved"])


def less(peer, mine):
    """How many per cent less the peer holds."""
    return 100 * (1 - peer["peak_reserved"] / mine["peak_reserved"])


def of_traces():
    """Recorded traces replayed, one pool after the other and in turn."""
    replayed = results.of_newest_run(results.replay())
    mine, peers = ({row["trace"]: row for row in of_gpu(replayed, pool=pool)} for pool in ("tarn_tracked", "torch_expandable"))
    bins = of_gpu(replayed, pool="rmm_binning")
    turns, turns_of_peer = ({row["trace"]: row for row in of_gpu(results.in_turn(), pool=pool, threads=1)} for pool in ("tarn_tracked", "torch_expandable"))
    uploading, = of_gpu(results.in_turn(), pool="tarn_tracked", trace="torch_prefetch")
    programs, programs_of_peer = (of_gpu(results.workloads(), pool=pool) for pool in ("tarn_tracked", "torch_expandable"))
    survived = [row for row in results.survival(results.RESULTS) if row["device"] == "cuda" and row["refusals"] == 0]

    def survivors(pool, factor):
        return sum(row["pool"] == pool and row["factor"] == factor for row in survived)

    return {
        "utilisation": 100 * statistics.median(row["peak_live"] / row["peak_reserved"] for row in mine.values()),
        "lost": ends([lost(row) for row in mine.values()]),
        "lost.large": ends([lost(row) for trace, row in mine.items() if trace != "cupy_flow_cg"]),
        "lost.cupy": lost(mine["cupy_flow_cg"]),
        "peer.cupy": peers["cupy_flow_cg"]["peak_reserved"] / mine["cupy_flow_cg"]["peak_reserved"],
        "bins.held": statistics.median(row["peak_reserved"] / row["peak_live"] for row in bins),
        "traces": len(mine),
        "traces.peer_holds_less": sum(less(peers[trace], row) > 0 for trace, row in mine.items()),
        "peer_less.amrex": less(peers["amrex_regrid"], mine["amrex_regrid"]),
        "peer_less.serving": less(peers["llm_serving"], mine["llm_serving"]),
        "in_turn.peer_less.amrex": less(turns_of_peer["amrex_regrid"], turns["amrex_regrid"]),
        "in_turn.amrex": turns["amrex_regrid"]["cold"],
        "in_turn.wav2vec": turns["wav2vec"]["cold"],
        "in_turn.prefetch": uploading["cold"],
        "in_turn.prefetch.later": uploading["warm"],
        "programs.lost": max(lost(row) for row in programs if row["peak_live"] < 2**31 and row["trace"] != "torch_prefetch"),
        "programs.lost.prefetch": next(lost(row) for row in programs if row["trace"] == "torch_prefetch"),
        "programs.lost.peer": max(lost(row) for row in programs_of_peer),
        "survival.1.02": survivors("tarn", 1.02),
        "survival.1.01": survivors("tarn", 1.01),
        "survival.peer.1.02": survivors("torch_expandable", 1.02),
        "survival.peer.1.01": survivors("torch_expandable", 1.01),
    }


def of_patterns():
    """Generated traces: what is held of what is live, and times of a first pass and of later ones beside PyTorch and RMM."""
    mine, peer, bins = ({row["trace"]: row for row in of_gpu(results.patterns(), pool=pool)} for pool in ("tarn_tracked", "torch_expandable", "rmm_binning"))
    timed = {"creeping": "attention_cache", "random": "server", "bursts": "burst"}

    def held(rows_of_pool, *traces):
        return [row["peak_reserved"] / row["peak_live"] for trace, row in rows_of_pool.items() if trace in traces or trace.split(":")[0] in traces]

    figures = {
        "patterns.creeping": held(mine, "attention_cache")[0],
        "patterns.streams": ends(held(mine, "streams")),
        "patterns.creeping.peer": held(peer, "attention_cache")[0],
        "patterns.streams.peer": ends(held(peer, "streams")),
        "patterns.bins.held": ends(held(bins, *timed.values())),
    }
    for name, trace in timed.items():
        figures[f"patterns.first.{name}"] = mine[trace]["cold_ns_per_event"] / peer[trace]["cold_ns_per_event"]
        figures[f"patterns.later.{name}"] = mine[trace]["warm_ns_per_event"] / peer[trace]["warm_ns_per_event"]
        figures[f"patterns.bins.{name}"] = mine[trace]["cold_ns_per_event"] / bins[trace]["cold_ns_per_event"]
    return figures


def of_simulated_device():
    """Tables: passes.txt, frontier.txt, and the records of random programs and of planted bugs."""
    passes = [line.split() for line in (results.RESULTS / "passes.txt").read_text().splitlines()[4:]]
    recorded = {trace.name.partition(".")[0] for trace in ROOT.glob("examples/traces/*.trace.gz")} | {row["trace"] for row in results.in_turn() if row["threads"] == 1}

    def crept(condition):
        return max(float(row[-2]) for row in passes if row[1] == "tarn" and condition(row[0]))

    def utilisations(option):
        line, = (line for line in (results.RESULTS / "frontier.txt").read_text().splitlines() if line.startswith(option))
        return ends([float(column.split()[0]) for column in line.split("|")[1:]])

    soaks = re.findall(r"^seeds .* calls (\d+) programs (\d+)", (ROOT / "tests/simulation/soak.txt").read_text(), re.M)
    planted, found = re.search(r"^evidence: mutants planted=(\d+) found=(\d+)", (ROOT / "tests/evidence/planted.txt").read_text(), re.M).groups()
    return {
        "passes.recorded": crept(lambda trace: trace in recorded and trace != "amrex_regrid"),
        "passes.amrex": crept(lambda trace: trace == "amrex_regrid"),
        "passes.programs": crept(lambda trace: trace.startswith("torch_") and trace != "torch_prefetch"),
        "passes.prefetch": crept(lambda trace: trace == "torch_prefetch"),
        "passes.segments": max(float(row[-1]) for row in passes if row[1] == "tarn_segments"),
        "frontier.one_handle": utilisations("one handle per block"),
        "frontier.segments": utilisations("segments of cudaMalloc"),
        "soak.calls": sum(int(calls) for calls, _ in soaks) / 1e9,
        "soak.programs": sum(int(programs) for _, programs in soaks) / 1e3,
        "planted.found": int(found),
        "planted": int(planted),
    }


def of_calls():
    """What single calls take on a GPU."""
    refused = [row for row in of_gpu(results.hot_paths()) if row["work"].startswith("fail/full") and row.get("refusal")]
    pairs = {(row["work"], row["pool"]): row["ns_per_pair"] for row in rows("statistics")}

    def statistics_cost(work):
        return sorted(pairs[work, f"tarn_tracked{more}"] - pairs[work, f"tarn{less}"] for more, less in (("", ""), ("_identified", "_identified")))

    capture = "capture of 200 kernels with 100 temporary buffers"
    return {
        "pair": next(row["ns_per_pair"] for row in of_gpu(results.hot_paths(), pool="tarn_tracked", work="hot_pair/65536")),
        "refusal": max(row["refusal"]["p50"] for row in refused if row["pool"].startswith("tarn")) / 1e6,
        "refusal.peer": ends([row["refusal"]["p50"] / 1e6 for row in refused if row["pool"].startswith("torch")]),
        "statistics.threads": ends(statistics_cost("threads/16")),
        "statistics.large": ends(statistics_cost("hot_pair/20971520")),
        "statistics.exact": pairs["threads/16", "tarn_exact_peaks"] / 1e3,
        "identify": value_of("graphs", "is_capturing of a stream", "cuda_driver", "reference"),
        "is_capturing": value_of("graphs", "is_capturing of a stream", "cuda_driver"),
        "is_capturing.threads": value_of("graphs", "is_capturing of a stream while 14 threads ask of theirs", "cuda_driver"),
        "capture": value_of("graphs", capture, "device_pool, one", "of_reference"),
        "capture.layers": value_of("graphs", f"{capture} of repeated layers", "device_pool, one", "of_reference"),
        "capture.threads": value_of("graphs", capture, "device_pool, beside", "of_reference"),
        "capture.threads.bare": value_of("graphs", capture, "a pool without statistics, beside", "of_reference"),
        "capture.threads.exact": value_of("graphs", capture, "tracked{.peak_error = 0}, beside", "of_reference"),
        "capture.pair": value_of("graphs", "pair of 4 KiB while a scope is open", "device_pool", "of_reference"),
    }


def of_devices():
    """What concerns the memory of a whole device, or of two."""
    compacted = of_gpu(results.read(results.RESULTS, "compact", ("work", "device")))
    traces = [row for row in compacted if not row["work"].startswith("checkerboard")]
    large = next(row for row in compacted if "3 to 6 MiB" in row["work"])
    size = next(row["way"] for row in rows("sleep") if row["work"] == "sleep" and row["way"].endswith("discarded"))
    kept = [value_of("sleep", work, "8 GiB in pinned memory", "of_reference") for work in ("sleep", "wake")]
    grown = {(row["way"], row["pass"]): row for row in rows("growing") if row["device"] == "cuda"}
    in_place, doubled = ([grown[way, n] for n in (1, 2)] for way in ("growing_buffer", "device_buffer, doubled"))
    batches = [row for row in rows("batch_copies") if row["bytes_each"] == 2**20]
    registered = [row["of_reference"] for row in rows("nccl") if row["way"].endswith("block, registered") and "of_reference" in row]
    return {
        "compact.held": ends([row["compacted"] / row["live"] for row in traces]),
        "compact.trimmed": ends([row["trimmed"] / row["live"] for row in traces]),
        "compact.large": large["compacted"] / large["live"],
        "compact.large_trimmed": large["trimmed"] / large["live"],
        "growing.held": max(row["reserved"] / row["live"] for row in in_place),
        "growing.doubled": doubled[0]["reserved"] / doubled[0]["live"],
        "growing.ms": in_place[0]["ms"],
        "growing.ms.doubled": doubled[0]["ms"],
        "growing.ms.again": in_place[1]["ms"],
        "growing.ms.doubled_again": doubled[1]["ms"],
        "batch_copies.large": min(row["batch_done_us"] / row["single_done_us"] for row in batches),
        "reserve": 1 / value_of("reservations", "tasks with three times the memory", "reserve(), random orders, median", "of_best_order"),
        "sleep.size": float(size.split()[0]),
        "sleep": value_of("sleep", "sleep", size) / 1e3,
        "wake": value_of("sleep", "wake", size) / 1e3,
        "sleep.kept": min(kept),
        "sleep.pinning": 2**30 / 1e9 / value_of("sleep", "first sleep", "8 GiB in pinned memory"),
        "nccl": ends(registered),
        "nccl.ensure": value_of("nccl", "ensure() of two buffers that are registered", "pool"),
        "nccl.copied": value_of("nccl", "all-gather of 64 MiB on 2 GPUs", "device_pool, not", "of_reference"),
        "copy.thread": next(row["value"] for row in rows("moving") if row["way"] == "pageable, 8 threads") / 8,
    }


def of_integrations():
    """Other programs on tarn, beside their own allocators."""
    torch = {pool: [row["to_expandable"] for row in rows("clients_torch") if row["allocator"] == pool] for pool in ("tarn", "native")}
    cupy = {(row["work"], row["pool"]): row for row in rows("clients_cupy")}
    arrays = {work for work, _ in cupy} - {"small_arrays"}
    amrex, = [row for row in rows("clients_amrex") if row["memory"] == "tarn"]
    nanovdb = {row["memory"]: row["live_mib"] for row in rows("clients_nanovdb") if "left_beside_second_process" not in row}
    suites = [row for row in rows("clients_rmm") if row["stack"] == "device_pool"]
    tests = rows("clients_torch_tests")

    def held(peers):
        return ends([cupy[work, "tarn"]["held_bytes"] / cupy[work, peer]["held_bytes"] for work in arrays for peer in peers])

    def times(pools):
        return ends([row["to_cupy_pool"] for (_, pool), row in cupy.items() if pool in pools])

    return {
        "torch.held": ends([row["peak_reserved"] for row in torch["tarn"]]),
        "torch.pass": ends([row["pass_ms"] for row in torch["tarn"]]),
        "torch.pass.native": ends([row["pass_ms"] for row in torch["native"]]),
        "torch.tests.passed": sum(row["passed"] for row in tests),
        "torch.tests.skipped": sum(row["skipped"] for row in tests),
        "cupy.held": held(["cupy_pool"]),
        "cupy.held.async": held(["cupy_async", "cupy_async_kept"]),
        "cupy.time": times(["tarn"]),
        "cupy.time.async": times(["cupy_async", "cupy_async_kept"]),
        "amrex.live": amrex["live_mib"],
        "amrex.handles": amrex["handles_created"],
        "amrex.remaps": amrex["remaps"],
        "nanovdb.live": nanovdb["tarn for both"],
        "nanovdb.live.two": nanovdb["tarn for temporaries, cudaMallocAsync for grids"],
        "rmm.programs": len(suites),
        "rmm.tests": sum(row["passed"] + len(row["failed"]) + row["skipped"] for row in suites),
    }


def figures():
    """{name: the value, or the least and the greatest}"""
    return {**of_traces(), **of_patterns(), **of_simulated_device(), **of_calls(), **of_devices(), **of_integrations()}


def wrong_in(page, values, used):
    wrong = []
    for shown, name in re.findall(r"([^<\n]*)<!-- figure: (\S+) -->", page.read_text()):
        used.add(name)
        value = values.get(name, ())
        value = value if isinstance(value, tuple) else (value,)
        words = [WORDS.get(word.lower(), word.replace(",", "")) for word in re.findall(r"\d[\d.,]*\d|\d|\b[A-Za-z]+\b", shown)]
        written = [word for word in words if word[0].isdigit()][-len(value):]
        expected = [f"{v:.{len(w.partition('.')[2])}f}" for v, w in zip(value, written)]
        if not value or written != expected:
            wrong.append(f"{page.relative_to(ROOT)}: {' to '.join(written)} for {name}, which is {' to '.join(f'{v:.4g}' for v in value)}")
    return wrong


def main():
    values, used, wrong = figures(), set(), []
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("examples/*/*/*.md")]):
        wrong += wrong_in(page, values, used)
    for page, text in summary.pages(results.RESULTS):
        if page.read_text() != text:
            wrong.append(f"{page.relative_to(ROOT)}: it is not that of the results: run bench/summary.py --readme")
    wrong += [f"no document has a figure for {name}" for name in values.keys() - used]
    print("\n".join(wrong) or f"{len(values)} figures are those of the results")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
