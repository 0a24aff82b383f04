"""Copies the tensors of a padded call straight into a plan's buffers, and its own rows out of what
the plan leaves there: nothing is joined before and cut afterwards.

    buffer f[8,3]    [0:5] <- the call's tensor    [5:8] <- row 4
    output f[8,10]   [0:5] -> a tensor of the caller's
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

import torch
from torch import Tensor

from anabranch.ir.call_padding import CallPadding, Filling, RowsOfResult


class PaddedRows:
    """The rows of a padded call in the buffers of one loaded plan."""

    def __init__(self, buffers: Sequence[Tensor], call: CallPadding) -> None:
        """`buffers`: of the inputs that a call gives, none of which is expanded."""
        pairs = list(zip(buffers, call.inputs, strict=True))
        self._corners = [_corner(*pair) for pair in pairs]
        self._before = [step for pair in pairs for step in _at_once(*pair)]
        self._after = [step for pair in pairs for step in _axis_by_axis(*pair)]
        self._outputs = call.outputs

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copies the call's tensors in, without waiting for it, and fills the rest."""
        for step in self._before:
            step()
        for corner, tensor in zip(self._corners, tensors, strict=True):
            corner.copy_(tensor, non_blocking=True)
        for step in self._after:
            step()

    def cut(
        self, outputs: Sequence[Tensor], clone: bool, kept: Collection[int]
    ) -> tuple[Tensor, ...]:
        """The call's rows of all outputs, but for states at the places `kept`: copies if `clone`
        asks for it, or where they would have gaps in memory."""
        results = []
        for place, (output, axes) in enumerate(zip(outputs, self._outputs, strict=True)):
            result = output
            for rows in axes:
                result = _own_rows(result, rows)
            if place not in kept and (clone or not (result is output or result.is_contiguous())):
                result = result.clone()
            results.append(result)
        return tuple(results)


def _corner(buffer: Tensor, fillings: Sequence[Filling]) -> Tensor:
    for filling in fillings:
        buffer = buffer.narrow(filling.axis, 0, filling.own)
    return buffer


def _number(fillings: Sequence[Filling]) -> int | None:
    """What the rest along several axes is filled with, if it is one number: the whole buffer is
    filled with it once, before the call's tensor is copied in."""
    numbers = {filling.number for filling in fillings}
    return numbers.pop() if len(fillings) > 1 and len(numbers) == 1 else None


def _at_once(buffer: Tensor, fillings: Sequence[Filling]) -> list[partial[Tensor]]:
    number = _number(fillings)
    return [] if number is None else [partial(buffer.fill_, number)]


def _axis_by_axis(buffer: Tensor, fillings: Sequence[Filling]) -> list[partial[Tensor]]:
    """What fills the rest of the buffer along one axis after the other."""
    steps = list[partial[Tensor]]()
    if _number(fillings) is not None:
        return steps
    for place, filling in enumerate(fillings):
        axis, own, group = filling.axis, filling.own, filling.group
        around = _corner(buffer, fillings[place + 1 :])
        rest = around.narrow(axis, own, filling.full - own)
        if filling.number is not None:
            steps.append(partial(rest.fill_, filling.number))
            continue
        groups = torch.unflatten(rest, axis, (-1, group))
        last = around.narrow(axis, own - group, group).unsqueeze(axis)
        steps.append(partial(groups.copy_, last.expand(groups.shape)))
    return steps


def _own_rows(output: Tensor, rows: RowsOfResult) -> Tensor:
    outer = rows.outer or output.shape[rows.axis] // (rows.full * rows.inner)
    inner = rows.inner or output.shape[rows.axis] // (rows.full * outer)
    if outer == 1:
        return output.narrow(rows.axis, 0, rows.own * inner)
    apart = torch.unflatten(output, rows.axis, (outer, rows.full, inner))
    return apart.narrow(rows.axis + 1, 0, rows.own).flatten(rows.axis, rows.axis + 2)
