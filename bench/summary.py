#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads bench/results/ and writes summary.txt there: the replay, the hot paths, their tails.

  summary.py [RESULTS]            writes RESULTS/summary.txt
  summary.py --readme [RESULTS]   writes RESULTS/allocators.svg, the comparison with PyTorch into the README, the tables of other
                                  people's programs into theirs and the other tables into bench/README.md, between their
                                  markers, and nothing else: figures of the commit of the latest replay on a GPU

Every figure is of one run on one machine. Standard library only.
"""
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
import client_tables
import read_results as results
from read_results import number

BENCH_README = pathlib.Path(__file__).resolve().parent / "README.md"
README = BENCH_README.parent.parent / "README.md"
BEGIN, END = "<!-- figures: bench/summary.py --readme writes them -->", "<!-- end of figures -->"


def short(value):
    """Nanoseconds, with a decimal where it is significant."""
    return number(value, 1 if value is not None and value < 100 else 0)


def table(rows):
    """Rows of strings, the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown(rows):
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" + "---:|" * (len(rows[0]) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows[1:]])


def distinct(values):
    return list(dict.fromkeys(values))


def name_of(row):
    return row["pool"] + (".sim" if row["device"] == "sim" else "")


def grid(rows, down, across, cell, corner):
    """A table of what `cell` says of the row at each crossing."""
    at = {(down(row), across(row)): cell(row) for row in rows}
    heads, sides = distinct(map(across, rows)), distinct(map(down, rows))
    return [[corner] + heads] + [[side] + [at.get((side, head), "-") for head in heads] for side in sides]


def replay_cell(row):
    held = "out of memory" if row.get("out_of_memory") else number(row.get("utilisation"), 3)
    calls = f"{number(row.get('driver_calls'))}/{number(row.get('driver_calls_warm'))}"
    return f"{held} {number(row.get('cold_ns_per_event'))}/{number(row.get('warm_ns_per_event'))} [{calls}]"


def in_turn_table(rows):
    """Times divided by those of the other pool's passes in the same turn."""
    def times(row, kind):
        return f"{row[kind]:.2f} ({row[kind + '_quartiles'][0]:.2f} to {row[kind + '_quartiles'][1]:.2f})"

    lines = [["trace", "threads", "pool", "utilisation", "first pass", "later passes"]]
    for row in rows:
        held = "out of memory" if row.get("out_of_memory") else ratio(row["peak_live"], row["peak_reserved"], 3)
        lines.append([row["trace"], str(row["threads"]), row["pool"], held, times(row, "cold"), times(row, "warm")])
    return lines


# Their times are of less than a pool's work: one ignores the order of streams, the other does not search for free memory.
TIMES_NOT_COMPARED = ("thrust_mr", "stack_arena")


def is_peer(row):
    """Whether tarn is compared with its time."""
    return not row["pool"].startswith("tarn") and row["pool"] not in TIMES_NOT_COMPARED and not row.get("out_of_memory")


def patterns_table(rows):
    """Held relative to live, and times relative to the fastest peer's on the same pattern."""
    def fastest(trace, kind):
        return min((row[kind] for row in rows if row["trace"] == trace and is_peer(row) and row.get(kind)), default=None)

    def cell(row):
        held = "out of memory" if row.get("out_of_memory") else ratio(row.get("peak_reserved"), row["peak_live"], 3)
        times = [ratio(row.get(kind), fastest(row["trace"], kind)) for kind in ("cold_ns_per_event", "warm_ns_per_event")]
        return f"{held} {'/'.join(times)}"
    return grid(rows, name_of, lambda row: row["trace"], cell, "pool")


def model_and_gpu(rows):
    """What the modelled driver charges and what the real one took, for the same calls."""
    at = {(row["pool"], row["device"], row["trace"]): row for row in rows}
    lines = [["trace", "model", "GPU", "model / GPU"]]
    for trace in distinct(row["trace"] for row in rows):
        gpu, sim = at.get(("tarn_identified", "cuda", trace)), at.get(("tarn", "sim", trace))
        if not gpu or not sim or not sim.get("driver_ns_cold"):
            continue
        spent = gpu["cold_ns_per_event"] - sim["cold_ns_per_event"]
        lines.append([trace, number(sim["driver_ns_cold"]), number(spent), ratio(sim["driver_ns_cold"], spent)])
    return lines


def tail_cell(kind):
    def cell(row):
        tail = row.get(kind)
        return "/".join(short(tail[q]) for q in ("p50", "p99", "p999", "longest")) if tail else "-"
    return cell


def refusal_cell(row):
    """Microseconds to the error, median and longest."""
    time = row.get("refusal")
    return "/".join(number(time[q] / 1000, 1) for q in ("p50", "longest")) if time else "-"


CAPS = (1.0, 1.01, 1.05)


def survivors(rows, device="cuda"):
    """Of the traces replayed, how many each pool survives at each cap, and the requests refused in all."""
    lines = [["traces survived with memory for"] + [f"{cap:.2f} of the peak" for cap in CAPS] + ["refused at 1.05"]]
    for pool in distinct(row["pool"] for row in rows if row["device"] == device):
        mine = [row for row in rows if row["pool"] == pool and row["device"] == device and not row.get("failed")]
        at = [[row["refusals"] for row in mine if row["factor"] == cap] for cap in CAPS]
        if all(at):
            lines.append([results.title(pool)] + [f"{sum(r == 0 for r in cap)} of {len(cap)}" for cap in at] +
                         [number(sum(at[-1]))])
    return lines


def order(rows):
    pools = results.in_order(row["pool"] for row in rows)
    return sorted(rows, key=lambda row: (row["device"] != "cuda", pools.index(row["pool"])))


def work_order(row):
    """Works as they were run: by name, then by number."""
    name, _, size = row["work"].partition("/")
    names = ["hot_pair", "window", "live", "two_streams", "other_thread", "uses", "record_stream", "threads", "tail"]
    return (names.index(name) if name in names else len(names), int(size) if size.isdigit() else 0)


def summary(folder):
    parts = []
    replay, hot = order(results.replay(folder)), results.hot_paths(folder)
    parts.append("measured on\n" + "\n".join("  " + line for line in results.measured_on(replay + hot + results.workloads(folder) + results.in_turn(folder) + results.convert(folder))) + "\n")
    if replay:
        parts.append("Replay: utilisation, cold/warm ns per event [driver calls cold/warm]\n" +
                     table(grid(replay, name_of, lambda row: row["trace"], replay_cell, "pool")) + "\n")
    workloads = order(results.workloads(folder))
    if workloads:
        parts.append("Traces of PyTorch's programs, replayed by two threads in turn: the same figures\n" +
                     table(grid(workloads, name_of, lambda row: row["trace"].removeprefix("torch_"), replay_cell, "pool")) + "\n")
    turns = results.in_turn(folder)
    for reference in distinct(row["reference"] for row in turns):
        rows = [row for row in turns if row["reference"] == reference]
        parts.append(f"Replayed in turn with {reference}: time of a pass / that of its pass in the same turn, median (quartiles)\n" +
                     table(in_turn_table(rows)) + "\n")
    agreement = model_and_gpu(replay)
    if len(agreement) > 1:
        parts.append("Driver time of the first pass, ns per event: the simulated device's model beside the GPU\n"
                     "(GPU: time of the pass less the host time of the same pass on the simulated device)\n" + table(agreement) + "\n")
    patterns = order(results.patterns(folder))
    for devices in (("cuda",), ("sim", "host")):
        rows = [row for row in patterns if row["device"] in devices]
        if rows:
            parts.append(f"Patterns on {' and '.join(devices)}: held / live, cold/warm time relative to the fastest peer's\n" +
                         table(patterns_table(rows)) + "\n")
    hot = sorted(order(hot), key=work_order)
    for device in distinct(row["device"] for row in order(hot)):
        rows = [row for row in hot if row["device"] == device]
        pairs = [row for row in rows if not row["work"].startswith(("tail", "fail"))]
        tails = [row for row in rows if row["work"].startswith("tail")]
        if pairs:
            parts.append(f"Hot paths on {device}: host ns per allocate+free pair, median of repeated batches\n" + table(
                grid(pairs, lambda row: row["work"], lambda row: row["pool"], lambda row: short(row.get("ns_per_pair")),
                     "work")) + "\n")
        failures = [row for row in rows if row["work"].startswith("fail")]
        if failures:
            parts.append(f"Time to fail on {device}: us from a request to its error, median/longest\n" +
                         table(grid(failures, name_of, lambda row: row["work"], refusal_cell, "pool")) + "\n")
        for kind in ("allocate", "deallocate"):
            if tails:
                parts.append(f"Tails on {device}: ns of a warm {kind}, p50/p99/p99.9/longest\n" + table(
                    grid(tails, lambda row: row["pool"], lambda row: row["work"], tail_cell(kind), "pool")) + "\n")
    rates = results.convert(folder)
    if rates:
        parts.append("Conversions (bytes read and written) and copies between devices, GB/s, beside CUDA's own copies\n" + table(
            [["work", "tarn", "CUDA", "share"]] + [[row["work"], number(row["gb_per_s"]), number(row["reference_gb_per_s"]),
                                                   ratio(row["gb_per_s"], row["reference_gb_per_s"])] for row in rates]) + "\n")
    capped = results.survival(folder)
    for device in distinct(row["device"] for row in capped):
        parts.append(f"Survival on {device}\n" + table(survivors(capped, device)) + "\n")
    moved = [row for row in results.moving(folder) if "value" in row]
    if moved:
        of_reference = lambda row: f"{row['of_reference']:.3f}" if "of_reference" in row else ""
        parts.append("Moving memory: medians; the last column is beside the plain pinned copy of the same run\n" + table(
            [["", "", "", "of plain"]] + [[f"{row['work']}: {row['way']}", number(row["value"], 2 if row["value"] < 100 else 0),
                                           row["unit"], of_reference(row)] for row in moved]) + "\n")
    counted = results.instructions(folder)
    if counted.get("pairs"):
        parts.append(f"Instructions of an allocate+free pair ({counted.get('how', '')})\n" +
                     table(grid(counted["pairs"], lambda row: row["pool"], lambda row: f"{row['bytes']:,} B",
                                lambda row: number(row["instructions_per_pair"], 1), "pool")) + "\n")
    (pathlib.Path(folder) / "summary.txt").write_text("\n".join(parts))


def ratio(mine, other, digits=2):
    return "-" if not mine or not other else f"{mine / other:.{digits}f}"


def readme_replay(rows, turns=()):
    """tarn beside PyTorch's expandable segments, a row per trace. Times are of `turns`, replays in turn, where there are some."""
    in_turn = {(row["pool"], row["trace"]): row for row in turns if row["reference"] == "torch_expandable" and row["threads"] == 1}

    def time(pool, trace, kind):
        if (pool, trace) in in_turn:
            used.append(in_turn[pool, trace])
            return number(in_turn[pool, trace][kind], 2)
        return ratio(at.get((pool, trace), {}).get(kind + "_ns_per_event"), at["torch_expandable", trace][kind + "_ns_per_event"])

    at = {(row["pool"], row["trace"]): row for row in rows if row["device"] == "cuda"}
    lines = [["trace", "peak live", "tarn holds", "PyTorch holds", "time cold", "time warm", "streams known"]]
    used = []
    for trace in sorted(distinct(row["trace"] for row in rows)):
        mine, other = at.get(("tarn_tracked", trace)), at.get(("torch_expandable", trace))
        if not mine or not other:
            continue
        used += [mine, other]
        lines.append([trace.replace("_", " "), number(mine["peak_live"] / 2**30, 1) + " GiB",
                      *(number(row["peak_reserved"] / 2**30, 2) + f" GiB ({number(row['utilisation'], 3)})"
                        if row.get("utilisation") else "out of memory" for row in (mine, other)),
                      time("tarn_tracked", trace, "cold"), time("tarn_tracked", trace, "warm"), time("tarn_identified", trace, "warm")])
    return lines, used


WORKS = {
    "hot_pair/65536": "one block of 64 KiB, again and again",
    "window/4096": "4,096 live blocks, 256 B to 1 MiB, random replacement",
    "window/65536": "65,536 live blocks",
    "threads/16": "16 threads, each its own stream",
    "other_thread": "freed by another thread",
}


def readme_hot(rows):
    """Nanoseconds per pair beside the peers that keep stream order."""
    at = {(row["pool"], row["work"]): row for row in rows if row["device"] == "cuda" and row.get("ns_per_pair")}
    # device_pool is the pool with exact statistics.
    pools = [pool for pool in ("tarn_tracked", "torch_expandable", "rmm_binning", "rmm_arena", "cuda_async")
             if any(key[0] == pool for key in at)]
    if "tarn_tracked" not in pools or len(pools) < 2:
        return [], []
    titles = ["tarn, device_pool" if pool == "tarn_tracked" else results.title(pool) for pool in pools]
    lines = [["nanoseconds per allocate and free"] + titles]
    for work, said in WORKS.items():
        if ("tarn_tracked", work) in at:
            lines.append([said] + [short(at[pool, work]["ns_per_pair"]) if (pool, work) in at else "-" for pool in pools])
    return lines, [row for key, row in at.items() if key[0] in pools]


MOVED = (  # the label, work, tarn's way, PyTorch's
    ("pinned memory to the device, of a plain copy's rate", "to the device", "pinned, stream_batches", "PyTorch, pinned, loader"),
    ("pageable memory, 8 threads", "to the device", "pageable, 8 threads", "PyTorch, pageable, loader"),
    ("a mapped file in the page cache, 8 threads", "to the device", "mapping of a file in the page cache, 8 threads",
     "PyTorch, file in the page cache, loader"),
    ("device memory to the host", "to the host", "pinned, collect_batches", None),
    ("1 GiB pinned, milliseconds (huge pages, 8 threads)", "pin", "registered_host, huge pages, 8 threads", "PyTorch, pinned memory, cold"),
    ("a pinned block of 1 MiB from the pool and back, nanoseconds", "pin", "pool of pinned_host, warm pair of 1 MiB",
     "PyTorch, warm pair of 1048576 B"),
    ("MiB pinned for 129.5 MiB", "pin", "pool of pinned_host, held for 129.5 MiB", "PyTorch, held for 129.5 MiB"),
)


def readme_moving(rows):
    """Batches and pinned memory beside PyTorch's; of its loader the better size of batches."""
    rows = [row for row in rows if row["device"] == "cuda" and "value" in row]

    def said(found):
        if not found:
            return "-"
        best = max(found, key=lambda row: row.get("of_reference", 0))
        used.append(best)
        if "of_reference" in best:
            return number(best["of_reference"], 3)
        return number(best["value"] / 2**20 if best["unit"] == "bytes" else best["value"], 0)

    used = []
    lines = [["between host and device", "tarn", "PyTorch"]]
    for what, work, way, peer in MOVED:
        mine = [row for row in rows if (row["work"], row["way"]) == (work, way)]
        if mine:
            lines.append([what, said(mine), said([row for row in rows if row["work"] == work and peer and row["way"].startswith(peer)])])
    return lines, used


PICTURED = ("tarn_tracked", "torch_expandable", "torch", "rmm_pool", "rmm_binning", "cuda_async")


def bars(left, title, values, digits):
    """A bar chart as SVG: a bar and its value for each pool."""
    lines = [f'<text x="{left}" y="26" font-weight="bold">{title}</text>']
    for line, (pool, value) in enumerate(values.items()):
        y, width = 40 + 26 * line, 190 * value / max(values.values())
        name = "tarn, device_pool" if pool == "tarn_tracked" else results.title(pool)
        lines += [f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{name}</text>',
                  f'<rect x="{left}" y="{y}" width="{width:.1f}" height="19" fill="{"#d95f02" if pool == "tarn_tracked" else "#9aa5b1"}"/>',
                  f'<text x="{left + width + 6:.1f}" y="{y + 14}">{number(value, digits)}</text>']
    return lines


def picture(replayed, hot):
    """An SVG with the memory that allocators which replayed all traces hold, and the host time of a block; empty without peers."""
    held = {pool: [row for row in replayed if row["pool"] == pool and row["device"] == "cuda" and row.get("utilisation")]
            for pool in PICTURED}
    traces = distinct(row["trace"] for rows in held.values() for row in rows)
    held = {pool: rows for pool, rows in held.items() if len(rows) == len(traces)}
    pairs = {row["pool"]: row for row in hot if (row["work"], row["device"]) == ("hot_pair/65536", "cuda") and row.get("ns_per_pair")}
    pairs = {pool: pairs[pool] for pool in PICTURED if pool in pairs}
    if len(held) < 2 or len(pairs) < 2:
        return ""
    memory = {pool: statistics.median(row["peak_reserved"] / row["peak_live"] for row in rows) for pool, rows in held.items()}
    height = 74 + 26 * max(len(held), len(pairs))
    measured = results.measured_on([row for rows in held.values() for row in rows] + list(pairs.values()))
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="860" height="{height}" rx="6" fill="#fff"/>',
        *bars(150, f"GiB held per GiB in use, median of {len(traces)} traces", memory, 2),
        *bars(590, "ns to allocate and free 64 KiB", {pool: row["ns_per_pair"] for pool, row in pairs.items()}, 0),
        f'<text x="20" y="{height - 12}" font-size="11" fill="#555">{"; ".join(measured)}</text>', "</svg>", ""])


def measured(parts, used):
    """The parts, and below them where their rows were measured."""
    return parts + ["Measured on " + "; ".join(results.measured_on(used)) + "."] if used else parts


def between_markers(page, parts):
    """The text of a page with the parts between its markers."""
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"{page} has no pair of markers: {BEGIN} ... {END}")
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + "\n\n".join(parts) + "\n" + END + rest.split(END)[1]


def pages(folder):
    """(file, its text with the figures of the folder) of each document that has tables, and of the picture."""
    replayed, in_turn, hot_paths, moving, survival = (results.of_newest_run(read(folder)) for read in (
        results.replay, results.in_turn, results.hot_paths, results.moving, results.survival))
    if drawn := picture(replayed, hot_paths):
        yield folder / "allocators.svg", drawn
    replay, used = readme_replay(replayed, in_turn)
    parts = [markdown(replay)] if len(replay) > 1 else []
    if (pathlib.Path(folder) / "overview.png").exists():
        parts.append("![Utilisation against time per event; cost against live blocks; cost against threads](bench/results/overview.png)")
    yield README, between_markers(README, measured(parts, used))

    parts = []
    for lines, used in (readme_hot(hot_paths), readme_moving(moving)):
        if len(lines) > 1:
            parts += measured([markdown(lines)], used)
    capped = [row for row in survival if row["device"] == "cuda"]
    if any(not row["pool"].startswith("tarn") for row in capped):
        parts += measured(["Out of memory, on the GPU with a ballast beside it:", markdown(survivors(capped))], capped)
    yield BENCH_README, between_markers(BENCH_README, parts)
    for page, tables, used in client_tables.pages(folder):
        yield page, between_markers(page, measured([markdown(lines) for lines in tables], used))


def readme(folder):
    for page, text in pages(folder):
        page.write_text(text)


def main():
    arguments = sys.argv[1:]
    write = readme if "--readme" in arguments else summary
    folders = [argument for argument in arguments if argument != "--readme"]
    write(pathlib.Path(folders[0]) if folders else results.RESULTS)


if __name__ == "__main__":
    main()
