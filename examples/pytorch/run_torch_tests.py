#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of its CUDA allocator on tarn, unchanged, and compares their failures with the list in README.md.

    python3 run_torch_tests.py test_cuda.py [--json FILE] [--seconds 200] [--test-seconds 60] [CLASS or CLASS.TEST ...]

test_cuda.py is that of the PyTorch that is installed (its commit is torch.version.git_version). The tests run in one process, after
tarn_torch.install(); a process that dies or hangs is replaced, and the test that it was at has failed. A test that fails on tarn runs
once more under PyTorch's own allocator. Without names, the classes of ALLOCATOR run, and those tests of SOME whose names match.

FILE gets one JSON line for each class: how many tests passed and were skipped, and of each that failed on
tarn what it raised, whether it also fails under PyTorch's allocator, and why README.md lists it.

The exit status is 1 after a failure that README.md does not list and that does not occur under PyTorch's allocator, or if no test ran.
Needs expecttest and psutil, as the tests do.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import re
import select
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ALLOCATOR = ("TestCudaMallocAsync", "TestBlockStateAbsorption", "TestMemPool", "TestCudaAllocator")
SOME = {
    "TestCuda": re.compile(
        r"alloc|memory|mempool|cache|caching|snapshot|oom|record_stream|graph|reserved|stats|garbage|expandable|fraction"
    ),
}
LIST = "## PyTorch's own tests of its allocator"


def listed_failures(readme):
    """The tests that README.md expects to fail, with the reasons: rows of a table whose first column names them."""
    listed = {}
    section = readme.partition(LIST + "\n")[2].partition("\n## ")[0]
    for row in section.splitlines():
        columns = [column.strip() for column in row.strip().strip("|").split("|")]
        if not row.startswith("|") or len(columns) != 2:
            continue
        of_class = None
        for name in re.findall(r"`([\w.*]+)`", columns[0]):
            if "." in name:
                of_class, name = name.split(".", 1)
            if of_class and of_class.startswith("Test") and name.startswith("test_"):
                listed[f"{of_class}.{name}"] = columns[1]
    return listed


# ---- the process that runs the tests


class Reporter(unittest.TestResult):
    """Writes one JSON line when a test begins and one when it has ended."""

    def __init__(self, report):
        super().__init__()
        self.report = report

    def write(self, test, outcome, text=""):
        name = f"{type(test).__name__}.{getattr(test, '_testMethodName', 'set up')}"
        self.report.write(json.dumps({"test": name, "outcome": outcome, "text": text[:300]}) + "\n")
        self.report.flush()

    @staticmethod
    def last_line(error):
        return f"{error[0].__name__}: {error[1]}".strip().splitlines()[0]

    def startTest(self, test):
        super().startTest(test)
        self.write(test, "begun")

    def addSuccess(self, test):
        self.write(test, "passed")

    def addError(self, test, error):
        self.write(test, "failed", self.last_line(error))

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.write(test, "failed", self.last_line(error))

    def addSkip(self, test, reason):
        self.write(test, "skipped", reason)

    def addExpectedFailure(self, test, error):
        self.write(test, "passed")

    def addUnexpectedSuccess(self, test):
        self.write(test, "failed", "passed although PyTorch expects it to fail")


def load_module(path):
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]  # the tests read it, and start processes with it
    spec = importlib.util.spec_from_file_location("test_cuda", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_cuda"] = module
    spec.loader.exec_module(module)
    return module


def child(path, allocator, todo, report):
    """Lists all tests of the file ("list") or runs the tests named in the file `todo`."""
    sys.path.insert(0, str(HERE))
    if allocator == "tarn":
        import tarn_torch

        tarn_torch.install()
    module = load_module(path)
    loader = unittest.TestLoader()
    with open(report, "a") as out:
        if allocator == "list":
            for name in dir(module):
                of_class = getattr(module, name)
                if isinstance(of_class, type) and issubclass(of_class, unittest.TestCase) and name.startswith("Test"):
                    for test in loader.getTestCaseNames(of_class):
                        out.write(json.dumps({"test": f"{name}.{test}"}) + "\n")
            return
        for name in pathlib.Path(todo).read_text().split():
            loader.loadTestsFromName(name, module).run(Reporter(out))


# ---- the process that starts them


def start_child(path, allocator, todo, report):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    log = open(f"{report}.log", "ab")
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", __file__, str(path), "--child", allocator, str(todo), str(report)],
        env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def read_report(report):
    if not report.exists():
        return []
    return [json.loads(line) for line in report.read_text().splitlines() if line.endswith("}")]


def outcomes_of(rows):
    """The last outcome of each test, failures before all others: a test may fail in several parts."""
    found = {}
    for row in rows:
        if row["outcome"] == "begun" or found.get(row["test"], {}).get("outcome") not in (None, "failed"):
            found.setdefault(row["test"], row)
        if row["outcome"] != "begun" and found[row["test"]]["outcome"] != "failed":
            found[row["test"]] = row
    return found


def run_tests(path, allocator, names, folder, until, test_seconds):
    """Runs the tests; returns the outcome of each that was begun. A process that dies or hangs is replaced."""
    results, left = {}, list(names)
    while left and time.monotonic() < until:
        report, todo = folder / f"{allocator}-{len(results)}-{time.monotonic_ns()}.jsonl", folder / "todo"
        todo.write_text("\n".join(left))
        process = start_child(path, allocator, todo, report)
        size, changed, stopped = -1, time.monotonic(), ""
        while process.poll() is None:
            select.select([], [], [], 0.2)
            now = time.monotonic()
            if report.exists() and report.stat().st_size != size:
                size, changed = report.stat().st_size, now
            # Importing torch takes many seconds on a machine that has just started.
            if now > until or now - changed > (test_seconds if size > 0 else max(120, test_seconds)):
                stopped = "the time was over" if now > until else f"took more than {test_seconds:.0f} s"
                process.kill()
                process.wait()
        new = outcomes_of(read_report(report))
        for name, row in list(new.items()):
            if row["outcome"] != "begun":
                continue
            if stopped == "the time was over":
                del new[name]  # not its fault
            else:
                new[name] = {**row, "outcome": "failed", "text": stopped or f"the process ended with {process.returncode}"}
        if not new:
            if not stopped:
                sys.stderr.write(pathlib.Path(f"{report}.log").read_text(errors="replace")[-3000:])
            break
        results.update(new)
        left = [name for name in left if name not in results]
    return results


def chosen(every, wanted):
    """The tests to run, in order: the ones that are named, or those of the allocator."""
    if wanted:
        return [test for test in every if test in wanted or test.split(".")[0] in wanted]
    tests = [test for name in ALLOCATOR for test in every if test.startswith(name + ".")]
    return tests + [test for name, some in SOME.items() for test in every
                    if test.startswith(name + ".") and some.search(test.split(".")[1])]  # fmt: skip


def rows_of(tests, on_tarn, native, listed, context):
    """One line for each class."""
    rows = []
    for of_class in dict.fromkeys(test.split(".")[0] for test in tests):
        names = [test for test in tests if test.startswith(of_class + ".")]
        outcomes = {name: on_tarn[name]["outcome"] for name in names if name in on_tarn}
        rows.append({
            "benchmark": "clients_torch_tests", "class": of_class,
            "passed": sum(outcome == "passed" for outcome in outcomes.values()),
            "skipped": sum(outcome == "skipped" for outcome in outcomes.values()),
            "not_run": [name for name in names if name not in outcomes],
            "failed": [
                {
                    "test": name,
                    "error": on_tarn[name]["text"],
                    "on_pytorchs_allocator": native.get(name, {}).get("outcome", "not run"),
                    "listed": listed.get(name),
                }
                for name, outcome in outcomes.items() if outcome == "failed"
            ],
            "listed_but_passed": [name for name in names if name in listed and outcomes.get(name) == "passed"],
            **context,
        })  # fmt: skip
    return rows


def write(path, rows):
    if not path:
        return
    part = pathlib.Path(path + ".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part.replace(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("only", nargs="*")
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--test-seconds", type=float, default=60)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.tests, *options.child)
    import torch

    until = time.monotonic() + options.seconds
    listed = listed_failures((HERE / "README.md").read_text())
    context = {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "commit": os.environ.get("TARN_COMMIT", "unknown"),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        report = folder / "list.jsonl"
        start_child(options.tests, "list", "none", report).wait(timeout=120)
        every = [row["test"] for row in read_report(report)]
        if not every:
            sys.stderr.write(pathlib.Path(f"{report}.log").read_text(errors="replace")[-3000:])
            print("no test was found", file=sys.stderr)
            return 1
        tests = chosen(every, options.only)
        # A fifth of the time is for the failures under PyTorch's own allocator.
        on_tarn = run_tests(options.tests, "tarn", tests, folder, until - options.seconds / 5, options.test_seconds)
        failed = [test for test in tests if on_tarn.get(test, {}).get("outcome") == "failed"]
        write(options.json, rows_of(tests, on_tarn, {}, listed, context))  # kept if the rest is cut off
        native = run_tests(options.tests, "native", failed, folder, until, options.test_seconds)
        rows = rows_of(tests, on_tarn, native, listed, context)
        write(options.json, rows)
    unlisted = []
    for row in rows:
        print(f"{row['class']}: {row['passed']} passed, {len(row['failed'])} failed, {row['skipped']} skipped, "
              f"{len(row['not_run'])} not run")  # fmt: skip
        for one in row["failed"]:
            why = one["listed"] or {"failed": "also under PyTorch's allocator"}.get(one["on_pytorchs_allocator"], "NOT LISTED")
            if why == "NOT LISTED":
                unlisted.append(one["test"])
            print(f"  {one['test']}: {why}: {one['error']} (PyTorch's allocator: {one['on_pytorchs_allocator']})")
        for test in row["listed_but_passed"]:
            print(f"  {test}: listed, but it passed")
    if unlisted:
        print(f"FAILED: {len(unlisted)} failures that README.md does not list: {', '.join(unlisted)}")
    if not on_tarn:
        print("FAILED: no test ran")
    return 1 if unlisted or not on_tarn else 0


if __name__ == "__main__":
    sys.exit(main())
