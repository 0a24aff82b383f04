"""Concatenations and slices: what is put together and cut apart again, and what passes through.

    slice(cat([x, y], 1), 1, 0, 64)          =  x                       what was never needed whole
    cat([x[:, :8], x[:, 8:24]], 1)           =  x[:, :24]               neighbours
    cat([relu(x), relu(y)], 1)               =  relu(cat([x, y], 1))    one launch for two
    select(stack([x, y, z]), 0, 1)           =  y                       an unrolled recurrence
    split(x, 64, 1)                          =  x[:, :64], x[:, 64:]    that other rules know

A wildcard stands for all parts of a concatenation where the equation takes it apart; where it puts
one together, there is a rule for each number of parts. Rules that might help.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

from anabranch.ir.graph import Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Pattern, Rule, Wild, wild
from anabranch.rewrite.pattern_ops import call, cat
from anabranch.rewrite.rules.algebra_conditions import (
    types_of,
    values,
)
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import slice_of
from anabranch.rewrite.rules.shapes import END, either, shapes

x, parts = wild("x parts")

MOST_PARTS = 6
"""Parts of a concatenation in the largest rule: a cell of NASNet ends in six."""

SLICE, SELECT = "aten.slice.Tensor", "aten.select.int"


def same(part: Ref) -> Call:
    """The value itself: a name for it, which simplification takes away."""
    return call("aten.alias.default", part)


def _shapes(match: Match, name: str) -> list[tuple[int, ...]]:
    types = types_of(match, name)
    assert not isinstance(types, Refused)
    return [type.shape for type in types]


def _axis(match: Match, name: str, of: str) -> int:
    """An axis of what the wildcards of `of` are, counted from the front."""
    axis = match.bound[name]
    assert isinstance(axis, int)
    return axis % len(_shapes(match, of)[0])


def _span(match: Match, size: int) -> tuple[int, int]:
    """Where a slice of an axis of this size begins and ends."""
    low, high = match.start.arg, match.end.arg
    low = 0 if low is None else low
    high = size if high is None else high
    assert isinstance(low, int) and isinstance(high, int)
    return slice(low, high).indices(size)[:2]


def within(match: Match) -> Refused | None:
    """Whether the slice leaves out at least one of the parts."""
    if isinstance(types := types_of(match, "parts"), Refused):
        return types
    if (at := _axis(match, "axis", "parts")) != _axis(match, "other", "parts"):
        return Refused("it is cut along another axis than joined")
    shapes = [type.shape for type in types]
    low, high = _span(match, sum(shape[at] for shape in shapes))
    ends = list(accumulate((shape[at] for shape in shapes), initial=0))
    left = [1 for a, b in pairwise(ends) if max(a, low) < min(b, high)]
    return Refused.unless(
        0 < len(left) < len(shapes), "it reads something of every part, or nothing"
    )


def read_parts(match: Match) -> Pattern:
    """What the slice reads of each part."""
    at, refs = _axis(match, "axis", "parts"), values(match, "parts")
    lengths = [shape[at] for shape in _shapes(match, "parts")]
    low, high = _span(match, sum(lengths))
    pieces: list[Call] = []
    for part, (a, b) in zip(refs, pairwise(accumulate(lengths, initial=0)), strict=True):
        if (a, b) == (max(a, low), min(b, high)):
            pieces.append(same(part))
        elif max(a, low) < min(b, high):
            pieces.append(slice_of(part, at, max(a, low) - a, min(b, high) - a))
    return pieces[0] if len(pieces) == 1 else cat(tuple(pieces), at)


def across(match: Match) -> Refused | None:
    """Whether what is joined along one axis is cut along another."""
    if isinstance(types := types_of(match, "parts"), Refused):
        return types
    apart = _axis(match, "axis", "parts") != _axis(match, "other", "parts")
    return Refused.unless(apart, "it is cut along the axis along which it is joined")


def each_sliced(match: Match) -> Pattern:
    """slice(cat(parts)) -> cat of the slice of each part"""
    args = (match.other.arg, match.start.arg, match.end.arg)
    assert not any(isinstance(arg, tuple | Ref) for arg in args)
    pieces = tuple(call(SLICE, part, *args) for part in values(match, "parts"))
    return cat(pieces, _axis(match, "axis", "parts"))


def stacked_parts(match: Match) -> Refused | None:
    """Whether the axis that is selected from is the one that was stacked."""
    if isinstance(types := types_of(match, "parts"), Refused):
        return types
    rank = len(types[0].shape) + 1
    stacked, selected = match.axis.arg, match.other.arg
    assert isinstance(stacked, int) and isinstance(selected, int)
    return Refused.unless(
        stacked % rank == selected % rank, "it is read along another axis than stacked"
    )


def the_part(match: Match) -> Pattern:
    """select(stack(parts), axis, i) -> part i"""
    at = match.index.arg
    assert isinstance(at, int)
    return same(values(match, "parts")[at])


PARTS = {"parts": "A.. [C] B..", "axis": "C of parts", "other": "C of parts"}
"""Parts of one shape but along the axis."""
CUT = {"start": OneOf(0, None, -1), "end": END}


def neighbours(count: int, first: int) -> Rule:
    """Of `count` parts, the ones at `first` and behind it are slices of x that lie side by side."""
    rest = [Wild(f"p{k}") for k in range(count) if k not in (first, first + 1)]

    def spans(match: Match) -> tuple[int, list[tuple[int, int]]]:
        at = _axis(match, "axis", "x")
        size = match.x.shape[at]
        ranges = []
        for names in ("ab", "cd"):
            low, high = (match.bound[name] for name in names)
            assert isinstance(low, int | None) and isinstance(high, int | None)
            ranges.append(slice(low, high).indices(size)[:2])
        return at, ranges

    def adjacent(match: Match) -> Refused | None:
        at, ((_, stop), (go, _)) = spans(match)
        if {_axis(match, name, "x") for name in "ij"} != {at}:
            return Refused("they are cut along another axis than joined")
        return Refused.unless(stop == go, f"one ends at {stop} and the other begins at {go}")

    def put(match: Match) -> Pattern:
        at, ((go, _), (_, stop)) = spans(match)
        piece = slice_of(x, at, go, stop)
        if not rest:
            return piece
        return cat((*rest[:first], piece, *rest[first:]), at)

    draw = shapes(
        "x: A.. N B..; a: N+-1 place; b: N+-1 size; c: N+-1 size",
        {w.name: "A.. M B.." for w in rest},
        dict.fromkeys("ij", "N of x") | {"axis": "N of x"},
        d=OneOf("N size", END),
        N=range(2, 8),
    )
    names, parts = ([w.name for w in rest] for _ in range(2))
    names.insert(first, "x[a:b], x[b:d]")
    parts.insert(first, "slice(x, i, a, b), slice(x, j, c, d)")
    return equation(
        f"cat({', '.join(names)}) -> cat({', '.join(names).replace('x[a:b], x[b:d]', 'x[a:d]')})",
        when=adjacent,
        find=f"cat([{', '.join(parts)}], axis)",
        put=put,
        draw=draw,
    )


def by_parts(op: str) -> Callable[[Match], Pattern]:
    """cat(xs) op cat(ys) -> cat(x op y, ...), for an operator of two values"""

    def put(match: Match) -> Pattern:
        sides = zip(values(match, "parts"), values(match, "others"), strict=True)
        return cat(
            tuple(call(op, left, right) for left, right in sides), _axis(match, "axis", "parts")
        )

    return put


def binary(name: str, count: int) -> Rule:
    """A concatenation of sums as the sum of two concatenations."""
    left, right = "abcd"[:count], "efgh"[:count]
    pairs = [f"{name}({first}, {second})" for first, second in zip(left, right, strict=True)]
    rule_shapes = shapes(
        {leaf: f"L.. C{i} M.." for side in (left, right) for i, leaf in enumerate(side)},
        "axis: C0 of L.. C0 M..",
    )
    return equation(
        f"cat({', '.join(pairs)}) -> {name}(cat, cat)",
        rule_shapes,
        find=f"cat([{', '.join(pairs)}], axis)",
        put=f"{name}(cat([{', '.join(left)}], axis), cat([{', '.join(right)}], axis))",
    )


def inside(match: Match) -> Refused | None:
    """Whether both slices go along one axis, the outer within the inner, by whole numbers."""
    same_axis = _axis(match, "axis", "x") == _axis(match, "other", "x")
    return Refused.unless(same_axis, "they are cut along different axes")


def one_slice(match: Match) -> Pattern:
    """slice(slice(x)) -> one slice of x, from the sum of both starts on"""
    at = _axis(match, "axis", "x")
    first, last = match.a.arg, match.b.arg
    assert isinstance(first, int | None) and isinstance(last, int | None)
    go, stop, _ = slice(first, last).indices(match.x.shape[at])
    low, high = _span(match, max(0, stop - go))
    return slice_of(x, at, go + low, go + high)


def cut_apart(match: Match) -> tuple[Pattern, ...]:
    """Each result of a split as a slice of its own."""
    at = _axis(match, "axis", "x")
    ends = accumulate((type.shape[at] for type in match.root.types), initial=0)
    return tuple(slice_of(x, at, *span) for span in pairwise(ends))


def taken_apart(match: Match) -> tuple[Pattern, ...]:
    """unbind(x) -> a select of x for each index, which other rules know"""
    at = _axis(match, "axis", "x")
    return tuple(call(SELECT, x, at, k) for k in range(len(match.root.types)))


RULES: tuple[Rule, ...] = (
    equation(
        "slice(cat(parts, i), i) -> the parts it reads",
        when=within,
        find="slice(cat(parts, axis), other, start, end)",
        put=read_parts,
        draw=either(
            shapes(PARTS, "start: sum(C[:1]) size", end=END),
            *(
                shapes(
                    PARTS, f"start: sum(C[:{n - 1}]) place; end: sum(C[:{n - 1}]) size", PARTS=(n,)
                )
                for n in (2, 3, 4)
            ),
            *(
                shapes(PARTS, f"start: sum(C[:{i}]) size; end: sum(C[:{i + 1}]) size", PARTS=(n,))
                for n in (2, 3, 4)
                for i in range(n)
            ),
        ),
    ),
    equation(
        "slice(cat(parts, i), j) -> cat(slice(part, j), i)",
        when=across,
        find="slice(cat(parts, axis), other, start, end)",
        put=each_sliced,
        draw=either(
            *(
                shapes(f"parts: {parts}; axis: C of parts; other: D of parts", CUT)
                for parts in ("A.. [C] B.. D E..", "A.. D B.. [C] E..")
            )
        ),
    ),
    equation(
        "select(stack(parts, i), i, k) -> parts[k]",
        when=stacked_parts,
        find="select(stack(parts, axis), other, index)",
        put=the_part,
        draw=shapes(
            "parts: A.. B.. several; axis: N of A.. N B..; other: N of A.. N B..",
            "index: count index",
            PARTS=(1, 2, 3, 4),
        ),
    ),
    equation(
        "x[a:b][start:end] -> x[a + start:a + end]",
        when=inside,
        find="slice(slice(x, axis, a, b), other, start, end)",
        put=one_slice,
        draw=shapes(
            "x: A.. N B..; axis: N of x; other: N of x",
            dict.fromkeys(("a", "b", "start", "end"), OneOf(None, 0, 1, 2, -1, -2, 5, END)),
        ),
    ),
    equation(
        "split(x, size, i) -> x[:, 0:size], x[:, size:2*size]",
        find="split(x, size, axis)",
        put=cut_apart,
        draw=shapes("x: A.. N B..; axis: N of x; size: N upto", N=range(1, 28)),
    ),
    equation(
        "split(x, sizes, i) -> x[:, 0:a], x[:, a:b]",
        find="split_with_sizes(x, size, axis)",
        put=cut_apart,
        draw=shapes("x: A.. sum(P) B..; axis: sum(P) of x; size: [P] size", PARTS=(1, 2, 3, 4)),
    ),
    equation(
        "unbind(x, i) -> x[:, 0], x[:, 1]",
        find="unbind(x, axis)",
        put=taken_apart,
        draw=shapes("x: A.. N B..; axis: N of x", N=range(1, 28)),
    ),
    *(neighbours(n, i) for n in range(2, MOST_PARTS + 1) for i in range(n - 1)),
    *(
        equation(
            f"{name}(cat(parts), cat(others)) -> cat({name}(part, other))",
            shapes(PARTS, "others: A.. [C] B..; other: C of others"),
            find=f"{name}(cat(parts, axis), cat(others, other))",
            put=by_parts(f"aten.{name}.Tensor"),
        )
        for name in ("add", "sub", "mul")
    ),
    *(binary(name, n) for name in ("add", "mul") for n in (2, 3)),
)
