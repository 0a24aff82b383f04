"""Products and layers of what was transposed, reshaped or cut. Rules that might help.

t(x @ y)                        =  t(y) @ t(x)
linear(reshape(x, [6, 8]), w)   =  reshape(linear(x, w))          rows are rows, however counted
select(linear(x, w, b), 0, i)   =  linear(select(x, 0, i), w, b)  only the row that is read
linear(x, w, b)[:, :8]          =  linear(x, w[:8], b[:8])        only those columns
cat([conv(x, w, b), conv(x, v, c)], 1)  =  conv(x, cat(w, v), cat(b, c))
"""

from __future__ import annotations

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, cat, convolution, linear, reshape
from anabranch.rewrite.rules import conv_merging, layers
from anabranch.rewrite.rules.algebra_conditions import (
    equations,
    every,
    floating,
    matrices,
    values,
)
from anabranch.rewrite.rules.pattern_parts import swaps_last_two
from anabranch.rewrite.rules.shapes import END, OneOf, either, shapes

SLICE, SELECT = "aten.slice.Tensor", "aten.select.int"

x, y, w, v, b, c, shape, axis, index, start, end, step, parts, i, j = wild(
    "x y w v b c shape axis index start end step parts i j"
)


def last_two(match: Match) -> Refused | None:
    """Whether both are of as many axes, and the last two of them are swapped."""
    if len(match.y.shape) != len(match.x.shape) or len(match.x.shape) < 2:
        return Refused("the factors have different numbers of axes")
    return swaps_last_two(match)


def rows_stay(match: Match) -> Refused | None:
    """Whether only the axes of rows are counted otherwise."""
    last = match.x.shape[-1:] == match.w.shape[1:]
    return Refused.unless(last, "the axis that is multiplied is reshaped, too")


def reshaped_rows(match: Match) -> Pattern:
    """linear(reshape(x), w, b) -> the linear of rows counted as the result counts them"""
    return reshape(linear(x, w, b), (*match.root.type.shape[:-1], match.w.shape[0]))


def results_stay(match: Match) -> Refused | None:
    """Whether a reshape of a linear's result leaves its columns as they are."""
    columns = match.root.type.shape[-1:] == (match.w.shape[0],)
    return Refused.unless(columns, "columns of the result are counted as rows")


def before_linear(match: Match) -> Pattern:
    """reshape(linear(x, w, b)) -> linear(reshape(x), w, b)"""
    return linear(reshape(x, (*match.root.type.shape[:-1], match.w.shape[1])), w, b)


def of_rows(match: Match) -> Refused | None:
    """Whether the axis is one of rows, and not the one that is multiplied."""
    at, rank = match.axis.arg, len(match.x.shape)
    assert isinstance(at, int)
    return Refused.unless(at % rank != rank - 1, "it is cut along the columns")


def selected_row(match: Match) -> Pattern:
    """select(linear(x, w, b), axis, i) -> linear(select(x, axis, i), w, b)"""
    at = match.axis.arg
    assert isinstance(at, int)
    return linear(call(SELECT, x, at % len(match.x.shape), index), w, b)


def sliced_rows(match: Match) -> Pattern:
    """slice(linear(x, w, b)) -> linear(slice(x), w, b), along an axis of rows"""
    at = match.axis.arg
    assert isinstance(at, int)
    return linear(call(SLICE, x, at % len(match.x.shape), start, end, step), w, b)


def rows_joined(match: Match) -> Refused | None:
    """Whether what is joined are rows."""
    at = match.axis.arg
    assert isinstance(at, int)
    rank = len(match.known.types[values(match, "parts")[0].name].shape)
    return Refused.unless(at % rank != rank - 1, "columns are joined")


def each_part(match: Match) -> Pattern:
    """linear(cat(parts), w, b) -> cat of the linear of each part, along an axis of rows"""
    at, refs = match.axis.arg, values(match, "parts")
    assert isinstance(at, int)
    rank = len(match.known.types[refs[0].name].shape)
    return cat(tuple(linear(part, w, b) for part in refs), at % rank)


PRODUCT = shapes("x: N K; y: K M")
LAYER = linear(x, w, b)
LAYER_SHAPES = {"w": "O K maybe", "b": "O const?"}
CONV = convolution(x, w, b, rest="window")

RULES: tuple[Rule, ...] = (
    *equations("t(mm(x, y)) = mm(t(y), t(x))", when=floating("x", "y"), draw=PRODUCT),
    *equations(
        "t(x @ y) = t(y) @ t(x)", when=every(floating("x", "y"), matrices("x", "y")), draw=PRODUCT
    ),
    *equations(
        "transpose(x @ y, i, j) = transpose(y, i, j) @ transpose(x, i, j)",
        when=every(floating("x", "y"), last_two),
        draw=either(
            shapes("x: ... N K; y: ... K M; i: N of x; j: K of x", MORE=(0, 1, 2)),
            shapes("x: ... N K; y: ... K M; i: K of x; j: N of x", MORE=(0, 1, 2)),
        ),
    ),
    *equations(
        "transpose(bmm(x, y), i, j) = bmm(transpose(y, i, j), transpose(x, i, j))",
        when=every(floating("x", "y"), swaps_last_two),
        draw=either(
            shapes("x: B N M; y: B M O; i: N of x; j: M of x"),
            shapes("x: B N M; y: B M O; i: M of x; j: N of x"),
        ),
    ),
    Rule(
        "linear(reshape(x), w, b) -> reshape(linear(x, w, b))",
        find=linear(reshape(x, shape), w, b),
        replace=reshaped_rows,
        when=every(matrices("w"), rows_stay),
        draw=either(
            shapes("x: N M K", LAYER_SHAPES, shape=OneOf("N*M K sizes", "-1 K sizes")),
            shapes("x: N*M K", LAYER_SHAPES, shape=OneOf("N M K sizes", "-1 M K sizes")),
        ),
    ),
    Rule(
        "reshape(linear(x, w, b)) -> linear(reshape(x), w, b)",
        find=reshape(LAYER, shape),
        replace=before_linear,
        when=every(matrices("w"), results_stay),
        draw=either(
            shapes("x: N M K; shape: N*M O sizes", LAYER_SHAPES),
            shapes("x: N*M K; shape: N M O sizes", LAYER_SHAPES),
        ),
    ),
    Rule(
        "select(linear(x, w, b), row) -> linear(select(x, row), w, b)",
        find=call(SELECT, LAYER, axis, index),
        replace=selected_row,
        when=every(matrices("w"), of_rows),
        draw=shapes("x: A.. N B.. K; axis: N of x; index: N index", LAYER_SHAPES),
    ),
    Rule(
        "slice(linear(x, w, b), rows) -> linear(slice(x, rows), w, b)",
        find=call(SLICE, LAYER, axis, start, end, step),
        replace=sliced_rows,
        when=every(matrices("w"), of_rows),
        draw=shapes(
            "x: A.. N B.. K; axis: N of x",
            LAYER_SHAPES,
            start=OneOf(0, None),
            end=END,
            step=OneOf(1, 2),
        ),
    ),
    layers.cut(layers.LINEARS, "columns"),
    layers.cut(layers.CONVOLUTIONS, "channels"),
    conv_merging.ONE_WINDOW.rules()[1],
    Rule(
        "linear(cat(rows), w, b) -> cat(linear(row, w, b))",
        find=linear(cat(parts, axis), w, b),
        replace=each_part,
        when=every(matrices("w"), rows_joined),
        draw=shapes("parts: A.. [N] B.. K; axis: N of parts", LAYER_SHAPES),
    ),
)
