"""Siblings: the convolutions of one input that could be one convolution: graph -> sets of names.

IOS (MLSys 2021, section 3) merges convolutions that read one tensor and differ in kernel size and
number of channels only: the smaller kernel gets a rim of zeros. That is the same convolution if the
windows keep their centres. A window of k with padding p begins at stride*i - p, so within the
largest window K of padding P it must leave as much free on either side:

    K - k = 2 (P - p)       for all members, so k - 2p is one number for all of them

    1x1 padding 0    3x3 padding 1    1 - 0 = 3 - 2     may merge, at any stride
    1x3 padding 0,1  3x1 padding 1,0  1, 1 = 1, 1       may merge, into 3x3
    1x1 padding 0    2x2 padding 0    1 < 2             may not, though at stride 2 the results
                                                        can be of one size

Equal k - 2p and stride give equal sizes, so this is all there is to ask of sizes. What follows is
taken along: all have a relu of their own, or none has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anabranch.ir import ops
from anabranch.ir.graph import Constant, Graph, Node, Ref, users
from anabranch.ir.refused import Refused
from anabranch.ir.types import DTYPE_NAMES
from anabranch.rewrite.refuse import refuse
from anabranch.rewrite.rules.conv_merging import Member
from anabranch.rewrite.rules.conv_windows import ConvWindow, Sizes, of_rest
from anabranch.trace import Trace

CONVOLUTION, RELU = "aten.convolution.default", "aten.relu.default"


@dataclass(frozen=True, slots=True)
class SiblingConv:
    """A convolution that may be merged. `last`: the node whose value others read, its own relu or
    itself; `shift`: k - 2p along each axis."""

    node: Node
    last: Node
    weight: Constant
    bias: Constant | None
    window: ConvWindow

    @property
    def kernel(self) -> Sizes:
        """The size of its window."""
        return self.weight.type.shape[2:]

    @property
    def parts(self) -> Member:
        """As rules know it."""
        bias = None if self.bias is None else Ref(self.bias.name)
        return Member(Ref(self.weight.name), self.weight.type.shape, bias, self.window)

    @property
    def shift(self) -> tuple[int, ...]:
        """The sizes k - 2p along each axis: windows of equal shift begin at the same place once
        both are padded to one size."""
        return tuple(k - 2 * p for k, p in zip(self.kernel, self.window.padding, strict=True))


def siblings(graph: Graph, trace: Trace) -> list[tuple[SiblingConv, ...]]:
    """Families of two and more, any part of which may be merged; no convolution is in two. The
    others are refused in a sentence."""
    by_input: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op == CONVOLUTION:
            by_input.setdefault(node.uses[0], []).append(node)
    readers = users(graph)
    constants = {constant.name: constant for constant in graph.constants}
    returned = {ref.name for ref in graph.outputs}
    families: list[tuple[SiblingConv, ...]] = []
    for value, nodes in by_input.items():
        if len(nodes) < 2:
            continue
        able: list[SiblingConv] = []
        for node in nodes:
            member = _member(node, readers, constants, returned)
            if isinstance(member, SiblingConv):
                able.append(member)
            else:
                refuse(trace, f"merge %{node.name} with others of %{value}", member.sentence)
        families += [family for family in _families(able, trace) if len(family) > 1]
    return families


def why_apart(a: SiblingConv, b: SiblingConv) -> Refused | None:
    """Why two convolutions of one input cannot be one."""
    if a.node.uses[0] != b.node.uses[0]:
        return Refused(f"one reads %{a.node.uses[0]}, the other %{b.node.uses[0]}")
    if a.window.stride != b.window.stride:
        strides = (_pair(m.window.stride) for m in (a, b))
        return Refused(f"their strides are {' and '.join(strides)}")
    if a.node.type.dtype != b.node.type.dtype:
        return Refused(
            f"they are {DTYPE_NAMES[a.node.type.dtype]} and {DTYPE_NAMES[b.node.type.dtype]}"
        )
    if a.shift != b.shift:
        if a.node.type.shape[2:] != b.node.type.shape[2:]:
            sizes = (_pair(m.node.type.shape[2:]) for m in (a, b))
            return Refused(f"their results are {' and '.join(sizes)}")
        windows = (f"{_pair(m.kernel)} padded by {_pair(m.window.padding)}" for m in (a, b))
        return Refused(f"the windows {' and '.join(windows)} do not have one centre")
    if (a.last is a.node) != (b.last is b.node):
        plain = a if a.last is a.node else b
        return Refused(f"%{plain.node.name} has no relu of its own, the other has")
    return None


def _families(able: list[SiblingConv], trace: Trace) -> Iterator[tuple[SiblingConv, ...]]:
    """Being able to merge is an equivalence: each joins those whose first it fits."""
    families: list[list[SiblingConv]] = []
    for member in able:
        for family in families:
            why = why_apart(family[0], member)
            if not why:
                family.append(member)
                break
            refuse(trace, f"merge %{family[0].node.name} + %{member.node.name}", why.sentence)
        else:
            families.append([member])
    return map(tuple, families)


def _member(
    node: Node,
    readers: Mapping[str, list[Node]],
    constants: Mapping[str, Constant],
    returned: set[str],
) -> SiblingConv | Refused:
    """The convolution by its parts, or why none like it is merged."""
    arguments = ops.arguments(node)
    weight, bias = (
        constants.get(arg.name) if isinstance(arg, Ref) else None
        for arg in (arguments["weight"], arguments["bias"])
    )
    if len(node.type.shape) != 4:
        return Refused("it is not two-dimensional")
    if arguments["transposed"]:
        return Refused("it is transposed")
    if arguments["groups"] != 1:
        return Refused(f"it has {arguments['groups']} groups")
    if arguments["dilation"] != (1, 1):
        return Refused("it is dilated")
    if weight is None or weight.value is None:
        return Refused("its weight is no constant")
    if arguments["bias"] is not None and (bias is None or bias.value is None):
        return Refused("its bias is no constant")
    after = readers.get(node.name, [])
    last = after[0] if len(after) == 1 and after[0].op == RELU else node
    if out := returned.intersection((node.name, last.name)):
        return Refused(f"%{out.pop()} is returned, and would be a part of a larger tensor")
    window = of_rest(ops.in_order(node)[3:], 2)
    return SiblingConv(node, last, weight, bias, window)


def _pair(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))
