#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes single_include/tarn/: tarn.hpp with all of tarn in one file, and the opt-in headers (the interop headers, the simulated
device) on top of it. Before that, writes the fingerprint of all headers' code into version.hpp. Deterministic: the same tree gives the
same bytes. `--check` compares instead of writing."""
import hashlib
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
include = root / "include"
out = root / "single_include" / "tarn"
own = re.compile(r'#include "(tarn/[^"]+)"')


def includes(name):
    """The own headers that a file includes: (header, inside an #if or not)."""
    depth, found = 0, []
    for line in (include / name).read_text().splitlines():
        if re.match(r"#\s*if", line):
            depth += 1
        elif re.match(r"#\s*endif", line):
            depth -= 1
        elif match := own.match(line):
            found.append((match.group(1), depth > 0))
    return found


def closure(name, seen, conditional):
    for header, inside in includes(name):
        if header not in seen and (conditional or not inside):
            seen.add(header)
            closure(header, seen, conditional)
    return seen


def expand(name, seen, lines, always, guarded=frozenset()):
    if name in seen:
        return
    seen.add(name)
    # What is wanted everywhere must not first appear inside an #if.
    for header, inside in includes(name):
        if inside:
            for needed in sorted(closure(header, {header}, True) & always):
                expand(needed, seen, lines, always, guarded)
    guard = "TARN_SINGLE_" + re.sub(r"\W", "_", name.removeprefix("tarn/")).upper()
    lines.append(f"// ---- {name}")
    if name in guarded:
        lines += [f"#ifndef {guard}", f"#define {guard}"]
    for line in (include / name).read_text().splitlines():
        match = own.match(line)
        if match:
            expand(match.group(1), seen, lines, always, guarded)
        elif line not in ("#pragma once", "// SPDX-License-Identifier: Apache-2.0"):
            lines.append(line)
    if name in guarded:
        lines.append(f"#endif  // {guard}")


def fingerprint():
    """Of the code of all headers, without comments and white space: what it was compiled from, for the namespace of version.hpp."""
    code = hashlib.sha256()
    for header in sorted((include / "tarn").rglob("*.hpp")):
        if header.name != "version.hpp":
            text = re.sub(r"""//[^\n]*|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)')""", r"\1", header.read_text())
            code.update("".join(text.split()).encode())
    return code.hexdigest()[:8]


stale = []
version = include / "tarn" / "version.hpp"
numbers = re.search(r"#define TARN_VERSION (\d+)", version.read_text())
major, minor, patch = int(numbers[1]) // 10000, int(numbers[1]) // 100 % 100, int(numbers[1]) % 100
current = re.sub(r"(inline )v\w+", rf"\1v{major}_{minor}_{patch}_{fingerprint()}", version.read_text())
if "--check" not in sys.argv:
    version.write_text(current)
elif version.read_text() != current:
    stale.append("version.hpp")

head = ["// SPDX-License-Identifier: Apache-2.0", "#pragma once"]
core_seen = set()
core = list(head) + ["// tarn in one file, made by .ci/amalgamate.py from include/tarn. Do not edit."]
extras = sorted(p.name for p in (include / "tarn").glob("*.hpp") if p.name not in ("tarn.hpp", "version.hpp", "fwd.hpp"))
always = closure("tarn/tarn.hpp", set(), False)
# What tarn.hpp has inside an #if, and another header needs always, is in both of them, and read once; not what is CUDA's.
partial = {h for h in closure("tarn/tarn.hpp", set(), True) - always if not pathlib.Path(h).name.startswith("cuda_")}
partial &= set().union(*(closure(f"tarn/{extra}", set(), False) for extra in extras))
expand("tarn/tarn.hpp", core_seen, core, always, partial)
core_seen -= partial
files = {"tarn.hpp": core}
# What two opt-in headers need, and tarn.hpp does not, is in both of them, and read once.
needs = {extra: closure(f"tarn/{extra}", set(), True) - core_seen for extra in extras}
shared = {name for extra in extras for name in needs[extra] if sum(name in other for other in needs.values()) > 1}
for extra in extras:
    lines = list(head) + [f"// tarn/{extra} over the single tarn.hpp, made by .ci/amalgamate.py. Do not edit.", '#include "tarn.hpp"']
    expand(f"tarn/{extra}", set(core_seen), lines, closure(f"tarn/{extra}", set(), False), shared | partial)
    files[extra] = lines

for name, lines in files.items():
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines) + "\n")
    path = out / name
    if "--check" in sys.argv:
        if not path.exists() or path.read_text() != text:
            stale.append(name)
    else:
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
if stale:
    sys.exit(f"single_include/tarn is not current: {', '.join(stale)}; run ./dev single-header")
