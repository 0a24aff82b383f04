"""Domains: which numbers an operator may read where a graph reads its inputs.

    embedding(table f32[50,3], ids i64[4])      ids: integers from 0 to 49
    floor_divide(i i64[8], j i64[8])            j: integers other than 0
    searchsorted(edges f32[9], x f32[4])        edges: sorted

An operator that is given other numbers refuses them, answers anything, or reads memory that is not
its own, which on a GPU ends the process. A domain holds for a value that only views and copies
separate from the operator. Of operators that the tables here do not know `understood` says no, and
only real values are fit for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, producers, types, users
from anabranch.ir.padding_marks import asks_for_mark, removes_marks
from anabranch.ir.rounding import GRADIENTS
from anabranch.ir.types import TensorType

RENAMED = frozenset(
    f"aten.{name}"
    for name in (
        *("view", "reshape", "_unsafe_view", "flatten", "squeeze", "unsqueeze", "permute", "t"),
        *("clone", "transpose", "slice", "select", "_to_copy", "expand", "alias", "detach"),
        *("contiguous", "expand_as", "unflatten", "repeat", "flip"),
    )
)
"""Operators that hand on the numbers that they read."""
BAGS = frozenset({"aten._embedding_bag", "aten._embedding_bag_forward_only", "aten.embedding_bag"})
LOOKUP_GRADIENT = "aten.embedding_dense_backward"
BY_AXIS = {
    **{f"aten.{name}": "index" for name in ("index_select", "gather", "scatter", "scatter_add")},
    **{f"aten.{name}": "index" for name in ("scatter_reduce", "index_add", "index_copy")},
    **{f"aten.{name}": "index" for name in ("index_fill", "index_reduce")},
}
"""Operators that look up along the axis `dim` of their first operand, and the name of the index."""
LISTED = frozenset(
    f"aten.{name}" for name in ("index", "_unsafe_index", "index_put", "_unsafe_index_put")
)
"""Operators with a list of indices, one for each axis; negative ones count from the end."""
FLAT = {"aten.take": "index", "aten.put": "index"}
"""Operators that look up in all elements of their first operand; negative ones likewise."""
CLASSES = {
    **{f"aten.{name}": "target" for name in ("nll_loss_forward", "nll_loss", "nll_loss_nd")},
    **{f"aten.{name}": "target" for name in ("nll_loss2d_forward", "nll_loss2d")},
    "aten.cross_entropy_loss": "target",
}
"""Losses, whose targets name channels: the second axis of what they read, or its only one."""
OVERWRITES = frozenset(
    f"aten.{name}" for name in ("scatter", "index_copy", "index_put", "_unsafe_index_put", "put")
)
"""Operators whose result is anybody's guess where two indices are equal."""
DIVIDES = frozenset(f"aten.{name}" for name in ("floor_divide", "remainder", "fmod", "div"))
SHIFTS = frozenset(
    f"aten.{name}"
    for name in ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
)
SORTED = {"aten.searchsorted": "sorted_sequence", "aten.bucketize": "boundaries"}
VARIANCES = frozenset(
    f"aten.{name}"
    for name in (
        *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
        *("_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    )
)
ATTENTION = "scaled_dot_product"
"""In the names of operators that mask by adding or by leaving out, as their library does: what is
not finite in a key is lost in some, and spreads in others."""
HARMLESS = frozenset(
    f"aten.{name}"
    for name in (
        *("sort", "topk", "argsort", "isin", "median", "mode", "kthvalue", "diff", "trace", "kron"),
        *("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__", "dot", "mv"),
        *("count_nonzero", "nansum", "isfinite", "isneginf", "isposinf", "atan2", "copysign"),
        *("gcd", "lcm", "fmax", "fmin", "rot90", "tile", "new_zeros", "new_ones", "new_full"),
        *("diag_embed", "einsum", "tensordot", "outer", "signbit", "rand_like", "randn_like"),
        *("dropout", "native_dropout", "logical_and", "cummax", "cummin", "bitwise_xor", "copy"),
    )
)
"""Operators that the operator table lacks, and that may read any integers."""
EXPONENTS, SHIFTED = 4, 8
"""Integers that are exponents, and places that integers are shifted by, are below."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Which numbers a value may hold. `low` to below `high`: integers, None for no bound;
    `nonzero`, `unit` (from 0 to 1), `positive`, `sorted` (along the last axis) and `distinct`
    (along this axis) restrict them further; `starts`: where bags of so many indices begin;
    `finite`: infinities make of it what the order of operations says, which differs by library."""

    low: int | None = None
    high: int | None = None
    nonzero: bool = False
    unit: bool = False
    positive: bool = False
    sorted: bool = False
    distinct: int | None = None
    starts: int | None = None
    finite: bool = False

    def meet(self, other: Domain) -> Domain:
        """What both allow."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        starts = [count for count in (self.starts, other.starts) if count is not None]
        return Domain(
            max(lows, default=None),
            min(highs, default=None),
            self.nonzero or other.nonzero,
            self.unit or other.unit,
            self.positive or other.positive,
            self.sorted or other.sorted,
            self.distinct if self.distinct is not None else other.distinct,
            min(starts, default=None),
            self.finite or other.finite,
        )


ANY = Domain()


def domains(graph: Graph) -> dict[str, Domain]:
    """The domains of the inputs, where there are any. Bounds of indices are of inputs that are read
    as indices alone: of what is reckoned with besides nobody knows where it leads."""
    table, makers, readers = types(graph), producers(graph), users(graph)
    domain_of: dict[str, Domain] = {}
    asked: dict[str, set[str]] = {}
    for node in graph.nodes:
        for name, domain in demands(node, table):
            source = source_of(name, makers)
            if domain.low is not None:
                asked.setdefault(name, set()).add(node.name)
            domain_of[source] = domain.meet(domain_of.get(source, ANY))

    def alone(name: str) -> bool:
        """Whether every reader looks up by it, or hands it on to such."""
        return all(
            reader.name in asked.get(name, ())
            or asks_for_mark(reader)
            or (_hands_on(reader, makers) and all(map(alone, reader.results)))
            for reader in readers.get(name, ())
        )

    inputs = {value.name for value in graph.inputs}
    return {
        name: domain if domain.low is None or alone(name) else _unbound(domain)
        for name, domain in domain_of.items()
        if name in inputs
    }


def _unbound(domain: Domain) -> Domain:
    return replace(domain, low=None, high=None, distinct=None)


def demands(node: Node, types: Mapping[str, TensorType]) -> Iterator[tuple[str, Domain]]:
    """The numbers that the operator may read of the values it is given, where these are not any
    numbers."""
    name = ops.packet_name(node.op)
    for index, low, size in indices(node, types):
        yield index, Domain(low, max(1, size), distinct=_axis(node) if name in OVERWRITES else None)
    if name in ops.PROBABILITIES:
        for used in node.uses:
            yield used, Domain(unit=True)
    arguments = ops.arguments(node)
    if (
        name in BAGS
        and isinstance(arguments["offsets"], Ref)
        and isinstance(arguments["indices"], Ref)
    ):
        yield arguments["offsets"].name, Domain(starts=types[arguments["indices"].name].numel)
    if name in SORTED and isinstance(edges := arguments[SORTED[name]], Ref):
        yield edges.name, Domain(sorted=True)
    if name in VARIANCES and isinstance(variance := arguments.get("running_var"), Ref):
        yield variance.name, Domain(positive=True, finite=True)
    if ATTENTION in name:
        for stated in ("key", "value", "attn_mask", "attn_bias"):
            if isinstance(value := arguments.get(stated), Ref):
                yield value.name, Domain(finite=True)
    if ops.contracts(node) and "conv" in name:
        weight = arguments.get("grad", arguments.get("weight"))
        if isinstance(weight, Ref):  # of which libraries multiply the zeros around an image, or not
            yield weight.name, Domain(finite=True)
    if name in VARIANCES:
        for stated in ("running_mean", "weight", "bias"):
            if isinstance(value := arguments.get(stated), Ref):
                yield value.name, Domain(finite=True)
    if len(node.args) > 1 and isinstance(other := node.args[1], Ref) and _whole(types[other.name]):
        if name in DIVIDES:
            yield other.name, Domain(nonzero=True)
        elif name == "aten.pow":
            yield other.name, Domain(0, EXPONENTS)
        elif name in SHIFTS:
            yield other.name, Domain(0, SHIFTED)


def indices(node: Node, types: Mapping[str, TensorType]) -> Iterator[tuple[str, int, int]]:
    """The indices of a lookup, each with the lowest it may be, and the size of what it is for."""
    arguments, name = ops.arguments(node), ops.packet_name(node.op)
    table = next(iter(arguments.values()), None)
    if not isinstance(table, Ref):
        return
    shape, listed = types[table.name].shape, list[tuple[Arg, int]]()
    negative = name in LISTED or name in FLAT
    if name == "aten.embedding" or name in BAGS:
        listed = [(arguments["indices"], shape[0])]
    elif name == LOOKUP_GRADIENT and isinstance(rows := arguments["num_weights"], int):
        listed = [(arguments["indices"], rows)]
    elif name in BY_AXIS and isinstance(axis := arguments["dim"], int):
        if -max(1, len(shape)) <= axis < max(1, len(shape)):
            listed = [(arguments[BY_AXIS[name]], shape[axis] if shape else 1)]
    elif name in LISTED and isinstance(arguments["indices"], tuple):
        listed = list(zip(arguments["indices"], shape, strict=False))
    elif name in FLAT:
        listed = [(arguments[FLAT[name]], math.prod(shape))]
    elif name in CLASSES:
        listed = [(arguments[CLASSES[name]], shape[min(1, len(shape) - 1)])]
    for index, size in listed:
        if isinstance(index, Ref) and not types[index.name].dtype.is_floating_point:
            yield index.name, -size if negative else 0, size


def _axis(node: Node) -> int:
    axis = ops.arguments(node).get("dim", 0)
    return axis if isinstance(axis, int) else 0


def understood(graph: Graph) -> bool:
    """Whether the tables know what the operators may read: nothing is known of a user's own
    operators, and of ATen's that the operator table lacks and that read integers little."""
    table = types(graph)
    return all(_is_understood(node, table) for node in graph.nodes)


def _is_understood(node: Node, types: Mapping[str, TensorType]) -> bool:
    name = ops.packet_name(node.op)
    if name in GRADIENTS:  # a place must be one of its window
        return False
    if ops.kind_of(node) != "opaque":
        return True
    if not name.startswith("aten.") or "assert" in name:
        return False
    tabled = (
        name == LOOKUP_GRADIENT
        or name in BAGS
        or name in BY_AXIS
        or name in FLAT
        or name in CLASSES
        or name in LISTED
    )
    if tabled or name in HARMLESS or name in SORTED or name in ops.PROBABILITIES:
        return True
    # A mask counts: as many elements as it has must be there.
    return not any(
        _whole(types[used]) or types[used].dtype == torch.bool for used in set(node.uses)
    )


def _whole(type: TensorType) -> bool:
    dtype = type.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def source_of(name: str, makers: Mapping[str, Node]) -> str:
    """The value whose numbers these are."""
    while (maker := makers.get(name)) and _hands_on(maker, makers):
        name = maker.uses[0]
    return name


def _hands_on(node: Node, makers: Mapping[str, Node]) -> bool:
    """Whether its result has the numbers of its first operand."""
    return ops.packet_name(node.op) in RENAMED or removes_marks(node, makers)
