# SPDX-License-Identifier: Apache-2.0
"""The tables of examples/integrations/*/README.md, from results/clients_*.jsonl: other people's programs on tarn."""
import pathlib

import read_results as results
from read_results import number

INTEGRATIONS = pathlib.Path(__file__).resolve().parent.parent / "examples/integrations"


def span(best, worst, digits):
    return f"({number(best, digits)} to {number(worst, digits)})"


def of_amrex(rows):
    lines = [["memory", "run, ms (best to worst process)", "of CArena's time in the same repeat", "held on the device at the peak, MiB", "after the last step"]]
    for row in rows:
        run = f"{number(row['run_ms'])} {span(row['run_ms_best'], row['run_ms_worst'], 0)}"
        ratio = f"{number(row['run_of_first'], 2)} {span(row['run_of_first_best'], row['run_of_first_worst'], 2)}"
        lines.append([row["memory"], run, ratio, number(row["held_peak_mib"]), number(row["held_after_mib"])])
    return [lines]


def of_nanovdb(rows):
    alone = [["memory", "pass, ms (best to worst process)", "first pass, ms", "held on the device, MiB", "held after the last grid, MiB"]]
    for row in rows:
        if "left_beside_second_process" not in row:
            alone.append([row["memory"], f"{number(row['pass_ms'], 1)} {span(row['pass_ms_best'], row['pass_ms_worst'], 1)}",
                          number(row["first_pass_ms"], 1), number(row["held_on_device_mib"]), number(row["held_after_mib"])])  # fmt: skip
    cells = {}
    for row in rows:
        if "left_beside_second_process" in row:
            refused = f", the second is refused {row['second_refused']} of {row['second_asked']} times" if row.get("second_refused") else ""
            cells[row["memory"], row["left_beside_second_process"]] = "out of memory" if "problem" in row else f"{number(row['pass_ms'])} ms{refused}"
    left = sorted({factor for _, factor in cells})
    beside = [["left by a second process, times the live peak", *(f"{factor:g}" for factor in left)]]
    beside += [[memory, *(cells.get((memory, factor), "-") for factor in left)] for memory in dict.fromkeys(memory for memory, _ in cells)]
    return [alone, beside]


def of_tcnn(rows):
    lines = [["workspace", "streams", "step, ms", "device synchronisations while growing", "while inferring", "held after training, MiB",
              "after inferring, MiB"]]  # fmt: skip
    for row in rows:
        lines.append([row["workspace"], str(row["streams"]), number(row["step_ms"], 3), str(row["device_synchronisations_growing"]),
                      str(row["device_synchronisations_inferring"]), number(row["held_training_mib"]), number(row["held_inferring_mib"])])  # fmt: skip
    return [lines]


CUPY_POOLS = {"tarn": "tarn", "cupy_pool": "CuPy's pool", "cupy_async": "asynchronous pool", "cupy_async_kept": "asynchronous pool that keeps its memory"}
CUPY_WORK = {"small_arrays": "calls on at most 16 KiB", "particles": "sorts, masks, histograms", "spectral_flow": "FFTs, the grid changes",
             "conjugate_gradient": "sparse, varying size"}  # fmt: skip


def of_cupy(rows):
    of = {(row["work"], row["pool"]): row for row in rows}
    lines = [["program", *CUPY_POOLS.values()]]
    for work, what in CUPY_WORK.items():
        cells = []
        for pool in CUPY_POOLS:
            held = of[work, pool]["held_bytes"] / 2**20
            cells.append(f"{'below 1' if held < 1 else number(held)}, {number(of[work, pool]['warm_ms'])} ms ({number(of[work, pool]['to_cupy_pool'], 2)})")
        lines.append([f"`{work}`: {what}", *cells])
    pairs = {row["pool"]: row["pair_ns"] for row in rows}  # measured once for each pool, and in all of its rows
    return [lines + [["one allocation and free of 4 KiB", *(f"{number(pairs[pool])} ns" for pool in CUPY_POOLS)]]]


RMM_STACKS = {"device_pool": "`device_pool`", "cuda_malloc": "`pool_over<cuda_malloc>`", "fenced": "`stack<cuda_pages, pooled, fenced, tracked>`"}


def of_rmm(rows):
    lines = [["stack", "passed", "failed", "skipped"]]
    for stack, name in RMM_STACKS.items():
        mine = [row for row in rows if row["stack"] == stack]
        passed, failed, skipped = (sum(counts) for counts in zip(*((row["passed"], len(row["failed"]), row["skipped"]) for row in mine)))
        lines.append([name, str(passed), str(failed), str(skipped)])
    return [lines]


TABLES = {"amrex": ("clients_amrex", of_amrex), "nanovdb": ("clients_nanovdb", of_nanovdb), "tiny_cuda_nn": ("clients_tcnn", of_tcnn),
          "python": ("clients_cupy", of_cupy), "rmm": ("clients_rmm", of_rmm)}  # fmt: skip


def pages(folder):
    """(README, its tables, the rows that they show) of each program whose results are in the folder."""
    for name, (file, tables) in TABLES.items():
        rows = results.rows_of(folder / f"{file}.jsonl")
        if rows:
            yield INTEGRATIONS / name / "README.md", tables(rows), rows
