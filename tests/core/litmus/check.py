# SPDX-License-Identifier: Apache-2.0
"""Runs the litmus tests of owner_lock and combining_lock, all executions that the C++ memory model (RC11) allows of each, by herd7
(Debian's herdtools7). In each test `exists` is a state that must not be reached; it is reached, or the test would show nothing, once
what a line `wrong: TEXT -> OTHER and ...` says is replaced. Exit status 77 where there is no herd7."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

INTERRUPT = """int interrupted = atomic_load_explicit(sent, memory_order_acquire);
  atomic_store_explicit(taken, 1, memory_order_release);"""
STATEMENTS = {"STORE": "atomic_store_explicit(busy, 1, memory_order_relaxed);",
              "LOAD": "int seen = atomic_load_explicit(wanted, memory_order_seq_cst);"}


def reached(text):
    """Whether herd7 finds an execution that ends in the state, or that has a data race."""
    with tempfile.NamedTemporaryFile("w", suffix=".litmus") as file:
        file.write(text)
        file.flush()
        run = subprocess.run(["herd7", "-model", "rc11.cat", file.name], text=True, capture_output=True)
    found = re.search(r"^Observation \S+ (Never|Sometimes|Always) (\d+) (\d+)", run.stdout, re.M)
    if not found or found.group(1) == "Never" and found.group(3) == "0":
        sys.exit(f"herd7 ran nothing of\n{text}\n{run.stdout}{run.stderr}")
    return found.group(1) != "Never" or re.search(r"^Undef", run.stdout, re.M) is not None


def variants(text):
    """The test with an interrupt at one place, for each; without such places the test itself."""
    parts = re.split(r"^ *INTERRUPT\n", text, flags=re.M)
    for place in range(1, max(2, len(parts))):
        yield re.sub(r"\b(STORE|LOAD)$", lambda word: STATEMENTS[word.group()],
                     "".join(parts[:place]) + (f"  {INTERRUPT}\n" if parts[1:] else "") + "".join(parts[place:]), flags=re.M)


def replaced(text, change):
    pairs = dict(pair.split(" -> ") for pair in change.split(" and "))
    head, _, code = text.partition("*)")
    return head + "*)" + re.sub("|".join(map(re.escape, pairs)), lambda word: pairs[word.group()], code)


def main():
    if not shutil.which("herd7"):
        print("SKIPPED: no herd7 (Debian's herdtools7)")
        return 77
    wrong, tests, changes = [], 0, 0
    for path in sorted(pathlib.Path(__file__).parent.glob("*.litmus")):
        text = path.read_text()
        planted = re.findall(r"wrong: (.*?)(?: \*\))?$", text.partition("{")[0], re.M)
        for variant in variants(text):
            tests += 1
            wrong += [f"{path.name}: the state is reached\n{variant}"] if reached(variant) else []
        for change in planted:
            changes += 1
            if not any(map(reached, variants(replaced(text, change)))):
                wrong.append(f"{path.name}: not reached with {change}: the test shows nothing")
        wrong += [] if planted else [f"{path.name}: no line 'wrong:'"]
    print("\n".join(wrong))
    print(f"evidence: litmus tests={tests} changes_found={changes} findings={len(wrong)}")
    return int(bool(wrong) or not tests)


if __name__ == "__main__":
    sys.exit(main())
