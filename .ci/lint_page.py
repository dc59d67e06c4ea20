#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lints the report page in include/tarn/report/timeline/ and prints FILE:LINE: MESSAGE. Debian's packages:

    node-typescript   tsc: JavaScript: syntax, names that are not declared or not used, properties and arguments that do not exist
    node-css-tree     CSS: syntax, unknown properties, values that a property does not have
    tidy              HTML: elements that are not closed, unknown elements and attributes, ids given twice

Exit status 1 where something is found; else 77, having said why, where one of them is missing.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import embed_page  # noqa: E402

ROOT, PAGE = embed_page.ROOT, embed_page.PAGE
TSC = ["tsc", "--noEmit", "--allowJs", "--checkJs", "--pretty", "false", "--target", "esnext", "--lib", "esnext,dom,dom.iterable",
       "--noUnusedLocals", "--noFallthroughCasesInSwitch", "--allowUnreachableCode", "false"]
# tsc infers types, which are stricter than JavaScript. What is accepted, and why:
ACCEPTED_JS = [
    r"TS2339: .* on type '(HTMLElement|Element|ChildNode|Event)'",  # byId() and querySelectorAll() find elements of any kind
    r"TS2339: Property 'fromBase64' ",  # newer than tsc's declarations; the script tests for it
    r"TS2339: Property 'apart' ",  # added to a drag that a second finger joins
    r"TS2339: .* on type 'number \| Map<any, any>'",  # rows [map, key], of which tsc infers one type for both columns
    r"TS2363: ",  # the same in rows [size, name], in arithmetic
    r"TS2322: Type 'number' is not assignable to type 'string'",  # dataset turns numbers into text
    r"TS2345: Argument of type 'Date' ",  # isNaN() of a date
    r"TS2365: Operator '\+' cannot be applied to types 'number' and 'boolean'",  # adds a condition as 0 or 1
]
ACCEPTED_HTML = [
    r'proprietary attribute "aria-roledescription"',  # of WAI-ARIA 1.1, which tidy 5.6 does not know
]


def name_of(file):
    return (PAGE / file).relative_to(ROOT)


def accepted(message, patterns):
    return any(re.search(p, message) for p in patterns)


def lint_js(folder):
    """Checks the script as the page has it: its files share one scope."""
    script, places = "", []
    for name, text, before in embed_page.pieces():
        if name == "page.html":
            start = text.rfind("<script>\n")
            if script == "" and start < 0:
                continue
            skipped = start + len("<script>\n") if script == "" else 0
            before += text.count("\n", 0, skipped)
            text = text[skipped:].split("</script>")[0]
        elif not name.endswith(".js"):
            continue
        script += text
        places += [(name, before + i + 1) for i in range(text.count("\n"))]
    (folder / "page.js").write_text(script)
    done = subprocess.run([*TSC, "page.js"], cwd=folder, capture_output=True, text=True)
    findings = []
    for line in done.stdout.splitlines():
        at = re.match(r"page\.js\((\d+),\d+\): error (.*)", line)
        if at and not accepted(at.group(2), ACCEPTED_JS):
            name, number = places[min(int(at.group(1)), len(places)) - 1]
            findings.append(f"{name_of(name)}:{number}: {at.group(2)}")
        elif not at and not line.startswith(" "):
            findings.append(f"tsc: {line}")
    if done.returncode not in (0, 1, 2) or done.stderr:
        findings.append(f"tsc: {done.stderr.strip()}")
    return findings


def node(*arguments):
    # Debian installs packages for node there; a node from elsewhere does not look in that folder.
    return subprocess.run(["node", *arguments], cwd=ROOT, capture_output=True, text=True,
                          env={**os.environ, "NODE_PATH": "/usr/share/nodejs"})


def lint_css(_):
    sheets = sorted(str(p.relative_to(ROOT)) for p in PAGE.glob("*.css"))
    done = node(".ci/css_errors.js", *sheets)
    return done.stdout.splitlines() + done.stderr.splitlines()


def lint_html(_):
    done = subprocess.run(["tidy", "-errors", "-quiet", str(PAGE / "page.html")], capture_output=True, text=True)
    findings = []
    for line in done.stderr.splitlines():
        at = re.match(r"line (\d+) column \d+ - (.*)", line)
        if not at:
            findings.append(f"tidy: {line}")
        elif not accepted(at.group(2), ACCEPTED_HTML):
            findings.append(f"{name_of('page.html')}:{at.group(1)}: {at.group(2)}")
    return findings


def lint_names():
    """Ids and colours that the script asks for are there. This needs no tool."""
    ids = set(re.findall(r'\bid="([^"]+)"', (PAGE / "page.html").read_text()))
    colors = set(re.findall(r"(--[\w-]+):", (PAGE / "style.css").read_text()))
    for file in sorted(PAGE.glob("*.js")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            for name in re.findall(r"\bbyId\('([^']+)'\)", line):
                if name not in ids:
                    yield f"{name_of(file)}:{number}: no element has the id '{name}'"
            for name in re.findall(r"\bget\('(--[^']+)'\)", line):
                if name not in colors:
                    yield f"{name_of(file)}:{number}: style.css has no '{name}'"


def main():
    findings, skipped = list(lint_names()), []
    tools = [("JavaScript", lint_js, "node-typescript", shutil.which("tsc")),
             ("CSS", lint_css, "node-css-tree", shutil.which("node") and node("-e", "require('css-tree')").returncode == 0),
             ("HTML", lint_html, "tidy", shutil.which("tidy"))]
    with tempfile.TemporaryDirectory() as folder:
        for language, lint, package, is_here in tools:
            if is_here:
                findings += lint(pathlib.Path(folder))
            else:
                skipped.append(f"{language} (no {package})")
    print("".join(f"{finding}\n" for finding in findings) + f"{len(findings)} findings in the report page")
    if skipped:
        print(f"SKIPPED: {', '.join(skipped)}")
    return 1 if findings else 77 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
