#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads bench/results/ and writes summary.txt there: one table of the replay, one of the hot paths.

Every figure is of one run on one machine; ratios are to tarn in the same table. Standard library only.
"""
import json
import pathlib
import sys


def table(rows):
    """Rows of strings, the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def replay_rows(path):
    """Utilisation and cold/warm nanoseconds per event, a row per pool, a column per trace."""
    cells, traces, pools = {}, [], []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        pool = row["pool"] + (" (sim)" if row["device"] == "sim" else "")
        if row["trace"] not in traces:
            traces.append(row["trace"])
        if pool not in pools:
            pools.append(pool)
        held = "out of memory" if row["out_of_memory"] else number(row["utilisation"], 3)
        calls = f"{number(row['driver_calls'])}/{number(row['driver_calls_warm'])}"
        cells[pool, row["trace"]] = f"{held} {number(row['cold_ns_per_event'])}/{number(row['warm_ns_per_event'])} [{calls}]"
    rows = [["pool"] + traces]
    rows += [[pool] + [cells.get((pool, trace), "-") for trace in traces] for pool in pools]
    return rows


def hot_path_rows(paths):
    """Nanoseconds per pair, a row per work, a column per pool."""
    cells, works, pools = {}, [], []
    for path in paths:
        for entry in json.loads(path.read_text())["benchmarks"]:
            parts = entry["name"].split("/")
            parts = [part for part in parts if not part.startswith("iterations:") and part != "manual_time"]
            work, pool = "/".join(parts[:-1]), parts[-1]
            if work not in works:
                works.append(work)
            if pool not in pools:
                pools.append(pool)
            if not entry.get("error_occurred"):
                cells[pool, work] = number(entry["real_time"], 1 if entry["real_time"] < 10 else 0)
    rows = [["work"] + pools]
    rows += [[work] + [cells.get((pool, work), "-") for pool in pools] for work in works]
    return rows


def main():
    results = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "results")
    parts = [(results / "environment.txt").read_text()] if (results / "environment.txt").exists() else []
    if (results / "replay.jsonl").exists():
        parts.append("Replay: utilisation, cold/warm ns per event [driver calls cold/warm]\n" +
                     table(replay_rows(results / "replay.jsonl")) + "\n")
    hot = sorted(path for path in results.glob("hot_paths*.json") if path.stat().st_size)
    if hot:
        parts.append("Hot paths: host ns per allocate+free pair\n" + table(hot_path_rows(hot)) + "\n")
    (results / "summary.txt").write_text("\n".join(parts))


if __name__ == "__main__":
    main()
