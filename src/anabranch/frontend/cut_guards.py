"""Guards on the inputs of a model that is cut, as those of one plan.

    if x.is_contiguous():         what the model asks of its inputs: answers as the example's
    x.reshape(-1).add_(1)         a view in one layout, a copy in another: lies as the example did
    x.as_strided((2, 2), (3, 1))  counts in memory: begins there, and has the same strides
    torch.rand_like(x)            draws in the order of memory: has its axes in the same order

A call that breaks one of them was not compiled, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.frontend.cut_trace import CutTrace
from anabranch.frontend.from_torch import apart
from anabranch.frontend.input_queries import answered
from anabranch.frontend.layout_aliases import AT_LEAST
from anabranch.frontend.observe import Observed, observe
from anabranch.frontend.operators import has_random
from anabranch.frontend.source import origin
from anabranch.frontend.strided import STRIDED
from anabranch.frontend.structure import same_literal
from anabranch.frontend.surroundings import Surroundings
from anabranch.ir.input_guards import InputGuard, What, answer_of
from anabranch.ir.tolerances import relative_error

NEAR = 1e-3
"""The relative error of what is the same but for rounding."""
IN_ONE_ORDER = frozenset(("aten.multinomial.default", "aten.bernoulli.default"))
"""Operators whose results lie in one way, however what they read lies."""


def guards_of(
    model: Callable[..., Any],
    trace: CutTrace,
    seen: Observed | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    under: Surroundings,
) -> tuple[InputGuard, ...]:
    """What must be of the tensors of a call as it was of the example's. `seen`: a call of the model
    with these arguments, `under` these switches of torch. CaptureError where the trace was given
    other answers than the model."""
    guards = dict[tuple[int, What], InputGuard]()
    if seen is not None and seen.questions:
        inputs = (args, dict(kwargs))
        for guard in answered(trace.in_tree, inputs, apart(inputs), seen.questions):
            guards[guard.leaf, guard.what] = guard
    layouts = [*_asked_of_layouts(trace)]
    line = trace.written_by_strides
    if line is not None and _depends_on_layouts(model, args, kwargs, under):
        layouts.append(("layout", line))
    for what, line in layouts:
        for place, leaf in enumerate(trace.leaves):
            if isinstance(leaf, Tensor) and (what == "storage_offset" or _wide(leaf)):
                guard = InputGuard(place, what, answer_of(what, leaf), line)
                guards.setdefault((place, what), guard)
    return tuple(guards.values())


def _asked_of_layouts(trace: CutTrace) -> Iterator[tuple[What, str]]:
    """What counts of how inputs lie, and the line for which it does."""
    for node in trace.graph.nodes:
        if str(node.target) in STRIDED:
            yield "stride", origin(node)
            yield "storage_offset", origin(node)
        elif has_random(node) and node.all_input_nodes and str(node.target) not in IN_ONE_ORDER:
            yield "order", origin(node)


def _depends_on_layouts(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    under: Surroundings,
) -> bool:
    """Whether a call gives or leaves other numbers where one of its tensors lies the other way."""
    leaves, tree = pytree.tree_flatten((args, dict(kwargs)))
    plain = _numbers(model, args, kwargs, under)
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and _wide(leaf):
            axes = tuple(reversed(range(leaf.dim())))
            turned = [*leaves]
            turned[place] = leaf.detach().permute(axes).contiguous().permute(axes)
            positional, named = pytree.tree_unflatten(turned, tree)
            numbers = _numbers(model, positional, named, under)
            if plain is None or numbers is None or not _alike(plain, numbers):
                return True
    return False


def _numbers(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    under: Surroundings,
) -> list[Any] | None:
    """What a call gives, and leaves in its inputs; None where it fails."""
    try:
        seen = observe(model, args, kwargs, under)
    except Exception:  # whatever the model raises for inputs that lie otherwise
        return None
    return None if seen.written is None else pytree.tree_leaves((seen.results, dict(seen.written)))


def _alike(first: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(first) == len(other) and all(
        (mine.shape, mine.dtype) == (own.shape, own.dtype) and relative_error(mine, own) <= NEAR
        if isinstance(mine, Tensor) and isinstance(own, Tensor)
        else same_literal(mine, own)
        for mine, own in zip(first, other, strict=True)
    )


def _wide(tensor: Tensor) -> bool:
    return sum(size != 1 for size in tensor.shape) >= AT_LEAST
