#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks figures in the prose of the documents against the files that they come from.

A figure is followed by a marker, which readers do not see: `97 %<!-- figure: utilisation -->`. It must be the value of FIGURES,
rounded to the figure's digits; a range is two of them. Exit status 1 where one is wrong, or where a value has no figure."""
import pathlib
import re
import statistics
import sys

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import read_results as results  # noqa: E402

WORDS = {"one": "1", "two": "2", "three": "3", "five": "5", "seven": "7", "nine": "9", "ten": "10"}


def of_gpu(rows, **keys):
    return [row for row in rows if row["device"] == "cuda" and all(row.get(key) == value for key, value in keys.items())]


def ends(values):
    return min(values), max(values)


def figures():
    """{name: the value, or the least and the greatest}"""
    newest = results.newest_commit(results.replay())
    replayed = {pool: {row["trace"]: row["peak_live"] / row["peak_reserved"] for row in of_gpu(results.replay(), pool=pool, commit=newest)}
                for pool in ("tarn_tracked", "torch_expandable")}
    mine, peers = replayed.values()
    compacted = of_gpu(results.read(results.RESULTS, "compact", ("work", "device")))
    traces = [row for row in compacted if not row["work"].startswith("checkerboard")]
    large = next(row for row in compacted if "3 to 6 MiB" in row["work"])
    refused = [row for row in of_gpu(results.hot_paths()) if row["work"].startswith("fail/full") and row.get("refusal")]
    in_turn = {row["trace"]: row["cold"] for row in of_gpu(results.in_turn(), pool="tarn_tracked", threads=1)}
    survived = [row for row in results.survival(results.RESULTS) if row["device"] == "cuda" and row["refusals"] == 0]
    soaks = re.findall(r"^seeds .* calls (\d+) programs (\d+)", (ROOT / "tests/simulation/soak.txt").read_text(), re.M)

    def survivors(pool, factor):
        return sum(row["pool"] == pool and row["factor"] == factor for row in survived)

    return {
        "utilisation": 100 * statistics.median(mine.values()),
        "lost": ends([100 * (1 - value) for value in mine.values()]),
        "traces": len(mine),
        "traces.peer_holds_less": sum(peers[trace] > value for trace, value in mine.items()),
        "pair": next(row["ns_per_pair"] for row in of_gpu(results.hot_paths(), pool="tarn_tracked", work="hot_pair/65536")),
        "soak.calls": sum(int(calls) for calls, _ in soaks) / 1e9,
        "soak.programs": sum(int(programs) for _, programs in soaks) / 1e3,
        "compact.held": ends([row["compacted"] / row["live"] for row in traces]),
        "compact.trimmed": ends([row["trimmed"] / row["live"] for row in traces]),
        "compact.large": large["compacted"] / large["live"],
        "compact.large_trimmed": large["trimmed"] / large["live"],
        "refusal": max(row["refusal"]["p50"] for row in refused if row["pool"].startswith("tarn")) / 1e6,
        "refusal.peer": ends([row["refusal"]["p50"] / 1e6 for row in refused if row["pool"].startswith("torch")]),
        "in_turn.amrex": in_turn["amrex_regrid"],
        "survival.1.02": survivors("tarn", 1.02),
        "survival.1.01": survivors("tarn", 1.01),
        "survival.peer.1.02": survivors("torch_expandable", 1.02),
        "survival.peer.1.01": survivors("torch_expandable", 1.01),
    }


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
    for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]):
        wrong += wrong_in(page, values, used)
    wrong += [f"no document has a figure for {name}" for name in values.keys() - used]
    print("\n".join(wrong) or f"{len(values)} figures are those of the results")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
