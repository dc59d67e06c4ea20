#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of stages.py; bench/gpu.sh says how it is called. Each stage is a process of its own, `run.py --now STAGE`, with its
limit and its log. Standard library only, Python 3.8 or newer."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import machine  # noqa: E402
import stages  # noqa: E402
from machine import fill  # noqa: E402

sys.path.insert(0, str(machine.ROOT / "bench"))
import read_results  # noqa: E402

CANNOT = 77  # the status of a stage whose needs are not here


def say(*words):
    print(*words, flush=True)


def arguments(command, names):
    for word in re.findall(r"(?:\{[^}]*\}|[^\s{])+", command):
        value = eval(word[1:-1], names) if re.fullmatch(r"\{[^}]*\}", word) else fill(word, names)
        yield from map(str, value if isinstance(value, list) else [value])


def commands_of(stage, names):
    """(step, command, changed variables) of what runs here, one after the other: what earlier ones did counts."""
    start = time.monotonic()
    for step in stage["steps"]:
        if not eval(step.get("when", "True"), names):
            if "otherwise" in step:
                say(step["otherwise"])
            continue
        for item in eval(step.get("each", "[None]"), names):
            names.update(item=item, left=names["stage_seconds"] - int(time.monotonic() - start))
            command = list(arguments(step["command"], names))
            if "limit" in step:
                command = ["timeout", str(eval(str(step["limit"]), names)), *command]
            changed = {**stage.get("env", {}), **step.get("env", {})}
            yield step, command, {name: value and fill(value, names) for name, value in changed.items()}


def run_command(step, command, changed, names):
    environ = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
    folder = fill(step.get("folder", "{root}"), names)
    if not step.get("to_new"):
        status = subprocess.run(command, cwd=folder, env=environ, stderr=subprocess.STDOUT).returncode
    else:
        with open(names["new"], "ab") as file:
            status = subprocess.run(command, cwd=folder, env=environ, stdout=file).returncode
            if status:
                file.write(b"\n")  # its last line may have no end
    return status if status >= 0 else 128 - status


def run_stage(stage, names):
    """The stage's status: of the first command that failed, or CANNOT."""
    status, ran = 0, 0
    for need in stage.get("needs", []):
        condition, message = stages.NEEDS.get(need, (f"exists({need})", f"{need} was not built"))
        if not eval(condition, names):
            say(message)
            return stage.get("missing", CANNOT)
    for step, command, changed in commands_of(stage, names):
        title = fill(step["title"], names) if "title" in step else shlex.join(command)
        say("--", title)
        try:
            failure = run_command(step, command, changed, names)
        except OSError as error:
            say(error)
            failure = 127
        ran += 1
        if failure and step.get("may_fail"):
            say(f"ended with {failure}")
        elif failure:
            say(f"FAILED with {failure}: {title}")
            names["failed"] += 1
            # The first command may say that the stage cannot run here. A command's own limit is not the stage's.
            status = status or (1 if failure in (124, 137) or failure == CANNOT and ran > 1 else failure)
            if step.get("must"):
                break
    return status


def dry_run(stage, names):
    for step, command, changed in commands_of(stage, names):
        env = [word for name, value in changed.items() for word in (["-u", name] if value is None else [f"{name}={value}"])]
        into = f" >>{names['new']}" if step.get("to_new") else ""
        before = f"cd {fill(step['folder'], names)} && " if "folder" in step else ""
        say(f"  {before}{shlex.join((['env', *env] if env else []) + command)}{into}")


def rows_of(stage, log, outcome, environment):
    """The evidence in a stage's log, for tests.jsonl: what it prints itself, or what its row says."""
    def count(pattern):
        return len(re.findall(pattern, log, re.M))

    def catch2():
        passed = re.findall(r"^All tests passed \((\d+) assertions in (\d+) test cases\)", log, re.M)
        figures = f"cases={passed[-1][1]} assertions={passed[-1][0]} failed=0" if passed else "failed=1"
        return f"{figures} skipped={log.count('skipped, nothing was tested')}"

    def unittests():
        return f"passed={count('[.][.][.] ok$')} failed={count('^FAILED with')} skipped={count('[.][.][.] skipped|^skipped')}"

    names = {"count": count, "catch2": catch2, "unittests": unittests, "failed": count("^FAILED with"),
             "found": lambda pattern: "".join(re.findall(pattern, log)[-1:])}
    lines = re.findall("^evidence: (.*)", log, re.M) or [fill(stage["evidence"], names)]
    for what, *figures in map(str.split, lines):
        pairs = [figure.partition("=")[::2] for figure in figures]
        yield {"what": what, **{key: int(value) if value.isdigit() else value for key, value in pairs}, "outcome": outcome,
               "devices": 2 if os.environ["TARN_DEVICES"] else 1, **environment}


def keep_evidence(rows):
    """In tests.jsonl, instead of what was there of the same tests on as many devices."""
    path = machine.RESULTS / "tests.jsonl"
    before = read_results.rows_of(path) if path.exists() else []
    kept = {(row["what"], row["devices"]): row for row in [*before, *rows]}
    path.write_text("".join(json.dumps(row) + "\n" for row in kept.values()))


class Run:
    def __init__(self, wanted, total, environment):
        self.wanted, self.total, self.environment, self.outcome, self.start = wanted, total, environment, {}, time.monotonic()
        self.client_seconds = {stage["name"]: stage["seconds"] for stage in stages.STAGES if stage["name"].startswith("clients_")}
        if all(machine.Machine.packed_client(f"tarn_{name}").exists() or not (machine.DEPS / name).is_dir() for name in ("tcnn", "amrex")):
            self.client_seconds["clients_build"] = 60  # nothing takes minutes to compile

    def seconds(self):
        return int(time.monotonic() - self.start)

    def is_wanted(self, stage):
        name = stage["name"]
        return any(name == word or name.startswith(word + "_") for word in self.wanted) if self.wanted else not stage.get("named")

    def share_of(self, name, left):
        """How many of the seconds that are left the next stage of clients may take, so that the ones after it get theirs."""
        needed = sum(seconds for other, seconds in self.client_seconds.items() if other not in self.outcome and
                     self.is_wanted({"name": other, "named": True}) and
                     (other != "clients_torch_tests" or (machine.DEPS / "torch_tests/test/test_cuda.py").exists()))
        return self.client_seconds[name] * left // needed if needed > left else left

    def run(self, stage):
        name, start = stage["name"], self.seconds()
        left = self.total - start + (25 if name == "summary" else 0)
        if name in self.client_seconds:
            left = self.share_of(name, left)
        if left < 5:
            self.outcome[name] = "FAILED: not begun, the time was over"
            return
        seconds, log = min(self.client_seconds.get(name, stage["seconds"]), left), machine.LOGS / f"{name}.log"
        say("==", name)
        with open(log, "wb") as file:
            status = subprocess.run(["timeout", "--kill-after=5", str(seconds), sys.executable, __file__, "--now", name], stdout=file,
                                    stderr=file, env={**os.environ, "TARN_STAGE_SECONDS": str(seconds)}).returncode
        for file in machine.RESULTS.glob("*.new"):  # what was done before a stage was stopped counts; no figures leave the earlier ones
            if re.search(rb"^\{", file.read_bytes(), re.M):
                file.rename(file.with_suffix(""))
            else:
                file.unlink()
        words = {0: "ok", CANNOT: "skipped", 124: f"FAILED: over {seconds} s", 137: f"FAILED: over {seconds} s", -9: f"FAILED: over {seconds} s"}
        outcome = self.outcome[name] = f"{words.get(status, f'FAILED: status {status}')} ({self.seconds() - start} s)"
        say("  ", outcome)
        text = log.read_text(errors="replace")
        if "evidence" in stage and status != CANNOT:
            keep_evidence(rows_of(stage, text, outcome, self.environment))
        if outcome.startswith("FAILED"):
            say("\n".join(f"   | {line}" for line in text.splitlines()[-25:]))


def refuse(message):
    print(message, file=sys.stderr)
    sys.exit(2)


def wanted_of(words):
    wanted = []
    for word in words:
        if word.startswith("-"):
            refuse(f"unknown option {word}")
        if word != "two_gpus" and not any((stage["name"] + "_").startswith(word + "_") for stage in stages.STAGES):
            refuse(f"no stage {word}; bench/gpu.sh --list names them")
        wanted += stages.TWO_GPUS if word == "two_gpus" else [word]
    return wanted


def main(words):
    if words == ["--list"]:
        for stage in stages.STAGES:
            say(f"{stage['name']:26} {stage['seconds']:4} s{'  only where it is named' if stage.get('named') else ''}")
        return 0
    option = words.pop(0) if words[:1] in (["--now"], ["--dry-run"]) else ""
    wanted = wanted_of(words)
    here = machine.Machine(words)
    total = int(os.environ.get("TOTAL_SECONDS") or (1900 if "clients" in wanted else 570))
    run = Run(wanted, total, here.environment() if not option else {})
    chosen = [stage for stage in stages.STAGES if run.is_wanted(stage)]
    if option == "--now":  # this stage alone, without a log or a limit
        return max(run_stage(stage, here.names(stage)) for stage in chosen if stage["name"] == words[0])
    if option == "--dry-run":
        for stage in chosen:
            say(f"== {stage['name']}, at most {stage['seconds']} s")
            dry_run(stage, here.names(stage))
        return 0

    machine.RESULTS.mkdir(exist_ok=True)
    machine.LOGS.mkdir(parents=True, exist_ok=True)
    for name, found in (("PyTorch's allocator: no torch with CUDA in python3", here.torch_dir), ("RMM: not in .gpu-deps", here.rmm_dir),
                       ("DALI's pool: not in .gpu-deps", here.dali_dir)):
        if not found:
            say("skipped", name)
    text = "".join(f"{key}: {value}\n" for key, value in run.environment.items())
    # That in bench/results/ is of the results of one GPU, and of stages other than clients.
    only_clients = wanted and all(word.startswith("clients") for word in wanted)
    ((machine.LOGS if only_clients or os.environ["TARN_DEVICES"] else machine.RESULTS) / "environment.txt").write_text(text)
    say(text.rstrip())
    if not machine.DEPS.is_dir():
        say("no .gpu-deps: what this machine lacks is skipped (bench/gpu.sh prepare, on Debian, gathers it)")
    for stage in chosen:
        run.run(stage)
    say()
    if (machine.RESULTS / "summary.txt").exists():
        say((machine.RESULTS / "summary.txt").read_text())
    table = "".join(f"{name:26} {outcome}\n" for name, outcome in run.outcome.items())
    (machine.RESULTS / "stages.txt").write_text(table)
    counts = [sum(outcome.startswith(word) for outcome in run.outcome.values()) for word in ("ok", "FAILED", "skipped")]
    say(table + "{} ok, {} failed, {} skipped".format(*counts))
    if os.environ.get("OUT"):
        out = pathlib.Path(os.environ["OUT"])
        subprocess.run(["tar", "-czf", str(out / "results.tar.gz"), "-C", str(machine.ROOT / "bench"), "results", "-C", str(machine.BUILD), "logs"])
        for file in (machine.RESULTS / "summary.txt", machine.RESULTS / "stages.txt", machine.LOGS / "build.log"):
            if file.exists():
                shutil.copy(file, out)
    return int(counts[1] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
