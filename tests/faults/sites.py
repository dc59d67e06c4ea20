#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Compares the driver calls in the library's sources with those that tarn_driver_faults made to fail, and prints a table. A call site that was never made to fail is an error, unless `cannot_fail` below has a reason.
#
#   sites.py ROOT PROGRAM [ARGUMENT...]   runs PROGRAM with ARGUMENTs and --sites, and compares
import os
import pathlib
import re
import subprocess
import sys
import tempfile

folders = ("source", "pool", "policy", "debug", "raii", "transfer", "sharing")

# "file:call": why no scene makes it fail.
cannot_fail = {
    "include/tarn/pool/order/ordering.hpp:destroy_event": "the event of a place that another device's stream has now; nothing depends on it",
}


def calls_of_contract(root):
    """Names of the driver's calls: those of the contract, and those that only CUDA's driver has."""
    text = open(os.path.join(root, "include/tarn/driver/driver.hpp")).read()
    names = re.findall(r"\bCALL\((\w+)\)", text)
    if len(names) < 30:
        sys.exit("sites.py: the calls of the contract were not found")
    return names + ["record_all", "copy_from_device", "set_release_threshold", "current_device", "set_current_device"]


def blank(text, pattern):
    """The text with all matches of the pattern blanked, line numbers kept."""
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.S)


def without_requirements(text):
    """requires (...) { ... } checks whether a call exists; it makes none."""
    at = 0
    while True:
        found = re.compile(r"\brequires\s*(\([^()]*(?:\([^()]*\)[^()]*)*\)\s*)?\{").search(text, at)
        if not found:
            return text
        depth, end = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + re.sub(r"[^\n]", " ", text[found.start() : end]) + text[end:]
        at = end


def sites_of(root):
    """(file, first line, last line, call) of each driver call in the sources."""
    receiver = r"\b(?:driver_|driver|driver\(\)|theirs|there|driver_of_\w+|copying)\s*\.\s*|\bDriver::\s*"
    call = re.compile(r"(?:" + receiver + r")(" + "|".join(calls_of_contract(root)) + r")\(")
    # Anything else with a method of such a name must also be listed: `order` calls the driver on its callers' behalf.
    strict = re.compile(r"(?<!\border)[.>]\s*(" + "|".join(n for n in calls_of_contract(root) if "_" in n) + r")\(")
    sites = []
    for folder in folders:
        for header in sorted(pathlib.Path(root, "include/tarn", folder).rglob("*.hpp")):
            path = header.relative_to(root).as_posix()
            text = header.read_text()
            text = blank(blank(text, r"//[^\n]*"), r'"(?:[^"\\\n]|\\.)*"')
            text = without_requirements(text)
            found = {m.start(1): m for m in call.finditer(text)}
            for m in strict.finditer(text):
                if m.start(1) not in found:
                    sys.exit(f"sites.py: {path}:{text.count(chr(10), 0, m.start()) + 1}: {m.group(1)} is called on something "
                             "that is not known as a driver; name it driver, or teach sites.py")
            for start, m in found.items():
                depth, end = 1, m.end()
                while depth:
                    depth += {"(": 1, ")": -1}.get(text[end], 0)
                    end += 1
                sites.append((path, text.count("\n", 0, m.start()) + 1, text.count("\n", 0, end) + 1, m.group(1)))
    return sites


def main():
    root, program, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    sites = sites_of(root)
    with tempfile.NamedTemporaryFile(mode="r") as report:
        ran = subprocess.run([program, *arguments, "--sites", report.name])
        failed = {}
        for line in report:
            where, call, times = line.rsplit(" ", 2)
            path, number = where.rsplit(":", 1)
            path = path[path.index("include/tarn/") :] if "include/tarn/" in path else path
            failed.setdefault((path, call), []).append((int(number), int(times)))
    missed = []
    print(f"\n{'driver call in the sources':<58} {'made to fail':>12}")
    for path, first, last, call in sites:
        times = sum(t for line, t in failed.get((path, call), []) if first <= line <= last)
        print(f"{path[len('include/tarn/'):]}:{first:<5} {call:<24}".ljust(58), f"{times:>12}")
        if times == 0 and f"{path}:{call}" not in cannot_fail:
            missed.append(f"{path}:{first} {call}")
    for reason in sorted(cannot_fail.items()):
        print("no scene: %s: %s" % reason)
    for site in missed:
        print(f"FAILED: never made to fail: {site}")
    struck = len(sites) - len(missed)
    print(f"{struck} of {len(sites)} call sites made to fail ({100 * struck / len(sites):.0f} %)")
    print(f"evidence: driver_fault_sites sites={len(sites)} struck={struck} missed={len(missed)} status={ran.returncode}")
    return 1 if missed or ran.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
