# SPDX-License-Identifier: Apache-2.0
# Random changes of random code lines of include/tarn, as planted bugs that were not chosen by hand. run.py runs them.
import collections
import functools
import hashlib
import os
import pathlib
import re
import subprocess

from planted import PLANTED, Mutant
from together import code_of, span_of

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARN = ROOT / "include" / "tarn"
# Generated, what only a GPU runs, and what only nvcc compiles.
NOT_CHANGED = re.compile(r"report/timeline_page\.hpp|version\.hpp|driver/cuda_\w+\.hpp|cuda_mr\.hpp")
# Operators stand between spaces; brackets of templates do not.
SWAPPED = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ", " + ": " - ", " - ": " + ",
           " && ": " || ", " || ": " && ", " += ": " -= ", " -= ": " += "}
WORDS = {"true": "false", "false": "true"}
# What is checked when it compiles, what only a reader or a message sees, and declarations.
LEFT_OUT = re.compile(r"^\s*(#|//|template\b|requires\b|concept\b|using\b|friend\b|static_assert\b|assert\b|TARN_)|\bconcept \w+ =|\"|"
                      r"\boperator\b|= (delete|default);|\bif constexpr\b|\bnoexcept\(|\btypename\b")
HERE = re.compile(r"__linux__|__unix__|__GNUC__|__x86_64__")

Change = collections.namedtuple("Change", "kind line")


def changes_of(line):
    """All changes of one line of code."""
    code, slashes, comment = line.partition("  //")
    rest = slashes + comment
    found = []
    for table, pattern in ((SWAPPED, "{}"), (WORDS, r"\b{}\b")):
        for old, new in table.items():
            for at in re.finditer(pattern.format(re.escape(old)), code):
                found.append(Change(f"{old.strip()} to {new.strip()}", code[: at.start()] + new + code[at.end() :] + rest))
    condition = re.match(r"(.*\b(?:if|while) \()(.*)(\)(?:| \{| [^()]*;| return .*;| continue;| break;))$", code)
    if condition:
        head, inner, tail = condition.groups()
        before, semicolon, last = inner.rpartition("; ")
        if inner.count("(") == inner.count(")"):
            found.append(Change("negated", f"{head}{before}{semicolon}!({last}){tail}{rest}"))
    call = re.match(r"(\s*)(?:\(void\))?[\w.:>\[\]-]+\([^;{}]*\);$", code)
    if call and not re.match(r"\s*(return|throw|co_\w+|new|delete|if|while|for|switch)\b", code):
        found.append(Change("dropped", f"{call.group(1)};{rest}"))
    value = re.match(r"(.*\breturn )([^{};]+)(;.*)$", code)
    if value and value.group(2).strip() not in ("true", "false", "*this", "0", "nullptr"):
        found.append(Change("returns a constant", f"{value.group(1)}{{}}{value.group(3)}{rest}"))
    return found


def changeable_lines():
    """(header, number of the line from 0, the header's lines, the line's changes)"""
    for path in sorted(TARN.rglob("*.hpp")):
        name = path.relative_to(TARN).as_posix()
        if NOT_CHANGED.fullmatch(name):
            continue
        lines = path.read_text().split("\n")
        compiled, depth_of_left_out = [], 0
        for number, line in enumerate(lines):
            if directive := re.match(r"\s*#\s*(if|elif|else|endif)", line):
                if directive.group(1) != "if":
                    compiled.pop()
                if directive.group(1) != "endif":
                    compiled.append(directive.group(1) != "else" and bool(HERE.search(line)))
                continue
            # What is left out reaches to the line that closes its parentheses, and what it requires is a line of its own.
            if depth_of_left_out > 0 or re.search(r"\b(static_assert|requires)\b|\bconcept \w+ =", line):
                depth_of_left_out += line.count("(") + line.count("{") - line.count(")") - line.count("}")
                continue
            if not all(compiled) or LEFT_OUT.search(line):
                continue
            if found := changes_of(line):
                yield name, number, lines, found


def as_mutant(name, number, lines, change):
    """The planted bug, whose text has as many lines as it needs to stand in the header once."""
    text = "\n".join(lines)
    for around in range(len(lines)):
        before, after = lines[max(0, number - around) : number], lines[number + 1 : number + 1 + around]
        old = "\n".join([*before, lines[number], *after]) + "\n"
        if text.count(old) == 1:
            return Mutant(f"{name}:{number + 1}", name, old, "\n".join([*before, change.line, *after]) + "\n")
    raise ValueError(name)


@functools.cache
def includes(*sources, folders=()):
    """The headers of tarn that a program includes."""
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-MM", *folders, f"-I{ROOT / 'include'}", f"-I{ROOT / 'tests'}"]
    said = subprocess.run([*command, *sources], capture_output=True, text=True).stdout
    return {m for m in re.findall(r"include/tarn/(\S+\.hpp)", said)}


def tests_that_name(header):
    """The files of unit tests that name a header, or one that includes it, the one of its name first; then those that find a
    planted bug in it."""
    folder = ROOT / "tests" / header.split("/")[0] if "/" in header else ROOT / "tests"
    texts = {p: p.read_text() for p in sorted(folder.rglob("*.cpp") if "/" in header else folder.glob("interop/*.cpp"))}
    texts = {p: text for p, text in texts.items() if "TEST_CASE(" in text}

    def named(name):
        stem = pathlib.PurePath(name).stem
        ranked = [((p.stem != stem, f'"tarn/{name}"' not in text, -len(re.findall(rf"\b{stem}\b", text))), p)
                  for p, text in texts.items() if p.stem == stem or f'"tarn/{name}"' in text or re.search(rf"\b{stem}\b", text)]
        return [p for _, p in sorted(ranked)]

    users = [h.relative_to(TARN).as_posix() for h in sorted(TARN.rglob("*.hpp")) if f'"tarn/{header}"' in h.read_text()]
    paths = named(header) or [p for user in users for p in named(user)]
    finders = [m.finder for mutants in PLANTED.values() for m in mutants if m.file == header and m.finder.endswith(".cpp")]
    return list(dict.fromkeys([str(p.relative_to(ROOT)) for p in paths] + finders))


def changed_function(mutant):
    """The name of the function that a planted bug changes; "" outside of functions."""
    text = (TARN / mutant.file).read_text()
    heads = []
    for brace in re.finditer(r"([^;{}]*)([{}])", code_of(text[: span_of(text, mutant.old, mutant.new)[0]])):
        if brace.group(2) == "{":
            heads.append(re.search(r"\b(?!if|for|while|switch|catch|noexcept|requires)(\w+)\((?!.*\[[&=\w, ]*\])", brace.group(1)))
        elif heads:
            heads.pop()
    return next((head.group(1) for head in reversed(heads) if head), "")


@functools.cache
def files_of_unit_tests():
    return [p for p in sorted((ROOT / "tests").rglob("*.cpp")) if re.search(r"^(TEMPLATE_\w*)?TEST_CASE\w*\(", p.read_text(), re.M)]


def unit_tests(mutant):
    """All files of unit tests: those of the headers that name the changed function come first, then those of the header's folder."""
    name, folder = changed_function(mutant), mutant.file.split("/")[0]
    users = {h.stem for h in TARN.rglob("*.hpp") if name and re.search(rf"\b{name}\(", h.read_text())}
    return [str(p.relative_to(ROOT)) for p in sorted(files_of_unit_tests(), key=lambda p: (p.stem not in users, p.parent.name != folder))]


@functools.cache
def drawn_lines(seed):
    """The changeable lines in the order of a seed, by their text: it draws the same ones after other lines have changed."""
    seen, lines = collections.Counter(), []
    for name, at, text, found in changeable_lines():
        line = f"{seed} {name} {text[at].strip()}"
        seen[line] += 1
        lines.append((hashlib.sha256(f"{line} {seen[line]}".encode()).digest(), name, at, text, found))
    return sorted(lines, key=lambda line: line[0])


def draws(seed, number):
    """The planted bugs of one number: the next one is taken where one does not compile."""
    for order, name, at, text, found in drawn_lines(seed)[number - 1 :: 1000]:
        change = found[order[0] % len(found)]
        yield as_mutant(name, at, text, change), change.kind, text[at].strip(), change.line.strip()
