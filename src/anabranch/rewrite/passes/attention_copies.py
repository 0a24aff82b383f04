"""Attention reads heads where they were made, whatever was copied on the way.

    %y = linear(%x, ...)        [1,197,2304]     queries, keys and values side by side
    %c = clone(permuted %y)     [3,197,1,768]    one after the other      ->   three views of %y
    %q = view of %c             [1,12,197,64]

Copies that a model makes so that its own views are possible, or for kernels that want their rows
next to each other, are no use to one that reads rows by their strides. Elements of a head still
follow each other, or the copy stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, producers, types
from anabranch.ir.ops import ATTENTION
from anabranch.ir.types import TensorType
from anabranch.rewrite.attention_heads import seen_as
from anabranch.rewrite.build import Builder
from anabranch.rewrite.view_elements import MOVES, Shown, ViewSlices
from anabranch.trace import Trace

OPERANDS = 3
"""Queries, keys, values."""


def uncopied(graph: Graph, trace: Trace) -> Graph:
    """The graph whose attention reads views of what was copied for it."""
    producer_of, table = producers(graph), types(graph)
    builder = Builder(graph)
    for node in graph.nodes:
        seen: dict[str, Ref] = {}
        for name in dict.fromkeys(node.uses[:OPERANDS] if node.op == ATTENTION else ()):
            source = _source(name, producer_of, table)
            if source is not None:
                seen[name] = _view(builder, *source, table[name].shape, node.origin)
        if not seen:
            builder.keep(node)
            continue
        renamed = builder.renamed(node)
        args = (
            seen.get(old.name, new) if isinstance(old, Ref) and at < OPERANDS else new
            for at, (old, new) in enumerate(zip(node.args, renamed.args, strict=True))
        )
        builder.release(node)
        kwargs = dict(renamed.kwargs)
        result = builder.instead(node, node.op, *args, **kwargs)
        builder.replace(node.name, result)
    return builder.graph()


def _source(
    name: str, producer_of: Mapping[str, Node], table: Mapping[str, TensorType]
) -> tuple[str, ViewSlices] | None:
    """The earliest value, beyond a copy, of which the named one could be a view, and how."""
    moves: list[tuple[Node, str]] = []
    if not table[name].numel:
        return None
    while (node := producer_of.get(name)) is not None and node.op in MOVES:
        moves.append((node, name))
        name = node.uses[0]
    copies = [at for at, (node, _) in enumerate(moves) if not ops.is_view(node, table)]
    for last in reversed(range(copies[0], len(moves)) if copies else ()):
        source = moves[last][0].uses[0]
        shown: Shown | None = Shown.whole(table[source].shape)
        for node, result in reversed(moves[: last + 1]):
            shown = shown.of(node, result) if shown is not None else None
        cuts = shown.cuts(table[source].numel) if shown is not None else None
        if shown is not None and cuts is not None and _row(shown) == 1:
            flat = table[source].strides[-1:] in ((1,), ())
            if flat and seen_as(table[source], cuts.shape):
                return source, cuts
    return None


def _row(shown: Shown) -> int:
    """The stride of the last axis."""
    last = shown.axes[-1] if shown.axes else ()
    return last[0][1] if last else 1


def _view(
    builder: Builder, source: str, cuts: ViewSlices, shape: tuple[int, ...], origin: str
) -> Ref:
    ref = Ref(builder.substitute(source))
    if builder.facts.types[ref.name].shape != cuts.shape:
        ref = builder.call("aten.reshape.default", ref, cuts.shape, origin=origin)
    for dim, (begin, size) in enumerate(cuts.slices):
        if (begin, size) != (0, cuts.shape[dim]):
            ref = builder.call("aten.slice.Tensor", ref, dim, begin, begin + size, origin=origin)
    if list(cuts.order) != sorted(cuts.order):
        ref = builder.call("aten.permute.default", ref, cuts.order, origin=origin)
    if builder.facts.types[ref.name].shape != shape:
        ref = builder.call("aten.reshape.default", ref, shape, origin=origin)
    return ref
