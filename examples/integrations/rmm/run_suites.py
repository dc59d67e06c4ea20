#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds RMM's own test suites of resources with a stack of tarn's in place of rmm::mr::cuda_memory_resource, and runs them on
device_pool, on a pool over cudaMalloc and on a fenced stack. Needs g++, nvcc, GoogleTest and a GPU.

  run_suites.py --rmm FOLDER --tests FOLDER [--build FOLDER] [--prefix FOLDER] [--json FILE] [--jobs N] [SUITE...]

--rmm     holds librmm/ and rapids_logger/, as the wheels librmm-cu13 and rapids-logger unpack
--tests   cpp/tests of RMM's sources, unchanged
--prefix  usr/ of a folder that has GoogleTest, if the system has none

The exit status is 1 after a failure that neither EXPLAINED nor SOMETIMES lists, and after one of EXPLAINED that did not occur."""
import argparse
import concurrent.futures
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
STACKS = ("device_pool", "cuda_malloc", "fenced")

SUITES = """device_scalar_tests.cpp device_uvector_tests.cpp prefetch_tests.cpp
mr/mr_ref_cuda_tests.cpp mr/mr_ref_aligned_tests.cpp mr/mr_ref_arena_tests.cpp mr/mr_ref_binning_tests.cpp
mr/mr_ref_callback_tests.cpp mr/mr_ref_failure_callback_tests.cpp mr/mr_ref_fixed_size_tests.cpp
mr/mr_ref_limiting_tests.cpp mr/mr_ref_logging_tests.cpp mr/mr_ref_pool_tests.cpp mr/mr_ref_prefetch_tests.cpp
mr/mr_ref_statistics_tests.cpp mr/mr_ref_thread_safe_tests.cpp mr/mr_ref_tracking_tests.cpp
mr/adaptor_tests.cpp mr/aligned_mr_tests.cpp mr/binning_mr_tests.cpp mr/callback_mr_tests.cpp
mr/cccl_adaptor_tests.cpp mr/failure_callback_mr_tests.cpp mr/limiting_mr_tests.cpp
mr/polymorphic_allocator_tests.cpp mr/pool_mr_tests.cpp mr/prefetch_resource_adaptor_tests.cpp
mr/resource_ref_conversion_tests.cpp mr/statistics_mr_tests.cpp mr/stream_allocator_adaptor_tests.cpp
mr/thrust_allocator_tests.cu mr/tracking_mr_tests.cpp""".split()
# Built once more for per-thread default streams, as RMM does with all.
PER_THREAD = {"mr/mr_ref_cuda_tests.cpp", "device_uvector_tests.cpp"}
# These take large parts of the device, so they run alone.
ALONE = ("arena", "pool_mr", "mr_ref_pool")

# Failures that are not bugs: the end of a test's name, and why.
EXPLAINED = {
    "AlignmentTest.LargeAlignment": "expects that an alignment above 256 is refused; tarn serves up to 2 MiB",
}
# Those that come and go with the timing of threads.
SOMETIMES = {
    f"LimitingMR/CcclMrRefTestMT/0.{name}": "four threads may together ask for more than the 1 GiB of RMM's own adaptor"
    for name in ("RandomAllocations", "RandomAllocationsDefaultStream", "RandomAllocationsStream")
}


def explained(test):
    return next((why for end, why in (EXPLAINED | SOMETIMES).items() if test.endswith(end)), None)


def compile_suite(options, source, per_thread):
    name = pathlib.Path(source).stem + ("_per_thread" if per_thread else "")
    program = options.build / name
    rmm = options.rmm
    cuda = pathlib.Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parents[1]
    if options.built:
        return program if program.exists() else None
    flags = ["-std=c++20", "-O1", "-include", "in_place_of_cuda.hpp"]
    if per_thread:
        flags.append("-DCUDA_API_PER_THREAD_DEFAULT_STREAM")
    folders = [rmm / "librmm/include/rapids", rmm / "librmm/include", rmm / "rapids_logger/include", HERE,
               HERE.parents[2] / "include", options.tests.parent]
    if options.prefix:
        folders.append(options.prefix / "include")
    folders.append(cuda / "include")
    libraries = [rmm / "librmm/lib64", rmm / "rapids_logger/lib64", cuda / "lib64"]
    if options.prefix:
        libraries.insert(0, options.prefix / "lib/x86_64-linux-gnu")
    compiler = ["g++", "-w"]
    if source.endswith(".cu"):
        compiler = [str(cuda / "bin/nvcc"), "-w", f"-arch={options.arch}", "--expt-relaxed-constexpr"]
    command = compiler + flags + [f"-I{f}" for f in folders] + [str(options.tests / source), "-o", str(program)]
    command += [f"-L{f}" for f in libraries]
    command += ["-lrmm", "-lrapids_logger", "-lgmock", "-lgtest", "-lgtest_main", "-lcudart_static", "-lrt", "-lpthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{name}: does not compile\n{done.stderr[:2000]}", flush=True)
        return None
    return program


def run_suite(options, program, stack):
    report = options.build / f"{program.name}.{stack}.json"
    report.unlink(missing_ok=True)
    environment = dict(os.environ, TARN_RMM_STACK=stack)
    environment["LD_LIBRARY_PATH"] = f"{options.rmm}/librmm/lib64:{options.rmm}/rapids_logger/lib64"
    log = options.build / f"{program.name}.{stack}.log"
    with open(log, "w") as out:
        try:
            status = subprocess.run([str(program), f"--gtest_output=json:{report}"], env=environment, stdout=out,
                                    stderr=out, timeout=60, cwd=options.build).returncode
        except subprocess.TimeoutExpired:
            status = "over 60 s"
    row = {"suite": program.name, "stack": stack, "passed": 0, "failed": [], "skipped": 0}
    if not report.exists():
        row["failed"].append(f"{program.name}: ended with {status} before its report")
        return row
    for suite in json.loads(report.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            if test["result"] == "SKIPPED":
                row["skipped"] += 1
            elif "failures" in test:
                row["failed"].append(f"{suite['name']}.{test['name']}")
            else:
                row["passed"] += 1
    if status != 0 and not row["failed"]:
        row["failed"].append(f"{program.name}: exit status {status}")
    return row


def environment(options):
    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"],
                         capture_output=True, text=True).stdout.strip().split(", ")
    return {"gpu": smi[0], "driver": smi[-1], "rmm": (options.rmm / "librmm/VERSION").read_text().strip(),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ"),
            "commit": os.environ.get("TARN_COMMIT", "unknown")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rmm", type=lambda f: pathlib.Path(f).resolve(), required=True)
    parser.add_argument("--tests", type=lambda f: pathlib.Path(f).resolve(), required=True)
    parser.add_argument("--build", type=lambda f: pathlib.Path(f).resolve(), default=pathlib.Path("build-rmm").resolve())
    parser.add_argument("--prefix", type=lambda f: pathlib.Path(f).resolve())
    parser.add_argument("--json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--arch", default="native")
    parser.add_argument("--only-build", action="store_true")
    parser.add_argument("--built", action="store_true", help="run the programs that are in --build")
    parser.add_argument("suites", nargs="*")
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)

    wanted = [s for s in SUITES if not options.suites or pathlib.Path(s).stem in options.suites]
    builds = [(s, False) for s in wanted] + [(s, True) for s in wanted if s in PER_THREAD]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as crew:
        programs = list(crew.map(lambda b: compile_suite(options, *b), builds))
    if options.json:  # what is done when a time limit ends the program is kept
        open(options.json, "w").close()
    uncompiled = programs.count(None)
    programs = [p for p in programs if p]
    print(f"{len(programs)} suites compiled, {uncompiled} not", flush=True)
    if options.only_build:
        return 1 if uncompiled else 0

    facts = environment(options)
    rows, unexplained, seen = [], 0, set()
    for stack in STACKS:
        alone = [p for p in programs if any(word in p.name for word in ALONE)]
        with concurrent.futures.ThreadPoolExecutor(4) as crew:
            mine = list(crew.map(lambda p: run_suite(options, p, stack), [p for p in programs if p not in alone]))
        mine += [run_suite(options, p, stack) for p in alone]
        for row in mine:
            for test in row["failed"]:
                why = explained(test)
                seen |= {end for end in EXPLAINED if test.endswith(end)}
                unexplained += why is None
                print(f"{row['stack']}: {test}: {why or 'FAILED, not explained'}")
            if options.json:
                with open(options.json, "a") as file:
                    file.write(json.dumps({"benchmark": "clients_rmm", **facts, **row}) + "\n")
        print(f"{stack}: {sum(r['passed'] for r in mine)} passed, {sum(len(r['failed']) for r in mine)} failed, "
              f"{sum(r['skipped'] for r in mine)} skipped, in {len(mine)} suites", flush=True)
        rows += mine
    stale = [] if options.suites else sorted(set(EXPLAINED) - seen)
    for end in stale:
        print(f"{end}: is explained, but did not fail")
    return 1 if unexplained or uncompiled or stale else 0


sys.exit(main())
