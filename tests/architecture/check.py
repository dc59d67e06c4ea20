# SPDX-License-Identifier: Apache-2.0
"""Checks the rules of the tree: a file includes only its own folder and lower ones, only driver/ and the interop headers call
CUDA, macros begin with TARN_, every file names its licence, every header is named by a test of its folder, or included by one that is."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
include = root / "include" / "tarn"
order = ["core", "driver", "source", "pool", "policy", "raii", "report"]
# Wrappers of what exists on one platform only: named by the comment at the top of core/config.hpp.
WITH_PLATFORMS = ["core/config.hpp", "core/wait.hpp", "core/at_fork.hpp", "pool/front/owner_lock.hpp", "policy/backtrace.hpp"]
problems = []
for header in sorted(include.rglob("*.hpp")):
    text = header.read_text()
    name = header.relative_to(include)
    layer = name.parts[0] if len(name.parts) > 1 else "top"
    rank = order.index(layer) if layer in order else len(order)
    if not text.startswith("// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"):
        problems.append(f"{name}: does not begin with the SPDX line and #pragma once")
    for other in re.findall(r'#include "tarn/([^"]+)"', text):
        target = other.split("/")[0] if "/" in other else "top"
        if target in order and order.index(target) > rank or target == "top" and layer != "top":
            problems.append(f"{name}: includes {other}, which is above it")
    code = re.sub(r"//[^\n]*|\"[^\"\n]*\"", "", text)
    if layer not in ("driver", "top") and re.search(r"\b(cuda[A-Z]\w*|cu[A-Z]\w+|CU[A-Z_]{3,}\w*)\s*[(&*;]|cudaError", code):
        problems.append(f"{name}: names CUDA's API; only driver/ and the interop headers may")
    if re.search(r"printf\([^;]*%[-+ #0-9.*]*l?[aefgAEFG']", text, re.S) or re.search(r"\b(sto[fd]|strto[fd]|imbue|setlocale)\b", code):
        problems.append(f"{name}: formats or reads numbers by the locale; use core/message, to_chars or to_string of integers")
    if layer not in ("driver", "top") and str(name) not in WITH_PLATFORMS and re.search(r"^ *# *(?:el)?if.*(?:\b__\w+|_WIN32|_MSC)", code, re.M):
        problems.append(f"{name}: asks for the compiler or the platform; core/config.hpp lists the files that may")
    for macro in re.findall(r"^\s*#\s*define\s+(\w+)", code, re.M):
        if not macro.startswith(("TARN_", "LIBCUDACXX_ENABLE_")):
            problems.append(f"{name}: macro {macro} has no TARN_ prefix")

# Sources of generated headers are no headers: they are not installed.
for source in sorted(p for p in include.rglob("*") if p.is_file() and p.suffix != ".hpp"):
    name = source.relative_to(include)
    if name.parts[:2] != ("report", "timeline") or name.suffix not in (".html", ".css", ".js"):
        problems.append(f"{name}: not a header; only report/timeline/ has other files")
    elif "SPDX-License-Identifier: Apache-2.0" not in source.read_text().split("\n", 1)[0]:
        problems.append(f"{name}: does not begin with the SPDX line")
problems += [f"{h.relative_to(include)}: CMake does not install headers of this folder" for h in (include / "report" / "timeline").rglob("*.hpp")]

# A header is tested if a test of its layer names it, or if a tested header includes it.
for layer in order:
    tests = "\n".join(p.name + p.read_text() for p in (root / "tests" / layer).rglob("*.c*"))
    headers = {h.relative_to(include).as_posix(): h.read_text() for h in (include / layer).rglob("*.hpp")}
    tested = {name for name in headers if re.search(rf"\b{pathlib.PurePath(name).stem}\b", tests)}
    for name in headers:
        if name not in tested and not any(f'"tarn/{name}"' in headers[t] for t in tested):
            problems.append(f"{name}: no test in tests/{layer} names it")
# Every policy and every source is in the policy matrix.
matrix = (root / "tests" / "policy_matrix" / "policies.hpp").read_text()
listed = " ".join(re.findall(r"using \w+_policies =\s*list<([^;]*)>;", matrix))
for header in sorted((include / "policy").glob("*.hpp")):
    if not re.search(r"^  using layer = (?!.*typename)", header.read_text(), re.M) or header.stem in ("compose", "resource_adaptor"):
        continue
    has_place = f"with::{header.stem}" in re.findall(r"with::\w+", listed)
    if not has_place:
        problems.append(f"policy/{header.name}: not in the lists of tests/policy_matrix/policies.hpp")
stacks = "\n".join(p.read_text() for p in sorted((root / "tests" / "policy_matrix").glob("stacks_*.cpp")))
for header in sorted((include / "source").glob("*.hpp")):
    for name in re.findall(r"^(?:using|class) (basic_\w+|host_memory)\b", header.read_text(), re.M):
        entry = re.search(rf"struct (\w+) {{[^}}]*tarn::{name}\b", matrix)
        if not entry or f"of::{entry.group(1)}" not in stacks:
            problems.append(f"source/{header.name}: {name} is in no stack of tests/policy_matrix")
# A title states one behaviour: a second case with the same title is a copy, or tests another behaviour.
titles = {}
for test in sorted((root / "tests").rglob("*.c*")):
    for title in re.findall(r'^(?:TEMPLATE_)?TEST_CASE\(\s*"([^"]*)"', test.read_text(), re.M):
        if title in titles:
            problems.append(f"{test.relative_to(root)}: the title '{title}' is in {titles[title]} as well")
        titles[title] = test.relative_to(root)
print("\n".join(problems) or f"{len(list(include.rglob('*.hpp')))} headers follow the rules")
sys.exit(bool(problems))
