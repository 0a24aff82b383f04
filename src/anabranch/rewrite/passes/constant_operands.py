"""Constants beside a layer are added and multiplied, and nothing else.

    conv(x) - p          ->   conv(x) + (-p)
    (conv(x) - .5) / 3   ->   (conv(x) + -.5) * (1/3)
    conv(-x)             ->   conv(x * -1)
    -conv(x, w, b)       ->   conv(x, -w, -b)
    p - conv(x, w, b)    ->   conv(x, -w, -b) + p

Rules that fold constants into weights know sums and factors. A layer is a convolution or linear
whose weight is constant; beside it stands what is made of its result, or becomes its input, by
sums, factors and signs with constants alone. Anything else keeps the spelling it was written in.

Nothing is rounded that was not before: a sign costs no bit, and a GPU divides by a number as here,
by multiplying with its reciprocal in single precision. That of a tensor would be rounded to half
precision: such divisions have rules of their own (`rules/channel_scales`), which divide the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, users
from anabranch.ir.rounding import strict_values
from anabranch.ir.rule import ValueFacts
from anabranch.rewrite.build import Builder, rewrite
from anabranch.trace import Trace

ADD, SUB, MUL, DIV, NEG = (
    *("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.div.Tensor"),
    "aten.neg.default",
)
RSUB = "aten.rsub.Scalar"
STEPS = frozenset({ADD, SUB, MUL, DIV, NEG, RSUB, "aten.addcmul.default"})
"""Operators that may stand between a constant and the layer that it is folded into."""
LAYERS = frozenset({"aten.convolution.default", "aten.linear.default"})
OperandForm = Callable[[Builder, Node], Ref | None]


def beside(graph: Graph, trace: Trace) -> Graph:
    """The graph with sums and factors for all that layers can take in."""
    if not any(node.op in FORMS for node in graph.nodes):
        return graph
    facts, readers, decided = ValueFacts.of(graph), users(graph), strict_values(graph)
    returned = {ref.name for ref in graph.outputs}

    def visit(builder: Builder, node: Node) -> Ref | None:
        fixed = node.name in decided or node.op not in FORMS
        source = None if fixed else _varies(node, facts)
        if source is None:
            return None
        renamed = builder.renamed(node)
        layer = facts.producers.get(source)
        if layer is not None and _is_layer(layer, facts) and source not in returned:
            negated = _with_other_sign(builder, renamed) if len(readers[source]) == 1 else None
            if negated is not None:
                return negated
        if _after(source, facts) or _before(node, facts, readers):
            return FORMS[node.op](builder, renamed)
        return None

    return rewrite(graph, visit)


def _varies(node: Node, facts: ValueFacts) -> str | None:
    """The one tensor that is read, once, and is no constant, if the result is of its floating dtype
    and so is all else that is read."""
    dtype, read = node.type.dtype, [arg.name for arg in node.args if isinstance(arg, Ref)]
    if not dtype.is_floating_point or any(facts.types[name].dtype != dtype for name in node.uses):
        return None
    varying = [name for name in read if name not in facts.constant]
    return varying[0] if len(varying) == 1 else None


def _is_layer(node: Node, facts: ValueFacts) -> bool:
    held = [arg.name for arg in node.args[1:3] if isinstance(arg, Ref)]
    return node.op in LAYERS and facts.constant.issuperset(held)


def _after(value: str, facts: ValueFacts) -> bool:
    """Whether a layer makes the value, or what it is made of by steps with constants."""
    node = facts.producers.get(value)
    while node is not None and node.op in STEPS:
        before = _varies(node, facts)
        node = facts.producers.get(before) if before is not None else None
    return node is not None and _is_layer(node, facts)


def _before(node: Node, facts: ValueFacts, readers: Mapping[str, Sequence[Node]]) -> bool:
    """Whether a layer reads what is made of the node by such steps, as its input."""
    todo = [node]
    while todo:
        current = todo.pop()
        for reader in readers.get(current.name, ()):
            if _is_layer(reader, facts) and reader.args[0] == Ref(current.name):
                return True
            if reader.op in STEPS and _varies(reader, facts) == current.name:
                todo.append(reader)
    return False


def _with_other_sign(builder: Builder, node: Node) -> Ref | None:
    """The layer that the node reads with the other sign, and the rest of the node behind it; None
    if it keeps its sign there."""
    arguments = ops.arguments(node)
    if arguments.get("alpha", 1) != 1:
        return None
    rest: Arg = None
    if node.op == NEG:
        source = arguments["self"]
    elif node.op == RSUB:
        source, rest = arguments["self"], arguments["other"]
    elif node.op == SUB:
        source, rest = arguments["other"], arguments["self"]
    else:
        return None
    layer = builder.facts.producers.get(source.name) if isinstance(source, Ref) else None
    if layer is None or layer.op not in LAYERS:
        return None
    weights = [
        builder.call(NEG, arg, origin=layer.origin) if isinstance(arg, Ref) else arg
        for arg in layer.args[1:3]
    ]
    args, name = (layer.args[0], *weights, *layer.args[3:]), "" if rest is not None else node.name
    negated = builder.call(layer.op, *args, name=name, origin=node.origin, **dict(layer.kwargs))
    if rest is None:
        return negated
    return builder.instead(node, ADD, negated, rest)


def _sum(builder: Builder, node: Node) -> Ref | None:
    """Of x - c, x + (-c); c - x is left."""
    x, c = node.args[:2]
    alpha = ops.arguments(node)["alpha"]
    if not isinstance(x, Ref) or x.name in builder.facts.constant:
        return None
    if isinstance(c, Ref):
        if alpha != 1:
            return None
        other: Arg = builder.call(NEG, c, origin=node.origin)
    else:
        assert isinstance(c, int | float) and isinstance(alpha, int | float)
        other = -(c * alpha)
    return builder.instead(node, ADD, x, other)


def _factor(builder: Builder, node: Node) -> Ref | None:
    """Of x / 3, x * (1/3), if single precision can say both."""
    x, c = node.args[:2]
    if isinstance(c, Ref) or not isinstance(c, int | float):
        return None
    limits = torch.finfo(torch.float32)
    if not limits.tiny <= abs(c) <= 1 / limits.tiny:
        return None
    return builder.instead(node, MUL, x, 1 / c)


def _sign(builder: Builder, node: Node) -> Ref | None:
    return builder.instead(node, MUL, node.args[0], -1)


def _kept(builder: Builder, node: Node) -> Ref | None:
    """A number less x is two operators as a sum: worth it where the layer takes the sign."""
    return None


FORMS: dict[str, OperandForm] = {SUB: _sum, DIV: _factor, NEG: _sign, RSUB: _kept}
"""What is spelled otherwise beside a layer, and how."""
