#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests bench/replay/in_turn.py with tarn_replay on the simulated device: in_turn.py PATH_OF_TARN_REPLAY FOLDER_OF_TRACES"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL, TRACES = sys.argv[1], pathlib.Path(sys.argv[2])
TRACE = TRACES / "demucs_train.trace.gz"
POOL = f"{TOOL} --device sim --pool"


def compare(*arguments):
    """What the program printed, its exit status and its lines."""
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(folder) / "results.jsonl"
        done = subprocess.run(
            [sys.executable, str(ROOT / "bench/replay/in_turn.py"), str(results), *map(str, arguments)],
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        text = results.read_text() if results.exists() else ""
    return done, [json.loads(line) for line in text.splitlines()]


# A program that says "ready", plays when it is asked, notes its name in {order}, and claims the times of one of its repeats.
PROGRAM = """
import json, os, sys
count = sys.argv[0] + sys.argv[1]
number = os.path.exists(count)
open(count, 'w')
claims = {claims}[sys.argv[1]][number]
for passes in [9] * len(claims), claims:
    for _ in passes:
        print('ready', flush=True)
        if not sys.stdin.readline(): sys.exit(1)
        open({order}, 'a').write(sys.argv[1][0])
    print(json.dumps({{'trace': 't', 'pool': sys.argv[1], 'device': 'sim', 'events': 1, 'threads': 1, 'passes': len(claims),
                      'peak_live': 1, 'peak_reserved': number, 'out_of_memory': 0, 'commit': 'x',
                      'ns_per_event_of_pass': passes}}), flush=True)
"""


def compare_claims(claims, *arguments):
    """Runs programs that claim these times: the names of the programs in the order of their passes, and what compare() returns."""
    with tempfile.TemporaryDirectory() as folder:
        order = pathlib.Path(folder) / "order"
        program = pathlib.Path(folder) / "program.py"
        program.write_text(PROGRAM.format(claims=repr(claims), order=repr(str(order))))
        result = compare(*(f"--run={sys.executable} {program} {name}" for name in claims), *arguments, TRACE)
        return order.read_text(), *result


class InTurn(unittest.TestCase):
    def test_each_pass_is_compared_with_the_pass_of_the_first_program_in_the_same_turn(self):
        claims = {"first": [[10, 4, 2], [20, 4, 4]], "second": [[5, 2, 2], [30, 1, 2]]}  # of two repeats
        order, done, rows = compare_claims(claims, "--repeats", 2, "--passes", 3)
        self.assertEqual(order, "fssf" * 3 + "sffs" * 3)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([row["pool"] for row in rows], ["first", "second"])
        first, second = rows
        self.assertEqual([first["cold"], first["warm"], first["warm_quartiles"]], [1, 1, [1, 1]])
        self.assertEqual([second["cold"], second["cold_quartiles"]], [1, [0.75, 1.25]])
        self.assertEqual([second["warm"], second["warm_quartiles"]], [0.5, [0.4375, 0.625]])
        self.assertEqual([second["cold_ns"], second["warm_ns"], second["repeats"]], [17.5, 2, 2])
        self.assertEqual([second["reference"], second["peak_reserved"], second["commit"]], ["first", 1, "x"])

    def test_a_turn_has_several_later_passes(self):
        claims = {"first": [[10, 1, 2, 3, 4]], "second": [[5, 2, 4, 6, 8]]}
        order, done, rows = compare_claims(claims, "--repeats", 1, "--passes", 5, "--turn", 3)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(order, "fs" + "sssfff" + "fs" + "sf" + "fffsss" + "sf")
        self.assertEqual([(row["cold"], row["warm"]) for row in rows], [(1, 1), (0.5, 2)])

    def test_real_programs_are_compared(self):
        done, rows = compare(f"--run={POOL} std_pmr", f"--run={POOL} tarn", "--repeats", 2, "--passes", 2, TRACE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual([(row["pool"], row["repeats"], row["passes"]) for row in rows], [("std_pmr", 2, 2), ("tarn", 2, 2)])
        self.assertGreater(rows[1]["warm"], 0)

    def test_a_program_that_fails_is_reported(self):
        done, rows = compare(f"--run={POOL} tarn", f"--run={POOL} unknown", TRACE)
        self.assertEqual((done.returncode, rows), (1, []))
        self.assertIn(f"FAILED: {POOL} unknown", done.stdout)

    def test_a_program_that_is_killed_while_it_waits_is_reported(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program.py"
            program.write_text("import os, time\nprint('ready', flush=True)\nos.kill(os.getpid(), 9)\n")
            command = f"{sys.executable} {program}"
            done, rows = compare(f"--run={POOL} tarn", f"--run={command}", TRACE)
        self.assertEqual((done.returncode, rows), (1, []))
        self.assertIn(f"FAILED: {command}", done.stdout, done.stderr)

    def test_a_trace_without_time_has_no_line(self):
        done, rows = compare(f"--run={POOL} tarn", f"--run={POOL} tarn", "--seconds", 0, TRACE)
        self.assertEqual((done.returncode, rows), (1, []))
        self.assertEqual(done.stdout, "0 of 1 traces, 0 of 5 repeats\n")


class Tool(unittest.TestCase):
    def test_it_ends_where_standard_input_ends(self):
        done = subprocess.run([TOOL, "--device", "sim", "--in-turn", str(TRACE)], input="\n", capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.count("ready\n"), 2)
        self.assertIn("--in-turn: standard input has ended", done.stderr)

    def test_it_refuses_a_trace_on_standard_input(self):
        done = subprocess.run([TOOL, "--device", "sim", "--in-turn", "-"], input="", capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--in-turn reads standard input", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
