#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes include/README.md: every header of tarn, lowest folder first, what it is for and which headers it includes. What a folder is
for is in the list at the top of tarn.hpp. Keeps its terms, which are written by hand.

    file_map.py           write it
    file_map.py --check   exit status 1 where it is not current
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARN = ROOT / "include" / "tarn"
MAP = ROOT / "include" / "README.md"
BEGIN, END = "<!-- terms: written by hand -->", "<!-- end of terms -->"
FOLDERS = ["core", "driver", "source", "pool", "policy", "debug", "raii", "transfer", "sharing", "report", ""]


def purpose_of(text, name):
    """The first sentence of the comment at the top, without the header's own name before a colon."""
    comment = []
    for line in text.splitlines()[2:]:
        if not line.startswith("//"):
            break
        comment.append(line[2:].strip())
    first = " ".join(comment).strip()
    end = re.search(r"\.(\s|$)", first)
    sentence = first[: end.start()] if end else first
    if sentence.startswith(f"{name}: "):
        sentence = sentence.removeprefix(f"{name}: ")
        sentence = sentence[0].upper() + sentence[1:]
    return sentence


def included_by(text):
    return sorted(set(re.findall(r'#include "tarn/([^"]+)\.hpp"', text)) - {"version"})


def purposes_of_folders():
    """By path below include/tarn: the list at the top of tarn.hpp, where an inner folder is indented below its own."""
    found, top = {}, ""
    for indent, name, purpose in re.findall(r"^//( +)(\w+)/ +(.+)$", (TARN / "tarn.hpp").read_text(), re.M):
        if len(indent) == 3:
            top = name
        found[name if top == name else f"{top}/{name}"] = purpose.rstrip(":")
    return found


def folders():
    """Every folder with headers: those of FOLDERS in their order, each before the folders in it."""
    for top in FOLDERS:
        if top == "":
            yield TARN, sorted(TARN.glob("*.hpp"))
            continue
        inner = sorted({h.parent for h in (TARN / top).rglob("*.hpp")}, key=lambda p: (len(p.parts), p.name))
        for folder in inner:
            yield folder, sorted(folder.glob("*.hpp"))


def terms():
    """What stands between the lines BEGIN and END of include/README.md."""
    text = MAP.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip("\n")


def main():
    out = ["# The headers of tarn", "", "## Terms", "", BEGIN, terms(), END, "", "## Headers", "",
           "Written by `.ci/file_map.py` from the headers themselves. Lowest folder first: a header includes only headers of its own",
           "top folder and of those above it in this list. The folders of the pool are one layer; `pool/pool.hpp` lists its files in the order of",
           "an allocation's steps.", ""]
    purposes = purposes_of_folders() | {".": "what programs include; the interop headers are included separately"}
    for folder, headers in folders():
        name = folder.relative_to(TARN).as_posix()
        if name not in purposes:
            print(f"include/tarn/tarn.hpp: its list of folders has no line for {name}/")
            return 1
        purpose = purposes[name][0].upper() + purposes[name][1:]
        out += [f"### {'tarn/' if name == '.' else name + '/'}", "", f"{purpose}.", "", "| header | what it is for | includes |", "|---|---|---|"]
        for header in headers:
            text = header.read_text()
            uses = ", ".join(n.removeprefix(name + "/") for n in included_by(text))
            out.append(f"| `{header.name}` | {purpose_of(text, header.stem).replace('|', chr(92) + '|')} | {uses} |")
        out.append("")
    text = "\n".join(out)
    if "--check" in sys.argv[1:]:
        if MAP.read_text() != text:
            print(f"{MAP.relative_to(ROOT)} is not current; run .ci/file_map.py")
            return 1
        return 0
    MAP.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
