"""Products of matrices that share a side, merged into one. Rules that might help.

    p = matmul(x, w)                       m = matmul(x, cat(w, v))
    q = matmul(x, v)                ->     p = slice(m, -1, 0, 768)
                                           q = slice(m, -1, 768, 1536)

The left side is read once, and one launch has more tiles to fill the device with. Likewise two left
sides that meet one right side are rows of one product. The other way round, a product of many rows
or columns becomes two that may run side by side. What is joined may be computed: joining it
is a copy then, and has to pay. Captured graphs have linear, mm and bmm; a matmul appears once a
rule of `matmul_spellings` has written one, and then these find it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Draw, Match, Operand, Pattern, Rule, When, Wild, wild
from anabranch.rewrite.pattern_ops import call, cat
from anabranch.rewrite.rules.pattern_parts import bound, made, refuses, slice_of
from anabranch.rewrite.rules.shapes import OneOf, either, shapes

Put = Callable[[Match], tuple[Pattern, ...]]

x, y, w, v, b, c = wild("x y w v b c")

MATMUL, MM, BMM, ADDMM = (f"aten.{name}.default" for name in ("matmul", "mm", "bmm", "addmm"))


def slices(whole: Call, axis: int, sizes: list[int]) -> tuple[Pattern, ...]:
    """The value in pieces of these sizes along the axis."""
    ends = accumulate(sizes, initial=0)
    return tuple(slice_of(whole, axis, start, end) for start, end in pairwise(ends))


def row_axis(match: Match) -> int | Refused:
    """The axis along which x and y can be joined, one of those of x that are rows of its product
    with w: of a matrix all but the last, of a batch of matrices the last but one."""
    one, two = match.x.shape, match.y.shape
    if len(match.w.shape) < 2:
        return Refused("the right side is a vector")
    if match.x.arg == match.y.arg:
        return Refused("it is one product twice")
    if len(one) == len(two):
        for axis in range(0 if len(match.w.shape) == 2 else max(0, len(one) - 2), len(one) - 1):
            if one[:axis] + one[axis + 1 :] == two[:axis] + two[axis + 1 :]:
                return axis
    return Refused(f"the left sides are {one} and {two}")


def as_rows(product: Callable[[Operand], Call]) -> Put:
    """The results as slices of the product of x and y together."""

    def put(match: Match) -> tuple[Pattern, ...]:
        axis = made(row_axis)(match)
        sizes = [match.x.shape[axis], match.y.shape[axis]]
        back = axis - len(match.x.shape) + len(match.root.type.shape)
        return slices(product(cat((x, y), axis)), back, sizes)

    return put


def columns(match: Match) -> Refused | None:
    """Whether both right sides are batches of matrices of one height, so that they stand side by
    side."""
    one, two = match.w.shape, match.v.shape
    if min(len(one), len(two)) < 2:
        return Refused("a right side is a vector")
    return Refused.unless(one[:-1] == two[:-1], f"the right sides are {one} and {two}")


def as_columns(op: str) -> Put:
    """The results as slices of the product of x with w and v together."""

    def put(match: Match) -> tuple[Pattern, ...]:
        sizes = [match.w.shape[-1], match.v.shape[-1]]
        whole = call(op, x, cat((w, v), len(match.w.shape) - 1))
        return slices(whole, len(match.root.type.shape) - 1, sizes)

    return put


def sums(match: Match) -> Refused | None:
    """Whether both biases of addmm can be joined along the columns."""
    if refused := columns(match):
        return refused
    one, two = match.b.shape, match.c.shape
    wide = (one[-1:], two[-1:]) == ((match.w.shape[1],), (match.v.shape[1],))
    return Refused.unless(wide and one[:-1] == two[:-1], f"what is added is {one} and {two}")


def as_sum(match: Match) -> tuple[Pattern, ...]:
    """addmm(b, x, w), addmm(c, x, v) -> slices of addmm(cat(b, c), x, cat(w, v))"""
    bias = cat((b, c), len(match.b.shape) - 1)
    whole = Call("aten.addmm.default", (bias, x, cat((w, v), 1)), "scale")
    return slices(whole, 1, [match.w.shape[1], match.v.shape[1]])


def shared_left(op: str, name: str, more: Sequence[int]) -> Rule:
    """op(x, w) and op(x, v) as one; `more`: how many axes the sides may have besides two."""
    left = OneOf("... M K", "K") if op == MATMUL else "... M K"
    return Rule(
        f"{name}(x, w), {name}(x, v) -> slices of {name}(x, cat(w, v))",
        find=(call(op, x, w), call(op, x, v)),
        replace=as_columns(op),
        when=columns,
        draw=shapes("w: ... K N maybe; v: ... K P maybe", x=left, MORE=more),
    )


def shared_right(op: str, name: str, draw: Draw) -> Rule:
    """op(x, w) and op(y, w) as one."""
    return Rule(
        f"{name}(x, w), {name}(y, w) -> slices of {name}(cat(x, y), w)",
        find=(call(op, x, w), call(op, y, w)),
        replace=as_rows(lambda left: call(op, left, w)),
        when=refuses(row_axis),
        draw=draw,
    )


def in_halves(side: Wild) -> When:
    """Whether there are two rows of x, or columns of w, and more."""

    def when(match: Match) -> Refused | None:
        shape, at = bound(match, side).shape, _free(side)
        if len(shape) < 2:
            return Refused("it is a vector")
        return Refused.unless(shape[at] > 1, "it has one row or column only")

    return when


def halved(op: str, side: Wild) -> Callable[[Match], Call]:
    """Both halves of the result, the first of as many rows or columns as the second or one more."""

    def put(match: Match) -> Call:
        shape = bound(match, side).shape
        at = len(shape) + _free(side)
        half = (shape[at] + 1) // 2
        cuts = [slice_of(side, at, *ends) for ends in ((0, half), (half, shape[at]))]
        sides = [(cut, w) if side is x else (x, cut) for cut in cuts]
        return cat(tuple(call(op, *pair) for pair in sides), _free(side))

    return put


def _free(side: Wild) -> int:
    """The axis of this side that is one of the result."""
    return -2 if side is x else -1


def halves(op: str, name: str, more: Sequence[int]) -> list[Rule]:
    """op(x, w) as two, of half of the rows each, or of half of the columns."""
    find, few = call(op, x, w), "L.. K N" if op == MATMUL else "... L.. K N"
    draw = shapes(
        "x: ... L.. M K", HALVABLE, w=few, MORE=more, L=range(3) if op == MATMUL else (0,)
    )
    texts = (
        (x, f"{name}(x, w) -> cat({name}(x[:half], w), {name}(x[half:], w))"),
        (w, f"{name}(x, w) -> cat({name}(x, w[:, :half]), {name}(x, w[:, half:]))"),
    )
    return [Rule(text, find, halved(op, side), in_halves(side), draw) for side, text in texts]


HALVABLE = {"M": (2, 3, 4, 5, 6), "N": (2, 3, 4, 5, 6)}
"""Rows and columns that have halves."""

OF_MATRIX = shapes("x: A.. N B.. K; y: A.. M B.. K; w: K O maybe")
OF_MATRICES = shapes("x: N K; y: M K; w: K O maybe")
OF_BATCH = shapes("x: B N K; y: B M K; w: B K O maybe")

RULES: tuple[Rule, ...] = (
    shared_left(MATMUL, "matmul", more=(0, 1, 2)),
    shared_left(MM, "mm", more=(0,)),
    shared_left(BMM, "bmm", more=(1,)),
    Rule(
        "addmm(b, x, w), addmm(c, x, v) -> slices of addmm(cat(b, c), x, cat(w, v))",
        find=(Call(ADDMM, (b, x, w), "scale"), Call(ADDMM, (c, x, v), "scale")),
        replace=as_sum,
        when=sums,
        draw=either(
            *(
                shapes(
                    "x: M K; w: K N maybe; v: K P maybe",
                    scale=scale,
                    b=f"{rows} N maybe",
                    c=f"{rows} P maybe",
                )
                for rows in ("", "1", "M")
                for scale in ((1, 1), (2, 3))
            )
        ),
    ),
    shared_right(MATMUL, "matmul", either(OF_MATRIX, OF_BATCH)),
    shared_right(MM, "mm", OF_MATRICES),
    shared_right(BMM, "bmm", OF_BATCH),
    *halves(MATMUL, "matmul", more=(0, 1)),
    *halves(MM, "mm", more=(0,)),
    *halves(BMM, "bmm", more=(1,)),
)
