# SPDX-License-Identifier: Apache-2.0
"""Writes the headers of another version of tarn into FOLDER: a copy of those of ROOT, with another namespace and another layout.
Classes that the versions would share by their names get a member in front of the others. With --same-namespace only the layout
differs, as in versions from before the namespace had the version.
Use: other_version.py ROOT FOLDER [--same-namespace]"""
import pathlib
import re
import shutil
import sys

# Header, and the class whose layout differs. Its first line is the class head.
CLASSES = [
    ("core/at_fork.hpp", "struct members {"),
    ("core/at_fork.hpp", "class fork_mutex {"),
    ("core/owned.hpp", "class counted {"),
    ("core/tag.hpp", "class tag_names {"),
    ("core/thread_tag.hpp", "class place_table {"),
    ("driver/sim/sim_machine.hpp", "struct sim_state {"),
    ("policy/tracked_numbers.hpp", "class tracked_numbers {"),
    ("policy/tracked_slot.hpp", "class alignas(256) tracked_slot {"),
    ("pool/cache/thread_cache.hpp", "class thread_exit {"),
    ("pool/cache/thread_cache.hpp", "struct pool_link {"),
    ("pool/heap.hpp", "class heap {"),
    ("pool/other_pools.hpp", "struct pool_list {"),
]


def write(root, folder, same_namespace):
    include = folder / "tarn"
    shutil.rmtree(include, ignore_errors=True)
    shutil.copytree(root / "include" / "tarn", include, ignore=lambda _, names: [n for n in names if n == "timeline"])
    for header, head in CLASSES:
        path = include / header
        text = path.read_text()
        assert len(re.findall(rf"^ *{re.escape(head)}", text, re.M)) == 1, f"{header} does not have '{head}' once"
        path.write_text(re.sub(rf"^( *{re.escape(head)}).*$", r"\1 void* of_another_version_ = nullptr;", text, flags=re.M))
    if not same_namespace:
        version = include / "version.hpp"
        text, changed = re.subn(r"(inline v\w+_)[0-9a-f]+", r"\g<1>another", version.read_text())
        assert changed == 1
        version.write_text(text)


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), "--same-namespace" in sys.argv[3:])
