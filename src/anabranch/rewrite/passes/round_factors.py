"""Constant factors of contractions in tf32, rounded to its ten bits once and not in every call.

    const w: f32[64,64,3,3]    0.1000000015       0x3dcccccd
    y = convolution(x, w)   -> 0.0999755859375    0x3dccc000

Tensor cores do not round fp32: they cut it off, so that every product is a little too small, and
after fifty layers the result is off by a hundredth. A generated kernel rounds what it computes or
reads; what is constant it takes to be rounded (`kernels.triton.product.rounded_ahead`).
Where a library rounds, this changes nothing. Runs once, after all that computes with constants.

A constant that others read too, such as an embedding that is the last layer's weight as well, keeps
its bits: the contraction reads a rounded copy, through copies of the views it was read through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from anabranch.ir import ops
from anabranch.ir.graph import (
    Constant,
    Derivation,
    Graph,
    Node,
    Ref,
    producers,
    rename,
    types,
    users,
)
from anabranch.ir.key import digest_text
from anabranch.ir.recipe import bare, follows
from anabranch.ir.text import parse_graph
from anabranch.trace import Trace

FACTORS: dict[str, tuple[int, ...]] = {
    "aten.convolution.default": (1,),
    "aten.linear.default": (1,),
    "aten.mm.default": (0, 1),
    "aten.bmm.default": (0, 1),
    "aten.matmul.default": (0, 1),
    "aten.addmm.default": (1, 2),
    "aten.baddbmm.default": (1, 2),
}
"""Where contractions have their factors."""
ERROR = 2.0**-11
"""How much the largest rounding changes a number, as a part of it."""
LOW = 0x2000
"""The lowest bit that stays."""
COPY = "nearest"
"""What names of rounded copies end in."""


def round_factors(graph: Graph, trace: Trace) -> Graph:
    """The graph with constant factors rounded, and copies where others read them too."""
    rounding = _Rounding(graph)
    nodes = [new for node in graph.nodes for new in rounding.nodes(node)]
    constants = [rounding.constant(constant) for constant in graph.constants]
    count = rounding.count
    if not count:
        return graph
    trace.add("applied", "rewrite", "round_factors", f"{count} constants rounded to tf32")
    return replace(graph, constants=(*constants, *rounding.copies.values()), nodes=tuple(nodes))


class _Rounding:
    """One pass over a graph. `copies`: rounded constants beside those that others read too."""

    def __init__(self, graph: Graph) -> None:
        self._producers, self._readers = producers(graph), users(graph)
        self._types = types(graph)
        self._returned = {ref.name for ref in graph.outputs}
        self._constants = {c.name: c for c in graph.constants if _rounds(c)}
        self._taken = {*self._types}
        self._names: dict[str, str] = {}
        self._exact: dict[str, bool] = {}
        self.copies: dict[str, Constant] = {}
        self.count = 0

    def constant(self, constant: Constant) -> Constant:
        """The constant, rounded where only contractions read it."""
        if constant.name not in self._constants or not self._only_factor(constant.name):
            return constant
        self.count += 1
        return _rounded(constant)

    def nodes(self, node: Node) -> Iterator[Node]:
        """The node, reading rounded copies, after the views of copies that it needs."""
        args = list(node.args)
        for at in self._factors(node):
            chain = self._chain(args[at])
            if chain is not None and not self._only_factor(chain[0]):
                yield from self._copied(*chain)
                args[at] = rename(args[at], self._names)
        yield node if args == list(node.args) else replace(node, args=tuple(args))

    def _only_factor(self, name: str) -> bool:
        """Whether all that reads this value, through views or not, reads it as a factor."""
        if name not in self._exact:
            readers = self._readers.get(name, [])
            self._exact[name] = (
                bool(readers)
                and name not in self._returned
                and all(self._as_factor(node, name) for node in readers)
            )
        return self._exact[name]

    def _as_factor(self, node: Node, name: str) -> bool:
        if ops.kind_of(node) == "view":
            return all(map(self._only_factor, node.results))
        positions = [i for i, arg in enumerate(node.args) if arg == Ref(name)]
        alone = node.uses.count(name) == len(positions)
        return alone and bool(positions) and set(positions) <= set(self._factors(node))

    def _factors(self, node: Node) -> tuple[int, ...]:
        """Which arguments tensor cores multiply; depthwise convolutions multiply in fp32."""
        if node.op == "aten.convolution.default" and ops.arguments(node)["groups"] != 1:
            weight = node.args[1]
            assert isinstance(weight, Ref)
            return FACTORS[node.op] if self._types[weight.name].shape[1] > 1 else ()
        return FACTORS.get(node.op, ())

    def _chain(self, arg: object) -> tuple[str, tuple[Node, ...]] | None:
        """The constant that this is, or is a view of, and the views, innermost first; None if it
        is no constant that rounding changes."""
        views: list[Node] = []
        while isinstance(arg, Ref) and arg.name in self._producers:
            view = self._producers[arg.name]
            if ops.kind_of(view) != "view" or len(view.results) != 1:
                return None
            views.append(view)
            arg = view.args[0]
        if not isinstance(arg, Ref) or arg.name not in self._constants:
            return None
        return arg.name, tuple(reversed(views))

    def _copied(self, name: str, views: tuple[Node, ...]) -> Iterator[Node]:
        """The views of the rounded copy that are not there yet."""
        if name not in self.copies:
            self._names[name] = self._fresh(name)
            self.copies[name] = replace(_rounded(self._constants[name]), name=self._names[name])
            self.count += 1
        for view in views:
            if view.name not in self._names:
                self._names[view.name] = self._fresh(view.name)
                source = rename(view.args[0], self._names)
                yield replace(view, name=self._names[view.name], args=(source, *view.args[1:]))

    def _fresh(self, name: str) -> str:
        fresh = f"{name}_{COPY}"
        while fresh in self._taken:
            fresh += "_"
        self._taken.add(fresh)
        return fresh


def _rounds(constant: Constant) -> bool:
    """Whether rounding changes this constant, or may once its weights are others."""
    value = constant.value
    if value is None or constant.type.dtype != torch.float32 or _is_rounded(constant):
        return False
    return follows(constant) or not torch.equal(nearest(value), value)


def _is_rounded(constant: Constant) -> bool:
    """Whether `nearest` computed it: it has ten bits, whatever its weights are."""
    return constant.derived is not None and constant.derived.node == NEAREST.nodes[-1]


def _rounded(constant: Constant) -> Constant:
    assert constant.value is not None
    digest = digest_text(f"nearest tf32 {constant.digest}")
    value = nearest(constant.value)
    return Constant(constant.name, constant.type, digest, value, _derived(constant))


def _derived(constant: Constant) -> Derivation:
    """`nearest` in nodes."""
    reads: dict[str, Constant | Derivation] = {"value": bare(constant)}
    for node in NEAREST.nodes:
        reads[node.name] = derived = Derivation(node, 0, {name: reads[name] for name in node.uses})
    return derived


NEAREST = parse_graph(f"""
graph nearest {{
  const %value: f32[] = value
  %bits: i32[] = aten.view.dtype(%value, torch.int32)
  %above: i32[] = aten.add.Tensor(%bits, {LOW // 2})
  %cut: i32[] = aten.bitwise_and.Scalar(%above, {-LOW})
  %rounded: f32[] = aten.view.dtype(%cut, torch.float32)
  %within: b1[] = aten.isfinite.default(%rounded)
  %number: b1[] = aten.isfinite.default(%value)
  %finite: b1[] = aten.logical_and.default(%within, %number)
  %nearest: f32[] = aten.where.self(%finite, %rounded, %value)
  return %nearest
}}""")


def nearest(value: torch.Tensor) -> torch.Tensor:
    """The nearest numbers with ten bits behind the point, half way away from zero, except where
    that would be an infinity; strides stay."""
    bits = value.detach().view(torch.int32)
    rounded = ((bits + LOW // 2) & -LOW).view(torch.float32)
    return torch.where(rounded.isfinite() & value.isfinite(), rounded, value)
