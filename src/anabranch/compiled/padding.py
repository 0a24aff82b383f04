"""A batch between two compiled ones: padded up to the next, and cut off the results again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiled.answer import Answer
from anabranch.compiled.binding import bind, refusal, shapes
from anabranch.compiled.entry import Entry, signature_of
from anabranch.errors import InputError


def padded(
    entries: Sequence[Entry],
    answers: Sequence[Answer],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Pad the leading dimension of every tensor that has one up to the next compiled batch, and cut
    it off the results again."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    given = {leaf.shape[0] for leaf in leaves if leaf.dim()}
    known_size = len(given) == 1 and min(given) > 0
    batch = next(iter(given), 0)
    sizes = sorted((_batch(entry), i) for i, entry in enumerate(entries))
    for full, index in sizes if known_size else ():
        if full <= batch:
            continue
        found = bind(entries[index], *pytree.tree_map(_padding(full - batch), (args, kwargs)))
        if not found.differences:
            result = answers[index][1](found.tensors)
            if why := _keeps_padding(entries[index], result, full):
                raise InputError(
                    "this batch cannot be padded", why, "compile for this batch too, with .add(...)"
                )
            return pytree.tree_map(_cutting(full, batch), result)
    if known_size and batch < sizes[-1][0]:
        raise refusal(entries, args, kwargs, "Padded it is none of them either")
    raise InputError(
        "these inputs fit no compiled plan, padded or not",
        "padding needs one leading batch dimension, not larger than the largest compiled",
        f"compiled: {'; '.join(map(shapes, entries))}. Add yours with .add(...)",
    )


def _padding(rows: int) -> Any:
    """What adds rows to a leaf: the last one, again and again, for any numbers are right there and
    those are sure to be such as the model takes."""

    def pad(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return leaf
        return torch.cat([leaf, leaf[-1:].expand(rows, *leaf.shape[1:])])

    return pad


def _cutting(full: int, batch: int) -> Any:
    def cut(leaf: Any) -> Any:
        whole = isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == full
        return leaf[:batch] if whole else leaf

    return cut


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
