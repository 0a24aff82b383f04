"""Products and layers of what was turned, reshaped or cut. Rules that might help.

t(x @ y)                        =  t(y) @ t(x)
linear(reshape(x, [6, 8]), w)   =  reshape(linear(x, w))          rows are rows, however counted
select(linear(x, w, b), 0, i)   =  linear(select(x, 0, i), w, b)  only the row that is read
linear(x, w, b)[:, :8]          =  linear(x, w[:8], b[:8])        only those columns
cat([conv(x, w, b), conv(x, v, c)], 1)  =  conv(x, cat(w, v), cat(b, c))
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from anabranch.ir.graph import Constant
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, cat, convolution, linear, reshape, t, transpose
from anabranch.rewrite.rules import draws
from anabranch.rewrite.rules.algebra_conditions import (
    both,
    every,
    floating,
    matrices,
    sizes,
    values,
)
from anabranch.rewrite.rules.conv_windows import convolve, window
from anabranch.rewrite.rules.pattern_parts import joined_bias, not_constant

Drawn = Mapping[str, object]
SLICE, SELECT = "aten.slice.Tensor", "aten.select.int"

x, y, w, v, b, c, shape, axis, index, start, end, step, parts, i, j = wild(
    "x y w v b c shape axis index start end step parts i j"
)


def two_matrices(dice: random.Random) -> Drawn:
    n, k, m = sizes(dice, 3)
    return {"x": draws.tensor(n, k), "y": draws.tensor(k, m)}


def of_batches(dice: random.Random) -> Drawn:
    """Matrices, or batches of them, whose last two axes are swapped."""
    n, k, m = sizes(dice, 3)
    lead = sizes(dice, dice.randint(0, 2))
    rank = len(lead) + 2
    axes = [dice.choice((axis, axis - rank)) for axis in dice.sample((rank - 2, rank - 1), 2)]
    drawn = {"x": draws.tensor(*lead, n, k), "y": draws.tensor(*lead, k, m)}
    return {**drawn, "i": axes[0], "j": axes[1]}


def last_two(match: Match) -> Refused | None:
    """Whether both are of as many axes, and the last two of them are swapped."""
    rank = len(match.x.shape)
    if len(match.y.shape) != rank or rank < 2:
        return Refused("the factors have different numbers of axes")
    swapped = {axis % rank for axis in (match.i.arg, match.j.arg) if isinstance(axis, int)}
    return (
        None
        if swapped == {rank - 2, rank - 1}
        else Refused("other axes are swapped than those of the matrices")
    )


def rows_stay(match: Match) -> Refused | None:
    """Whether only the axes of rows are counted otherwise."""
    last = match.x.shape[-1:] == match.w.shape[1:]
    return None if last else Refused("the axis that is multiplied is reshaped, too")


def reshaped_rows(match: Match) -> Pattern:
    return reshape(linear(x, w, b), (*match.root.type.shape[:-1], match.w.shape[0]))


def rows_reshaped(dice: random.Random) -> Drawn:
    """A linear of rows n by m that are counted as n * m, or the other way round."""
    n, m, k, o = sizes(dice, 4)
    ways: list[tuple[int, ...]] = [(n, m, k), (n * m, k)]
    one, two = dice.sample(ways, 2)
    given = {"x": draws.tensor(*one), "w": draws.maybe_weight(dice, "w", o, k)}
    return {**given, "b": draws.bias(dice, "b", o), "shape": dice.choice((two, (-1, *two[1:])))}


def results_reshaped(dice: random.Random) -> Drawn:
    n, m, k, o = sizes(dice, 4)
    ways: list[tuple[int, ...]] = [(n, m), (n * m,)]
    one, two = dice.sample(ways, 2)
    given = {"x": draws.tensor(*one, k), "w": draws.maybe_weight(dice, "w", o, k)}
    return {**given, "b": draws.bias(dice, "b", o), "shape": (*two, o)}


def results_stay(match: Match) -> Refused | None:
    columns = match.root.type.shape[-1:] == (match.w.shape[0],)
    return None if columns else Refused("columns of the result are counted as rows")


def before_linear(match: Match) -> Pattern:
    return linear(reshape(x, (*match.root.type.shape[:-1], match.w.shape[1])), w, b)


def of_rows(match: Match) -> Refused | None:
    """Whether the axis is one of rows, and not the one that is multiplied."""
    at, rank = match.axis.arg, len(match.x.shape)
    assert isinstance(at, int)
    return None if at % rank != rank - 1 else Refused("it is cut along the columns")


def selected_row(match: Match) -> Pattern:
    at = match.axis.arg
    assert isinstance(at, int)
    return linear(call(SELECT, x, at % len(match.x.shape), index), w, b)


def sliced_rows(match: Match) -> Pattern:
    at = match.axis.arg
    assert isinstance(at, int)
    return linear(call(SLICE, x, at % len(match.x.shape), start, end, step), w, b)


def one_row(dice: random.Random) -> Drawn:
    rank, k, n = dice.randint(2, 4), draws.size(dice), draws.size(dice)
    lead = sizes(dice, rank - 1)
    at = dice.randrange(rank - 1)
    return {
        "x": draws.tensor(*lead, k),
        "w": draws.maybe_weight(dice, "w", n, k),
        "b": draws.bias(dice, "b", n),
        "axis": dice.choice((at, at - rank)),
        "index": dice.randrange(-lead[at], lead[at]),
    }


def some_rows(dice: random.Random) -> Drawn:
    drawn = dict(one_row(dice))
    drawn.pop("index")
    return {**drawn, "start": dice.choice((0, None)), "end": 2**63 - 1, "step": dice.choice((1, 2))}


def of_columns(match: Match) -> Refused | None:
    """Whether whole columns are read, along the axis that the weight's rows make."""
    at, rank = match.axis.arg, len(match.root.type.shape)
    assert isinstance(at, int)
    if at % rank != rank - 1:
        return Refused("it is cut along the rows")
    return not_constant(match, "w", "b")


def of_channels(match: Match) -> Refused | None:
    if match.axis.arg not in (1, 1 - len(match.w.shape)):
        return Refused("it is cut along another axis than the channels")
    by = window(match)
    if by.transposed or by.groups != 1:
        return Refused("it is transposed or has groups")
    return not_constant(match, "w", "b")


def _cut(match: Match) -> tuple[Operand, Operand]:
    """The rows of the weight that are read, and what belongs to them of the bias."""
    given = (0, start, end, step)
    bias = None if match.b.type is None else call(SLICE, b, *given)
    return call(SLICE, w, *given), bias


def some_columns(dice: random.Random) -> Drawn:
    lead, k, n = sizes(dice, dice.randint(1, 2)), draws.size(dice), draws.size(dice)
    return {
        "x": draws.tensor(*lead, k),
        "w": draws.weight("w", n, k),
        "b": draws.bias(dice, "b", n),
        "axis": dice.choice((-1, len(lead))),
        "start": dice.choice((0, None, n // 2)),
        "end": dice.choice((n, 2**63 - 1)),
        "step": dice.choice((1, 1, 2)),
    }


def some_channels(dice: random.Random) -> Drawn:
    axes, k, n = draws.axes(dice), draws.size(dice), draws.size(dice)
    kernel, by = draws.kernel(dice, axes), draws.some_window(dice, axes)
    cut = {"start": dice.choice((0, n // 2)), "end": dice.choice((n, 2**63 - 1)), "step": 1}
    return {
        "x": draws.image(dice, draws.size(dice), k, *draws.room(dice, kernel, by)),
        "w": draws.weight("w", n, k, *kernel),
        "b": draws.bias(dice, "b", n),
        "window": by.args,
        "axis": dice.choice((1, -1 - axes)),
        **cut,
    }


def beside(match: Match) -> Refused | None:
    """Whether two convolutions stand side by side along their channels, both with their groups."""
    if match.axis.arg not in (1, 1 - len(match.w.shape)):
        return Refused("they are joined along another axis than the channels")
    by = window(match)
    if by.transposed or by.groups != 1:
        return Refused("they are transposed or have groups")
    if match.w.shape[1:] != match.v.shape[1:]:
        return Refused(f"the weights are {match.w.shape} and {match.v.shape}")
    return not_constant(match, "w", "v", "b", "c")


def one_of_two(match: Match) -> Pattern:
    bias = joined_bias(match, (b, match.w.shape[0]), (c, match.v.shape[0]))
    return convolve(x, cat((w, v), 0), bias, window(match))


def two_beside(dice: random.Random) -> Drawn:
    drawn, n = dict(some_channels(dice)), draws.size(dice)
    weight = drawn["w"]
    assert isinstance(weight, Constant)
    _, k, *kernel = weight.type.shape
    del drawn["start"], drawn["end"], drawn["step"]
    return {**drawn, "v": draws.weight("v", n, k, *kernel), "c": draws.bias(dice, "c", n)}


def rows_joined(match: Match) -> Refused | None:
    """Whether what is joined are rows."""
    at = match.axis.arg
    assert isinstance(at, int)
    rank = len(match.known.types[values(match, "parts")[0].name].shape)
    return None if at % rank != rank - 1 else Refused("columns are joined")


def each_part(match: Match) -> Pattern:
    at, refs = match.axis.arg, values(match, "parts")
    assert isinstance(at, int)
    rank = len(match.known.types[refs[0].name].shape)
    return cat(tuple(linear(part, w, b) for part in refs), at % rank)


def joined_rows(dice: random.Random) -> Drawn:
    rank, k, n = dice.randint(2, 4), draws.size(dice), draws.size(dice)
    lead, at = sizes(dice, rank - 1), dice.randrange(rank - 1)
    made = tuple(
        draws.tensor(*lead[:at], draws.size(dice), *lead[at + 1 :], k)
        for _ in range(dice.randint(2, 4))
    )
    layer = {"w": draws.maybe_weight(dice, "w", n, k), "b": draws.bias(dice, "b", n)}
    return {"parts": made, "axis": dice.choice((at, at - rank)), **layer}


LAYER = linear(x, w, b)
CONVOLUTION = convolution(x, w, b, rest="window")

RULES: tuple[Rule, ...] = (
    *both(
        "t(mm(x, y))",
        "mm(t(y), t(x))",
        (t(call("aten.mm.default", x, y)), call("aten.mm.default", t(y), t(x))),
        floating("x", "y"),
        two_matrices,
    ),
    *both(
        "t(x @ y)",
        "t(y) @ t(x)",
        (t(x @ y), t(y) @ t(x)),
        every(floating("x", "y"), matrices("x", "y")),
        two_matrices,
    ),
    *both(
        "transpose(x @ y, i, j)",
        "transpose(y, i, j) @ transpose(x, i, j)",
        (transpose(x @ y, i, j), transpose(y, i, j) @ transpose(x, i, j)),
        every(floating("x", "y"), last_two),
        of_batches,
    ),
    Rule(
        "linear(reshape(x), w, b) -> reshape(linear(x, w, b))",
        find=linear(reshape(x, shape), w, b),
        replace=reshaped_rows,
        when=every(matrices("w"), rows_stay),
        draw=rows_reshaped,
    ),
    Rule(
        "reshape(linear(x, w, b)) -> linear(reshape(x), w, b)",
        find=reshape(LAYER, shape),
        replace=before_linear,
        when=every(matrices("w"), results_stay),
        draw=results_reshaped,
    ),
    Rule(
        "select(linear(x, w, b), row) -> linear(select(x, row), w, b)",
        find=call(SELECT, LAYER, axis, index),
        replace=selected_row,
        when=every(matrices("w"), of_rows),
        draw=one_row,
    ),
    Rule(
        "slice(linear(x, w, b), rows) -> linear(slice(x, rows), w, b)",
        find=call(SLICE, LAYER, axis, start, end, step),
        replace=sliced_rows,
        when=every(matrices("w"), of_rows),
        draw=some_rows,
    ),
    Rule(
        "slice(linear(x, w, b), columns) -> linear(x, slice(w), slice(b))",
        find=call(SLICE, LAYER, axis, start, end, step),
        replace=lambda match: linear(x, *_cut(match)),
        when=every(matrices("w"), of_columns),
        draw=some_columns,
    ),
    Rule(
        "slice(conv(x, w, b), channels) -> conv(x, slice(w), slice(b))",
        find=call(SLICE, CONVOLUTION, axis, start, end, step),
        replace=lambda match: convolve(x, *_cut(match), window(match)),
        when=of_channels,
        draw=some_channels,
    ),
    Rule(
        "cat(conv(x, w, b), conv(x, v, c)) -> conv(x, cat(w, v), cat(b, c))",
        find=cat((CONVOLUTION, convolution(x, v, c, rest="window")), axis),
        replace=one_of_two,
        when=beside,
        draw=two_beside,
    ),
    Rule(
        "linear(cat(rows), w, b) -> cat(linear(row, w, b))",
        find=linear(cat(parts, axis), w, b),
        replace=each_part,
        when=every(matrices("w"), rows_joined),
        draw=joined_rows,
    ),
)
