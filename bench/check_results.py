#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests read_results.py and summary.py on results as broken runs leave them. Standard library only."""
import json
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
import passes
import read_results as results
import summary

CONTEXT = {"gpu": "GPU", "driver": "1.2", "cpu": "CPU, 2 cores", "date": "2026-01-02T03:04Z", "commit": "abc"}


def replayed(pool, trace, **more):
    row = {"trace": trace, "pool": pool, "device": "cuda", "peak_live": 2**30, "peak_reserved": 2**31, "utilisation": 0.5,
           "cold_ns_per_event": 100, "warm_ns_per_event": 50, "driver_calls": None, "driver_calls_warm": None}
    return json.dumps({**row, **CONTEXT, **more})


def expect(promise, kept):
    if not kept:
        sys.exit(f"FAILED: {promise}")
    print(f"ok: {promise}")


def main():
    mib = 2**20
    held = [100 * mib, 110 * mib, 120 * mib, 105 * mib]
    rows = passes.rows_of([json.dumps({"trace": "a", "pool": "tarn", "peak_live": 80 * mib, "peak_reserved_of_pass": held}),
                           "[1]", '{"trace": "b"', json.dumps({"trace": "c", "pool": "rmm_pool", "peak_reserved_of_pass": []})])
    expect("only replays that report their passes are in the table of passes", [row["trace"] for row in rows] == ["a"])
    expect("the table of passes has the first, the last and the most",
           passes.table(rows).splitlines()[1].split() == ["a", "tarn", "1", "80.0", "100", "110", "120", "105", "1.050", "1.200", "1.500"])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        summary.summary(folder)
        expect("a folder without results makes a summary", (folder / "summary.txt").exists())
        whole, other = replayed("tarn_tracked", "a"), replayed("torch_expandable", "a", cold_ns_per_event=200)
        (folder / "replay_tarn.jsonl").write_text(whole + "\n" + whole[:40])
        (folder / "replay_torch.jsonl").write_text(other + "\n[1, 2]\n\n{}\n")
        (folder / "replay_rmm.jsonl").write_text("")
        (folder / "hot_paths_cuda.jsonl").write_bytes(b'{"work":"window/16","pool":"tarn","device":"cuda","problem":"x"}\n\xff\xfe')
        (folder / "instructions.json").write_text('{"pairs": [')
        with open(folder / "hot_paths_sim.jsonl", "w") as file:
            for work, problem in (("fail/above_limit", {}), ("fail/full/1048576", {"refusal": None, "problem": "x"})):
                file.write(json.dumps({"work": work, "pool": "tarn", "device": "sim", "refusal": {"p50": 6140, "longest": 51920}, **CONTEXT,
                                       **problem}) + "\n")
        (folder / "patterns_tarn.jsonl").write_text("\n".join((
            replayed("tarn", "burst", peak_reserved=2**30 * 1.25, cold_ns_per_event=150), replayed("cuda_async", "burst"),
            replayed("thrust_mr", "burst", warm_ns_per_event=1), replayed("cub", "burst", out_of_memory=3, warm_ns_per_event=2),
            '{"trace":"burst","po')))
        rated = {"work": "convert/a/b", "gb_per_s": 3000.0, "reference_gb_per_s": 4000.0, **CONTEXT}
        skipped = {"work": "peer_copy", "problem": "one device", **CONTEXT}
        (folder / "convert.jsonl").write_text("\n".join(map(json.dumps, (rated, skipped))) + '\n{"work": "convert/c')
        expect("of a line that was cut off, the lines before it count", len(results.replay(folder)) == 2)
        expect("a row without a figure is read", len(results.hot_paths(folder)) == 3)
        expect("broken instruction counts are none", results.instructions(folder) == {})
        (folder / "moving.jsonl").write_text(json.dumps({"work": "to the device", "way": "pinned", "device": "cuda", "unit": "GB/s",
                                                         "value": 54.2, "of_reference": 0.98, **CONTEXT}) + '\n{"work": "pin", "way"')
        summary.summary(folder)
        text = (folder / "summary.txt").read_text()
        expect("the summary says where and of what", "GPU, driver 1.2, 2026-01-02, commit abc" in text)
        expect("the summary compares a pattern's time with the fastest peer that orders streams and refuses nothing",
               "1.250 1.50/1.00" in text and "2.000 1.00/1.00" in text and "out of memory 1.00/0.04" in text)
        expect("the summary has the time to fail, in microseconds", "tarn.sim          6.1/51.9                  -" in text)
        expect("the summary says how fast memory moves", "to the device: pinned" in text and "0.980" in text)
        with open(folder / "moving.jsonl", "w") as file:
            for way, share in (("pageable, 8 threads", 0.9), ("pageable, 8 threads, batches four times as large", 0.95),
                               ("PyTorch, pageable, loader, batches of 16 MiB", 0.8), ("PyTorch, pageable, loader, batches of 32 MiB", 0.85)):
                file.write(json.dumps({"work": "to the device", "way": way, "device": "cuda", "unit": "GB/s", "value": 50.0,
                                       "of_reference": share, **CONTEXT}) + "\n")
        lines, used = summary.readme_moving(results.moving(folder))
        expect("the README compares tarn's default with the best of its peer", len(lines) == 2 and lines[1][1:] == ["0.900", "0.850"])
        turn = {"trace": "a", "pool": "tarn_tracked", "device": "cuda", "threads": 1, "reference": "torch_expandable", "peak_live": 2**30,
                "peak_reserved": 2**30 * 1.25, "cold": 0.625, "cold_quartiles": [0.5, 0.75], "warm": 0.25, "warm_quartiles": [0.25, 0.375],
                **CONTEXT}
        (folder / "in_turn.jsonl").write_text(json.dumps(turn) + "\n" + json.dumps({**turn, "threads": 2}) + '\n{"trace": "a"')
        lines, used = summary.readme_replay(results.replay(folder), results.in_turn(folder))
        expect("times of replays in turn come before others in the README", lines[1][-3:] == ["0.62", "0.25", "-"] and len(used) == 4)
        summary.summary(folder)
        expect("the summary has replays in turn, with quartiles",
               "a            2  tarn_tracked        0.800  0.62 (0.50 to 0.75)  0.25 (0.25 to 0.38)" in (folder / "summary.txt").read_text())
        lines, used = summary.readme_replay(results.replay(folder))
        expect("a conversion is listed with its copy", "convert/a/b  3,000  4,000   0.75" in text and "peer_copy" not in text)
        later = [replayed("tarn_tracked", "b", date="2026-01-03T03:04Z"), replayed("rmm_pool", "b", date="2026-01-03T01:02Z", commit="def"),
                 replayed("rmm_pool", "c", date="2026-01-03T05:06Z", gpu="another"), replayed("rmm_pool", "d", date="2026-01-04T05:06Z")]
        (folder / "replay_tarn.jsonl").write_text("\n".join([whole, *later]))
        expect("the README takes the figures of the day and the GPU of tarn's newest row, of the peers' too",
               [(row["pool"], row["trace"]) for row in results.of_newest_run(results.replay(folder))] == [("tarn_tracked", "b"), ("rmm_pool", "b")])
        again = replayed("tarn_tracked", "a", cold_ns_per_event=90, warm_ns_per_event=60, peak_reserved=2**31 + 2**20)
        (folder / "replay_tarn.jsonl").write_text(whole + "\n" + again)
        row, = (row for row in results.replay(folder) if row["pool"] == "tarn_tracked")
        expect("of a row that was measured twice the later counts, with the lesser times",
               (row["cold_ns_per_event"], row["warm_ns_per_event"], row["peak_reserved"]) == (90, 50, 2**31 + 2**20))
        pairs = results.hot_paths(folder)
        expect("without a row of a GPU all figures count", results.of_newest_run(pairs[1:]) == pairs[1:] and len(pairs) == 3)
        expect("the README compares rows of both allocators", len(lines) == 2 and len(used) == 2 and lines[1][-3] == "0.50")


if __name__ == "__main__":
    main()
