#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Runs tarn with each planted bug and its finder: the random programs of tests/simulation, the policy matrix
# (tests/policy_matrix), or a file of unit tests. This shows that they find such bugs. The unchanged tree then runs the same
# tests and must pass.
#
#   run.py [--short] [--only TEXT] [--jobs N] [--seeds N] [--list]
#   run.py --random N [--seed S] [--from K]    N random changes of random lines instead (random_changes.py). What runs over the same
#                                              headers have found is kept in build/mutants/random.json, and is not looked for again
#
# Exit status: 0 all found and the tree passes, 1 otherwise, 2 a planted bug is out of date: its text is missing, or does
# not compile. The last line is machine-readable.
import argparse
import collections
import concurrent.futures
import functools
import hashlib
import itertools
import json
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
import together  # noqa: E402
from planted import PLANTED  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
INCLUDE = ROOT / "include"
WORK = ROOT / "build" / "mutants"
PATIENCE = 20  # seconds without a step, after which a planted bug counts as found by its hang
TIME_LIMIT = 150  # seconds of processor time for the seeds of one bug, since the machine may have other work
WAIT_LIMIT = 5 * TIME_LIMIT  # seconds until it counts as a hang
LEAST_WAIT = 60  # the same of a file of unit tests, or 10 times what it takes without a bug
MAIN_OBJECT = WORK / "catch_main.o"  # built once
MAIN_LOCK = threading.Lock()

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


say = functools.partial(print, flush=True)


class OutOfDate(Exception):
    pass


class DoesNotCompile(SystemExit):
    """A finder that no bug prevents from compiling. It may need a library, or definitions of a build of its own."""


def out_of_date(mutant):
    """Why a bug is out of date, or "": the text that it replaces must be in its header exactly once."""
    for file, old, _ in changes(mutant):
        times = (INCLUDE / "tarn" / file).read_text().count(old)
        if times != 1:
            return f"'{mutant.name}': its text stands {times} times in include/tarn/{file}, not once"
    return ""


def changes(mutant):
    """[(file, old, new)]"""
    return [(mutant.file, mutant.old, mutant.new), *((mutant.file, *change) for change in mutant.more), *mutant.elsewhere]


COMPILER = os.environ.get("CXX") or ("clang++" if shutil.which("clang++") else "g++")  # clang++ takes half of the time
# The sources of each finder, and its number of seeds.
FINDERS = {
    "simulation": ["tests/simulation/main.cpp"],
    "policies": [f"tests/policy_matrix/{name}.cpp" for name in ("main", "checks", "stacks_short")],
}
POLICY_SEEDS = 20
# Each host allocation and each driver call of many scenes fails once. They take minutes, so only changes that nothing else finds reach them.
SCENES = [f"tests/faults/{name}.cpp" for name in ("host_faults", "scenes_owner", "scenes_policy", "scenes_pool", "scenes_source", "scenes_across",
                                                  "scenes_report", "scenes_sleep", "scenes_sharing")]
FAULTS = {"host faults": ["tests/faults/host_memory.cpp", *SCENES], "driver faults": ["tests/faults/driver_calls.cpp", *SCENES]}
FAULT_ARGUMENTS = {"host faults": [], "driver faults": ["--few-calls"]}
FAULT_LIMIT = 600


def sources_of(finder):
    return (FINDERS | FAULTS).get(finder, [finder])


def catch_library():
    """What a file of unit tests links. Catch2 2 has only headers: its main() is built once."""
    if not pathlib.Path("/usr/include/catch2/catch.hpp").exists():
        return ["-lCatch2Main", "-lCatch2"]
    with MAIN_LOCK:
        if not MAIN_OBJECT.exists():
            MAIN_OBJECT.parent.mkdir(parents=True, exist_ok=True)
            main = [COMPILER, "-std=c++20", "-O0", "-w", "-DTARN_CATCH2=2", f"-I{INCLUDE}", f"-I{ROOT / 'tests'}"]
            subprocess.run([*main, "-c", str(ROOT / "tests/catch_main.cpp"), "-o", str(MAIN_OBJECT)], check=True)
    return [str(MAIN_OBJECT)]


def compiled(tree, program, finder, optimisation, *options):
    """The errors of building a finder over a tree of headers; "" if there are none."""
    command = [COMPILER, "-std=c++20", optimisation, "-w", "-pthread", "-DTARN_CHECK_LOCKS=1", *options]
    command += [f"-I{ROOT / 'tests/simulation/hooked'}"] if finder == "simulation" else []
    command += [f"-I{tree}"] + ([] if finder == "simulation" else [f"-I{ROOT / 'tests'}"])
    command += ["-DTARN_MATRIX_SHORT"] if finder == "policies" else []
    command += ["-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"]  # Thrust's default is CUDA's, which only nvcc compiles
    command += [str(ROOT / source) for source in sources_of(finder)] + ([] if finder in FINDERS | FAULTS else catch_library())
    done = subprocess.run([*command, "-ldl", "-o", str(program)], capture_output=True, text=True, errors="replace")
    return "" if done.returncode == 0 else done.stderr or "the compiler failed"


class Programs:
    """The finders over one copy of the headers that has many bugs (together.py), each built once. A bug that does not compile there
    is left out from then on. Unit tests run once without a bug: `seconds` says how long that takes, and `failing` what failed."""

    def __init__(self, bugs, optimisation):
        self.bugs, self.optimisation = {n: changes(m) for n, m in bugs.items()}, optimisation
        self.lock, self.built, self.copies = threading.Lock(), {}, 0
        self.building = collections.defaultdict(threading.Lock)
        self.seconds, self.failing = {}, {}
        self.copy()

    def copy(self):
        self.copies += 1
        self.tree = WORK / f"together{self.copies}"
        self.put = together.put_together(self.bugs, INCLUDE, self.tree)

    def build(self, finder):
        optimisation = self.optimisation if finder in FINDERS else "-O0"
        program = WORK / ("together_" + re.sub(r"\W", "_", finder))
        while True:
            tree = self.tree
            all_errors = "-ferror-limit=0" if "clang" in COMPILER else "-fmax-errors=0"
            errors = compiled(tree, program, finder, optimisation, all_errors, "-include", str(tree / "planted.hpp"))
            if not errors:
                break
            blamed = together.blamed(errors, tree)
            if not blamed:
                raise DoesNotCompile(f"{finder} does not compile with the planted bugs together:\n{errors[:2000]}")
            with self.lock:
                if blamed & self.bugs.keys():
                    self.bugs = {n: c for n, c in self.bugs.items() if n not in blamed}
                    self.copy()
        self.built[finder] = program
        if finder not in FINDERS:
            start = time.monotonic()
            status, said = run(program, finder, 0)
            self.seconds[finder] = time.monotonic() - start
            if status != 0:
                self.failing[finder] = failed_test_in(said)

    def program(self, number, finder):
        return self.built.get(finder) if number in self.put else None

    def build_once(self, finder):
        """Builds a finder that need not compile here: that is noted in `failing`."""
        with self.building[finder]:
            if finder in self.built or finder in self.failing:
                return
            try:
                self.build(finder)
            except DoesNotCompile:
                self.failing[finder] = "it does not compile here"

    def wait(self, finder):
        return max(LEAST_WAIT, 10 * self.seconds[finder]) if finder in self.seconds else WAIT_LIMIT


def run_limited(command, limit=TIME_LIMIT, bug=0, wait=WAIT_LIMIT):
    """(exit status, output); the status is None where a limit was exceeded."""

    def limit_itself():
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))

    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=wait,
            preexec_fn=limit_itself,
            env=os.environ | {"TARN_PLANTED": str(bug)},
        )
    except subprocess.TimeoutExpired:
        return None, ""
    # The random programs run in a process of their own; its parent reports the signal.
    exceeded = done.returncode in (-signal.SIGXCPU, -signal.SIGKILL) or "crashed: CPU time limit exceeded" in done.stdout
    return (None, "") if exceeded else (done.returncode, done.stdout)


def failed_test_in(said):
    """The title of the first test case or the first scene that failed."""
    found = re.search(r"^-+\n(.+?)\n-+\n|^FAILED (.*)$", said, re.M | re.S if "-----" in said else re.M)
    return " ".join((found.group(1) or found.group(2)).split())[:200] if found else said.strip()[:200]


def run(program, finder, seeds, jobs=1, limit=TIME_LIMIT, profile="", bug=0, wait=WAIT_LIMIT):
    """(1 if a test fails, crashes or hangs, else 0, or None on timeout of random programs; the output)"""
    if finder not in FINDERS:
        status, said = run_limited([str(program), *FAULT_ARGUMENTS.get(finder, ["--abort"])], FAULT_LIMIT if finder in FAULTS else limit, bug, wait)
        return (1, "hangs") if status is None else (int(status != 0), said)
    command = [str(program), "--seeds", f"1..{seeds}", "--jobs", str(jobs)]
    command += ["--patience", str(PATIENCE), "--no-shrink"] + (["--profile", profile] if profile else [])
    return run_limited(command, limit, bug, wait)


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


def look_for(mutant, number, options, programs=None):
    """(exit status, output, operations, seconds of building, seconds of running) for one planted bug."""
    start, place = time.monotonic(), WORK / str(number)
    program = programs and programs.program(number, mutant.finder)
    try:
        if program is None:
            if why := out_of_date(mutant):
                raise OutOfDate(why)
            shutil.copytree(INCLUDE, place, dirs_exist_ok=True)
            for file, old, new in changes(mutant):
                path = place / "tarn" / file
                path.write_text(path.read_text().replace(old, new))
            if errors := compiled(place, place / "program", mutant.finder, "-O0"):
                lines = [line for line in errors.splitlines() if "error" in line] or errors.splitlines()
                raise OutOfDate(f"'{mutant.name}': does not compile:\n" + "\n".join(lines[:5]))
        built = time.monotonic()
        seeds = POLICY_SEEDS if mutant.finder == "policies" else options.seeds
        bug = 0 if program is None else number
        wait = programs.wait(mutant.finder) if program else WAIT_LIMIT
        status, said = run(program or place / "program", mutant.finder, seeds, 1, TIME_LIMIT, mutant.profile, bug, wait)
        return status, said, operations_in(said), built - start, time.monotonic() - built
    finally:
        shutil.rmtree(place, ignore_errors=True)


def passes_as_it_is(options, programs):
    """The programs with all planted bugs switched off."""
    for finder, program in sorted(programs.built.items()):
        seeds = POLICY_SEEDS if finder == "policies" else options.seeds
        status, said = run(program, finder, seeds, options.jobs, 1800)
        if status != 0:
            print(f"{finder}: it exceeded the time limit" if status is None else said if finder in FINDERS else f"{finder}: {failed_test_in(said)}")
            return False
    return True


# Survivors of the random changes that no test can find: header, old line, new line, reason; then an empty line.
EXPLAINED = pathlib.Path(__file__).resolve().parent / "explained.txt"


def explained():
    """{(header, old line, new line): reason}"""
    entries = (e.strip().split("\n", 3) for e in EXPLAINED.read_text().split("\n\n") if e.strip() and e[0] != "#")
    return {(e[0], e[1].removeprefix("- "), e[2].removeprefix("+ ")): e[3] for e in entries}


def finders_of(mutant, reached):
    """Most are found by the tests that name the header most. What these do not find, all other unit tests try."""
    tests = [t for t in random_changes.tests_that_name(mutant.file) if mutant.file in random_changes.includes(ROOT / t)]
    return [*tests[:4], *(name for name in FINDERS if mutant.file in reached[name]), *tests[4:]]


def other_finders_of(mutant, number, named, programs):
    """The programs of faults and all other unit tests that include the header, each built when it is needed; none for a change that has
    a program of its own. In the order of their time."""
    for finder in ["host faults", *random_changes.unit_tests(mutant), "driver faults"] if programs else ():
        if finder in named or mutant.file not in random_changes.includes(*(ROOT / source for source in sources_of(finder))):
            continue
        programs.build_once(finder)
        if number not in programs.put:
            return
        yield finder


def found_by(mutant, number, options, finders, programs):
    """Which of the finders finds a change, as text; "" if none does. @throws OutOfDate  it does not compile"""
    for finder in finders:
        if programs and finder in programs.failing:
            continue
        status, said, *_ = look_for(mutant._replace(finder=finder), number, options, programs)
        if status not in (0, None):
            return f"{finder}: {found_in(said)[0] if finder in FINDERS else failed_test_in(said)}"
    return ""


def digest(paths):
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()


class Findings:
    """What runs over the same headers have found, so that a run that was stopped goes on, and one after new tests tries only what
    survived. What a test found that has changed since, or is gone, does not count."""

    FILE = WORK / "random.json"
    NONE_COMPILED = "does not compile"

    def __init__(self):
        self.headers, self.lock = digest(sorted(INCLUDE.rglob("*.hpp"))), threading.Lock()
        self.entries = json.loads(self.FILE.read_text()) if self.FILE.exists() else {}

    def key(self, mutant):
        return hashlib.sha256("\n".join([self.headers, mutant.file, mutant.old, mutant.new]).encode()).hexdigest()

    def of(self, mutant):
        """What found a change, or NONE_COMPILED; null where that is not known."""
        found, tests = self.entries.get(self.key(mutant), ("", ""))
        return found if found and tests == self.tests_of(found) else None

    def tests_of(self, found):
        sources = [ROOT / source for source in sources_of(found.split(": ")[0])] if found != self.NONE_COMPILED else []
        return digest(source for source in sources if source.exists())

    def add(self, mutant, found):
        with self.lock:
            self.entries[self.key(mutant)] = found, self.tests_of(found)
            part = self.FILE.with_suffix(".part")
            part.write_text(json.dumps(self.entries))
            part.rename(self.FILE)


def run_random(options):
    reached = {
        name: random_changes.includes(*(ROOT / s for s in sources), folders=(f"-I{ROOT / 'tests/simulation/hooked'}",) * (name == "simulation"))
        for name, sources in FINDERS.items()
    }
    reasons, findings = explained(), Findings()

    def settled(mutant, old, new):
        """What is known of a change without a run: what found it, or "" where a reason says that nothing can."""
        return "" if (mutant.file, old, new) in reasons else findings.of(mutant)

    tries = {}  # the draws of each number that may compile
    for number in range(options.first, options.random + 1):
        draws = list(itertools.islice(random_changes.draws(options.seed, number), 20))
        tries[number] = [(i, *draw) for i, draw in enumerate(draws) if findings.of(draw[0]) != findings.NONE_COMPILED]
    first = {number: those[0][1:] for number, those in tries.items() if settled(those[0][1], *those[0][3:]) is None}
    count = {"found": 0, "explained": 0, "invalid": 0}
    usual = {n: m for n, (m, *_) in first.items() if not together.is_constant((INCLUDE / "tarn" / m.file).read_text(), m.old, m.new)}
    programs = Programs(usual, "-O1")

    def search(number, by_all=True):
        """(bug, kind, old line, new line, what found it, how many did not compile). By the tests that name the header, or by all others:
        those come after a first pass over all numbers, since a survivor takes minutes."""
        for at, (invalid, mutant, kind, old, new) in enumerate(tries[number]):
            try:
                found = settled(mutant, old, new)
                if found == findings.NONE_COMPILED:
                    continue
                if found is None:
                    own = programs if number in usual and at == 0 else None
                    named = finders_of(mutant, reached)
                    finders = other_finders_of(mutant, number, named, own) if by_all else named
                    found = found_by(mutant, number, options, finders, own)
                    if found:
                        findings.add(mutant, found)
                return mutant, kind, old, new, found, invalid
            except OutOfDate:
                findings.add(mutant, findings.NONE_COMPILED)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(programs.build, dict.fromkeys([*FINDERS, *(f for m, *_ in first.values() for f in finders_of(m, reached))])))
        left = [number for number, result in zip(tries, pool.map(lambda number: search(number, by_all=False), tries)) if not result[4]]
        say(f"not found by the tests that name the header, or explained: {', '.join(map(str, left)) or 'none'}")
        for number, (mutant, kind, old, new, found, invalid) in zip(tries, pool.map(search, tries)):
            reason = reasons.get((mutant.file, old, new))
            count["invalid"] += invalid
            count["found"] += bool(found)
            count["explained"] += bool(not found and reason)
            say(f"{number:4} {mutant.name}  {kind}  {found or (f'explained: {reason}' if reason else 'SURVIVED')}")
            if not found:
                say(f"     - {old}\n     + {new}")
    survived = len(tries) - count["found"] - count["explained"]
    for finder, test in programs.failing.items():
        say(f"not used, since it fails without a change too: {finder}: {test}")
    say(f"evidence: random_mutants n={len(tries)} {' '.join(f'{k}={v}' for k, v in count.items())} survived={survived} seed={options.seed}")
    return int(20 * survived > len(tries))


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
    parser.add_argument("-v", action="store_true", help="print what was found")
    options = parser.parse_args()
    options.seeds = options.seeds or (300 if options.random else 1500)
    return options


def main():
    options = parse()
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
    planted = len(chosen)
    found, last_seed, last_promise, stale = 0, 0, None, 0
    tried = {mutant.name for _, mutant in chosen}
    for mutant in itertools.chain.from_iterable(PLANTED.values()):  # including those that are not run now
        if mutant.name not in tried and (why := out_of_date(mutant)):
            stale += 1
            say(f"OUT OF DATE: {why}")
    heads = f"{'found by':14} {'profile':9} {'seed':>5} {'step':>5} {'calls':>8} {'built':>6} {'found':>6}"
    say(f"{'planted bug':64} {heads}")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        numbered = {number: mutant for number, (_, mutant) in enumerate(chosen, 1) if not out_of_date(mutant)}
        programs = Programs(numbered, "-O0" if options.short else "-O1")
        list(pool.map(programs.build, dict.fromkeys(mutant.finder for _, mutant in chosen)))
        waiting = [pool.submit(look_for, mutant, number, options, programs) for number, (_, mutant) in enumerate(chosen, 1)]
        for (promise, mutant), result in zip(chosen, waiting):
            if promise != last_promise:
                say(f"{promise}")
                last_promise = promise
            try:
                status, said, operations, built, looked = result.result()
            except OutOfDate as error:
                stale += 1
                say(f"  OUT OF DATE: {error}")
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
            say(f"  {mutant.name:62} {cells} {built:5.1f}s {looked:5.1f}s")
            if options.v and finding:
                say(f"      {finding[:200]}")
    # The short list runs on a tree that has already passed the simulation.
    clean = True if options.short else passes_as_it_is(options, programs)
    if not options.short:
        say(f"without a planted bug: {'passes' if clean else 'FAILS'} the same {options.seeds} seeds")
    say(
        f"{found} of {planted} planted bugs found, the most hidden one by seed {last_seed},"
        f" in {time.monotonic() - start:.0f} s"
    )
    tree = "not_run" if options.short else "pass" if clean else "fail"
    line = (
        f"evidence: mutants planted={planted} found={found} out_of_date={stale} unmutated={tree}"
        f" seeds={options.seeds} last_seed={last_seed} seconds={time.monotonic() - start:.0f}"
    )
    say(line)
    return 2 if stale else 0 if found == planted and clean else 1


if __name__ == "__main__":
    sys.exit(main())
