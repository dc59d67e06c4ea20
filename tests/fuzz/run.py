#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one fuzz target and prints what it tried, as `evidence: fuzz target=...`.

    run.py PROGRAM --runs N       N inputs with seed 1, from the committed corpus: the same run each time
    run.py PROGRAM --seconds S    as many as fit, from the corpus of earlier runs, too, which grows

PROGRAM is fuzz_TARGET in the folder of a preset; findings and corpora are kept in that folder. A program without libFuzzer replays
the committed corpus: exit status 77, because no new input was tried.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description="Runs one fuzz target.")
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seconds", type=int)
    options = parser.parse_args()
    target = options.program.name.removeprefix("fuzz_")
    build = options.program.absolute().parents[2]
    committed = pathlib.Path(__file__).parent / "corpus" / target
    if b"LLVMFuzzerRunDriver" not in options.program.read_bytes():
        status = subprocess.run([options.program, committed]).returncode
        print("SKIPPED: no libFuzzer here; the corpus passed, but no new inputs were tried")
        return 1 if status else 77
    findings, own = build / "findings", build / ("corpus" if options.seconds else "fresh") / target
    limits = ["-max_len=1000", f"-max_total_time={options.seconds}"] if options.seconds else ["-max_len=400", f"-runs={options.runs}"]
    if options.runs:  # what is new goes to the first folder: an empty one, so that each run is the same
        shutil.rmtree(own, ignore_errors=True)
    for folder in (findings, own):
        folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([options.program, "-seed=1", "-timeout=60", "-print_final_stats=1", f"-artifact_prefix={findings / target}-",
                           *limits, own, committed], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    (build / f"{target}.log").write_text(done.stdout)
    figures = [re.findall(pattern, done.stdout, re.M) for pattern in
               (r"^stat::number_of_executed_units: *(\d+)", r"DONE *cov: (\d+)", r"PC tables \((\d+) PCs\)")]
    if done.returncode or not all(figures):
        print("\n".join([line for line in done.stdout.splitlines() if not re.search("NEW|REDUCE|pulse", line)][-60:]))
        return 1
    executions, edges, of = (found[-1] for found in figures)
    print(f"evidence: fuzz target={target} executions={executions} edges={edges} of={of} findings=0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
