#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Builds tarn with each planted bug and runs its finder: the random programs of tests/simulation, the policy matrix
# (tests/policy_matrix), or a file of unit tests. This shows that they find such bugs. The unchanged tree then runs the same
# tests and must pass.
#
#   run.py [--short] [--only TEXT] [--jobs N] [--seeds N] [--list] [--record]
#   run.py --random N [--seed S] [--from K]    N random changes of random lines instead (random_changes.py)
#
# Exit status: 0 all found and the tree passes, 1 otherwise, 2 a planted bug is out of date: its text is missing, or does
# not compile. The last line is machine-readable.
import argparse
import concurrent.futures
import itertools
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
import random_changes  # noqa: E402
from planted import PLANTED  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
INCLUDE = ROOT / "include"
WORK = ROOT / "build" / "mutants"
PATIENCE = 20  # seconds without a step, after which a planted bug counts as found by its hang
TIME_LIMIT = 150  # seconds of processor time for the seeds of one bug, since the machine may have other work
WAIT_LIMIT = 4 * TIME_LIMIT  # seconds until it counts as a hang
MAIN_OBJECT = WORK / "catch_main.o"  # built once
MAIN_LOCK = threading.Lock()
SOON = 50  # seeds that find most bugs: up to there compile time dominates (-O0), beyond it run time (-O1)

# What found the bug, by the output. The first match counts; anything else was found by the model.
WATCHERS = (
    ("hang", r"^hangs:|waits forever"),
    ("deadlock", r"^deadlock:"),
    ("lock rule", r"while it holds the hot lock"),
    ("crash", r"^crashed:"),
    (
        "order checker",
        r"not ordered after|to freed bytes|of freed bytes|allocated twice|that no block owns|in use|destroyed stream"
        r"|captured",
    ),
    ("contents", r"holds 0x|owner's (last )?byte"),
    ("leak", r"^left over|still holds|after all was freed and trimmed"),
    ("misuse", r"^misuse reported"),
    ("pin", r"\bpin|\bpinned\b"),
    ("driver", r" failed: | threw: "),
)


class OutOfDate(Exception):
    pass


def check_current(mutant):
    """The text that a bug replaces must be in its header exactly once."""
    for file, old, _ in changes(mutant):
        times = (INCLUDE / "tarn" / file).read_text().count(old)
        if times != 1:
            raise OutOfDate(f"its text stands {times} times in include/tarn/{file}, not once")


def changes(mutant):
    """(file, old, new)"""
    return ((mutant.file, mutant.old, mutant.new), *((mutant.file, *change) for change in mutant.more), *mutant.elsewhere)


def plant(mutant, tree):
    """Copies the headers and changes one of them."""
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(INCLUDE, tree)
    if mutant is None:
        return
    check_current(mutant)
    for file, old, new in changes(mutant):
        path = tree / "tarn" / file
        path.write_text(path.read_text().replace(old, new))


COMPILER = os.environ.get("CXX", "g++")
# The sources of each finder, and its number of seeds.
FINDERS = {
    "simulation": ["tests/simulation/main.cpp"],
    "policies": [f"tests/policy_matrix/{name}.cpp" for name in ("main", "checks", "stacks_short")],
}
POLICY_SEEDS = 20


def build(tree, program, optimisation, finder="simulation"):
    command = [COMPILER, "-std=c++20", optimisation, "-w", "-pthread", "-DTARN_CHECK_LOCKS=1"]
    command += [f"-I{ROOT / 'tests'}", "-DTARN_MATRIX_SHORT"] if finder == "policies" else []
    command += [f"-I{ROOT / 'tests/simulation/hooked'}"] if finder == "simulation" else []
    command += [f"-I{tree}"]
    command += [str(ROOT / source) for source in FINDERS[finder]] + ["-o", str(program), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise OutOfDate("does not compile:\n" + "\n".join(lines[:5]))


def build_tests(tree, finder, program):
    """A file of unit tests over the tree, with its own main()."""
    command = [COMPILER, "-std=c++20", "-O0", "-w", "-pthread", "-DTARN_CHECK_LOCKS=1", f"-I{tree}", f"-I{ROOT / 'tests'}"]
    header_only = pathlib.Path("/usr/include/catch2/catch.hpp").exists()  # Catch2 2
    libraries = [] if header_only else ["-lCatch2Main", "-lCatch2"]
    if header_only:
        with MAIN_LOCK:
            if not MAIN_OBJECT.exists():
                MAIN_OBJECT.parent.mkdir(parents=True, exist_ok=True)
                main = [command[0], "-std=c++20", "-O0", "-w", "-DTARN_CATCH2=2", f"-I{INCLUDE}", f"-I{ROOT / 'tests'}"]
                main += ["-c", str(ROOT / "tests/catch_main.cpp")]
                subprocess.run([*main, "-o", str(MAIN_OBJECT)], check=True)
        libraries = [str(MAIN_OBJECT)]
    done = subprocess.run([*command, str(ROOT / finder), *libraries, "-ldl", "-o", str(program)], capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise OutOfDate("does not compile:\n" + "\n".join(lines[:5]))


def run_limited(command, limit=TIME_LIMIT):
    """(exit status, output); the status is None where a limit was exceeded."""

    def limit_itself():
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))

    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=WAIT_LIMIT + limit, preexec_fn=limit_itself
        )
    except subprocess.TimeoutExpired:
        return None, ""
    # The random programs run in a process of their own; its parent reports the signal.
    exceeded = done.returncode in (-signal.SIGXCPU, -signal.SIGKILL) or "crashed: CPU time limit exceeded" in done.stdout
    return (None, "") if exceeded else (done.returncode, done.stdout)


def run_tests(program):
    """(1 if a test fails, crashes or hangs, else 0; the output)"""
    status, said = run_limited([str(program), "--abort"])
    return (1, "hangs") if status is None else (int(status != 0), said)


def failed_test_in(said):
    """The title of the first test case that failed."""
    found = re.search(r"^-+\n(.+?)\n-+\n", said, re.M | re.S)
    return " ".join(found.group(1).split()) if found else said.strip()[:200]


def run(program, first, last, jobs=1, limit=TIME_LIMIT, profile=""):
    """(exit status, output); the status is None on timeout."""
    command = [str(program), "--seeds", f"{first}..{last}", "--jobs", str(jobs)]
    command += ["--patience", str(PATIENCE), "--no-shrink"] + (["--profile", profile] if profile else [])
    return run_limited(command, limit)


def found_in(said):
    """(what found it, seed, profile, step, first finding)"""
    first = re.search(r"^FOUND with seed (\d+), profile (\w+), (.*):$", said, re.M)
    lines = said[first.end() :].strip().splitlines() if first else []
    finding = lines[0] if lines else ""
    who = next((name for name, pattern in WATCHERS if re.search(pattern, finding)), "model")
    where = first.group(3).replace("at step ", "").replace("after the last step", "end") if first else "?"
    return (
        who,
        int(first.group(1)) if first else 0,
        first.group(2) if first else "?",
        where,
        finding,
    )


def operations_in(said):
    found = re.search(r"^evidence: simulation .*\boperations=(\d+)", said, re.M)
    return int(found.group(1)) if found else 0


def look_for(mutant, number, options):
    """(exit status, output, seconds of building, seconds of running) for one planted bug."""
    place = WORK / str(number)
    tree, program = place / "include", place / "simulation"
    seconds = {"building": 0.0, "looking": 0.0}

    def timed(what, act, *arguments):
        start = time.monotonic()
        try:
            return act(*arguments)
        finally:
            seconds[what] += time.monotonic() - start

    try:
        plant(mutant, tree)
        if mutant.finder not in FINDERS:
            timed("building", build_tests, tree, mutant.finder, program)
            status, said = timed("looking", run_tests, program)
            return status, said, 0, seconds["building"], seconds["looking"]
        timed("building", build, tree, program, "-O0", mutant.finder)
        seeds = POLICY_SEEDS if mutant.finder == "policies" else min(SOON, options.seeds)
        status, said = timed("looking", run, program, 1, seeds, 1, TIME_LIMIT, mutant.profile)
        operations = operations_in(said)
        if status == 0 and options.seeds > SOON and mutant.finder == "simulation":
            timed("building", build, tree, program, "-O1")
            status, said = timed("looking", run, program, SOON + 1, options.seeds, 1, TIME_LIMIT, mutant.profile)
            operations += operations_in(said)
    except OutOfDate as error:
        raise OutOfDate(f"'{mutant.name}': {error}") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return status, said, operations, seconds["building"], seconds["looking"]


def passes_as_it_is(options, finders):
    """The tree without planted bugs, built in the same ways."""
    place = WORK / "none"
    tree, program = place / "include", place / "simulation"
    plant(None, tree)
    for finder in sorted(finders - FINDERS.keys()):
        build_tests(tree, finder, program)
        status, said = run_tests(program)
        if status != 0:
            print(f"{finder}: {failed_test_in(said)}")
            return False
    runs = []
    if "policies" in finders:
        runs.append(("policies", "-O0", 1, POLICY_SEEDS))
    if "simulation" in finders:
        runs.append(("simulation", "-O0", 1, min(SOON, options.seeds)))
        runs.append(("simulation", "-O1", SOON + 1, options.seeds))
    for finder, optimisation, first, last in runs:
        if first > last:
            continue
        build(tree, program, optimisation, finder)
        status, said = run(program, first, last, options.jobs, 1800)
        if status != 0:
            print(said or f"{finder}: it exceeded the time limit")
            return False
    shutil.rmtree(place, ignore_errors=True)
    return True


# Survivors of the random changes that no test can find: header, old line, new line, reason; then an empty line.
EXPLAINED = pathlib.Path(__file__).resolve().parent / "explained.txt"


def explained():
    """{(header, old line, new line): reason}"""
    entries = (e.strip().split("\n", 3) for e in EXPLAINED.read_text().split("\n\n") if e.strip() and e[0] != "#")
    return {(e[0], e[1].removeprefix("- "), e[2].removeprefix("+ ")): e[3] for e in entries}


def found_by(mutant, number, options, reached):
    """What finds a change, as text; "" if nothing does. @throws OutOfDate  it does not compile"""
    tests = [t for t in random_changes.tests_that_name(mutant.file) if mutant.file in random_changes.includes(ROOT / t)]
    programs = [name for name in FINDERS if mutant.file in reached[name]]
    for finder in [*tests[:4], *programs, *tests[4:]]:  # most are found by the tests that name the header most
        status, said, *_ = look_for(mutant._replace(finder=finder), number, options)
        if status not in (0, None):
            return f"{finder}: {found_in(said)[0] if finder in FINDERS else failed_test_in(said)}"
    return ""


def search_random_change(number, options, reached):
    """(bug, kind, old line, new line, what found it, how many did not compile, seconds)"""
    start = time.monotonic()
    for invalid, (mutant, kind, old, new) in enumerate(random_changes.draws(options.seed, number)):
        try:
            found = found_by(mutant, number, options, reached)
        except OutOfDate:
            continue
        return mutant, kind, old, new, found, invalid, time.monotonic() - start


def run_random(options):
    reached = {
        name: random_changes.includes(*(ROOT / s for s in sources), folders=[f"-I{ROOT / 'tests/simulation/hooked'}"] * (name == "simulation"))
        for name, sources in FINDERS.items()
    }
    reasons = explained()
    numbers = range(options.first, options.random + 1)
    count = {"found": 0, "explained": 0, "invalid": 0}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(search_random_change, number, options, reached) for number in numbers]
        for number, result in zip(numbers, waiting):
            mutant, kind, old, new, found, invalid, seconds = result.result()
            reason = reasons.get((mutant.file, old, new))
            count["invalid"] += invalid
            count["found"] += bool(found)
            count["explained"] += bool(not found and reason)
            print(f"{number:4} {mutant.name}  {kind}  {found or (f'explained: {reason}' if reason else 'SURVIVED')}  {seconds:.0f} s", flush=True)
            if not found:
                print(f"     - {old}\n     + {new}", flush=True)
    survived = len(numbers) - count["found"] - count["explained"]
    print(f"evidence: random_mutants n={len(numbers)} {' '.join(f'{k}={v}' for k, v in count.items())} survived={survived} seed={options.seed}")
    return int(20 * survived > len(numbers))


class Record:
    """The results of one commit in a file of tests/evidence/: a run that is started again leaves out what was found before."""

    def __init__(self, commit):
        folder = ROOT / "tests" / "evidence"
        earlier = list(folder.glob(f"mutants_*_{commit}.txt"))
        self.path = earlier[0] if earlier else folder / f"mutants_{time.strftime('%Y-%m-%d')}_{commit}.txt"
        self.found = set()
        if earlier:
            self.found.update(re.findall(r"^found +\d+ s  (.*?)  by ", self.path.read_text(), re.M))
            return
        folder.mkdir(exist_ok=True)
        cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
        self.note(f"# ./dev mutants --record: commit {commit}, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} x {cpu.group(1) if cpu else 'unknown'}")

    def note(self, line):
        with open(self.path, "a") as file:
            file.write(line + "\n")


def record_of_this_commit():
    """None where the tree is not what the commit has."""

    def git(*arguments):
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()

    commit = git("rev-parse", "--short", "HEAD")
    if commit and not git("status", "--porcelain", "--", "include", "tests", ":!tests/evidence"):
        return Record(commit)
    print("nothing is recorded: include/ or tests/ differs from the commit that the record would name")
    return None


def parse():
    parser = argparse.ArgumentParser(description="Plants bugs and lets the random programs find them.")
    parser.add_argument("--short", action="store_true", help="a few planted bugs of different promises")
    parser.add_argument("--only", default="", metavar="TEXT", help="the planted bugs whose names match this regular expression")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), metavar="N", help="built at once (2)")
    parser.add_argument("--seeds", type=int, metavar="N", help="programs tried on each (1500, or 300 on a random change)")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="make N random changes of random lines instead")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of the random changes (1)")
    parser.add_argument("--from", type=int, default=1, dest="first", metavar="K", help="go on at the Kth random change")
    parser.add_argument("--list", action="store_true", help="list the planted bugs and stop")
    parser.add_argument("--record", action="store_true", help="keep the results in tests/evidence/, and leave out what this commit's record has")
    parser.add_argument("-v", action="store_true", help="print what was found")
    options = parser.parse_args()
    options.seeds = options.seeds or (300 if options.random else 1500)
    return options


def main():
    options = parse()
    # At -O0 clang builds the random programs in 20 s of processor time, g++ in 33. What is recorded is by one compiler.
    global COMPILER
    if options.short and "CXX" not in os.environ and shutil.which("clang++"):
        COMPILER = "clang++"
    if options.random:
        return run_random(options)
    chosen = [
        (promise, mutant)
        for promise, mutants in PLANTED.items()
        for mutant in mutants
        if re.search(options.only, mutant.name) and (mutant.short or not options.short)
    ]
    if options.list:
        for promise, mutant in chosen:
            print(f"{promise}: {mutant.name} ({mutant.file})")
        return 0
    if not chosen:
        print("no planted bug has this name")
        return 2
    start = time.monotonic()
    record = record_of_this_commit() if options.record else None
    planted, finders = len(chosen), {mutant.finder for _, mutant in chosen}
    if record:
        chosen = [(promise, mutant) for promise, mutant in chosen if mutant.name not in record.found]
    found, last_seed, last_promise, out_of_date = planted - len(chosen), 0, None, 0
    tried = {mutant.name for _, mutant in chosen}
    for mutant in itertools.chain.from_iterable(PLANTED.values()):  # including those that are not run now
        if mutant.name in tried:
            continue
        try:
            check_current(mutant)
        except OutOfDate as error:
            out_of_date += 1
            print(f"OUT OF DATE: '{mutant.name}': {error}")
    heads = f"{'found by':14} {'profile':9} {'seed':>5} {'step':>5} {'calls':>8} {'built':>6} {'found':>6}"
    print(f"{'planted bug':64} {heads}")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(look_for, mutant, number, options) for number, (_, mutant) in enumerate(chosen)]
        for (promise, mutant), result in zip(chosen, waiting):
            if promise != last_promise:
                print(f"{promise}")
                last_promise = promise
            try:
                status, said, operations, built, looked = result.result()
            except OutOfDate as error:
                out_of_date += 1
                print(f"  OUT OF DATE: {error}", flush=True)
                if record:
                    record.note(f"OUT OF DATE  {mutant.name}")
                continue
            if status == 1 and mutant.finder not in FINDERS:
                finding = failed_test_in(said)
                found += 1
                cells = f"{'unit test':14} {pathlib.Path(mutant.finder).stem:33}"
            elif status == 1:
                who, seed, profile, step, finding = found_in(said)
                who = "policy matrix" if mutant.finder == "policies" else who
                found += 1
                last_seed = max(last_seed, seed)
                cells = f"{who:14} {profile:9} {seed:5} {step:>5} {operations:8}"
            else:
                finding = ""
                ended = {None: "NOT FOUND in time", 0: "NOT FOUND"}.get(status, f"ENDED WITH {status}")
                cells = f"{ended:45}"
            print(f"  {mutant.name:62} {cells} {built:5.1f}s {looked:5.1f}s", flush=True)
            if record:
                said = "found" if status == 1 else "NOT FOUND"
                record.note(f"{said:9} {built + looked:5.0f} s  {mutant.name}  by {' '.join(cells.split())}")
            if options.v and finding:
                print(f"      {finding[:200]}")
    # The short list runs on a tree that has already passed the simulation.
    clean = True if options.short else passes_as_it_is(options, finders)
    if not options.short:
        print(f"without a planted bug: {'passes' if clean else 'FAILS'} the same {options.seeds} seeds")
    print(
        f"{found} of {planted} planted bugs found, the most hidden one by seed {last_seed},"
        f" in {time.monotonic() - start:.0f} s"
    )
    tree = "not_run" if options.short else "pass" if clean else "fail"
    line = (
        f"evidence: mutants planted={planted} found={found} out_of_date={out_of_date} unmutated={tree}"
        f" seeds={options.seeds} last_seed={last_seed} seconds={time.monotonic() - start:.0f}"
    )
    print(line)
    if record and planted == sum(map(len, PLANTED.values())):
        record.note(line)
    return 2 if out_of_date else 0 if found == planted and clean else 1


if __name__ == "__main__":
    sys.exit(main())
