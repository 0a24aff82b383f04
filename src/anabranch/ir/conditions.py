"""Conditions: what rewrites see in the values of constants, and rely on.

    finite              no infinity and no NaN          zeros may be multiplied by it
    ends_in_zeros n     rows from the n-th on are 0     whoever reads them may leave them out
    at_most n           absolute values                 a factor of scores that stays a factor
    hides_no_row n      of a mask, n columns wide       a row that is all hidden has no softmax
    adds_to_each_row n  of a mask that is added         as above, where hidden is -infinity
    hides_nothing       no -infinity                    masks are added to each other
    steps_of n          0, n, 2n, ...                   bags of one length
    within low high     of an index                     generated kernels read where it says
    together            of a comparison, all true       tensors that shared memory are alike in it
    alone               never                           it shared memory in a way that none tells

A condition is recorded by the rewrite, kept beside the graph and asked again of new weights. One
table says for each kind when it holds, and what to tell where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Condition, Constant, Graph, Node, Ref, producers, types
from anabranch.ir.recipe import bare, follows, leaves
from anabranch.ir.types import TensorType

Numbers = tuple[int | float, ...]
BAG = "aten._embedding_bag"
LOOKUPS = frozenset(
    f"aten.{name}" for name in ("embedding", "embedding_bag", "index_select", "gather", "index")
)
"""Operators that look up by an index, beside those whose names begin with `BAG`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`holds`: a truth value as a tensor, on the device of the value. `numbers`: how many it takes.
    `broken`: a clause that follows the constant's names, in which {0} and {1} are its numbers."""

    holds: Callable[[Tensor, Numbers], Tensor]
    numbers: int
    broken: str


def conditioned(graph: Graph, seen: Sequence[tuple[Constant, str, Numbers]]) -> Graph:
    """The graph, relying on what was seen of these constants too. What no weight can change needs
    no condition."""
    more = [Condition(bare(c), kind, numbers) for c, kind, numbers in seen if follows(c)]
    together = tuple(dict.fromkeys((*graph.conditions, *more)))
    return graph if together == graph.conditions else replace(graph, conditions=together)


def index_bounds(graph: Graph) -> list[tuple[Constant, str, Numbers]]:
    """Where constants are indices: eager refuses those that point elsewhere, generated kernels do
    not look."""
    table, makers = types(graph), producers(graph)
    constants = {constant.name: constant for constant in graph.constants}
    bounds: list[tuple[Constant, str, Numbers]] = []
    for node in graph.nodes:
        for name, low, high in _lookups(node, table):
            while (maker := makers.get(name)) is not None and ops.kind_of(maker) == "view":
                name = maker.uses[0]
            constant = constants.get(name)
            if constant is not None and constant.type.dtype != torch.bool:
                bounds.append((constant, "within", (low, high)))
    return bounds


def _lookups(node: Node, types: Mapping[str, TensorType]) -> Iterator[tuple[str, int, int]]:
    """The indices that a node looks up by: names, the least of each, and what all are below."""
    name = ops.packet_name(node.op)
    if name not in LOOKUPS and not name.startswith(BAG):
        return
    arguments = ops.arguments(node)
    table = next(iter(arguments.values()), None)
    if not isinstance(table, Ref):
        return
    shape, wraps = types[table.name].shape, name == "aten.index"
    listed: list[tuple[Arg, Arg]] = []
    if name in ("aten.embedding", "aten.embedding_bag") or name.startswith(BAG):
        listed = [(arguments["indices"], 0)]
    elif name in ("aten.index_select", "aten.gather"):
        listed = [(arguments["index"], arguments["dim"])]
    elif wraps and isinstance(arguments["indices"], tuple):
        listed = [(index, axis) for axis, index in enumerate(arguments["indices"])]
    for index, axis in listed:
        if isinstance(index, Ref) and isinstance(axis, int) and -len(shape) <= axis < len(shape):
            yield index.name, -shape[axis] if wraps else 0, shape[axis]


def holds(condition: Condition, value: Tensor) -> Tensor:
    """Whether the value meets the condition: a boolean tensor without dimensions, on the value's
    device, so that many are read from a GPU at once."""
    return KINDS[condition.kind].holds(value, condition.numbers)


def broken(condition: Condition) -> str:
    """The relation that no longer holds, as a clause about the weights that it comes of."""
    names = [leaf.source[0] for leaf in leaves([condition.constant]) if leaf.source]
    told = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    own = condition.constant.derived is None or condition.kind == "together"
    what = told if own else f"what is computed of {told}"
    return f"{what} {KINDS[condition.kind].broken.format(*condition.numbers)}"


def _finite(value: Tensor, _: Numbers) -> Tensor:
    return value.isfinite().all()


def _ends_in_zeros(value: Tensor, numbers: Numbers) -> Tensor:
    return ~value[int(numbers[0]) :].any()


def _at_most(value: Tensor, numbers: Numbers) -> Tensor:
    return (value.abs() <= numbers[0]).all()


def _hides_no_row(value: Tensor, numbers: Numbers) -> Tensor:
    return ~value.expand(*value.shape[:-1], int(numbers[0])).all(-1).any()


def _adds_to_each_row(value: Tensor, numbers: Numbers) -> Tensor:
    return _hides_no_row(value.isneginf(), numbers)


def _hides_nothing(value: Tensor, _: Numbers) -> Tensor:
    return ~value.isneginf().any()


def _steps_of(value: Tensor, numbers: Numbers) -> Tensor:
    steps = torch.arange(value.numel(), dtype=value.dtype, device=value.device) * int(numbers[0])
    return (value.reshape(-1) == steps).all()


def _within(value: Tensor, numbers: Numbers) -> Tensor:
    return ((value >= numbers[0]) & (value < numbers[1])).all()


def _together(value: Tensor, _: Numbers) -> Tensor:
    return value.all()


def _alone(value: Tensor, _: Numbers) -> Tensor:
    return torch.zeros((), dtype=torch.bool, device=value.device)


SHARED = "shared memory with another tensor that the model reads when it was compiled"
KINDS: dict[str, Kind] = {
    "finite": Kind(
        _finite,
        0,
        "holds an infinity or a NaN now, and zeros were put beside it that it would turn into NaN",
    ),
    "ends_in_zeros": Kind(
        _ends_in_zeros, 1, "no longer ends in zeros from row {0} on, which were left out"
    ),
    "at_most": Kind(
        _at_most, 1, "exceeds {0}, up to which it may be taken into the query of an attention"
    ),
    "hides_no_row": Kind(
        _hides_no_row,
        1,
        "hides all of a row now, for which attention as one operator gives another result",
    ),
    "adds_to_each_row": Kind(
        _adds_to_each_row,
        1,
        "hides all of a row now, for which attention as one operator gives another result",
    ),
    "hides_nothing": Kind(
        _hides_nothing, 0, "holds -infinity now, and is one of several masks of an attention"
    ),
    "steps_of": Kind(_steps_of, 1, "no longer begins a bag every {0} rows"),
    "within": Kind(_within, 2, "points outside of the rows {0} to {1} that it is an index of"),
    "together": Kind(
        _together, 0, f"{SHARED}, and the two differ now: of one of them there is no new value"
    ),
    "alone": Kind(_alone, 0, f"{SHARED}, and a plan has a copy of each"),
}
