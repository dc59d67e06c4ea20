# SPDX-License-Identifier: Apache-2.0
"""Reads bench/results/: what summary.py and plots.py have in common. Standard library only.

A line that was cut off, a file that is empty or not there costs its own figures and no others.
"""
import json
import pathlib
import sys

RESULTS = pathlib.Path(__file__).parent / "results"

# Names for readers, the pools in the order in which they are listed.
POOLS = {
    "tarn": "tarn",
    "tarn_tracked": "tarn, tracked",
    "tarn_identified": "tarn, known streams",
    "tarn_tracked_identified": "tarn, tracked, known streams",
    "tarn_no_remap": "tarn, no remapping",
    "torch_expandable": "PyTorch, expandable",
    "torch": "PyTorch",
    "cuda_async": "cudaMallocAsync",
    "cccl": "CCCL device_memory_pool",
    "dali": "DALI pool",
    "rmm_pool": "RMM pool",
    "rmm_arena": "RMM arena",
    "rmm_binning": "RMM bins",
    "cub": "CUB, wide bins",
    "cub_default": "CUB",
    "thrust_mr": "Thrust pool",
    "stack_arena": "stack arena",
    "cuda_malloc": "cudaMalloc",
    "mimalloc": "mimalloc",
    "host_malloc": "malloc",
    "std_pmr": "std::pmr",
    "std_pmr_sync": "std::pmr, synchronized",
}


# Of a row that was measured several times, the least of these counts: what else runs on a shared machine only adds to them.
TIMES = ("cold_ns_per_event", "warm_ns_per_event", "ns_per_pair")


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def title(pool):
    return POOLS.get(pool, pool)


def in_order(pools):
    """Pools in the order of POOLS, unknown ones last."""
    known = list(POOLS)
    return sorted(set(pools), key=lambda pool: (known.index(pool) if pool in known else len(known), pool))


def rows_of(path):
    """The whole lines of a file of JSON objects."""
    rows = []
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return rows
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            print(f"{path.name}:{number}: left out, not a whole JSON object", file=sys.stderr)
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def read(results, prefix, keys):
    """Rows of results/PREFIX*.jsonl that have all keys; of two rows with the same values of them the later counts, with the lesser times."""
    found = {}
    for path in sorted(pathlib.Path(results).glob(prefix + "*.jsonl")):
        for row in rows_of(path):
            if all(key in row for key in keys):
                values = tuple(row[key] for key in keys)
                times = {time: [one[time] for one in (row, found.get(values, {})) if one.get(time) is not None] for time in TIMES}
                found[values] = {**row, **{time: min(measured) for time, measured in times.items() if measured and time in row}}
    return list(found.values())


def replay(results=RESULTS):
    return read(results, "replay", ("trace", "pool", "device"))


def workloads(results=RESULTS):
    """Replays of traces of PyTorch's programs, by two threads."""
    return read(results, "workloads", ("trace", "pool", "device"))


def in_turn(results=RESULTS):
    """Replays in turn with another pool: times divided by those of its passes."""
    return read(results, "in_turn", ("trace", "pool", "device", "threads", "reference", "cold", "warm"))


def patterns(results=RESULTS):
    """Replays of generated traces."""
    return read(results, "patterns", ("trace", "pool", "device"))


def hot_paths(results=RESULTS):
    return read(results, "hot_paths", ("work", "pool", "device"))


def convert(results=RESULTS):
    """Rates beside their references."""
    return read(results, "convert", ("work", "gb_per_s", "reference_gb_per_s"))


def survival(results):
    """Replays under a cap, `factor` times the peak of live bytes; in order of pools."""
    rows = read(results, "survival", ("trace", "pool", "device", "factor", "refusals"))
    return sorted(rows, key=lambda row: (in_order(POOLS).index(row["pool"]) if row["pool"] in POOLS else len(POOLS)))


def moving(results=RESULTS):
    return read(results, "moving", ("work", "way", "device"))


def instructions(results=RESULTS):
    try:
        return json.loads((pathlib.Path(results) / "instructions.json").read_text())
    except (OSError, ValueError):
        return {}


def of_newest_run(rows):
    """The rows of the GPU and the day of tarn's newest row on a GPU, since figures that stand side by side come from one run: a peer's do not
    depend on tarn's commit. All, where there is no such row."""
    mine = [row for row in rows if row.get("device") == "cuda" and row.get("pool", "tarn").startswith("tarn")]
    if not mine:
        return rows

    def run(row):
        return row.get("gpu"), str(row.get("date"))[:10]

    newest = run(max(mine, key=lambda row: str(row.get("date"))))
    return [row for row in rows if run(row) == newest]


def measured_on(rows):
    """Where and of what the rows are, one line for each different answer."""
    lines = []
    for row in rows:
        place = row.get("cpu", "unknown machine") if row.get("gpu") in (None, "none") else f"{row['gpu']}, driver {row.get('driver')}"
        line = f"{place}, {str(row.get('date', 'unknown date'))[:10]}, commit {row.get('commit', 'unknown')}"
        if line not in lines:
            lines.append(line)
    return lines
