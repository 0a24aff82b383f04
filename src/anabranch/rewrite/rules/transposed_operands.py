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
from anabranch.rewrite.pattern_ops import cat, linear, reshape
from anabranch.rewrite.rules import conv_merging, layers
from anabranch.rewrite.rules.algebra_conditions import (
    values,
)
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.notation import equation, equations
from anabranch.rewrite.rules.shapes import END, either, shapes

SLICE, SELECT = "aten.slice.Tensor", "aten.select.int"

x, w, b = wild("x w b")


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


def each_part(match: Match) -> Pattern:
    """linear(cat(parts), w, b) -> cat of the linear of each part, along an axis of rows"""
    at, refs = match.axis.arg, values(match, "parts")
    assert isinstance(at, int)
    rank = len(match.value_facts.types[refs[0].name].shape)
    return cat(tuple(linear(part, w, b) for part in refs), at % rank)


PRODUCT = "x: N K; y: K M"
LAYER = "x: A.. N B.. K; axis: N of x; w: O K maybe; b: O maybe?"
ROWS = "x: A.. K; w: O K maybe; b: O maybe?"

RULES: tuple[Rule, ...] = (
    *equations("t(mm(x, y)) = mm(t(y), t(x))", shapes=PRODUCT),
    *equations("t(x @ y) = t(y) @ t(x)", shapes=PRODUCT),
    *equations(
        "transpose(x @ y, i, j) = transpose(y, i, j) @ transpose(x, i, j)",
        shapes=either(
            shapes("x: ... N K; y: ... K M; i: N of x; j: K of x", MORE=(0, 1, 2)),
            shapes("x: ... N K; y: ... K M; i: K of x; j: N of x", MORE=(0, 1, 2)),
        ),
    ),
    *equations(
        "transpose(bmm(x, y), i, j) = bmm(transpose(y, i, j), transpose(x, i, j))",
        shapes=either(
            shapes("x: B N M; y: B M O; i: N of x; j: M of x"),
            shapes("x: B N M; y: B M O; i: M of x; j: N of x"),
        ),
    ),
    equation(
        "linear(reshape(x), w, b) -> reshape(linear(x, w, b))",
        ROWS,
        find="linear(reshape(x, shape), w, b)",
        put=reshaped_rows,
        draw=either(
            shapes(ROWS, x="N M K", shape=OneOf("N*M K sizes", "-1 K sizes")),
            shapes(ROWS, x="N*M K", shape=OneOf("N M K sizes", "-1 M K sizes")),
        ),
    ),
    equation(
        "reshape(linear(x, w, b)) -> linear(reshape(x), w, b)",
        ROWS,
        results_stay,
        find="reshape(linear(x, w, b), shape)",
        put=before_linear,
        draw=either(
            shapes(ROWS, x="N M K", shape="N*M O sizes"),
            shapes(ROWS, x="N*M K", shape="N M O sizes"),
        ),
    ),
    equation(
        "select(linear(x, w, b), row) -> linear(select(x, row), w, b)",
        shapes(LAYER, "index: N index"),
        find="select(linear(x, w, b), axis, index)",
        put="linear(select(x, axis, index), w, b)",
    ),
    equation(
        "slice(linear(x, w, b), rows) -> linear(slice(x, rows), w, b)",
        shapes(LAYER, start=OneOf(0, None), end=END, step=OneOf(1, 2)),
        find="slice(linear(x, w, b), axis, start, end, step)",
        put="linear(slice(x, axis, start, end, step), w, b)",
    ),
    layers.cut(layers.LINEARS, "columns"),
    layers.cut(layers.CONVOLUTIONS, "channels"),
    conv_merging.ONE_WINDOW.rules()[1],
    equation(
        "linear(cat(rows), w, b) -> cat(linear(row, w, b))",
        "parts: A.. [N] B.. K; axis: N of parts; w: O K maybe; b: O maybe?",
        find="linear(cat(parts, axis), w, b)",
        put=each_part,
    ),
)
