# SPDX-License-Identifier: Apache-2.0
# Puts many planted bugs into one copy of the headers, so that one program has them all. Each stands in a copy of the block of
# statements that it changes, and a number in the environment, TARN_PLANTED, says which copy runs:
#
#   { if (planted::is(7)) { the changed block } else { the block } }
#
# A bug outside a block of statements (the value of a member, say), or one that does not compile there, is left to a program of its own.
import bisect
import re
import shutil

SWITCH = """#include <cstdlib>
#include <type_traits>
namespace planted {
inline int const number = [] {
  char const* const said = std::getenv("TARN_PLANTED");
  return said != nullptr ? std::atoi(said) : 0;
}();
constexpr bool is(int bug) noexcept { return std::is_constant_evaluated() ? false : number == bug; }
}  // namespace planted
"""
# Comments, strings and characters; an apostrophe between digits is none.
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|R\"\((?:.|\n)*?\)\"|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*", re.S | re.M)
# What stands between the last `;`, `{` or `}` and a brace: a requires-expression, or a switch; the head of a function, a loop, a branch.
NO_BLOCK = re.compile(r"\brequires\s*(\([^{}]*\))?\s*$|\bswitch \(")
AFTER_HEAD = re.compile(r"\s*((const|noexcept|override|final|mutable|->.*|requires\b.*)\s*)*$", re.S)
CONSTANT = re.compile(r"(?<!if )\b(constexpr|consteval)\b")
DECLARES = re.compile(r"\b(namespace|struct|class|union|enum|extern)\b")


def opens_block(head, before):
    if NO_BLOCK.search(head):
        return False
    _, parenthesis, after = head.rpartition(")")
    if not head.strip():
        return before in ";{}"
    return re.search(r"\b(else|do|try)\s*$", after) or (parenthesis and AFTER_HEAD.match(after) and not DECLARES.search(after))


def code_of(text):
    return NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def is_constant(text, old, new):
    """Whether a bug stands in a function that the compiler may evaluate. There it does not know TARN_PLANTED, and the bug is off."""
    code, heads = code_of(text[: span_of(text, old, new)[0]]), []
    for brace in re.finditer(r"([^;{}]*)([{}])", code):
        if brace.group(2) == "{":
            heads.append(brace.group(1))
        elif heads:
            heads.pop()
    return any(CONSTANT.search(head) for head in heads)


def blocks_of(text):
    """[(begin, end)] of the blocks of statements, with their braces."""
    code, found, opened = code_of(text), [], []
    for at in (m.start() for m in re.finditer(r"[{}]", code)):
        if code[at] == "{":
            opened.append(at)
        elif opened:
            begin = opened.pop()
            start = max(code.rfind(c, 0, begin) for c in ";{}")
            if opens_block(code[start + 1 : begin], code[: begin].rstrip()[-1:]):
                found.append((begin, at + 1))
    return found


def span_of(text, old, new):
    """(begin, end, replacement) of what really differs."""
    begin = text.index(old)
    end, left, right = begin + len(old), 0, 0
    while left < min(len(old), len(new)) and old[left] == new[left]:
        left += 1
    while right < min(len(old), len(new)) - left and old[-1 - right] == new[-1 - right]:
        right += 1
    return begin + left, end - right, new[left : len(new) - right]


def switched(text, edits):
    """The text with all edits, (block, number, [(begin, end, replacement)])."""
    by_block = {}
    for block, *edit in edits:
        by_block.setdefault(block, []).append(edit)
    blocks = sorted(by_block)

    def written(begin, end):
        out, at = [], begin
        index = bisect.bisect_left(blocks, (begin, 0))
        while index < len(blocks) and blocks[index][0] < end:
            block_begin, block_end = blocks[index]
            if block_begin >= at:  # not inside of the one before
                out.append(text[at : block_begin + 1])
                for number, spans in by_block[blocks[index]]:
                    changed = text[block_begin + 1 : block_end - 1]
                    for from_, to, replacement in sorted(spans, reverse=True):
                        changed = changed[: from_ - block_begin - 1] + replacement + changed[to - block_begin - 1 :]
                    out.append(f" if (planted::is({number})) {{ //<{number}\n{changed}\n}} else //{number}>\n")
                out.append("{" + written(block_begin + 1, block_end - 1) + "\n}}")
                at = block_end
            index += 1
        out.append(text[at:end])
        return "".join(out)

    return written(0, len(text))


def put_together(bugs, include, tree):
    """Makes the tree from the headers in include.
    @param bugs  {number: [(file, old, new)]}
    @return the numbers of those that are in it"""
    edits, put = {}, set()
    texts, blocks = {}, {}
    for number, changes in bugs.items():
        spans, mine = {}, []
        for file, old, new in changes:
            if file not in texts:
                texts[file] = (include / "tarn" / file).read_text()
                blocks[file] = blocks_of(texts[file])
            spans.setdefault(file, []).append(span_of(texts[file], old, new))
        for file, those in spans.items():
            def block_around(some):
                return max((b for b in blocks[file] if all(b[0] < begin and end < b[1] for begin, end, _ in some)), default=None)

            groups = [those] if block_around(those) else [[span] for span in those]  # in one block, or each in its own
            mine += [(file, (block_around(group), number, group)) for group in groups]
        if all(block for _, (block, *_) in mine):
            put.add(number)
            for file, edit in mine:
                edits.setdefault(file, []).append(edit)
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(include, tree)
    for file, those in edits.items():
        (tree / "tarn" / file).write_text(switched(texts[file], those))
    (tree / "planted.hpp").write_text(SWITCH)
    return put


def blamed(errors, tree):
    """The numbers of the bugs in whose blocks a compiler saw errors, or, if there are none, in those of its notes."""
    for what in (r":\d+: (?:fatal )?error:", ""):
        numbers = set()
        for name, line in set(re.findall(rf"{re.escape(str(tree))}/(\S+?):(\d+){what}", errors)):
            above = (tree / name).read_text().split("\n")[: int(line)]
            opened = [m for text in above for m in re.findall(r"//(?:<(\d+)|(\d+)>)$", text)]
            numbers.update(int(begin) for begin, _ in opened if begin and ("", begin) not in opened)
        if numbers:
            break
    return numbers
