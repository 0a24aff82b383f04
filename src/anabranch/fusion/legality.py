r"""Legality: may these nodes share a launch, and if not, why not.

A group is a chain whose last node is the only one that others read, so it can start when
everything it reads is there, and nothing it computes on the way is missed:

        conv      r                 conv is read by add alone, add by relu alone;
          \      /                  r is of the result's shape, dtype and layout
            add
             |
            relu  -> anybody
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Input, Node, Ref, producers, types, users
from anabranch.ir.key import canonical
from anabranch.ir.protocols import A_LARGE_GPU
from anabranch.ir.refused import Refused
from anabranch.ir.state import overwriting, placed
from anabranch.ir.types import TensorType
from anabranch.kernels.dfg import lower
from anabranch.kernels.dfg.expr import COMPUTE
from anabranch.kernels.dfg.lower import LOWERINGS, lower_parts
from anabranch.kernels.triton import scatter
from anabranch.kernels.triton.codegen import variants, why_none

CONVOLUTION, ADD, RELU = "aten.convolution.default", "aten.add.Tensor", "aten.relu.default"
LINEAR, ADDMM, GELU = "aten.linear.default", "aten.addmm.default", "aten.gelu.default"
CHEAP = frozenset(
    f"aten.{name}"
    for name in (
        *("relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max", "maximum", "minimum"),
        *("add", "sub", "mul", "neg", "abs", "_to_copy", "constant_pad_nd"),
    )
)
"""Nodes that may as well be computed once for each window that reads them: an instruction or
two."""
RECOMPUTED = frozenset(
    f"aten.{name}"
    for name in (
        *("gather", "index", "index_select", "repeat"),
        *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
        *("upsample_bicubic2d", "grid_sampler_2d", "im2col"),
        *(f"upsample_nearest{rank}d" for rank in (1, 2, 3)),
        *(f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)),
    )
)
"""Moves that read an element as often as they like."""
GATHERS = RECOMPUTED | {
    f"aten.{name}"
    for name in (
        *("cat", "constant_pad_nd", "embedding", "new_empty", "flip", "roll", "tril", "triu"),
        *("channel_shuffle", "native_channel_shuffle", "pixel_shuffle", "pixel_unshuffle"),
        *("slice_scatter", "select_scatter"),
        *(f"reflection_pad{rank}d" for rank in (1, 2, 3)),
        *(f"replication_pad{rank}d" for rank in (1, 2, 3)),
    )
}
"""Moves whose element is computed where it is needed as cheaply as it is read."""
MOST_PROLOGUE_READS = 4
"""Values that each point of a window may be made of; weights do not count, nor what is the same for
all points, as the statistics of a norm and its scales of channels are."""
LIBRARY_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True)
class FusionFacts:
    """What legality asks of a graph: types, readers, makers, what is returned, what is constant,
    for each node the mask of the nodes it depends on, with the position of each, and the nodes
    that shall be `alone`. `late`: by name a number; no cluster holds nodes of several, for
    these are to run when fewer bytes live. `written`: those that write over the value of a state,
    in its place, with that value; they are `alone` but in clusters that compute what is written."""

    types: dict[str, TensorType]
    readers: dict[str, list[Node]]
    makers: dict[str, Node]
    returned: Collection[str]
    constants: Collection[str]
    position: dict[str, int]
    ancestors: tuple[int, ...]
    alone: Collection[str] = ()
    late: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        graph: Graph, alone: Collection[str] = (), late: Mapping[str, int] = MappingProxyType({})
    ) -> FusionFacts:
        """What legality asks of the graph, found out once. `alone`: names of nodes that shall share
        no launch; so are those that write over the value of a state, in its place."""
        makers, masks = producers(graph), list[int]()
        position = {node.name: i for i, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            mask = 0
            for name in node.uses:
                if name in makers:
                    at = position[makers[name].name]
                    mask |= masks[at] | 1 << at
            masks.append(mask)
        returned = frozenset(ref.name for ref in graph.outputs)
        constants = frozenset(constant.name for constant in graph.constants)
        fields = types(graph), users(graph), makers, returned, constants
        written = overwriting(graph)
        apart = {*alone, *written}
        return FusionFacts(*fields, position, tuple(masks), apart, late, written)

    def depends(self, node: Node, value: str) -> bool:
        """Whether the node can run only when the value is there anyway."""
        if value not in self.makers:
            return True
        at = self.position[self.makers[value].name]
        return bool(self.ancestors[self.position[node.name]] >> at & 1)

    def awaits(self, node: Node, value: str) -> bool:
        """As `depends`, where a view is there with what it is a view of."""
        maker = self.makers.get(value)
        while maker is not None and ops.is_view(maker, self.types):
            value = maker.uses[0]
            maker = self.makers.get(value)
        return self.depends(node, value)


class Unwritten(Protocol):
    """Says why no template writes a kernel for nodes that returns these values, by default what
    the last one makes; `why_not_written`, or one who remembers."""

    def __call__(
        self, group: Sequence[Node], facts: FusionFacts, outputs: Sequence[str] | None = None
    ) -> Refused | None:
        """Why not; None if a template writes the kernel."""


def why_not(group: Sequence[Node], facts: FusionFacts) -> Refused | None:
    """Why these nodes, a chain from an anchor on, cannot run as one call of a library."""
    return (
        _read_outside(group, facts)
        or _other_type(group)
        or _ANCHORS[group[0].op](group[0], group[1:])
        or _residual(group, facts)
    )


def why_not_pointwise(node: Node, group: Sequence[Node], facts: FusionFacts) -> Refused | None:
    """Why a node cannot join the group that reads it. No intermediate result is
    written then, so nobody else may read it."""
    inside = {member.name for member in group}
    for member in (node, *group):
        if not ops.contracts(member) and (why := unknown(member)):
            return why
    for result in node.results:
        if result in facts.returned:
            return Refused(f"%{result} is returned")
        outside = [n for n in facts.readers.get(result, ()) if n.name not in inside]
        if outside:
            return Refused(f"%{result} is also read by %{outside[0].name}")
    return misread(node, [member for member in group if set(node.results) & set(member.uses)])


def misread(node: Node, readers: Sequence[Node]) -> Refused | None:
    """Why what these read cannot be computed where they read it."""
    for reader in readers:
        if ops.kind_of(reader) != "pointwise":
            if reader.uses.count(node.name) > 1 or reader.uses[0] != node.name:
                return Refused(f"%{reader.name} reads %{node.name} otherwise than as its input")
        elif reader.type.shape != node.type.shape:
            return Refused(
                f"%{node.name} is broadcast: it would be computed again for each element"
            )
    return None


def unknown(node: Node) -> Refused | None:
    """Why no kernel is ever written for the operator."""
    if ops.packet_name(node.op) not in LOWERINGS:
        return Refused(f"{node.op} has no lowering")
    other = next((type for type in node.types if type.dtype not in COMPUTE), None)
    return (
        Refused(f"%{node.name} is of {other.dtype}, for which there are no kernels")
        if other
        else None
    )


def why_not_written(
    group: Sequence[Node], facts: FusionFacts, outputs: Sequence[str] | None = None
) -> Refused | None:
    """Why no template writes a kernel for the group."""
    why = _before_windows(group, facts)
    if why:
        return why
    body = body_of(group, facts, outputs)
    if _written(canonical(body, content=False)):
        return None
    lowered = lower_parts(body) if body.states else lower(body)
    if isinstance(lowered, Refused):
        return lowered
    return Refused(f"no template writes it as one kernel ({why_none(body)})")


@functools.lru_cache(maxsize=1 << 13)
def _written(same: Graph) -> bool:
    """Whether some template writes a body whose names are positions."""
    if same.states:
        return not isinstance(scatter.found_in(same), Refused)
    return not isinstance(lower(same), Refused) and bool(variants(same, A_LARGE_GPU))


def _before_windows(group: Sequence[Node], facts: FusionFacts) -> Refused | None:
    """Nodes computed again for each window must be cheap, and read few values."""
    for anchor in group:
        if anchor.op != CONVOLUTION and "pool" not in anchor.op:
            continue
        before = [n for n in group if n is not anchor and facts.depends(anchor, n.name)]
        for node in before:
            if ops.packet_name(node.op) not in CHEAP:
                return Refused(f"%{node.name} would be computed again for each window it lies in")
        results = {name for node in before for name in node.results}
        places = len(anchor.types[0].shape) - 2
        read = {name for node in before for name in node.uses} - results
        read = {name for name in read if differs(facts.types[name], places)}
        if len(read) > MOST_PROLOGUE_READS:
            return Refused(
                f"%{anchor.name} would read {len(read)} values for each point of a window"
            )
    return None


def differs(type: TensorType, places: int) -> bool:
    """Whether a value may be another one at another place: along any of the last so many axes."""
    return any(size != 1 for size in type.shape[-places:])


def body_of(
    group: Sequence[Node], facts: FusionFacts, outputs: Sequence[str] | None = None
) -> Graph:
    """The group as a graph that reads everything as an input and returns `outputs`, by default its
    last value."""
    results = {name for node in group for name in node.results}
    read = dict.fromkeys(name for node in group for name in node.uses if name not in results)
    inputs = tuple(Input(name, facts.types[name]) for name in read)
    returned = tuple(map(Ref, outputs or group[-1].results))
    return placed(Graph(group[-1].name, inputs, (), tuple(group), returned), facts.written)


def is_depthwise(node: Node, facts: FusionFacts) -> bool:
    """Whether the node is a convolution of each channel by itself."""
    if node.op != CONVOLUTION:
        return False
    arguments = ops.arguments(node)
    weight = arguments["weight"]
    assert isinstance(weight, Ref)
    alone = facts.types[weight.name].shape[1] == 1
    return alone and arguments["groups"] != 1 and not arguments["transposed"]


def _read_outside(group: Sequence[Node], facts: FusionFacts) -> Refused | None:
    for node, reader in itertools.pairwise(group):
        if node.name in facts.returned:
            return Refused(f"%{node.name} is returned")
        readers = facts.readers[node.name]
        if len(readers) > 1:
            return Refused(f"%{node.name} has {len(readers)} consumers")
        if reader.uses.count(node.name) > 1:
            return Refused(f"%{reader.name} reads %{node.name} twice")
    return None


def _other_type(group: Sequence[Node]) -> Refused | None:
    want = group[0].type
    for node in group[1:]:
        if not ops.same_layout(want, node.type):
            return Refused(f"%{node.name} is {node.type.text}, %{group[0].name} {want.text}")
    return None


def _convolution(node: Node, rest: Sequence[Node]) -> Refused | None:
    arguments = ops.arguments(node)
    if arguments["transposed"]:
        return Refused("the library fuses nothing into a transposed convolution")
    if len(node.type.shape) != 4:
        return Refused("the library fuses two-dimensional convolutions only")
    return _dtype(node)


def _linear(node: Node, rest: Sequence[Node]) -> Refused | None:
    arguments = ops.arguments(node)
    if node.op == LINEAR and arguments["bias"] is None:
        return Refused("the library's fused call adds a bias, and there is none")
    if len(node.type.shape) != 2:
        return Refused(
            f"the library's fused call multiplies matrices, and %{node.name} is a stack of them"
        )
    if node.op == ADDMM and (arguments["alpha"], arguments["beta"]) != (1, 1):
        return Refused("the library's fused call does not scale")
    for last in rest:
        if last.op == GELU and ops.arguments(last)["approximate"] != "tanh":
            return Refused("the library's gelu is the tanh approximation, the model's is exact")
    return _dtype(node)


def _dtype(node: Node) -> Refused | None:
    supported = node.type.dtype in LIBRARY_DTYPES
    return Refused.unless(supported, f"the library fuses nothing in {node.type.dtype}")


_ANCHORS = {CONVOLUTION: _convolution, LINEAR: _linear, ADDMM: _linear}
"""The products that a chain may start with, and what the library asks of them."""


def _residual(group: Sequence[Node], facts: FusionFacts) -> Refused | None:
    """Of an addition in the group: what is added must be a tensor just like the result. Without a
    relu after it, it must not make the anchor wait: one launch less is worth no lost overlap."""
    for at, node in enumerate(group[1:], 1):
        if node.op != ADD:
            continue
        other = _other(node, group[at - 1].name)
        if not isinstance(other, Ref):
            return Refused(f"%{node.name} adds a number, not a residual")
        if ops.arguments(node)["alpha"] != 1:
            return Refused(f"%{node.name} scales what it adds")
        if not ops.same_layout(facts.types[other.name], node.type):
            said = facts.types[other.name].text
            return Refused(f"the residual %{other.name} is {said}, the result {node.type.text}")
        if node is group[-1] and not facts.awaits(group[0], other.name):
            return Refused(
                f"%{group[0].name} would wait for %{other.name}, which can run beside it"
            )
    return None


def _other(node: Node, value: str) -> Arg:
    """The operand of an addition that is not this value."""
    left, right = node.args[:2]
    return right if isinstance(left, Ref) and left.name == value else left
