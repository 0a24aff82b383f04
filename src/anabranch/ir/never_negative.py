"""Never negative: states of a graph that hold no negative number, whatever its calls are given.

    state %v: f32[4] -> %new              now [0, 0, 0, 0]
    %new: f32[4] = 0.999 * %v + 0.001 * %g * %g        again a sum of what is not negative

That is so if it holds none now, and if its new value is none of numbers that are not negative: of
squares, of other such states, of their sums and products. What is assumed of several states that
need each other is shown of all at once. Averages of squared gradients (Adam, RMSprop, Adagrad) and
variances of batch norms are such states; a plan is not to be judged by roots of negative ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from anabranch.ir import ops
from anabranch.ir.domains import RENAMED
from anabranch.ir.graph import Graph, Node, Ref

IsKnown = Callable[[object], bool]
"""Whether an argument, a value or a number, is known not to be negative."""

ALWAYS = frozenset(
    f"aten.{name}"
    for name in ("abs", "square", "exp", "exp2", "sigmoid", "relu", "sqrt", "rsqrt", "var", "std")
)
HANDED_ON = RENAMED | {f"aten.{name}" for name in ("sum", "mean", "amax", "amin")}
ALL_OF = frozenset(f"aten.{name}" for name in ("div", "minimum", "cat", "stack"))


def never_negative(graph: Graph, held: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """The names of such states. `held`: by name, what each holds now."""
    floats = [state for state in graph.states if held[state.name].dtype.is_floating_point]
    left = {state.name for state in floats if _not_negative(held[state.name])}
    while left:
        nonnegative = _nonnegative(graph, left)
        stay = {
            s.name for s in floats if s.name in left and graph.outputs[s.output].name in nonnegative
        }
        if stay == left:
            break
        left = stay
    return frozenset(left)


def _not_negative(tensor: torch.Tensor) -> bool:
    """Whether none of its numbers is. Types that torch does not compare have unknown ones."""
    narrow = tensor.dtype.is_floating_point and tensor.dtype.itemsize < 2
    return not narrow and not tensor.is_complex() and bool((tensor >= 0).all())


def _nonnegative(graph: Graph, assumed: set[str]) -> set[str]:
    """All values that are not negative where the assumed ones are not."""
    nonnegative = assumed | {
        constant.name
        for constant in graph.constants
        if constant.value is not None and _not_negative(constant.value)
    }

    def is_nonnegative(arg: object) -> bool:
        if isinstance(arg, Ref):
            return arg.name in nonnegative
        if isinstance(arg, (tuple, list)):
            return all(map(is_nonnegative, arg))
        return isinstance(arg, (int, float)) and arg >= 0

    for node in graph.nodes:
        if node.op.startswith("aten.var_mean."):
            nonnegative.add(node.results[0])
        elif _is_known(node, is_nonnegative):
            nonnegative.update(node.results)
    return nonnegative


def _is_known(node: Node, nonnegative: IsKnown) -> bool:
    """Whether its result is not negative, NaN aside. An operator that is not here may be."""
    name, args, options = ops.packet_name(node.op), node.args, dict(node.kwargs)
    if name in ALWAYS:
        return True
    if name in HANDED_ON:
        return nonnegative(args[0])
    if name in ALL_OF:
        return all(map(nonnegative, args[:2]))
    if name == "aten.add":
        return (
            nonnegative(args[0]) and nonnegative(args[1]) and nonnegative(options.get("alpha", 1))
        )
    if name == "aten.mul":
        return _product(args[0], args[1], nonnegative)
    if name == "aten.addcmul":
        scaled = nonnegative(options.get("value", 1))
        return scaled and nonnegative(args[0]) and _product(args[1], args[2], nonnegative)
    if name == "aten.maximum":
        return nonnegative(args[0]) or nonnegative(args[1])
    if name == "aten.pow":
        even = isinstance(args[1], (int, float)) and args[1] % 2 == 0
        return nonnegative(args[0]) or (even and isinstance(args[0], Ref))
    if name == "aten.where":  # with a condition alone it gives places
        return all(map(nonnegative, args[1:]))
    if name == "aten.lerp":
        weight = args[2]
        part = isinstance(weight, (int, float)) and 0 <= weight <= 1
        return part and nonnegative(args[0]) and nonnegative(args[1])
    return False


def _product(first: object, other: object, nonnegative: IsKnown) -> bool:
    """A square is not negative, whatever it is of."""
    square = isinstance(first, Ref) and first == other
    return square or (nonnegative(first) and nonnegative(other))
