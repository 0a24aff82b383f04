"""Bags of embeddings that are all of one length are rows that are gathered and reduced.

    const %starts: i64[8] of 0, 4, 8, ...             %of  = reshape(%ids, [8, 4])
    %bag = _embedding_bag(%table, %ids, %starts)  ->  %got = embedding(%table, %of)
                                                      %sum = sum(%got, [1])

which a generated kernel does in one launch, together with what comes after, and a bag of one is its
row; the operator itself is a library's alone, and a dictionary of them, as recommenders have it, is
as many launches. Where a padding is left out it is filled with zeros first, and a mean divides by
how many are left. For graphs whose kernels may be generated: apart, the rows would be written to
memory. The largest row of a bag is a pass of its own, for NaN: the operator compares, and so may
leave it out, where a maximum of the rows never does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anabranch.ir import ops
from anabranch.ir.conditions import conditioned
from anabranch.ir.graph import Arg, Constant, Graph, Node, Ref, users
from anabranch.ir.types import TensorType
from anabranch.rewrite.build import Builder
from anabranch.rewrite.refuse import refuse
from anabranch.trace import Trace

BAGS = frozenset({"aten._embedding_bag.default", "aten._embedding_bag_forward_only.default"})
SUM, MEAN, MAX = 0, 1, 2
"""The operator's modes."""


class Ragged(Exception):
    """Why bags are not as many rows each."""


def bags(graph: Graph, trace: Trace) -> Graph:
    """The graph with embeddings, sums and means in place of bags of one length."""
    return _without(graph, trace, (SUM, MEAN))


def largest_of_bags(graph: Graph, trace: Trace) -> Graph:
    """The graph with embeddings and maxima in place of bags of one length."""
    return _without(graph, trace, (MAX,))


def _without(graph: Graph, trace: Trace, modes: Sequence[int]) -> Graph:
    """The graph without the bags of one length of these modes."""

    def wanted(node: Node) -> bool:
        return node.op in BAGS and ops.arguments(node)["mode"] in modes

    if not any(map(wanted, graph.nodes)):
        return graph
    constants = {c.name: c for c in graph.constants}
    contents = {c.name: c.value for c in graph.constants if c.value is not None}
    seen: list[tuple[Constant, str, tuple[int | float, ...]]] = []
    needed = set(users(graph)) | {ref.name for ref in graph.outputs}
    builder = Builder(graph)
    for node in graph.nodes:
        if not wanted(node):
            builder.keep(node)
            continue
        try:
            if needed.intersection(node.results[1:]):
                raise Ragged("where its bags begin is read, too")
            each = _length(node, contents, builder.facts.types)
        except Ragged as why:
            refuse(trace, f"rows of the bags at %{node.name}", str(why))
            builder.keep(node)
            continue
        seen.append((constants[_name(ops.arguments(node)["offsets"])], "steps_of", (each,)))
        builder.replace(node.name, _reduced(builder, builder.renamed(node), each))
    return conditioned(builder.graph(), seen)


def _length(node: Node, contents: dict[str, torch.Tensor], types: dict[str, TensorType]) -> int:
    """How many rows each bag has."""
    arguments = ops.arguments(node)
    starts, ids = arguments["offsets"], arguments["indices"]
    if not isinstance(starts, Ref) or starts.name not in contents:
        raise Ragged("where they begin is known only when it runs")
    if arguments["mode"] == MAX and arguments["padding_idx"] != -1:
        raise Ragged("the largest of a bag may be one of nothing but padding")
    begin, total = contents[starts.name].tolist(), types[_name(ids)].numel
    ends = begin[1:] if arguments["include_last_offset"] else [*begin[1:], total]
    lengths = {end - start for start, end in zip(begin, ends, strict=False)}
    if len(lengths) != 1 or begin[0] != 0 or ends[-1] != total or not min(lengths):
        raise Ragged("they differ in length, or are empty")
    return int(lengths.pop())


def _reduced(builder: Builder, node: Node, each: int) -> Ref:
    """The bags, of `each` rows each."""
    arguments = ops.arguments(node)
    table, ids, padding, mode = (
        arguments[name] for name in ("weight", "indices", "padding_idx", "mode")
    )
    count = node.types[0].shape[0]

    def call(op: str, *args: Arg) -> Ref:
        return builder.call(op, *args, origin=node.origin)

    weights = arguments["per_sample_weights"]
    if each == 1 and padding == -1 and weights is None:
        return call("aten.embedding.default", table, call("aten.reshape.default", ids, (count,)))
    of = call("aten.reshape.default", ids, (count, each))
    rows = call("aten.embedding.default", table, of)
    if weights is not None:
        rows = call(
            "aten.mul.Tensor", rows, call("aten.reshape.default", weights, (count, each, 1))
        )
    if mode == MAX:
        return call("aten.amax.default", rows, (1,))
    if padding == -1:
        op = "aten.mean.dim" if mode == MEAN else "aten.sum.dim_IntList"
        return call(op, rows, (1,))
    left_out = call("aten.eq.Scalar", of, padding)
    hidden = call("aten.reshape.default", left_out, (count, each, 1))
    total = call("aten.sum.dim_IntList", call("aten.masked_fill.Scalar", rows, hidden, 0.0), (1,))
    if mode == SUM:
        return total
    kept = call("aten.sum.dim_IntList", call("aten.ne.Scalar", of, padding), (1,), True)
    return call("aten.div.Tensor", total, call("aten.clamp.default", kept, 1))


def _name(value: object) -> str:
    assert isinstance(value, Ref)
    return value.name
