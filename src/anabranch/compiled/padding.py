"""A batch between two compiled ones: padded up to the next, and cut off the results again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiled.entry import Entry, flatten, shapes, signature_of
from anabranch.errors import InputError


def padded(
    entries: Sequence[Entry],
    run: Callable[[Entry, Sequence[Tensor]], tuple[Tensor, ...]],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Pad the leading dimension of every tensor up to the next compiled batch, and cut it off
    the results again."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    given = {leaf.shape[0] for leaf in leaves if leaf.dim()}
    batches = sorted((_batch(entry), i) for i, entry in enumerate(entries))
    known_size = len(given) == 1 and min(given) > 0
    wide = next((pair for pair in batches if known_size and pair[0] >= max(given)), None)
    if wide is None:
        known = "; ".join(shapes(entry) for entry in entries)
        raise InputError(
            "these inputs fit no compiled plan, padded or not",
            "padding needs one leading batch dimension, not larger than the largest compiled",
            f"compiled: {known}. Add yours with .add(...)",
        )
    (full, index), batch = wide, given.pop()
    entry = entries[index]

    def pad(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return leaf
        rest = leaf[-1:].expand(full - batch, *leaf.shape[1:])
        return torch.cat([leaf, rest])

    tensors = flatten(entry, *pytree.tree_map(pad, (args, dict(kwargs))))
    result = entry.assemble(tensors, run(entry, tensors))
    if why := _keeps_padding(entry, result, full):
        raise InputError(
            "this batch cannot be padded", why, "compile for this batch too, with .add(...)"
        )

    def cut(leaf: Any) -> Any:
        whole = isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == full
        return leaf[:batch] if whole else leaf

    return pytree.tree_map(cut, result)


def _keeps_padding(entry: Entry, result: Any, full: int) -> str:
    """Why padding may show in what the model returns; "" if it was cut off with the rest."""
    signature, tasks = signature_of(entry), entry.plan.tasks
    if signature.mutations:
        return "the model writes to its inputs"
    given = {value.name for value in tasks.inputs} | {value.name for value in tasks.constants}
    for leaf, made in zip(signature.outputs, pytree.tree_leaves(result), strict=True):
        if leaf.ref is not None and leaf.ref.name not in given and made.shape[:1] != (full,):
            return f"a result of shape {tuple(made.shape)} has no leading dimension of {full}"
    return ""


def _batch(entry: Entry) -> int:
    shapes = [value.type.shape for value in entry.plan.tasks.inputs if value.type.shape]
    return min((shape[0] for shape in shapes), default=0)
