#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Line and branch coverage of include/tarn, as gcovr adds up what gcov counted: the table, the lines that no test reaches, and whether
each of those is in unreached.txt with its reason.

    report.py ROOT BUILD_FOLDER

Fails if fewer than 95 % of the lines are reached, if an unreached line is not accepted, or if a header was not compiled
and is not listed as such. gcovr counts; this script only compares its counts with the list.
"""
import collections
import json
import pathlib
import subprocess
import sys

LEAST_PER_CENT = 95.0


def read_accepted(path):
    """{(header, text): reasons, one for each time the text may be unreached}, {header: reason} of those not compiled."""
    lines, headers, reason = collections.defaultdict(list), {}, None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            reason = line.strip().strip("[]")
        elif reason is None:
            sys.exit(f"{path}:{number}: a line without a reason above it")
        elif ": " in line:
            header, text = line.strip().split(": ", 1)
            lines[header, text].append(reason)
        else:
            headers[line.strip()] = reason
    return lines, headers


def counted_in(root, build):
    """The files of include/tarn with their lines and branches. gcov derives the count of a branch from those of others. Where a program
    ends while functions run, as those of tests/faults/endings do, it may print -1, a parse error for gcovr, which ignores those here."""
    written = build / "counted.json"
    subprocess.run(["/usr/bin/gcovr", "--root", root, "--filter", ".*include/tarn/", "--exclude-throw-branches", "--gcov-ignore-parse-errors",
                    "--json", written, build], check=True)
    return json.loads(written.read_text())["files"]


def main(root, build):
    here = root / "include" / "tarn"
    accepted, not_compiled = read_accepted(pathlib.Path(__file__).with_name("unreached.txt"))
    seen = collections.Counter()
    problems, rows, unreached = [], [], []
    total = reached = branches = taken = 0
    compiled = set()
    for file in counted_in(root, build):
        header = file["file"].split("include/tarn/")[-1]
        compiled.add(header)
        text = (here / header).read_text().splitlines()
        code = [l for l in file["lines"] if not l.get("gcovr/noncode") and l["line_number"] <= len(text)]
        here_reached = sum(l["count"] > 0 for l in code)
        here_branches = [b for l in code for b in l["branches"]]
        here_taken = sum(b["count"] > 0 for b in here_branches)
        rows.append((header, here_reached, len(code), here_taken, len(here_branches)))
        total, reached = total + len(code), reached + here_reached
        branches, taken = branches + len(here_branches), taken + here_taken
        for line in code:
            if line["count"] > 0:
                continue
            what = (header, text[line["line_number"] - 1].strip())
            seen[what] += 1
            if seen[what] > len(accepted[what]):
                problems.append(f"{header}:{line['line_number']}: no test reaches: {what[1]}")
            else:
                unreached.append((accepted[what][seen[what] - 1], f"{header}:{line['line_number']}: {what[1]}"))
    for header in sorted(h.relative_to(here).as_posix() for h in here.rglob("*.hpp")):
        has_code = header in compiled or "{" in "".join(
            l for l in (here / header).read_text().splitlines(True) if "(" in l and not l.lstrip().startswith("//"))
        if header not in compiled and header not in not_compiled and has_code:
            problems.append(f"{header}: no test of this machine compiles it")

    print(f"{'header':38} {'lines':>13} {'branches':>13}")
    for header, a, b, c, d in sorted(rows):
        print(f"{header:38} {a:6} / {b:4} {c:6} / {d:4}" + ("" if a == b else "   " + str(b - a) + " unreached"))
    print("\nNot reached, and why:")
    for reason in sorted({r for r, _ in unreached}):
        print(f"  {reason}")
        for r, line in unreached:
            if r == reason:
                print(f"    {line}")
    print("Not compiled here, and why:")
    for header, reason in sorted(not_compiled.items()):
        print(f"  {header}: {reason}")
    spare = sorted(f"{h}: {t}" for (h, t), reasons in accepted.items() if len(reasons) > seen[h, t])
    if spare:
        print("These lines are reached now; remove them from the list:")
        for line in spare:
            print(f"  {line}")
    for problem in problems:
        print(problem)
    per_cent = 100.0 * reached / total
    if per_cent < LEAST_PER_CENT:
        problems.append("too few lines")
        print(f"{per_cent:.1f} % of lines are reached; at least {LEAST_PER_CENT} % must be")
    print(f"evidence: coverage lines={reached}/{total} lines_percent={per_cent:.1f} branches={taken}/{branches}"
          f" branches_percent={100.0 * taken / branches:.1f} unreached_accepted={len(unreached)}"
          f" unreached_unexplained={len(problems)}")
    return 1 if problems else 0


sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
