#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests of its CUDA allocator on tarn, unchanged, and compares their failures with the list in README.md.

    python3 run_torch_tests.py test_cuda.py [--json FILE] [--first FILE] [--seconds 200] [--test-seconds 20] [CLASS or CLASS.TEST ...]

test_cuda.py is that of the PyTorch that is installed (its commit is torch.version.git_version) or of a version near it: a failure that
PyTorch's own allocator has, too, does not count. The tests run in one process, after tarn_torch.install(); each begins without what the
ones before it left: garbage, cuBLAS's workspaces, cached memory. A process that dies or hangs is replaced, and the test that it was at
has failed; one that compiles may take four times --test-seconds. Skipped are tests that want to download something, and those that run
in processes of their own, which would not use tarn. Failures that README.md does not list run once more under PyTorch's own allocator
and, if they pass there, once more on tarn in a process of their own: some tests read counters that earlier tests have left in a library
that both load.

Without names, the classes of CLASSES run, of those in SOME the tests whose names match. --first names the FILE of an earlier run: tests
that it had no time for come first, then failures that README.md does not list; those that also failed under PyTorch's allocator are
last.

FILE gets one JSON line for each class: how many tests passed and were skipped, and of each that failed on tarn what it raised, whether
it also fails under PyTorch's allocator or passes alone on tarn, and why README.md lists it.

The exit status is 1 after a failure that README.md does not list, unless it also occurs under PyTorch's allocator or the test passes
alone, or if no test ran.
Needs expecttest and psutil, as the tests do.
"""

import argparse
import datetime
import gc
import importlib.util
import inspect
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
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
CLASSES = ("TestCuda", "TestMemPool", "TestBlockStateAbsorption", "TestCudaAllocator", "TestCudaMallocAsync")
SOME = {
    "TestCuda": re.compile(
        r"alloc|memory|mempool|cache|caching|snapshot|oom|record_stream|graph|reserved|stats|garbage|expandable|fraction"
    ),
}
LIST = "## PyTorch's own tests of its allocator"
COMPILES = re.compile(r"load_inline|get_dummy_allocator|torch\.compile\(")
STARTS_PROCESSES = re.compile(r"subprocess\.(run|check_output|check_call|Popen)\(")
LOADING_SECONDS = 120  # importing torch takes many seconds on a machine that has just started


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
        self.began = 0.0

    def write(self, test, outcome, text="", **more):
        name = f"{type(test).__name__}.{getattr(test, '_testMethodName', 'set up')}"
        self.report.write(json.dumps({"test": name, "outcome": outcome, "text": text[:300], **more}) + "\n")
        self.report.flush()

    def end(self, test, outcome, text=""):
        self.write(test, outcome, text, seconds=round(time.monotonic() - self.began, 2))

    @staticmethod
    def last_line(error):
        return f"{error[0].__name__}: {error[1]}".strip().splitlines()[0]

    def startTest(self, test):
        super().startTest(test)
        clean_up()
        self.write(test, "begun", compiles=bool(COMPILES.search(source_of(test))))
        self.began = time.monotonic()

    def addSuccess(self, test):
        self.end(test, "passed")

    def addError(self, test, error):
        self.end(test, "failed", self.last_line(error))

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.end(test, "failed", self.last_line(error))

    def addSkip(self, test, reason):
        self.end(test, "skipped", reason)

    def addExpectedFailure(self, test, error):
        self.end(test, "passed")

    def addUnexpectedSuccess(self, test):
        self.end(test, "failed", "passed although PyTorch expects it to fail")


def source_of(test):
    """The text of a test; empty if it is not known."""
    try:
        return inspect.getsource(inspect.unwrap(getattr(test, test._testMethodName)))
    except (AttributeError, OSError, TypeError):
        return ""


def clean_up():
    """Frees what earlier tests left: a failed one keeps its tensors in cycles until they are collected. Ends a process that cannot."""
    import torch

    gc.collect()
    if not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        print(f"CUDA does not work any more: {error}", flush=True)
        os._exit(3)


def refuse_download(*arguments, **options):
    raise unittest.SkipTest("needs a network")


def load_module(path):
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]  # the tests read it, and start processes with it
    spec = importlib.util.spec_from_file_location("test_cuda", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_cuda"] = module
    spec.loader.exec_module(module)
    return module


def names_of(module):
    loader = unittest.TestLoader()
    classes = {name: getattr(module, name) for name in dir(module) if name.startswith("Test")}
    return [f"{name}.{test}" for name, of_class in classes.items()
            if isinstance(of_class, type) and issubclass(of_class, unittest.TestCase)
            for test in loader.getTestCaseNames(of_class)]  # fmt: skip


def child(path, allocator, todo, report):
    """Reports all tests of the file, waits for the file `todo`, and runs the tests that it names."""
    sys.path.insert(0, str(HERE))
    if allocator == "tarn":
        import tarn_torch

        tarn_torch.install()
    module = load_module(path)
    import torch

    urllib.request.urlopen = refuse_download
    with open(report, "a") as out:
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        out.write(json.dumps({"tests": names_of(module), "gpu": gpu, "torch": torch.__version__}) + "\n")
        out.flush()
        parent = os.getppid()
        while not os.path.exists(todo):
            if os.getppid() != parent:
                return
            time.sleep(0.05)
        for name in pathlib.Path(todo).read_text().split():
            reporter = Reporter(out)
            for test in unittest.TestLoader().loadTestsFromName(name, module):
                if STARTS_PROCESSES.search(source_of(test)):
                    reporter.write(test, "skipped", "starts processes of its own")
                else:
                    test.run(reporter)


# ---- the process that starts them


def version_of(tests):
    """PyTorch's version that the tests are of; "unknown" without its version.txt, which is two folders up."""
    version = tests.parent.parent / "version.txt"
    return version.read_text().strip() if version.exists() else "unknown"


def start_child(path, allocator, todo, report):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    log = open(f"{report}.log", "ab")
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", __file__, str(path), "--child", allocator, str(todo), str(report)],
        env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def read_report(report):
    """What a process has reported: the row that it writes once it is loaded, or None, and the rows of its tests."""
    if not report.exists():
        return None, []
    rows = [json.loads(line) for line in report.read_text().splitlines() if line.endswith("}")]
    return (rows[0], rows[1:]) if rows else (None, [])


def outcomes_of(rows):
    """The last outcome of each test, failures before all others: a test may fail in several parts."""
    found = {}
    for row in rows:
        known = found.get(row["test"])
        if known is None or (row["outcome"] != "begun" and known["outcome"] != "failed"):
            found[row["test"]] = row
    return found


class Process:
    """A process that runs tests. `stopped` says why it was ended, if it was."""

    def __init__(self, path, allocator, folder):
        self.report = folder / f"{allocator}-{time.monotonic_ns()}.jsonl"
        self.todo = self.report.with_suffix(".todo")
        self.stopped = ""
        self.process = start_child(path, allocator, self.todo, self.report)

    def stop(self, why):
        self.stopped = why
        self.process.kill()
        self.process.wait()

    def loaded(self, until):
        """Waits until the tests can run; returns the row that lists them, or None."""
        until = min(until, time.monotonic() + LOADING_SECONDS)
        while self.process.poll() is None:
            row, _ = read_report(self.report)
            if row is not None:
                return row
            if time.monotonic() > until:
                self.stop("loading took too long")
            select.select([], [], [], 0.1)
        return None

    def run(self, names, until, test_seconds):
        """Runs the tests; returns the outcome of each that was begun."""
        part = self.todo.with_suffix(".part")
        part.write_text("\n".join(names))
        part.replace(self.todo)
        size, changed, limit = -1, time.monotonic(), test_seconds
        while self.process.poll() is None:
            select.select([], [], [], 0.1)
            now = time.monotonic()
            if self.report.stat().st_size != size:
                size, changed = self.report.stat().st_size, now
                _, rows = read_report(self.report)
                limit = test_seconds * (4 if rows and rows[-1].get("compiles") else 1)
            if now > until:
                self.stop("the time was over")
            elif now - changed > limit:
                self.stop(f"took more than {limit:.0f} s")
        found = outcomes_of(read_report(self.report)[1])
        for name, row in list(found.items()):
            if row["outcome"] != "begun":
                continue
            if self.stopped == "the time was over":
                del found[name]  # not its fault
            else:
                why = self.stopped or f"the process ended with {self.process.returncode}"
                found[name] = {**row, "outcome": "failed", "text": why, "seconds": time.monotonic() - changed}
        return found

    def log(self):
        return pathlib.Path(f"{self.report}.log").read_text(errors="replace")[-3000:]


def run_tests(path, allocator, choose, folder, until, test_seconds):
    """Runs the tests that choose(all tests of the file) returns. Returns them, the outcome of each that was begun, and the machine. A
    process that dies or hangs is replaced."""
    tests, results, machine = None, {}, {}
    while tests is None or (any(name not in results for name in tests) and time.monotonic() < until):
        process = Process(path, allocator, folder)
        machine = process.loaded(until)
        if machine is None:
            sys.stderr.write(process.log())
            break
        if tests is None:
            tests = choose(machine["tests"])
        new = process.run([name for name in tests if name not in results], until, test_seconds)
        results.update(new)
        if not new:
            if not process.stopped:
                sys.stderr.write(process.log())
            break
    return tests or [], results, machine or {}


def chosen(every, wanted):
    """The tests to run, in order: the ones that are named, or those of the allocator."""
    if wanted:
        return [test for test in every if test in wanted or test.split(".")[0] in wanted]
    return [test for name in CLASSES for test in every
            if test.startswith(name + ".") and (name not in SOME or SOME[name].search(test.split(".")[1]))]  # fmt: skip


def by_need(tests, earlier):
    """The tests in the order in which an earlier run's rows need them: see --first."""
    rank = {}
    for row in earlier:
        rank.update({name: 0 for name in row.get("not_run", ())})
        for one in row.get("failed", ()):
            if one["listed"] is None:
                rank[one["test"]] = 3 if one["on_pytorchs_allocator"] == "failed" or one.get("alone_on_tarn") == "passed" else 1
    return sorted(tests, key=lambda test: rank.get(test, 2))


def slowest(results, count=5):
    """The tests that took longest, with their seconds."""
    took = sorted(((row.get("seconds", 0), name) for name, row in results.items()), reverse=True)
    return [(name, seconds) for seconds, name in took[:count]]


def rows_of(tests, on_tarn, native, alone, listed, context):
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
                    "alone_on_tarn": alone.get(name, {}).get("outcome", "not run"),
                    "listed": listed.get(name),
                }
                for name, outcome in outcomes.items() if outcome == "failed"
            ],
            "listed_but_passed": [name for name in names if name in listed and outcomes.get(name) == "passed"],
            **context,
        })  # fmt: skip
    return rows


def read_rows(path):
    """The rows of an earlier run; none if there is no such file."""
    if not path or not os.path.exists(path):
        return []
    with open(path) as lines:
        return [json.loads(line) for line in lines if line.startswith("{")]


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
    parser.add_argument("--first")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--test-seconds", type=float, default=20)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.child:
        return child(options.tests, *options.child)
    until = time.monotonic() + options.seconds
    listed = listed_failures((HERE / "README.md").read_text())
    earlier = read_rows(options.first)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # A quarter of the time is for running failures again.
        tests, on_tarn, machine = run_tests(
            options.tests, "tarn", lambda every: by_need(chosen(every, options.only), earlier), folder,
            until - options.seconds / 4, options.test_seconds,
        )  # fmt: skip
        context = {
            "gpu": machine.get("gpu", "none"),
            "torch": machine.get("torch", "unknown"),
            "tests_of": version_of(options.tests),
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "commit": os.environ.get("TARN_COMMIT", "unknown"),
        }
        rows = rows_of(tests, on_tarn, {}, {}, listed, context)
        write(options.json, rows)  # kept if the rest is cut off
        failed = [test for test in tests if on_tarn.get(test, {}).get("outcome") == "failed" and test not in listed]
        if failed:
            _, native, _ = run_tests(options.tests, "native", lambda every: failed, folder, until, options.test_seconds)
            alone = {}
            for test in failed:
                if native.get(test, {}).get("outcome") == "failed":
                    continue
                alone.update(run_tests(options.tests, "tarn", lambda every, it=test: [it], folder, until, options.test_seconds)[1])
            rows = rows_of(tests, on_tarn, native, alone, listed, context)
            write(options.json, rows)
    unlisted = []
    for row in rows:
        print(f"{row['class']}: {row['passed']} passed, {len(row['failed'])} failed, {row['skipped']} skipped, "
              f"{len(row['not_run'])} not run")  # fmt: skip
        for one in row["failed"]:
            why = one["listed"] or "NOT LISTED"
            if one["on_pytorchs_allocator"] == "failed":
                why = "also under PyTorch's allocator"
            elif one["alone_on_tarn"] == "passed":
                why = "passes alone, so other tests of the process disturb it"
            if why == "NOT LISTED":
                unlisted.append(one["test"])
            native_too = "" if one["listed"] else f" (PyTorch's allocator: {one['on_pytorchs_allocator']})"
            print(f"  {one['test']}: {why}: {one['error']}{native_too}")
        for test in row["listed_but_passed"]:
            print(f"  {test}: listed, but it passed")
    if on_tarn:
        print("slowest: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest(on_tarn)))
    if unlisted:
        print(f"FAILED: {len(unlisted)} failures that README.md does not list: {', '.join(unlisted)}")
    if not on_tarn:
        print("FAILED: no test ran")
    return 1 if unlisted or not on_tarn else 0


if __name__ == "__main__":
    sys.exit(main())
