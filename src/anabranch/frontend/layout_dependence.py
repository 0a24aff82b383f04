"""Whether a call gives other numbers where its tensors lie otherwise in memory.

    y = x * 1
    y.t().reshape(-1).add_(1)     changes y where x lies by columns, else a copy
    return y

`written_by_strides` notes such writes. Most of them reach what nobody reads any more: so the call
is made again with each of its tensors in other layouts, and its numbers are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.frontend.observe import observe
from anabranch.frontend.structure import same_literal
from anabranch.frontend.surroundings import Surroundings
from anabranch.ir.input_guards import ANSWERS, InputGuard, What, answer_of
from anabranch.ir.tolerances import relative_error

NEAR = 1e-3
"""The relative error of what is the same but for rounding."""
CHANNELS_LAST = (4, 5)
"""Axes of a tensor that torch has a memory format of its own for."""


def guards_as(leaves: Sequence[Any], what: What, line: str) -> Iterator[InputGuard]:
    """Have the tensors of a call lie as those among these leaves. `line`: the one that asks."""
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and (what == "storage_offset" or _longer_than_one(leaf)):
            yield InputGuard(place, what, answer_of(what, leaf), line)


def depends_on_layouts(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    under: Surroundings,
    states: Sequence[Tensor] = (),
) -> bool:
    """Whether a call gives, or leaves in its inputs and these states, other numbers where one of
    its tensors lies otherwise; True where that cannot be told."""
    leaves, tree = pytree.tree_flatten((args, dict(kwargs)))
    plain = _numbers(model, args, kwargs, under, states)
    for place, leaf in enumerate(leaves):
        for laid in _otherwise(leaf) if isinstance(leaf, Tensor) else ():
            positional, named = pytree.tree_unflatten(
                [*leaves[:place], laid, *leaves[place + 1 :]], tree
            )
            numbers = _numbers(model, positional, named, under, states)
            if plain is None or numbers is None or not _alike(plain, numbers):
                return True
    return False


def _otherwise(tensor: Tensor) -> Iterator[Tensor]:
    """The tensor as it may lie in a call, too: with its axes in other orders, and with gaps."""
    if not _longer_than_one(tensor):
        return
    seen, axes = {ANSWERS["layout"](tensor)}, tuple(range(tensor.dim()))
    orders = [axes, axes[::-1]]
    if len(axes) in CHANNELS_LAST:
        orders.append((0, *axes[2:], 1))
    rows = tensor.detach()
    for order in orders:
        back = [order.index(axis) for axis in axes]
        laid = rows.permute(order).contiguous().permute(back)
        if (layout := ANSWERS["layout"](laid)) not in seen:
            seen.add(layout)
            yield laid
    gaps = torch.stack((rows, rows), -1)[..., 0]
    if ANSWERS["layout"](gaps) not in seen:
        yield gaps


def _longer_than_one(tensor: Tensor) -> bool:
    """Whether it has an axis of several indices, whose stride says where these lie."""
    return any(size > 1 for size in tensor.shape)


def _numbers(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    under: Surroundings,
    states: Sequence[Tensor],
) -> list[Any] | None:
    """What a call gives, and leaves in its inputs and the states; None where it fails."""
    try:
        seen = observe(model, args, kwargs, under, states=states)
    except Exception:  # whatever the model raises for inputs that lie otherwise
        return None
    if seen.written is None:
        return None
    return pytree.tree_leaves((seen.results, dict(seen.written), seen.states))


def _alike(first: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(first) == len(other) and all(
        (mine.shape, mine.dtype) == (own.shape, own.dtype) and relative_error(mine, own) <= NEAR
        if isinstance(mine, Tensor) and isinstance(own, Tensor)
        else same_literal(mine, own)
        for mine, own in zip(first, other, strict=True)
    )
