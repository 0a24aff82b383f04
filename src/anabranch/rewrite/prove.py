"""Proving: are two graphs equal? Both are run on the same random inputs in double precision.

    graph, other -> ""                                      equal on every trial
                    "result 0 differs by 0.31 on trial 2"   else, why not

Where every operator only adds, multiplies, compares and moves, the inputs are small integers and
the results must be equal to the last bit: rounding explains nothing there. One more trial is of
fractions, for x*x is never less than x where x is whole. Elsewhere, and there, the allowed
difference is what reordered double-precision sums can make, far below what any wrong rule makes.
Random testing proves for the shapes at hand; a rule is trusted because it was drawn for many.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anabranch.ir import custom_ops, ops
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Constant, Graph, Input, Node
from anabranch.ir.refused import Refused
from anabranch.ir.types import TensorType

TRIALS = 3
RELATIVE = 1e-9
"""Of the largest magnitude of a result; sums of a million doubles in another order stay below."""

LARGEST_INTEGER = 3
"""Random integers are drawn from -3 to 3: products of five of them, summed over a million terms,
stay far inside the 53 bits in which doubles are exact."""

MOST_DRAWN = 1_999_993
"""Numbers of a tensor that are drawn; a larger one has them over and over. A prime, so that no axis
of usual tensors is a multiple of it, and what is moved elsewhere is seen."""

NOT_USUAL = {
    "wild": (float("inf"), float("-inf"), float("nan"), 0.0, -0.0),
    "large": (1e200, 1e-200),
}
"""Numbers that some equations do not hold for."""

EXACT = {ops.packet_name(op) for op in (custom_ops.RECURRENCE, custom_ops.WIDE_MM)} | frozenset(
    f"aten.{name}"
    for name in (
        *("add", "sub", "mul", "neg", "relu", "maximum", "minimum", "abs", "clone", "where"),
        *("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "convolution", "einsum", "sum"),
        *("cat", "split", "split_with_sizes", "chunk", "slice", "select", "stack", "index_select"),
        *("reshape", "view", "permute", "transpose", "t", "squeeze", "unsqueeze", "expand"),
        *("flatten", "constant_pad_nd", "max_pool2d", "amax", "contiguous", "zeros", "full", "eye"),
        *("zeros_like", "full_like", "_unsafe_view", "unbind", "repeat", "detach", "alias"),
        *("addcmul", "rsub", "hardtanh", "clamp", "embedding", "mv", "dot", "amin", "max_pool1d"),
        *("max_pool3d", "pixel_shuffle", "pixel_unshuffle", "lift_fresh"),
    )
)
"""Operators that give integers for integers."""


def different(graph: Graph, other: Graph, seed: int = 0, trials: int = TRIALS) -> Refused | None:
    """Why the graphs are not equal, None if every trial found the same numbers. Constants that both
    have are drawn anew in every trial, alike for both; inputs likewise. Both graphs have the same
    inputs in the same order."""
    if [value.type for value in graph.inputs] != [value.type for value in other.inputs]:
        return Refused("they do not take the same inputs")
    whole = all(map(integral, (graph, other)))
    for trial in range(trials + whole):
        exact = whole and trial < trials
        dice = torch.Generator().manual_seed(seed + trial)
        inputs = [draw(value.type, dice, exact) for value in graph.inputs]
        drawn: dict[str, torch.Tensor] = {}
        sides = [with_values(side, drawn, dice, exact) for side in (graph, other)]
        wanted, actual = (eval_graph(side, inputs, precision=torch.float64) for side in sides)
        for i, (want, got) in enumerate(zip(wanted, actual, strict=True)):
            if want.shape != got.shape:
                return Refused(f"result {i} has shape {tuple(got.shape)}, not {tuple(want.shape)}")
            error, allowed = _distance(want, got), 0.0 if exact else RELATIVE * _size(want)
            if not error <= allowed:  # NaN is no equality
                return Refused(f"result {i} differs by {error:.2g} on trial {trial}")
    return None


def unlike(graph: Graph, other: Graph, seed: int = 0) -> Refused | None:
    """Where the graphs treat NaN, infinities or the sign of zero otherwise, None if nowhere: both
    are run on normal numbers with a few of these among them, inputs and constants alike, and on
    positive ones among which some are so large, or small, that products of two are infinities, or
    zeros. Where the sign of a zero is that of what was summed up in some order, it is nobody's."""
    for kind in NOT_USUAL:
        dice = torch.Generator().manual_seed(seed)
        inputs = [spoilt(draw(value.type, dice), dice, kind) for value in graph.inputs]
        held: dict[str, torch.Tensor] = {}
        for side in (graph, other):
            for constant in side.constants:
                if constant.digest not in held:
                    held[constant.digest] = spoilt(draw(constant.type, dice), dice, kind)
        first, second = (with_values(side, held, dice, exact=False) for side in (graph, other))
        if why := unlike_for(first, second, inputs):
            return why
    return None


def unlike_for(graph: Graph, other: Graph, inputs: Sequence[torch.Tensor]) -> Refused | None:
    """As `unlike`, for these inputs, with the constants that the graphs have."""
    sides = graph, other
    wanted, actual = (eval_graph(side, inputs, precision=torch.float64) for side in sides)
    signs = not any(_adds_up(node) for side in sides for node in side.nodes)
    for i, (want, got) in enumerate(zip(wanted, actual, strict=True)):
        if not want.dtype.is_floating_point:
            if not torch.equal(want, got.to(want.dtype)):
                return Refused(f"result {i} is another")
            continue
        got = got.to(want.dtype)
        same = (want.isnan() & got.isnan()) | (want == got) | (want.isfinite() & got.isfinite())
        if not same.all():
            at = tuple(int(k) for k in (~same).nonzero()[0])
            return Refused(f"result {i} is {got[at].item()} where it was {want[at].item()}")
        zeros = (want == 0) & (got == 0) & (want.signbit() != got.signbit())
        if signs and zeros.any():
            return Refused(f"result {i} is a zero of the other sign")
    return None


def _adds_up(node: Node) -> bool:
    """Whether zeros of both signs may be added up, or compared."""
    return ops.kind_of(node) in ("contract", "reduce", "opaque")


def spoilt(tensor: torch.Tensor, dice: torch.Generator, kind: str, share: int = 8) -> torch.Tensor:
    """With one number of `share`, and one at least, put in its place by one of this kind; `large`
    ones among positive numbers, whose sums are the same in any order."""
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    flat = tensor.flatten().abs() if kind == "large" else tensor.flatten()
    places = torch.randint(0, len(flat), (max(1, len(flat) // share),), generator=dice)
    table = torch.tensor(NOT_USUAL[kind], dtype=flat.dtype)
    flat[places] = table[torch.randint(0, len(table), places.shape, generator=dice)]
    return flat.view(tensor.shape)


def integral(graph: Graph) -> bool:
    """Whether whole numbers stay whole numbers all the way."""
    exact = all(ops.packet_name(node.op) in EXACT for node in graph.nodes)
    whole = all(
        not isinstance(arg, float) or arg.is_integer()
        for node in graph.nodes
        for arg in (*node.args, *(value for _, value in node.kwargs))
    )
    return exact and whole


def draw(type: TensorType, dice: torch.Generator, exact: bool = False) -> torch.Tensor:
    """A random tensor: small integers if `exact`, else from a normal distribution; of an integer
    or bool dtype, 0 and 1."""
    count = min(type.numel, MOST_DRAWN)
    if not type.dtype.is_floating_point:
        numbers = torch.randint(0, 2, (count,), generator=dice).to(type.dtype)
    elif exact:
        integers = torch.randint(-LARGEST_INTEGER, LARGEST_INTEGER + 1, (count,), generator=dice)
        numbers = integers.to(torch.float64)
    else:
        numbers = torch.randn(count, generator=dice, dtype=torch.float64)
    return _repeated(numbers, type.numel).view(type.shape)


def _repeated(numbers: torch.Tensor, count: int) -> torch.Tensor:
    """So many numbers, these over and over."""
    if count <= len(numbers):
        return numbers
    return numbers.repeat(-(-count // len(numbers)))[:count]


def with_values(
    graph: Graph, drawn: dict[str, torch.Tensor], dice: torch.Generator, exact: bool
) -> Graph:
    """The graph with random constants; one digest, one tensor."""
    for constant in graph.constants:
        if constant.digest not in drawn:
            drawn[constant.digest] = draw(constant.type, dice, exact)
    constants = tuple(
        Constant(c.name, c.type, c.digest, drawn[c.digest].view(c.type.shape))
        for c in graph.constants
    )
    return Graph(graph.name, graph.inputs, constants, graph.nodes, graph.outputs)


def opened(graph: Graph) -> Graph:
    """The graph with its constants as further inputs: equal for all weights, not only for its."""
    more = tuple(Input(constant.name, constant.type) for constant in graph.constants)
    return Graph(graph.name, (*graph.inputs, *more), (), graph.nodes, graph.outputs)


def _distance(want: torch.Tensor, got: torch.Tensor) -> float:
    if not want.numel():
        return 0.0
    return (want.to(torch.float64) - got.to(torch.float64)).abs().max().item()


def _size(want: torch.Tensor) -> float:
    return max(1.0, want.to(torch.float64).abs().max().item()) if want.numel() else 1.0
