#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests run.py on stages of its own, without a GPU: how a stage ends, and what is kept of it. Standard library only."""
import json
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import machine
import run
import stages

CASES = [  # stage, status of run_stage
    (stages.stage("all_pass", 5, "true", "true"), 0),
    (stages.stage("braces", 5, "{shell} -c {braces}"), 0),
    (stages.stage("one_fails", 5, "true", "{shell} -c {'exit 3'}", "true"), 3),
    (stages.stage("killed", 5, "{shell} -c {'kill -SEGV $$'}"), 139),
    (stages.stage("no_program", 5, "/no/such/program"), 127),
    (stages.stage("cannot", 5, "{shell} -c {'exit 77'}"), run.CANNOT),
    (stages.stage("cannot_at_the_end", 5, "true", "{shell} -c {'exit 77'}"), 1),
    (stages.stage("slow_command", 5, stages.step("sleep 9", limit=1), "true"), 1),
    (stages.stage("may_fail", 5, stages.step("false", may_fail=True)), 0),
    (stages.stage("must", 5, stages.step("false", must=True), "{shell} -c {'kill $PPID'}"), 1),
    (stages.stage("not_here", 5, stages.step("false", when="False", otherwise="skipped it")), 0),
    (stages.stage("needs_a_gpu", 5, "true", needs=["two_gpus"]), run.CANNOT),
    (stages.stage("must_be_built", 5, "true", needs=["cuda_tests"], missing=1), 1),
]
LOGS = [  # of a stage, and the figures in its row
    ("  skipped, nothing was tested: one device\nAll tests passed (7 assertions in 2 test cases)\n",
     {"what": "t", "cases": 2, "assertions": 7, "failed": 0, "skipped": 1}),
    ("test cases: 2 | 1 passed | 1 failed\n", {"what": "t", "failed": 1, "skipped": 0}),
    ("evidence: endings cases=25 failed=1\n", {"what": "endings", "cases": 25, "failed": 1}),
]


def expect(promise, kept):
    if not kept:
        sys.exit(f"FAILED: {promise}")
    print(f"ok: {promise}", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(BUILD=folder, TRACES=folder)
        machine.BUILD = machine.RESULTS = pathlib.Path(folder)
        here = machine.Machine([])
        os.environ["TARN_DEVICES"] = ""
        for stage, status in CASES:
            names = {**here.names(stage), "shell": "sh", "braces": "{ true; }"}
            expect(f"{stage['name']} ends with {status}", run.run_stage(stage, names) == status)
        for stage in stages.STAGES:
            run.dry_run(stage, here.names(stage))
        expect("the commands of all stages can be printed", True)
        for log, figures in LOGS:
            row, = run.rows_of({"evidence": "t {catch2()}"}, log, "ok", {})
            expect(f"a log gives {figures}", {**figures, "outcome": "ok", "devices": 1} == row)
            run.keep_evidence([row])
            with open(machine.RESULTS / "tests.jsonl", "a") as file:
                file.write('{"what": "cut o')  # as a run leaves it that is killed
            run.keep_evidence([])
        rows = [json.loads(line) for line in (machine.RESULTS / "tests.jsonl").read_text().splitlines()]
        expect("the later of two rows of a test is kept", [row["failed"] for row in rows] == [1, 1])

        some = run.Run(["clients"], 60, {})
        some.client_seconds = {"clients_nanovdb": 100, "clients_cupy": 200}
        expect("stages of clients share the time that is left", some.share_of("clients_nanovdb", 60) == 20)
        some.outcome["clients_nanovdb"] = "ok"
        expect("a stage of clients that is done needs no more", some.share_of("clients_cupy", 60) == 60)
        chosen = [stage["name"] for stage in stages.STAGES if run.Run([], 60, {}).is_wanted(stage)]
        expect("stages that run only where they are named are left out", "tests" in chosen and "survival_tarn" not in chosen)


if __name__ == "__main__":
    main()
