#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what `tarn_replay --json --passes N` reports of the reserved memory of each pass, as a table: whether it creeps.

  tarn_replay --device sim --json --passes 20 ... | passes.py >passes.txt

Standard library only.
"""
import json
import sys

SHOWN = (1, 2, 3, 5, 10, 15, 20)  # passes with a column each, and the last one


def rows_of(lines):
    """The replays that report their passes. A line that is no JSON object counts as none."""
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("peak_reserved_of_pass") and row.get("peak_live"):
            rows.append(row)
    return rows


def table(rows):
    most = max(len(row["peak_reserved_of_pass"]) for row in rows)
    shown = sorted({n for n in SHOWN if n < most} | {most})
    lines = [["trace", "pool", "threads", "peak live, MiB", *(f"pass {n}" for n in shown), "last / first", "most / first", "most / live"]]
    for row in rows:
        held = row["peak_reserved_of_pass"]
        lines.append([row["trace"], row["pool"], str(row.get("threads", 1)), f"{row['peak_live'] / 2**20:,.1f}",
                      *(f"{held[n - 1] / 2**20:,.0f}" if n <= len(held) else "-" for n in shown),
                      f"{held[-1] / held[0]:.3f}", f"{max(held) / held[0]:.3f}", f"{max(held) / row['peak_live']:.3f}"])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join([line[0].ljust(widths[0]), line[1].ljust(widths[1]),
                                *(cell.rjust(width) for cell, width in zip(line[2:], widths[2:]))]).rstrip() for line in lines)


def report(lines):
    rows = rows_of(lines)
    if not rows:
        sys.exit("passes.py: no replay reports its passes; tarn_replay needs --json and --passes of more than 2")
    return f"The most memory reserved within each pass, MiB.\n\n{table(rows)}\n"


if __name__ == "__main__":
    print(report(sys.stdin), end="")
