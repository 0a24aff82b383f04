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
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import bound, refuses, slice_of, unrefused
from anabranch.rewrite.rules.shapes import either, shapes

Put = Callable[[Match], tuple[Pattern, ...]]

x, y, w, v, b, c = wild("x y w v b c")


def slices(whole: Call, axis: int, sizes: list[int]) -> tuple[Pattern, ...]:
    """The value in pieces of these sizes along the axis."""
    ends = accumulate(sizes, initial=0)
    return tuple(slice_of(whole, axis, start, end) for start, end in pairwise(ends))


def row_axis(match: Match) -> int | Refused:
    """The axis along which x and y can be joined, one of those of x that are rows of its product
    with w: of a matrix all but the last, of a batch of matrices the last but one."""
    first, second = match.x.shape, match.y.shape
    if len(match.w.shape) < 2:
        return Refused("the right side is a vector")
    if match.x.arg == match.y.arg:
        return Refused("it is one product twice")
    if len(first) == len(second):
        for axis in range(0 if len(match.w.shape) == 2 else max(0, len(first) - 2), len(first) - 1):
            if first[:axis] + first[axis + 1 :] == second[:axis] + second[axis + 1 :]:
                return axis
    return Refused(f"the left sides are {first} and {second}")


def as_rows(product: Callable[[Operand], Call]) -> Put:
    """The results as slices of the product of x and y together."""

    def put(match: Match) -> tuple[Pattern, ...]:
        axis = unrefused(row_axis)(match)
        sizes = [match.x.shape[axis], match.y.shape[axis]]
        back = axis - len(match.x.shape) + len(match.root.type.shape)
        return slices(product(cat((x, y), axis)), back, sizes)

    return put


def as_columns(op: str) -> Put:
    """The results as slices of the product of x with w and v together."""

    def put(match: Match) -> tuple[Pattern, ...]:
        sizes = [match.w.shape[-1], match.v.shape[-1]]
        whole = call(op, x, cat((w, v), len(match.w.shape) - 1))
        return slices(whole, len(match.root.type.shape) - 1, sizes)

    return put


def as_sum(match: Match) -> tuple[Pattern, ...]:
    """addmm(b, x, w), addmm(c, x, v) -> slices of addmm(cat(b, c), x, cat(w, v))"""
    bias = cat((b, c), len(match.b.shape) - 1)
    whole = Call("aten.addmm.default", (bias, x, cat((w, v), 1)), "scale")
    return slices(whole, 1, [match.w.shape[1], match.v.shape[1]])


def shared_left(name: str, more: Sequence[int]) -> Rule:
    """One product of x for two; `more`: how many axes the sides may have besides two."""
    left = "... M K any"
    return equation(
        f"{name}(x, w), {name}(x, v) -> slices of {name}(x, cat(w, v))",
        shapes(
            "w: ... K N maybe; v: ... K P maybe",
            x=OneOf(left, "K any") if name == "matmul" else left,
            MORE=more,
        ),
        put=as_columns(f"aten.{name}.default"),
    )


def shared_right(name: str, draw: Draw) -> Rule:
    """One product with w for two."""
    return equation(
        f"{name}(x, w), {name}(y, w) -> slices of {name}(cat(x, y), w)",
        when=refuses(row_axis),
        put=as_rows(lambda left: call(f"aten.{name}.default", left, w)),
        draw=draw,
    )


def halves(name: str, more: Sequence[int]) -> list[Rule]:
    """Two products for one, of half of the rows each, or of half of the columns: the first has as
    many as the second or one more."""
    few = "L.. K N" if name == "matmul" else "... L.. K N"
    rule_shapes = shapes(
        "x: ... L.. M K", HALVABLE, w=few, MORE=more, L=range(3) if name == "matmul" else (0,)
    )
    rows = f"{name}(x, w) -> cat({name}(x[:half], w), {name}(x[half:], w))"
    columns = f"{name}(x, w) -> cat({name}(x, w[:, :half]), {name}(x, w[:, half:]))"
    return [
        equation(
            text,
            when=in_halves(side),
            find=f"{name}(x, w)",
            put=halved(name, side),
            draw=rule_shapes,
        )
        for side, text in ((x, rows), (w, columns))
    ]


def in_halves(side: Wild) -> When:
    """Whether there are two rows of x, or columns of w, and more."""

    def when(match: Match) -> Refused | None:
        shape, at = bound(match, side).shape, _free(side)
        if len(shape) < 2:
            return Refused("it is a vector")
        return Refused.unless(shape[at] > 1, "it has one row or column only")

    return when


def halved(name: str, side: Wild) -> Callable[[Match], Call]:
    """Both halves of the result."""

    def put(match: Match) -> Call:
        shape = bound(match, side).shape
        at = len(shape) + _free(side)
        half = (shape[at] + 1) // 2
        cuts = [slice_of(side, at, *ends) for ends in ((0, half), (half, shape[at]))]
        sides = [(cut, w) if side is x else (x, cut) for cut in cuts]
        return cat(tuple(call(f"aten.{name}.default", *pair) for pair in sides), _free(side))

    return put


def _free(side: Wild) -> int:
    """The axis of this side that is one of the result."""
    return -2 if side is x else -1


HALVABLE = {"M": (2, 3, 4, 5, 6), "N": (2, 3, 4, 5, 6)}
"""Rows and columns that have halves."""

OF_MATRIX = shapes("x: A.. N B.. K; y: A.. M B.. K; w: K O maybe")
OF_MATRICES = shapes("x: N K; y: M K; w: K O maybe")
OF_BATCH = shapes("x: B N K; y: B M K; w: B K O maybe")

RULES: tuple[Rule, ...] = (
    shared_left("matmul", more=(0, 1, 2)),
    shared_left("mm", more=(0,)),
    shared_left("bmm", more=(1,)),
    equation(
        "addmm(b, x, w, *scale), addmm(c, x, v, *scale)"
        " -> slices of addmm(cat(b, c), x, cat(w, v))",
        either(
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
        put=as_sum,
    ),
    shared_right("matmul", either(OF_MATRIX, OF_BATCH)),
    shared_right("mm", OF_MATRICES),
    shared_right("bmm", OF_BATCH),
    *halves("matmul", more=(0, 1)),
    *halves("mm", more=(0,)),
    *halves("bmm", more=(1,)),
)
