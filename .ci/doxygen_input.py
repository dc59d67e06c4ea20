#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes into build/docs/input/ what doxygen reads (.ci/Doxyfile).

A header with public names gets a page with its purpose, and each documented name the line to include. What is in a namespace `detail` is
left out. The main page has the first program of README.md and the headers that programs include; another page has the terms of
include/README.md.
"""
import functools
import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
TO = ROOT / "build" / "docs" / "input"
TEXTS = {p.relative_to(ROOT / "include").as_posix(): p.read_text() for p in sorted((ROOT / "include" / "tarn").rglob("*.hpp"))}
# What programs include. A header is named with the first of these that includes it.
ENTRIES = ["tarn", "transfer", "diagnostics", "sharing", "stl", "pmr", "thrust", "cuda_mr", "nccl", "dlpack", "sim", "testing"]


@functools.cache
def reached(name):
    """The header and all that it includes."""
    seen, left = set(), [name]
    while left:
        header = left.pop()
        if header not in seen and header in TEXTS:
            seen.add(header)
            left += re.findall(r'#include "(tarn/[^"]+)"', TEXTS[header])
    return seen


def entry_of(name):
    return next((e for e in (f"tarn/{e}.hpp" for e in ENTRIES) if name in reached(e)), name)


def include_lines(name):
    entry = entry_of(name)
    alone = f", or <tt>\\<{name}\\></tt> alone" if entry != name else ""
    return f"/// @par Include\n/// <tt>\\#include \\<{entry}\\></tt>{alone}\n"


def purpose(text):
    """The first paragraph of the comment at the top, and its first sentence without the header's own name."""
    comment = re.match(r"// SPDX.*\n#pragma once\n((?://.*\n)*)", text)
    words = " ".join(re.sub(r"^// ?", "", comment[1], flags=re.M).split("\n\n")[0].split())
    words = re.sub(r"([<>@\\#%&])", r"\\\1", words.replace("`", ""))
    return words, re.match(r".*?(?:\.(?=\s|$)|$)", words)[0].removeprefix("tarn: ")


def public_part(text):
    for inner in (r"TARN_NAMESPACE::detail(?:::\w+)*", "detail"):
        text = re.sub(rf"^namespace {inner} \{{.*?^\}}  // namespace {inner}$", "", text, flags=re.M | re.S)
    return text


def page_of(name, text):
    """The header as doxygen reads it, or None if it has nothing public."""
    public = public_part(text)
    if not re.search(r"^///", public, re.M) and name.count("/") > 1:
        return None
    lines = include_lines(name)
    start = r"template <|struct \w+ .*\{|class \w+ .*\{|enum class \w+ .*\{|using \w+ =|inline |constexpr |\[\[nodiscard"
    public = re.sub(rf"(?<=[;}}\n]\n)(?={start})(?!template <[^;{{]*;)", "///\n", public)
    at_top = f"/// @headerfile {entry_of(name)} \"{entry_of(name)}\"\n"
    documented = re.sub(r"((?:^///(?!<).*\n)+)(?=\S)((?:template <.*\n)?(?:  requires .*\n)?(?:struct|class) )?",
                        lambda block: block[1] + lines + (at_top + block[2] if block[2] else ""), public, flags=re.M)
    return f"/// @file {name}\n/// {purpose(text)[0]}\n{lines}\n{documented}"


def main_page():
    readme = (ROOT / "README.md").read_text()
    program = re.search(r"```cpp [^\n]*\n(.*?)```", readme, re.S)[0].split("\n", 1)[1].removesuffix("```")
    rows = [f"| @ref tarn/{e}.hpp | {purpose(TEXTS[f'tarn/{e}.hpp'])[1]} |" for e in ENTRIES]
    return "\n".join(["# tarn", "", readme.split("\n\n")[1], "", f"```cpp\n{program}```", "", "| include | for |", "|---|---|", *rows, ""])


def main():
    shutil.rmtree(TO, ignore_errors=True)
    pages = {name: page_of(name, text) for name, text in TEXTS.items() if name != "tarn/driver/cuda_entry_points.hpp"}
    terms = (ROOT / "include" / "README.md").read_text()
    pages["main.md"] = main_page()
    pages["terms.md"] = "# Terms\n" + terms[terms.index("## Terms") + len("## Terms") : terms.index("## Headers")]
    for name, page in pages.items():
        if page is not None:
            (TO / name).parent.mkdir(parents=True, exist_ok=True)
            (TO / name).write_text(page)


main()
