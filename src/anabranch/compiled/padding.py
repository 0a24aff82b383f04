"""A batch between two compiled ones: padded up to the next, and cut off the results again.

Only models whose rows are proved to be independent (`frontend.batch_independence`) are compiled
with `batch="pad"`; the proof says which results have the batch as their first axis. Beside it, the
model itself is run on one row and on all but one, as its code may do something else with few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiled.answer import Answer
from anabranch.compiled.binding import bind, refusal, shapes
from anabranch.compiled.entry import Entry
from anabranch.errors import AnabranchError, InputError
from anabranch.frontend.batch_independence import batched_results, refused
from anabranch.frontend.capture_cache import capture_model
from anabranch.frontend.observe import unchanged
from anabranch.ir.tolerances import relative_error
from anabranch.tuning.job import Job, calling_of
from anabranch.tuning.verify.plan import EAGER_TOLERANCE

KEY = "rows"
"""Under which name facts of a saved plan say which results have rows of the batch."""


def proved(job: Job) -> tuple[int, ...]:
    """For each leaf of the result how many indices of its first axis one row of the batch has, 0 if
    it has no rows. OptionError where rows may mix."""
    if job.captured is not None:
        raise refused("torch.compile hands over a graph for one batch, and compiles others itself")
    batch = _one_batch(job.args, job.kwargs)
    if batch is None:
        raise refused("its inputs have no first axis of one size, which would be the batch")
    first = _captured(job, job.args, job.kwargs)
    if batch == 1:  # nothing is ever padded up to one row, which is compared with no other
        return (0,) * len(first.signature.outputs)
    try:
        second = _captured(job, *pytree.tree_map(_padding(1), (job.args, dict(job.kwargs))))
    except AnabranchError as failed:
        raise refused(f"with a batch of {batch + 1}: {failed.what}: {failed.why}") from None
    rows = batched_results(first, second, batch, batch + 1)
    for fewer in sorted({1, batch - 1}):
        _compare(job, rows, batch, fewer)
    return rows


def padded(
    entries: Sequence[Entry],
    answers: Sequence[Answer],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """Pad the leading dimension of every tensor that has one up to the next compiled batch, and cut
    it off the results again."""
    batch = _one_batch(args, kwargs)
    sizes = sorted((_batch(entry), i) for i, entry in enumerate(entries) if entry.rows is not None)
    for full, index in sizes if batch else ():
        if batch is None or full <= batch:
            continue
        found = bind(entries[index], *pytree.tree_map(_padding(full - batch), (args, kwargs)))
        if not found.differences:
            return _cut(entries[index], answers[index][1](found.tensors), batch)
    if batch and sizes and batch < sizes[-1][0]:
        raise refusal(entries, args, kwargs, "Padded it is none of them either")
    raise InputError(
        "these inputs fit no compiled plan, padded or not",
        "padding needs one leading batch dimension, not larger than the largest compiled"
        if sizes
        else "the plan was saved without batch='pad', so nobody proved that rows do not mix",
        f"compiled: {'; '.join(map(shapes, entries))}. Add yours with .add(...)",
    )


def read_rows(given: Any, leaves: int) -> tuple[int, ...] | None:
    """What a saved plan says of its results; None if it says nothing that fits them."""
    fits = isinstance(given, list) and len(given) == leaves
    return tuple(given) if fits and all(type(one) is int and one >= 0 for one in given) else None


def _captured(job: Job, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    calling = calling_of(job)
    return capture_model(job.model, args, kwargs, job.cache, job.trace, calling)[0]


def _compare(job: Job, rows: Sequence[int], batch: int, fewer: int) -> None:
    """The model itself on fewer rows, with what it makes of all."""

    def called(count: int) -> list[Any]:
        def cut(leaf: Any) -> Any:
            whole = isinstance(leaf, Tensor) and leaf.dim()
            return leaf[:count].clone() if whole else leaf

        args, kwargs = pytree.tree_map(cut, (job.args, dict(job.kwargs)))
        with torch.no_grad(), unchanged(job.model, args, kwargs), job.found.restored():
            return pytree.tree_leaves(job.model(*args, **kwargs))

    whole = called(batch)
    try:
        part = called(fewer)
    except Exception as failed:  # whatever the user's model raises
        first = (str(failed).strip() or type(failed).__name__).splitlines()[0]
        raise refused(f"the model refuses a batch of {fewer}: {first}") from None
    alike = len(whole) == len(part) == len(rows)
    for want, got, times in zip(whole, part, rows, strict=True) if alike else ():
        if isinstance(want, Tensor):
            want = want[: fewer * times] if times else want
            alike = alike and isinstance(got, Tensor) and got.shape == want.shape
            alike = alike and relative_error(got, want) <= EAGER_TOLERANCE.get(want.dtype, math.inf)
        else:
            alike = alike and type(got) is type(want)
    if not alike:
        raise refused(f"the model makes something else of its first {fewer} rows alone")


def _one_batch(args: Any, kwargs: Mapping[str, Any]) -> int | None:
    """The first size of all inputs that have one, None if they differ or are none."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    sizes = {leaf.shape[0] for leaf in leaves if leaf.dim()}
    return sizes.pop() if len(sizes) == 1 and min(sizes) > 0 else None


def _padding(rows: int) -> Any:
    """What adds rows to a leaf: the last one, again and again, for any numbers are right there and
    those are sure to be such as the model takes."""

    def pad(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return leaf
        return torch.cat([leaf, leaf[-1:].expand(rows, *leaf.shape[1:])])

    return pad


def _cut(entry: Entry, result: Any, batch: int) -> Any:
    """The result without the rows that were added."""
    leaves, tree = pytree.tree_flatten(result)
    assert entry.rows is not None
    pairs = zip(leaves, entry.rows, strict=True)
    return pytree.tree_unflatten([x[: batch * n] if n else x for x, n in pairs], tree)


def _batch(entry: Entry) -> int:
    shapes = [value.type.shape for value in entry.plan.tasks.inputs if value.type.shape]
    return min((shape[0] for shape in shapes), default=0)
