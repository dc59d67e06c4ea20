#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays traces on several pools in turn, pass by pass, so that what changes on the machine changes for all, and compares their times.

    python3 in_turn.py RESULTS.jsonl --run 'env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True tarn_replay_torch --pool
        torch_expandable' --run 'tarn_replay --pool tarn_tracked' TRACE...

Each --run is a program with one pool, which this program completes by --in-turn, --json, --passes, --threads and the traces. All of them
exist at the same time. In each turn each plays one pass, beginning with another one each time. A first pass is cold: each trace has a new
pool. Of later passes, a turn has --turn: the more, the less counts that the others have filled the processor's caches meanwhile. All of
this is repeated --repeats times, with new processes: on a shared machine one process may be slower than another all its
life. The first trace is played once more before all others, and does not count then.

RESULTS.jsonl gets a line for each trace and run. `cold` and `warm` are times divided by those of the first --run in the same turn: the
median, and the quartiles; `cold_ns` and `warm_ns` are medians of the times themselves, in nanoseconds per event. Repeats that --seconds
leave no time for are missing. The exit status is 1 if a program failed.
"""

import argparse
import json
import os
import select
import shlex
import statistics
import subprocess
import sys
import time


class Run:
    """A program that replays, and waits before each pass."""

    def __init__(self, command, traces, options):
        self.command = command
        self.process = subprocess.Popen(
            [*shlex.split(command), "--in-turn", "--json", "--passes", str(options.passes), "--threads", str(options.threads), traces[0], *traces],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        os.set_blocking(self.process.stdout.fileno(), False)
        self.rows = []
        self.text = b""

    def wait(self, until):
        """Reads until the program is ready for its next pass; false if it has ended, or is not ready in time."""
        while True:
            line, end, rest = self.text.partition(b"\n")
            if end:
                self.text = rest
                if line == b"ready":
                    return True
                self.rows.append(json.loads(line))
                continue
            readable, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            more = self.process.stdout.read() if readable else None
            if not more:
                return False
            self.text += more

    def play(self, passes, until):
        for _ in range(passes):
            try:
                self.process.stdin.write(b"\n")
                self.process.stdin.flush()
            except BrokenPipeError:  # it has ended, or was killed
                return False
            if not self.wait(until):
                return False
        return True

    def end(self):
        """The exit status of a program that has ended by itself; the others are killed, and have none."""
        try:
            return self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def times(kind, ratios, ns):
    """What a line says of the passes of one kind, cold or warm."""
    low, middle, high = statistics.quantiles(ratios if len(ratios) > 1 else ratios * 2, n=4, method="inclusive")
    return {
        kind: round(middle, 4),
        f"{kind}_quartiles": [round(low, 4), round(high, 4)],
        f"{kind}_ns": round(statistics.median(ns), 4),
    }


def compared(rows, reference):
    """The line of one run on one trace. `rows` and `reference` are those of its repeats, in the same turns."""
    ns = [row["ns_per_event_of_pass"] for row in rows]
    ratios = [[a / b for a, b in zip(of_run, other["ns_per_event_of_pass"])] for of_run, other in zip(ns, reference)]
    line = {key: rows[0][key] for key in ("trace", "pool", "device", "events", "threads", "passes", "peak_live")}
    line["repeats"] = len(rows)
    line["reference"] = reference[0]["pool"]
    line["peak_reserved"] = max(row["peak_reserved"] or 0 for row in rows)  # some pools do not know it
    line["out_of_memory"] = sum(row["out_of_memory"] for row in rows)
    line.update(times("cold", [of_run[0] for of_run in ratios], [of_run[0] for of_run in ns]))
    if len(ns[0]) > 1:
        line.update(times("warm", [one for of_run in ratios for one in of_run[1:]], [one for of_run in ns for one in of_run[1:]]))
    return {**line, **{key: rows[0][key] for key in ("gpu", "driver", "cpu", "date", "commit") if key in rows[0]}}


def play_once(options, first, until):
    """The rows of one repeat: for each trace that all programs have finished, those of the programs. And the commands that failed."""
    turns = [1, *(min(options.turn, options.passes - done) for done in range(1, options.passes, options.turn))]  # of one trace
    runs = [Run(command, options.traces, options) for command in options.run]
    playing = all([run.wait(until) for run in runs])
    while playing:
        for passes in turns:
            at = first % len(runs)
            playing = playing and all([run.play(passes, until) for run in runs[at:] + runs[:at]])
            first += 1
    failed = [run.command for run in runs if run.end() not in (0, None)]
    return list(zip(*(run.rows for run in runs)))[1:], failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--run", action="append", required=True, metavar="COMMAND")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--turn", type=int, default=1, metavar="PASSES")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e6, help="after which no pass begins")
    options = parser.parse_intermixed_args()
    until = time.monotonic() + options.seconds
    repeats, failed = [], []
    for number in range(options.repeats):
        if time.monotonic() < until and not failed:
            rows, failed = play_once(options, number, until)
            repeats.append(rows)
    done = 0
    with open(options.results, "a") as out:
        for number in range(len(options.traces)):
            of_trace = [rows[number] for rows in repeats if number < len(rows)]
            done += bool(of_trace)
            for of_run in zip(*of_trace):
                out.write(json.dumps(compared(of_run, [rows[0] for rows in of_trace])) + "\n")
    print(f"{done} of {len(options.traces)} traces, {len(repeats)} of {options.repeats} repeats")
    for command in failed:
        print("FAILED: " + command)
    return 1 if failed or done == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
