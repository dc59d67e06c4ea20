#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds idioms that readers have to puzzle out, in comments, string literals, test titles and documents. STANDARD says what to
write instead.

    plain_english.py [FILE...]   these files, else all of the tree but traces, results and generated headers

First tests itself: each pattern must find its example, in every kind of file, and must not find plain English.
Exit status 1 where an idiom is found or the self-test fails.
"""
import io
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parent.parent
# pattern: (an example that it must find, what to write instead)
STANDARD = {
    r"\b(come|comes|came|go|goes|going|bring|brings|brought|sends?|sent) (\w+ )?home\b": ("a block comes home", "is returned to the heap"),
    r"\b(the|its|their|a pool's|own) books\b": ("the pool and its books", "records, bookkeeping, metadata"),
    r"\bnobody('s)?\b": ("nobody waits", "no thread, no caller, unowned"),
    r"\b(somebody|someone)('s)?\b": ("while somebody is in it", "a thread, a caller"),
    r"\bwho (asks|comes|waits|looks|holds|is asked)\b": ("who asks first", "the caller, the thread that"),
    r"\btold\b(?!=)": ("the handler is told", "is notified, is reported"),
    r"\btells?\b(?! apart\b)": ("the device tells its memory", "reports, returns, shows"),
    r"\bneeds? it not\b|\bneeds not\b": ("copies need it not", "does not need to"),
    r"\b(do|does|did|know|knows|see|sees|use|uses|want|wants|wait|waits|take|takes) (it|them) not\b": ("copies use it not", "does not use it"),
    r"\bnot so (much|many)\b": ("the device has not so much free", "does not have that much"),
    r"\bso (much|many) \w+ there (cannot|can|may) be\b": ("so many parts there cannot be", "the number of parts is too large"),
    r"\b(is|are|was) no (number|multiple|power|regular|header|list|whole|tool|text|letter)\b(?! of \w+ in\b)": ("the size is no multiple", "is not a"),
    r"\bthe doors?\b": ("through the door", "the interop headers"),
    r"\b(what|it) is said\b": ("what is said", "the message, is reported"),
    r"\blets? go of\b": ("a policy lets go of its lock", "releases"),
    r"\bpass(es)? for (done|covered|free|all|complete)\b": ("a stream passes for done", "counts as complete"),
    r"\bwithout a word\b": ("it changes without a word", "silently, without reporting it"),
    r"\b(keeps?|kept) (its|their) (word|promises?)\b": ("the tool keeps its word", "passes all checks"),
    r"\bto be had\b": ("memory to be had", "available"),
    r"\bfor ever\b": ("a thread waits for ever", "forever"),
    r"\bfor want of\b": ("refused for want of memory", "because there is no"),
    r"\bwhosever\b": ("whosever the block is", "whichever owner"),
    r"\brubbish\b": ("rubbish after the data", "garbage"),
    r"\b(whence|whither|thereof|therein|whereof|wherein|hitherto|aforesaid|lest|nought|naught)\b": ("the pool whence it came", "a current word"),
}
PATTERNS = [(re.compile(p, re.I), example, instead) for p, (example, instead) in STANDARD.items()]
PLAIN = "The pool reports the block to the handler. The size is not a multiple of 4. No thread waits for the stream."
# Tokens of C++, JavaScript and CSS. Strings are matched so that no comment is found in them.
LITERAL = r'(?P<literal>"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*)'
TOKENS = re.compile(
    r'^[ \t]*#[ \t]*include[^\n]*|R"([^()\\ ]{0,16})\((?P<raw>(?:.|\n)*?)\)\1"|' + LITERAL
    + r"|'(?:\\.|[^'\\\n])'|(?P<comment>//[^\n]*|/\*(?:.|\n)*?\*/)",
    re.M,
)
SCRIPT = re.compile(r"""(?P<literal>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`)|(?P<comment>//[^\n]*|/\*(?:.|\n)*?\*/)""")
STYLE = re.compile(r"""'[^'\n]*'|"[^"\n]*"|(?P<comment>/\*(?:.|\n)*?\*/)""")
C_LIKE = {".hpp": TOKENS, ".cpp": TOKENS, ".cu": TOKENS, ".h": TOKENS, ".js": SCRIPT, ".css": STYLE}
LINES = (".md", ".html", ".sh", ".txt", ".cmake", ".in", ".yml", "")
# Not ours, recorded, or generated from files that are read.
LEFT_OUT = re.compile(r"(^|/)(build[^/]*|\.git|\.venv|\.gpu-deps|\.gpu-mpi|third_party)/|^bench/results/|^single_include/|^LICENSE$|^LICENSES/|timeline_page\.hpp$|/corpus/|\.ci/plain_english\.py$")


def texts_of_source(text, tokens):
    """(line number, text) of the comments and the string literals. A literal over several lines is one text."""
    for match in tokens.finditer(text):
        groups = match.groupdict()
        line = text.count("\n", 0, match.start()) + 1
        if groups.get("comment"):
            yield line, re.sub(r"\s*\n\s*(//[/!<]*|\*)?\s*", " ", groups["comment"])
        elif groups.get("literal"):
            yield line, re.sub(r'"\s*"', "", groups["literal"])
        elif groups.get("raw"):
            yield line, groups["raw"]


def texts_of_python(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield token.start[0], token.string


def texts_of(suffix, text):
    if suffix in C_LIKE:
        return texts_of_source(text, C_LIKE[suffix])
    if suffix == ".py":
        return texts_of_python(text)
    return enumerate(text.splitlines(), 1)


def idioms_in(suffix, text):
    """(line number, what was found, what to write instead)"""
    for line, part in texts_of(suffix, text):
        for pattern, _, instead in PATTERNS:
            if match := pattern.search(part):
                yield line, match.group(0), instead


def self_test():
    """What is wrong with the patterns or the readers: empty where nothing is."""
    frames = {
        ".hpp": ["// {}\n", "/* {} */\n", 'static_assert(x, "tarn: {}");\n', 'f(R"({})");\n'],
        ".cpp": ['SECTION("{}") {{}}\n', 'TEST_CASE("{}", "[pool]") {{}}\n', 'FAIL("{}");\n'],
        ".py": ["# {}\n", 'print(f"{}")\n', '"""{}"""\n'],
        ".js": ["// {}\n", "say(`{}`);\n"],
        ".css": ["/* {} */\n"],
        ".sh": ['expect 2 "{}" --cap 1\n'],
        ".md": ["{}\n"],
    }
    for suffix, lines in frames.items():
        for line in lines:
            for _, example, instead in PATTERNS:
                if all(found[2] != instead for found in idioms_in(suffix, line.format(example))):
                    yield f"'{example}' is not found in {line.strip()!r}"
            for found in idioms_in(suffix, line.format(PLAIN)):
                yield f"{found[1]!r} is found in plain English"
    # A literal that is broken over two lines; code and names are not read.
    if not list(idioms_in(".cpp", 'f("the handler is "\n  "told of it");\n')):
        yield "an idiom over two literals is not found"
    if list(idioms_in(".cpp", '#include "told.hpp"\nint told = tells(nobody);\n')):
        yield "a name of the code is found"


def files():
    for path in sorted(ROOT.rglob("*")):
        name = str(path.relative_to(ROOT))
        if path.is_file() and not LEFT_OUT.search(name) and path.suffix in (*C_LIKE, *LINES, ".py"):
            if path.suffix or path.name in ("dev", "run", ".clang-tidy"):
                yield path


def main():
    broken = list(self_test())
    for problem in broken:
        print(f"self-test: {problem}")
    found = 0
    for path in [pathlib.Path(f).resolve() for f in sys.argv[1:]] or files():
        for line, words, instead in idioms_in(path.suffix, path.read_text(errors="replace")):
            found += 1
            print(f"{path.relative_to(ROOT)}:{line}: '{words}'; write: {instead}")
    print(f"{found} idioms found")
    return 1 if found or broken else 0


if __name__ == "__main__":
    sys.exit(main())
