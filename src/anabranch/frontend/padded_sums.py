"""Operators that work along a padded axis, and when padding changes nothing for the call's rows.

    sum(x[b,N,c], dim=1)         harmless if the padding of x is 0: the axis is gone
    softmax(x[b,N], dim=1)       if it is -inf: the padding of the result is 0
    cumsum(x[N]), lstm(x[N,..])  always: a row reads those before it
    attention(q, k[N], v[N])     if a mask keeps every row from the padding, or each row reads only
                                 rows up to its own
    conv(x[b,c,N])               if its padding is 0, and no row is left out
    mean, sort, flip, ...        never

A zero weight counts as no weight: padding is made of numbers as the call's own rows are, so what is
multiplied by 0 is taken to be finite.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from anabranch.frontend.padded_axes import (
    MixedRowsError,
    Number,
    PaddedAxis,
    PaddedCall,
    steps_of,
)


@dataclass(frozen=True, slots=True)
class Along:
    """What an operator makes of an axis that it works along: the axis of its first result, None if
    it has none; how many rows a call has at least; results, by number, that hold padding."""

    axis: PaddedAxis | None
    least: int = 1
    spoiled: tuple[int, ...] = ()


Sum = Callable[[PaddedCall, PaddedAxis], Along]
NO_MASK = "it attends to the padding: no mask keeps it from that"


def _is(fill: Number | None, wanted: float) -> bool:
    return fill is not None and fill == wanted


def reduced(neutral: float) -> Sum:
    """Reductions that a row of `neutral` changes nothing of."""

    def rule(call: PaddedCall, rows: PaddedAxis) -> Along:
        power = call.arguments.get("ord", call.arguments.get("p", 2))
        if power is not None and not (isinstance(power, (int, float)) and power > 0):
            raise MixedRowsError("it works along the padded axis")
        if not _is(rows.fill, neutral):
            raise MixedRowsError(f"it reduces the padded axis, and the padding is not {neutral}")
        return Along(None)  # with keepdim one index is left, which is no padding

    return rule


def placed(neutral: float) -> Sum:
    """Reductions that tell places, too, which must not move."""
    values = reduced(neutral)

    def rule(call: PaddedCall, rows: PaddedAxis) -> Along:
        if "dim" in call.arguments and (call.arguments["dim"] is None or rows.outer != 1):
            raise MixedRowsError("it tells a place among more than the padded axis")
        return values(call, rows)

    return rule


def softmax(result: float) -> Sum:
    """Weights of the padding are 0 where it was masked with -inf."""

    def rule(call: PaddedCall, rows: PaddedAxis) -> Along:
        if not _is(rows.fill, -math.inf):
            raise MixedRowsError("it sums over the padded axis, whose padding is not -inf")
        return Along(replace(rows, fill=result, counts=None, alike=False))

    return rule


def running(call: PaddedCall, rows: PaddedAxis) -> Along:
    """A row reads those before it."""
    if rows.outer != 1 or rows.inner != 1:
        raise MixedRowsError("it runs along more than the padded axis")
    return Along(PaddedAxis(rows.axis))


def added_up(call: PaddedCall, rows: PaddedAxis) -> Along:
    """A running sum stays as it is where 0 is added."""
    along = running(call, rows)
    assert along.axis is not None
    return replace(along, axis=replace(along.axis, copied=_is(rows.fill, 0)))


def product(call: PaddedCall, rows: PaddedAxis) -> Along:
    """Contractions: one side has zeros where the padding is."""
    if not _is(rows.fill, 0):
        raise MixedRowsError("it sums over the padded axis, and no side of it is 0 there")
    return Along(None)


def convolved(call: PaddedCall, rows: PaddedAxis) -> Along:
    """A window that moves by one row: where it reaches beyond the call's rows it finds 0, as it
    does beyond those of an image."""
    place = rows.axis - (len(call.shape("input")) - (len(call.shape("weight")) - 2))
    plain = place >= 0 and (rows.outer, rows.inner) == (1, 1)
    stride, _, transposed = steps_of(call, place) if plain else (0, 0, True)
    if stride != 1 or transposed or call.result[rows.axis] != call.shape("input")[rows.axis]:
        raise MixedRowsError("it works along the padded axis")
    if not _is(rows.fill, 0):
        raise MixedRowsError("its window reaches into the padding, which is not 0")
    return Along(PaddedAxis(rows.axis))


def attention(call: PaddedCall, rows: PaddedAxis) -> Along:
    """Weights of padded keys are 0, by a mask or by causality."""
    mask = call.refs("attn_mask")
    if mask:
        last = call.at("attn_mask", len(call.shapes[mask[0]]) - 1)
        hidden = last is not None and (last.fill is False or _is_float_inf(last.fill))
        if last is None or not hidden or (last.outer, last.inner) != (rows.outer, rows.inner):
            raise MixedRowsError(NO_MASK)
        return Along(None)
    queries = call.at("query", len(call.shape("query")) - 2)
    plain = queries is not None and (queries.outer, queries.inner) == (1, 1)
    if not call.arguments.get("is_causal") or not plain or (rows.outer, rows.inner) != (1, 1):
        raise MixedRowsError(NO_MASK)
    return Along(None)


def _is_float_inf(fill: Number | None) -> bool:
    return isinstance(fill, float) and fill == -math.inf


def picked(call: PaddedCall, rows: PaddedAxis) -> Along:
    """Rows of the call, by numbers of theirs (`padded_axes` asks for such)."""
    return Along(None)


def written_again(call: PaddedCall, rows: PaddedAxis) -> Along:
    """Copies of the last row are written where that is written: places and numbers are copies."""
    operands = (*call.refs("index"), *call.refs("indices"), *call.refs("source"))
    operands = (*operands, *call.refs("values"))
    axes = [own for value in operands for own in call.axes.get(value, ())]
    values = call.refs("source") or call.refs("values")
    told = call.axes.get(values[0], ()) or math.prod(call.shapes[values[0]]) == 1
    if not told or not all(own.copied and (own.outer, own.inner) == (1, 1) for own in axes):
        raise MixedRowsError("it writes padding that is no copy of the last row")
    return Along(None)


def select(call: PaddedCall, rows: PaddedAxis) -> Along:
    """A row counted from the first one."""
    picked = call.arguments["index"]
    if not isinstance(picked, int) or picked < 0 or rows.outer != 1:
        raise MixedRowsError("it picks a row counted from the last one")
    return Along(None, picked // rows.inner + 1)


def sliced(call: PaddedCall, rows: PaddedAxis) -> Along:
    """Rows counted from the first one, as many whatever there are; or a part of each row."""
    start, end = call.arguments.get("start") or 0, call.arguments.get("end")
    step = call.arguments.get("step", 1)
    if isinstance(start, int) and isinstance(step, int) and (end is None or end == sys.maxsize):
        if rows.outer != 1 or rows.inner % step or not 0 <= start < step:
            raise MixedRowsError("it picks rows counted from the last one")
        part = replace(rows, inner=rows.inner // step, counts=None, copied=False)
        return Along(part)
    counted = isinstance(start, int) and isinstance(end, int) and 0 <= start < end
    if not counted or rows.outer != 1:
        raise MixedRowsError("it picks rows counted from the last one")
    assert isinstance(end, int)
    return Along(None, -(-end // rows.inner))


def walked(call: PaddedCall, rows: PaddedAxis) -> Along:
    """A recurrent layer in one direction: its last states hold padding."""
    if call.arguments["bidirectional"] or (rows.outer, rows.inner) != (1, 1):
        raise MixedRowsError("it walks the padded axis from its end")
    return Along(PaddedAxis(rows.axis), spoiled=(1, 2))


def triangle(lower: bool) -> Sum:
    """`tril` and `triu`: an element stays or is 0 by its place alone."""

    def rule(call: PaddedCall, rows: PaddedAxis) -> Along:
        (first,) = call.refs("self")
        ndim, diagonal = len(call.shapes[first]), call.arguments["diagonal"]
        assert isinstance(diagonal, int)
        other = call.at("self", 2 * ndim - 3 - rows.axis)  # the other one of the last two
        square = other is not None and (other.outer, other.inner) == (rows.outer, rows.inner)
        columns = rows.axis == ndim - 1
        fill: Number | None = None
        if square and columns == lower:  # the side that is cut off
            fill = 0 if (diagonal <= 0 if lower else diagonal >= 0) else None
        elif square and (diagonal >= -1 if lower else diagonal <= 1):
            fill = rows.fill
        return Along(PaddedAxis(rows.axis, rows.outer, rows.inner, fill))

    return rule


def _each(rule: Sum, names: str) -> dict[str, Sum]:
    return {f"aten.{name}": rule for name in names.split()}


SUMS: Mapping[str, Sum] = {
    **_each(reduced(0), "sum nansum count_nonzero linalg_vector_norm norm any"),
    **_each(reduced(-math.inf), "amax logsumexp"),
    **_each(reduced(math.inf), "amin"),
    **_each(placed(-math.inf), "max argmax"),
    **_each(placed(math.inf), "min argmin"),
    **_each(reduced(1), "prod all"),
    **_each(softmax(0.0), "softmax _softmax _safe_softmax"),
    **_each(softmax(-math.inf), "log_softmax _log_softmax"),
    **_each(added_up, "cumsum"),
    **_each(running, "cumprod cummax cummin logcumsumexp"),
    **_each(product, "mm bmm mv matmul linear addmm baddbmm _addmm_activation"),
    **_each(convolved, "convolution conv1d conv2d conv3d"),
    **_each(attention, "scaled_dot_product_attention"),
    **_each(picked, "index gather index_select"),
    **_each(written_again, "index_copy index_put"),
    **_each(select, "select select_copy"),
    **_each(sliced, "slice slice_copy narrow"),
    **_each(walked, "lstm gru rnn_tanh rnn_relu"),
    **_each(triangle(True), "tril"),
    **_each(triangle(False), "triu"),
}
"""By operator; along all others, padding is not known to be harmless."""
