"""Forms of batches of one training step that do not train the same parameters.

    step = compile_step(model, loss_fn, optimizer, (x, t, True))      trains all
    step.add((x, t, False))                                           leaves out the gate

A plan reads one count of steps for parameters whose counts are equal. Counts of what one form
updates and another one does not go apart, so these are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.errors import CaptureError
from anabranch.frontend.training import Held

SUM = "sum."
"""How names of what adds up gradients begin."""


def held_apart(held: Held, forms: Sequence[frozenset[str]]) -> Held:
    """The same tensors, of which those alone are alike that each form writes to, or that it leaves
    as they are. `forms`: by form the names of what it writes to."""
    alike = list[tuple[int, ...]]()
    for places in held.alike:
        parts: dict[tuple[bool, ...], list[int]] = {}
        for i in places:
            parts.setdefault(tuple(held.names[i] in form for form in forms), []).append(i)
        alike += (tuple(part) for part in parts.values() if len(part) > 1)
    return replace(held, alike=tuple(alike))


def check_sums(before: frozenset[str] | None, now: frozenset[str], calls: int) -> frozenset[str]:
    """The names, among those that a call of another form writes to, of sums of gradients.
    CaptureError where it adds to others than the forms `before` it."""
    sums = frozenset(name for name in now if name.startswith(SUM))
    if before is not None and before != sums:
        name = min(before ^ sums).removeprefix(SUM)
        raise CaptureError(
            f"{name} has a gradient for one form of batches, and none for another",
            f"one of {calls} calls updates what it has gradients of itself, and gradients that "
            "other calls added up would be lost",
            "have the loss depend on it in each form, or compile with accumulate=1",
        )
    return sums
