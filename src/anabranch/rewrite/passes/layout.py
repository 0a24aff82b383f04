"""Layout: 2-d convolutions on tensor cores run in channels_last, and the network around them too.

    conv = convolution(x, w, ...)        x_cl = clone(x, channels_last)
    relu = relu(conv)              ->    w_cl = clone(w, channels_last)      (folded)
                                         conv = convolution(x_cl, w_cl, ...)
                                         relu = relu(conv)                   in channels_last
                                         out  = clone(relu, contiguous)      if it is returned

A value is copied only where it would enter a convolution contiguous, and then for all its readers;
a slice of channels is read in place, if it starts where a kernel can load as much at once as of a
whole. From there on operators pass the layout along, as meta tensors tell. A reshape that was a
view may become a copy, and says so in its strides. An operator that must see the old strides (an
unknown one, `as_strided`) gets a copy in them.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, rename, types
from anabranch.ir.ops import channels_last, channels_last_strides, same_layout
from anabranch.rewrite.build import Builder
from anabranch.rewrite.copied_operands import arranges, copied
from anabranch.rewrite.passes.depthwise import is_side_by_side
from anabranch.rewrite.refuse import refuse
from anabranch.trace import Trace

STRIDED = frozenset({"aten.as_strided.default", "aten.view.dtype", "aten.view_as_complex.default"})
"""Operators whose meaning depends on the strides they find."""


def layout(graph: Graph, trace: Trace, tf32: bool = False) -> Graph:
    """The graph with its 2-d convolutions, and what lies between them, in channels_last. In single
    precision it profits only where tensor cores may be used (`tf32`)."""
    chosen = {node.name for node in graph.nodes if _profits(node, graph, trace, tf32)}
    if not chosen:
        return graph
    try:
        return _LayoutWalk(graph, chosen).graph_in_channels_last()
    except RuntimeError as failed:
        reason = str(failed).partition("\n")[0]
        refuse(trace, "channels_last", f"an operator does not take it: {reason}")
        return graph


def _profits(node: Node, graph: Graph, trace: Trace, tf32: bool) -> bool:
    if not arranges(node):
        return False
    fast = (torch.float16, torch.bfloat16, *((torch.float32,) if tf32 else ()))
    if node.type.dtype in fast:
        return True
    refuse(trace, f"channels_last for {graph.name}", f"no tensor cores for {node.type.dtype}")
    return False


class _LayoutWalk:
    """One way along the graph, in which layouts change from the first convolution on."""

    def __init__(self, graph: Graph, chosen: Collection[str]) -> None:
        self.graph = graph
        self.chosen = chosen
        self.builder = Builder(graph)
        self.before = types(graph)
        self.copies: dict[tuple[str, torch.memory_format], Ref] = {}
        self.makers: dict[str, Node] = {}
        self.entering = {node.uses[0] for node in graph.nodes if node.name in chosen}

    def graph_in_channels_last(self) -> Graph:
        for value in self.graph.inputs:
            self._enter(value.name)
        for node in self.graph.nodes:
            if node.name in self.chosen:
                self._convolution(node)
            elif ops.kind_of(node) == "opaque" or node.op in STRIDED:
                self._strided(node)
            else:
                self.builder.keep(node)
            if (built := self.builder.nodes.get(node.name)) is not None:
                self.makers.update(dict.fromkeys(built.results, built))
            for result in node.results:
                self._enter(result)
        for ref in self.graph.outputs:
            restored = self._restored(ref.name)
            if restored.name != self.builder.substitute(ref.name):
                self.builder.replace(ref.name, restored)
        return self.builder.graph()

    def _enter(self, value: str) -> None:
        """Copies a value that a convolution reads into channels_last, for all its readers."""
        if value not in self.entering:
            return
        if copied(value, self.builder.facts.types, self.makers):
            self.builder.replace(value, self._copy(Ref(value), torch.channels_last))

    def _convolution(self, node: Node) -> None:
        """Keeps the convolution, its weight in channels_last. A weight's copy is folded, so all
        its strides are set, those of size one too: they decide the layout of the result."""
        now = self.builder.renamed(node)
        x, w, *rest = now.args
        assert isinstance(w, Ref)
        type = self.builder.facts.types[w.name]
        dense = channels_last_strides(type.shape)
        if channels_last(type) or type.strides == dense or is_side_by_side(type):
            self.builder.keep(node)
            return
        w = self._copy(w, torch.channels_last)
        self.builder.release(node)
        self.builder.instead(node, node.op, x, w, *rest, **dict(now.kwargs))

    def _strided(self, node: Node) -> None:
        """Keeps the node; what it reads is given to it in the strides it had before."""
        table = {name: self._restored(name).name for name in node.uses}
        args = tuple(rename(arg, table) for arg in node.args)
        kwargs = tuple((key, rename(arg, table)) for key, arg in node.kwargs)
        self.builder.add(
            Node(node.name, node.op, args, kwargs, node.types, node.origin, node.strict)
        )

    def _restored(self, value: str) -> Ref:
        """The source's value in the layout it had before."""
        was, type_of = self.before[value], self.builder.facts.types
        for name in (value, self.builder.substitute(value)):
            if same_layout(was, type_of[name]):
                return Ref(name)
        if not was.contiguous:
            raise RuntimeError(f"%{value} must stay in strides {was.strides}")
        return self._copy(Ref(value), torch.contiguous_format)

    def _copy(self, value: Ref, format: torch.memory_format) -> Ref:
        key = (value.name, format)
        if key not in self.copies:
            suffix = "cl" if format is torch.channels_last else "dense"
            self.copies[key] = self.builder.call(
                "aten.clone.default",
                value,
                name=f"{value.name.replace('.', '_')}_{suffix}",
                memory_format=format,
            )
        return self.copies[key]
