# SPDX-License-Identifier: Apache-2.0
"""Prints tarn's buffers, pools and stacks in one line each. In gdb, or in .gdbinit:

    source PREFIX/share/tarn/tarn_gdb.py

It only reads members and calls no function of the program. `print/r` prints an object as it is.
"""
import re

import gdb
import gdb.printing

# Policies whose layers have another name.
POLICIES = {"fallback": "fallback_to", "reachable": "accessible_from"}


def name_of(kind):
    """What a program calls a layer, without the driver: pages, pooled, limited."""
    kind = kind.strip_typedefs()
    name = re.sub(r"<.*", "", kind.name).split("::")[-1]
    if name in ("around_layer", "block_source"):
        return name_of(kind.template_argument(0 if name == "around_layer" else 1))
    name = name.removeprefix("basic_").removesuffix("_layer").removesuffix("_calls")
    return POLICIES.get(name, name)


def has(kind, member):
    """Whether the class, or a base of it, has the member."""
    return any(f.name == member or f.is_base_class and has(f.type, member) for f in kind.strip_typedefs().fields())


def number(atomic):
    """The value of a std::atomic, of libstdc++ or of libc++."""
    if has(atomic.type, "__a_"):
        return int(atomic["__a_"]["__a_value"])
    return int(atomic["_M_base"]["_M_i"] if has(atomic.type, "_M_base") else atomic["_M_i"])


def pool_text(pool):
    heap, front = pool["heap_"], pool["front_"]
    counts = [heap["uncached_live_"], front["retired_live_"]]
    live, blocks = (sum(int(c[key]) for c in counts) for key in ("bytes", "blocks"))
    for i in range(int(front["caches_"]["size_"])):
        cache = front["caches_"]["items_"][i]["p_"]
        live, blocks = live + number(cache["live_bytes"]), blocks + number(cache["live_blocks"])
    asleep = ", asleep" if number(heap["asleep_"]) else ""
    return f"{live} bytes live in {blocks} block{'s' * (blocks != 1)}, {int(heap['counters_']['reserved'])} bytes reserved{asleep}"


def layer_text(layer):
    """A layer after those below it, as they are composed. A handle is the layer that it refers to."""
    kind = layer.type.strip_typedefs()
    if has(kind, "block_"):
        return layer_text(layer["block_"]["layer"]) if int(layer["block_"]) else "empty"
    text = name_of(kind)
    if has(kind, "heap_"):
        return f"{layer_text(layer['heap_']['growth_']['source_'])} | {text} ({pool_text(layer)})"
    if has(kind, "budget_"):
        budget = layer["budget_"]
        text += f" ({number(budget['used_'])} of {number(budget['limit_'])} bytes)"
    if has(kind, "other_"):
        text += f" ({layer_text(layer['other_'])})"
    return f"{layer_text(layer['upstream_'])} | {text}" if has(kind, "upstream_") else text


def buffer_text(buffer):
    element, count = buffer.type.strip_typedefs().template_argument(0), int(buffer["size_"])
    where = f" at {int(buffer['data_']):#x}" if int(buffer["data_"]) else ""
    return f"{count} of {int(buffer['capacity_'])} elements of {element}{where}, stream {int(buffer['stream_']['id_'])}"


class printer:
    def __init__(self, value, text):
        self.value, self.text = value, text

    def to_string(self):
        return self.text(self.value)


printers = gdb.printing.RegexpCollectionPrettyPrinter("tarn")
for names, text in (("shared_resource|pool|[a-z_]+_layer", layer_text), ("(device|pinned)_buffer", buffer_text)):
    printers.add_printer(text.__name__, rf"^tarn::(v\w+::)?({names})<.*>$", lambda value, text=text: printer(value, text))
gdb.printing.register_pretty_printer(None, printers, replace=True)
