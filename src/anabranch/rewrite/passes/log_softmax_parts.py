"""Logarithms of a softmax that are read late are computed again from what they were computed of.

    x = to fp32(logits)                            m = amax(x), n = m + log(sum(exp(x - m)))
    p = log_softmax(x)                             one number a row
    gather(p, targets)  the loss             ->    gather(logits, targets) - n
    exp(p)              the backward pass          exp(logits - n)

A language model has a logit for each token and each word: hundreds of megabytes in fp32, written by
the forward pass and read by the backward pass for the sake of one subtraction. The logits of a half
type are there anyway, and half as large; of `p` itself the loss wants one number a row. The
subtrahend is fp32, so that the difference is, without a cast that others would read as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, producers, types, users
from anabranch.ir.rounding import CONVERT, narrower
from anabranch.rewrite.build import Builder
from anabranch.trace import Trace

LOG_SOFTMAX = "aten._log_softmax.default"
GATHER = "aten.gather.default"
AMAX, SUM = "aten.amax.default", "aten.sum.dim_IntList"
ADD, SUB = "aten.add.Tensor", "aten.sub.Tensor"
LEAST_BYTES = 1 << 20
"""Of a result that is worth it: a smaller one is read as fast as it is computed."""


def log_softmax_parts(graph: Graph, trace: Trace) -> Graph:
    """The graph whose readers of a widened log-softmax, where there are several, compute it from
    the half type themselves."""
    producer_of, readers, table = producers(graph), users(graph), types(graph)
    returned = {ref.name for ref in graph.outputs}
    builder = Builder(graph)
    parts: dict[str, tuple[Node, int, Ref]] = {}
    for node in graph.nodes:
        source = producer_of.get(node.uses[0]) if node.uses else None
        large = node.op == LOG_SOFTMAX and node.type.nbytes >= LEAST_BYTES
        if large and source is not None and node.name not in returned:
            wide = source.op == CONVERT and narrower(table[source.uses[0]].dtype, node.type.dtype)
            if wide and source.type.dtype == node.type.dtype and _picked(node, readers[node.name]):
                dim = ops.arguments(node)["dim"]
                assert isinstance(dim, int)
                parts[node.name] = source, dim, _statistic(builder, node, dim)
                builder.release(node)
                continue
        if node.op == GATHER and node.uses[0] in parts:
            builder.replace(node.name, _gathered(builder, node, *parts[node.uses[0]]))
            continue
        for name in dict.fromkeys(node.uses):
            if name in parts:
                whole, _, statistic = parts[name]
                logits = Ref(builder.substitute(whole.uses[0]))
                again = builder.call(SUB, logits, statistic, name=name, origin=node.origin)
                builder.replace(name, again)
        builder.keep(node)
    return builder.graph()


def _picked(node: Node, readers: Sequence[Node]) -> bool:
    """Whether somebody picks numbers of it, along its axis, and somebody else reads it whole."""
    dim = ops.arguments(node)["dim"]
    picks = [r for r in readers if r.op == GATHER and ops.arguments(r)["dim"] == dim]
    return bool(picks) and len(picks) < len(readers)


def _statistic(builder: Builder, node: Node, dim: int) -> Ref:
    """The logarithm of the sum of exponentials of each row."""
    x, origin = Ref(builder.substitute(node.uses[0])), node.origin
    most = builder.call(AMAX, x, (dim,), True, origin=origin)
    below = builder.call(SUB, x, most, origin=origin)
    total = builder.call(
        SUM, builder.call("aten.exp.default", below, origin=origin), (dim,), True, origin=origin
    )
    logarithm = builder.call("aten.log.default", total, origin=origin)
    return builder.call(ADD, most, logarithm, origin=origin)


def _gathered(builder: Builder, node: Node, whole: Node, dim: int, statistic: Ref) -> Ref:
    """What is picked of the half type."""
    logits, index = Ref(builder.substitute(whole.uses[0])), builder.renamed(node).args[2]
    picked = builder.call(GATHER, logits, dim, index, origin=node.origin)
    builder.release(node)
    return builder.instead(node, SUB, picked, statistic)
