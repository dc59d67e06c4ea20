#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws bench/results/overview.png from the results: utilisation against time, cost against live blocks and threads.

  plots.py [RESULTS]

Needs matplotlib (Debian: python3-matplotlib), because log axes, legends and text that fits are not worth writing anew.
"""
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

sys.dont_write_bytecode = True
import read_results as results

# Okabe and Ito's colours, which the colour-blind tell apart; a marker each says the same again.
LOOKS = {
    "tarn": ("#D55E00", "o"),
    "tarn_tracked": ("#D55E00", "s"),
    "tarn_no_remap": ("#D55E00", "D"),
    "torch_expandable": ("#0072B2", "^"),
    "torch": ("#56B4E9", "v"),
    "cuda_async": ("#000000", "X"),
    "rmm_pool": ("#009E73", "P"),
    "rmm_arena": ("#009E73", "<"),
    "rmm_binning": ("#009E73", "*"),
    "cub": ("#CC79A7", "s"),
    "cub_default": ("#CC79A7", "d"),
    "thrust_mr": ("#9A8A00", ">"),
    "mimalloc": ("#0072B2", "^"),
    "host_malloc": ("#000000", "X"),
    "std_pmr": ("#CC79A7", "s"),
    "std_pmr_sync": ("#CC79A7", "d"),
}
# Says nothing: an arena takes its memory at the start. cudaMalloc holds what is asked, by definition.
NO_UTILISATION = {"rmm_arena", "cuda_malloc"}
# The thin markers need more room to be seen.
LARGER = {"P": 1.7, "X": 1.35, "*": 2.2}
DASHES = {"tarn_tracked": "--", "rmm_arena": ":", "rmm_binning": "-.", "cub_default": ":", "std_pmr_sync": ":"}
NOT_DRAWN = {"cuda_malloc", "tarn_identified", "tarn_tracked_identified"}
INK, QUIET = "#222222", "#6b6b6b"


def is_tarn(pool):
    return pool.startswith("tarn")


def count(value, _=None):
    return f"{value:,.0f}"


def spaced(ticks):
    """Those that leave room for each other's numbers, the largest kept."""
    kept = []
    for tick in sorted(ticks, reverse=True):
        if not kept or kept[-1] / tick >= (2 if kept[-1] < 1000 else 4):
            kept.append(tick)
    return kept


def nanoseconds(value, _=None):
    for size, unit in ((1_000_000, "ms"), (1_000, "µs")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g} ns"


def dress(axes, heading, x, y):
    axes.set_title(heading, loc="left", fontsize=11.5, fontweight="bold", color=INK, pad=10)
    axes.set_xlabel(x, color=QUIET)
    axes.set_ylabel(y, color=QUIET)
    axes.grid(True, which="major", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#b0b0b0")
    axes.tick_params(colors=QUIET, labelsize=9)


def decades_of_time(axis):
    axis.set_major_formatter(FuncFormatter(nanoseconds))
    axis.set_minor_formatter(NullFormatter())


def draw_replay(axes, rows, seen):
    for pool in reversed(results.in_order(row["pool"] for row in rows)):
        points = [(row["warm_ns_per_event"], row["utilisation"]) for row in rows
                  if row["pool"] == pool and row.get("utilisation") and row.get("warm_ns_per_event")]
        if not points or pool in NO_UTILISATION or pool not in LOOKS or pool == "tarn_tracked":
            continue
        colour, marker = LOOKS[pool]
        seen.add(pool)
        axes.scatter(*zip(*points), s=70 if pool == "tarn" else 34 * LARGER.get(marker, 1), marker=marker,
                     facecolor="none" if pool == "tarn_no_remap" else colour, edgecolor=colour if pool == "tarn_no_remap" else "white",
                     linewidth=1.2 if pool == "tarn_no_remap" else 0.6, alpha=1 if is_tarn(pool) else 0.75,
                     zorder=4 if is_tarn(pool) else 3)
    axes.set_xscale("log")
    axes.set_ylim(top=1.02)
    decades_of_time(axes.xaxis)
    axes.text(0.985, 0.02, "better: up, and to the left", transform=axes.transAxes, fontsize=9, color=QUIET, ha="right")
    dress(axes, "Real traces: memory against time", "host time per event, warm", "utilisation: peak live / peak reserved")


def draw_lines(axes, rows, work, heading, x, seen):
    ticks = set()
    for pool in reversed(results.in_order(row["pool"] for row in rows)):
        points = sorted((int(row["work"].split("/")[1]), row["ns_per_pair"]) for row in rows
                        if row["pool"] == pool and row["work"].startswith(work + "/") and row.get("ns_per_pair"))
        if not points or pool in NOT_DRAWN or pool not in LOOKS:
            continue
        colour, marker = LOOKS[pool]
        seen.add(pool)
        ticks.update(size for size, _ in points)
        axes.plot(*zip(*points), color=colour, marker=marker, markersize=7.5 if pool == "tarn" else 5 * LARGER.get(marker, 1) ** 0.5,
                  markeredgecolor="white", markeredgewidth=0.6, linewidth=2.6 if pool == "tarn" else 1.3,
                  linestyle=DASHES.get(pool, "-"), alpha=1 if is_tarn(pool) else 0.75,
                  zorder=4 if is_tarn(pool) else 3)
    dress(axes, heading, x, "host time per allocate and free")
    if not ticks:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=QUIET)
        return
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(spaced(ticks)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(count))
    decades_of_time(axes.yaxis)


def legend(figure, seen):
    handles = []
    for pool in results.in_order(seen):
        colour, marker = LOOKS[pool]
        hollow = pool == "tarn_no_remap"
        handles.append(plt.Line2D([], [], color=colour, marker=marker, markersize=8 if pool == "tarn" else 6 * LARGER.get(marker, 1) ** 0.5,
                                  markerfacecolor="none" if hollow else colour, markeredgecolor=colour if hollow else "white",
                                  linewidth=2.6 if pool == "tarn" else 1.3, label=results.title(pool),
                                  linestyle="none" if hollow else DASHES.get(pool, "-")))
    box = figure.legend(handles=handles, loc="lower center", ncol=min(len(handles), 7), frameon=False, fontsize=9.5,
                        bbox_to_anchor=(0.5, 0.045), handlelength=2.4, columnspacing=1.8)
    for text in box.get_texts():
        text.set_color(INK)
        if text.get_text() == results.title("tarn"):
            text.set_fontweight("bold")


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else results.RESULTS
    replay, hot = results.replay(folder), results.hot_paths(folder)
    if not replay and not hot:
        sys.exit(f"no results in {folder}")
    # The real device where it was measured; else the simulated one, beside the allocators of the host.
    replay = [row for row in replay if row["device"] == "cuda"] or replay
    hot = [row for row in hot if row["device"] == "cuda"] or hot
    replay, hot = results.of_newest_run(replay), results.of_newest_run(hot)
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "svg.fonttype": "none"})
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15.5, 5.6), gridspec_kw={"width_ratios": [1.4, 1, 1]})
    seen = set()
    draw_replay(left, replay, seen)
    draw_lines(middle, hot, "window", "Cost against live blocks", "live blocks, 256 B to 1 MiB", seen)
    draw_lines(right, hot, "threads", "Cost against threads", "threads, each its own stream", seen)
    legend(figure, seen)
    figure.text(0.5, 0.012, "measured on " + "; ".join(results.measured_on(replay + hot)), ha="center", fontsize=8.5, color=QUIET)
    figure.tight_layout(rect=(0, 0.13, 1, 1), w_pad=2.5)
    figure.savefig(folder / "overview.png", dpi=110, metadata={"Software": None})
    print(folder / "overview.png")


if __name__ == "__main__":
    main()
