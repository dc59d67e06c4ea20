#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds idioms in comments and documents that readers have to puzzle out. STANDARD says what to write instead.

    plain_english.py [FILE...]   these files, else all comments of include, examples and bench, the documents and HTML

Exit status 1 where one is found. Tests are not read yet.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STANDARD = {
    r"\b(come|comes|came|go|goes|going|bring|brings|brought|sends?|sent) (\w+ )?home\b": "is returned to the heap, is given back",
    r"\b(the|its|their|a pool's) books\b": "records, bookkeeping, metadata",
    r"\bnobody('s)?\b": "unowned, no thread, no caller",
    r"\bsomebody('s)?\b": "another thread, a caller",
    r"\bwho (asks|comes|waits|looks|holds|is asked)\b": "the caller, the thread that",
    r"\b(is|are|was|were|be|been) told\b": "is notified, is reported",
    r"\btells? (of|who|whose)\b": "reports",
    r"\bneeds? it not\b|\bneeds not\b": "does not need to",
    r"\b(has|have) not so (much|many)\b": "does not have that much",
    r"\bthe doors?\b": "the interop headers",
    r"\bwhat is said\b": "the message",
    r"\blets? go of\b": "releases",
}
PATTERNS = [(re.compile(p, re.I), instead) for p, instead in STANDARD.items()]
# Tokens of C++, JavaScript and CSS. Strings are matched so that no comment is found in them.
TOKENS = re.compile(r'R"([^()\\ ]{0,16})\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|(?P<comment>//[^\n]*|/\*(?:.|\n)*?\*/)')
SCRIPT = re.compile(r"""'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`|(?P<comment>//[^\n]*|/\*(?:.|\n)*?\*/)""")
STYLE = re.compile(r"""'[^'\n]*'|"[^"\n]*"|(?P<comment>/\*(?:.|\n)*?\*/)""")


def comments_of(text, tokens):
    """(line number, comment) of a source."""
    for match in tokens.finditer(text):
        if match.group("comment"):
            yield text.count("\n", 0, match.start()) + 1, match.group("comment")


def texts_of(path):
    text = path.read_text()
    if path.suffix in (".md", ".html"):
        return enumerate(text.splitlines(), 1)
    return comments_of(text, {".js": SCRIPT, ".css": STYLE}.get(path.suffix, TOKENS))


def files():
    for folder in ("include", "examples", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".hpp", ".cpp", ".cu", ".html", ".css", ".js"):
                yield path
    yield from sorted(p for p in ROOT.glob("*.md"))


def main():
    found = 0
    for path in [pathlib.Path(f).resolve() for f in sys.argv[1:]] or files():
        for line, text in texts_of(path):
            for pattern, instead in PATTERNS:
                if match := pattern.search(text):
                    found += 1
                    print(f"{path.relative_to(ROOT)}:{line}: '{match.group(0)}'; write: {instead}")
    print(f"{found} idioms found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
