"""Merging: convolutions of one input as one convolution, and each as a slice of its channels.

    a = convolution(x, wa, ba)          w = cat(pad(wa), wb)        computed now
    r = relu(a)                         m = convolution(x, w, cat(ba, bb), larger padding)
    b = convolution(x, wb, bb)    ->    y = relu(m)
    s = relu(b)                         r = slice(y, 1, 0, 64)      views: they cost no copy
    c = cat([r, s], 1)                  s = slice(y, 1, 64, 192)
                                        c = y                       read as it lies

IOS's merge (MLSys 2021, section 3): the kernel is the largest along each axis, so is the padding,
smaller weights get a rim of zeros, biases that are missing are zero (`rules.conv_merging`). Members
stand in the order in which a concatenation reads them, so that it finds them joined already
(`rejoin`); else in graph order. Which convolutions may be merged at all is said in `conv_siblings`;
whether it pays is asked elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, types, users
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match
from anabranch.ir.types import TensorType
from anabranch.rewrite.apply import build
from anabranch.rewrite.build import Builder, drop_dead, join_origins, rewrite
from anabranch.rewrite.conv_siblings import RELU, SiblingConv, why_apart
from anabranch.rewrite.output_layout import check_readers
from anabranch.rewrite.passes.fold_constants import evaluate
from anabranch.rewrite.rejoin import rejoin
from anabranch.rewrite.rules.conv_merging import whole


def merge(graph: Graph, sets: Sequence[Sequence[SiblingConv]]) -> Graph:
    """The graph with each of the disjoint sets merged; the same object if there are none.
    ValueError with a sentence for members that do not fit, or a reader that takes no slice or
    depends on strides."""
    if not sets:
        return graph
    for members in sets:
        for other in members[1:]:
            if why := why_apart(members[0], other):
                name = f"%{members[0].node.name} and %{other.node.name}"
                raise ValueError(f"{name} cannot be merged: {why}")
    home = {member.last.name: members for members in sets for member in members}
    slices: dict[str, Ref] = {}
    computed: dict[str, Node] = {}

    def visit(builder: Builder, node: Node) -> Ref | None:
        if node.name in home and node.name not in slices:
            slices.update(_merged(builder, _ordered(graph, home[node.name]), computed))
        return slices.get(node.name)

    try:
        merged = rewrite(graph, visit)
    except RuntimeError as failed:
        reason = str(failed).partition("\n")[0]
        raise ValueError(f"an operator does not take a slice: {reason}") from None
    after = rejoin(_evaluated(merged, computed))
    _sees_strides(graph, after)
    return after


def name_of(members: Sequence[SiblingConv]) -> str:
    """What the merged convolution is called: after its members, in graph order."""
    return "_and_".join(member.node.name for member in members)


def _ordered(graph: Graph, members: Sequence[SiblingConv]) -> list[SiblingConv]:
    """As the first concatenation of channels that reads several of them lists them, then those it
    does not read, in graph order."""
    names = [member.last.name for member in members]
    for node in graph.nodes:
        if node.op == "aten.cat.default" and ops.arguments(node)["dim"] == 1:
            read = [name for name in dict.fromkeys(node.uses) if name in names]
            if len(read) > 1:
                order = read + [name for name in names if name not in read]
                return sorted(members, key=lambda member: order.index(member.last.name))
    return list(members)


def _merged(
    builder: Builder, members: Sequence[SiblingConv], computed: dict[str, Node]
) -> dict[str, Ref]:
    """The merged convolution and its slices under their old names; nodes that make its weight and
    bias are noted as `computed`."""
    first, nodes = members[0], tuple(member.node for member in members)
    origin, name = join_origins(nodes), name_of(members)
    x = Ref(builder.substitute(first.node.uses[0]))
    conv = whole(
        x,
        [member.parts for member in members],
        builder.facts.types[x.name].shape[2:],
        first.node.type.dtype,
        any(channels_last(member.weight.type) for member in members),
    )
    assert not isinstance(conv, Refused)
    match, built, before = Match(nodes, {}, builder.facts), dict[Call, Ref](), set(builder.nodes)
    for arg, part in zip(conv.args[1:3], ("weight", "bias"), strict=True):
        build(builder, arg, match, f"{name}_{part}", built)
    computed.update((n, builder.nodes[n]) for n in builder.nodes if n not in before)
    value = build(builder, conv, match, name, built)
    assert isinstance(value, Ref)
    if first.last.op == RELU:
        relus = join_origins(m.last for m in members)
        value = builder.call(RELU, value, name=f"{name}_relu", origin=relus)
    start, slices = 0, dict[str, Ref]()
    for member in members:
        end = start + member.node.type.shape[1]
        builder.release(member.last)
        slices[member.last.name] = builder.call(
            "aten.slice.Tensor", value, 1, start, end, name=member.last.name, origin=origin
        )
        start = end
    return slices


def channels_last(type: TensorType) -> bool:
    """Also where sizes of one leave that open."""
    return ops.channels_last(type) or type.strides == ops.channels_last_strides(type.shape)


def _sees_strides(before: Graph, after: Graph) -> None:
    """ValueError if somebody depends on strides and finds others than before: an operator that is
    not known or asks for them, or the caller."""
    check_readers(after, before)
    was, now = types(before), types(after)
    for output, ref in zip(before.outputs, after.outputs, strict=True):
        if not ops.same_layout(was[output.name], now[ref.name]):
            raise ValueError(f"%{output.name} is returned as {was[output.name].text}")


def _evaluated(graph: Graph, computed: dict[str, Node]) -> Graph:
    """The graph with the weights and biases that its nodes read as constants with values."""
    nodes = tuple(node for node in graph.nodes if node.name not in computed)
    wanted = {name for name in users(Graph("", (), (), nodes, ())) if name in computed}
    held = {c.name: c.value for c in graph.constants if c.value is not None}
    constants = tuple(evaluate(graph, computed, wanted, held))
    return drop_dead(replace(graph, constants=(*graph.constants, *constants), nodes=nodes))
