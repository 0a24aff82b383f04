"""Common subexpressions: what is computed twice is computed once, equal constants are one.

    a = exp(x)
    b = exp(x)            a = exp(x)
    c = a + b       ->    c = a + a

Random operators differ each time they are called, and unknown ones may: they stay apart.
"""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, rename
from anabranch.ir.rule import computable
from anabranch.ir.text import text_arg
from anabranch.rewrite.build import Builder
from anabranch.trace import Trace


def cse(graph: Graph, trace: Trace) -> Graph:
    """With each expression once, where it stood first."""
    builder = Builder(graph)
    same: dict[str, str] = {}
    for constant in graph.constants:
        first = same.setdefault(f"{constant.digest} {constant.type.text}", constant.name)
        if first != constant.name:
            builder.replace(constant.name, Ref(first))
    seen: dict[str, Node] = {}
    for node in graph.nodes:
        key = expression(builder.renamed(node)) if computable(node) else node.name
        if key in seen:
            for old, new in zip(node.results, seen[key].results, strict=True):
                builder.replace(old, Ref(new))
        else:
            seen[key] = node
            builder.keep(node)
    return builder.graph()


def expression(node: Node, names: dict[str, str] | None = None) -> str:
    """The computation of a node, defaults written out, so that two spellings of a call are equal.
    `names` replaces the names of what it reads."""
    arguments = sorted(ops.arguments(node).items())
    said = (f"{key}={text_arg(rename(arg, names or {}))}" for key, arg in arguments)
    return f"{node.op}({', '.join(said)})"
