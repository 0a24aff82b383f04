"""Guards on inputs: what a model's Python code asks of its input tensors beside their numbers, and
what it was answered.

    if not x.is_contiguous():     InputGuard(0, "is_contiguous", "True", "net.py:7 in forward")
        x = x * 2

A graph is captured for one answer. A plan of it answers calls with the same answer alone; all other
strides, gradients and classes of its inputs are the caller's own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from anabranch.ir.refused import Refused

What = Literal[
    "stride",
    "layout",
    "order",
    "is_contiguous",
    "storage_offset",
    "requires_grad",
    "is_leaf",
    "grad_fn",
    "is_inference",
    "is_conj",
    "is_neg",
    "class",
    "attributes",
]


@dataclass(frozen=True, slots=True)
class InputGuard:
    """`leaf`: which of the leaves of a call, counted as the signature does; `answer`: as Python
    writes it; `where`: the user's line."""

    leaf: int
    what: What
    answer: str
    where: str = field(default="", compare=False)


def _layout(tensor: Tensor) -> tuple[int, ...]:
    """Strides, but for those of dimensions with one index, which nothing depends on."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride if size != 1 else 0 for size, stride in sides)


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Its axes, but for those with one index, from the longest stride to the shortest."""
    strides = tensor.stride()
    wide = (axis for axis, size in enumerate(tensor.shape) if size != 1)
    return tuple(sorted(wide, key=lambda axis: -strides[axis]))


def _class(tensor: Tensor) -> str:
    return tensor.__class__.__name__


ANSWERS: Mapping[What, Callable[[Tensor], object]] = {
    "stride": lambda tensor: tuple(tensor.stride()),
    "layout": _layout,
    "order": _order,
    "is_contiguous": lambda tensor: tensor.is_contiguous(),
    "storage_offset": lambda tensor: tensor.storage_offset(),
    "requires_grad": lambda tensor: tensor.requires_grad,
    "is_leaf": lambda tensor: tensor.is_leaf,
    "grad_fn": lambda tensor: tensor.grad_fn is not None,
    "is_inference": lambda tensor: tensor.is_inference(),
    "is_conj": lambda tensor: tensor.is_conj(),
    "is_neg": lambda tensor: tensor.is_neg(),
    "class": _class,
    "attributes": lambda tensor: sorted(vars(tensor)),
}
TOLD: Mapping[What, str] = {
    "stride": "{}.stride() is",
    "layout": "the strides of {}, without those of size 1, are",
    "order": "the axes of {}, from the longest stride to the shortest, are",
    "is_contiguous": "{}.is_contiguous() is",
    "storage_offset": "{}.storage_offset() is",
    "requires_grad": "{}.requires_grad is",
    "is_leaf": "{}.is_leaf is",
    "grad_fn": "{}.grad_fn is there:",
    "is_inference": "{}.is_inference() is",
    "is_conj": "{}.is_conj() is",
    "is_neg": "{}.is_neg() is",
    "class": "the class of {} is",
    "attributes": "the user's attributes of {} are",
}
"""The beginning of a sentence that the answer ends, around what a person calls the tensor."""

DRAWN = "in this order random numbers are drawn"


def answer_of(what: What, tensor: Tensor) -> str:
    """What the tensor answers now."""
    return repr(ANSWERS[what](tensor))


def why_broken(asked: InputGuard, tensor: Tensor, path: str) -> Refused | None:
    """The difference between the tensor that a person calls `path` and the captured one; None if it
    is."""
    now = answer_of(asked.what, tensor)
    if now == asked.answer:
        return None
    at = f" at {asked.where}" if asked.where else ""
    why = DRAWN if asked.what == "order" else "it is asked"
    return Refused(f"{TOLD[asked.what].format(path)} {now}, compiled for {asked.answer}: {why}{at}")


def guards_hold(
    asked: Sequence[InputGuard], places: Sequence[int]
) -> Callable[[Sequence[Tensor]], bool]:
    """Whether the tensors of a call answer as those did that a graph was captured with. `places`:
    for each leaf of a call its number among the tensors."""
    wanted = [(places[guard.leaf], ANSWERS[guard.what], guard.answer) for guard in asked]
    return lambda tensors: all(repr(get(tensors[at])) == was for at, get, was in wanted)
