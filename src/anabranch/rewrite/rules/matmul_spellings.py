"""One product of matrices, several spellings: 1x1 convolution, linear, matmul, mm, bmm, addmm.

    convolution(x, w, b)   =   linear(x as [N, H, W, C], w, b) as [N, C, H, W]
                           =   w @ (x as [N, C, H*W]) + b
    linear(x, w, b)        =   x @ w.T + b

A library has other kernels for each, and what can be merged depends on the spelling: rules of
products see linears, rules of windows see convolutions. Products with one column or row are sums as
well, which join what is computed element by element on either side of them: a step of a state space
model is one, another of linear attention. None needs constants; of a weight that is
one, reshaping and turning are done once. What is captured has no matmul, and permutations around a
linear only where people wrote them: the ways back are for what the ways there have made.
"""

from __future__ import annotations

from math import prod

from anabranch.ir.axis_order import axis_order
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Rule, When, wild
from anabranch.rewrite.pattern_ops import call, convolution, linear, permute, reshape, t, transpose
from anabranch.rewrite.rules.algebra_conditions import equations
from anabranch.rewrite.rules.conv_windows import ConvWindow, convolve, window
from anabranch.rewrite.rules.linear_after_norm import HALF_TYPES, widened
from anabranch.rewrite.rules.shapes import CONVOLUTION, ONE_TAP, OneOf, either, shapes

x, w, a, b, p, q = wild("x w a b p q")

MOST_TERMS = 128
"""Terms of a sum that a product with a vector becomes, at most."""


def pointwise(match: Match) -> Refused | None:
    """Whether each result is a product with one place of the input."""
    by = window(match)
    if set(match.w.shape[2:]) != {1}:
        return Refused("it is not 1x1")
    if by.groups > 1:
        return Refused(f"it has {by.groups} groups")
    return Refused.unless(by.plain, "it has a stride or padding, or is transposed")


def as_linear(match: Match) -> Call:
    """convolution1x1(x, w, b) -> a linear of x with channels last, channels moved back"""
    last, first = channels_last(len(match.x.shape)), channels_first(len(match.x.shape))
    return permute(linear(permute(x, last), reshape(w, match.w.shape[:2]), b), first)


def channels_last(rank: int) -> tuple[int, ...]:
    """The permutation that puts the channels behind space."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> tuple[int, ...]:
    """The permutation that moves the last of so many axes behind the first."""
    return (0, rank - 1, *range(1, rank - 1))


def as_product(match: Match) -> Call:
    """convolution1x1(x, w, b) -> w @ (x with its pixels in a row) + b"""
    n, k, *size = match.x.shape
    product = reshape(w, match.w.shape[:2]) @ reshape(x, (n, k, prod(size)))
    whole = reshape(product, match.root.type.shape)
    return whole if match.b.type is None else whole + reshape(b, (1, -1, *(1 for _ in size)))


def _plain(axes: int) -> ConvWindow:
    return ConvWindow((1,) * axes, (0,) * axes, (1,) * axes)


def between_permutations(match: Match) -> Refused | None:
    """Whether channels go behind space and come back, of a tensor that a convolution can take."""
    rank = len(match.x.shape)
    if not 3 <= rank <= 5:
        return Refused(f"no convolution has {rank - 2} axes of space")
    found = [axis_order({"dims": match.bound[name]}, rank) for name in "pq"]
    back = found == [channels_last(rank), channels_first(rank)]
    return Refused.unless(back, "channels do not go behind space and come back")


def as_convolution(match: Match) -> Call:
    """A linear between permutations of channels -> convolution1x1(x, w, b)"""
    axes = len(match.x.shape) - 2
    weight = reshape(w, (*match.w.shape, *(1 for _ in range(axes))))
    return convolve(x, weight, b if "b" in match.bound else None, _plain(axes))


def along_space(match: Match) -> Refused | None:
    """Whether a matrix meets each image with its space in one axis, and space comes back."""
    rank = len(match.x.shape)
    if not 3 <= rank <= 5 or len(match.w.shape) != 2:
        return Refused("it is no matrix that meets images")
    n, k, *size = match.x.shape
    inner = next(node for node in match.nodes[1:] if node.op == "aten.reshape.default")
    if inner.type.shape != (n, k, prod(size)):
        return Refused(f"{match.x.shape} becomes {inner.type.shape}, not {(n, k, prod(size))}")
    wanted = (n, match.w.shape[0], *size)
    return Refused.unless(
        match.root.type.shape == wanted, f"{match.root.type.shape} is not {wanted}"
    )


def matrix(name: str) -> When:
    """Whether what is bound is a matrix."""

    def when(match: Match) -> Refused | None:
        rank = len(getattr(match, name).shape)
        return Refused.unless(rank == 2, f"it has {rank} axes, not two")

    return when


def transposed_layer(match: Match) -> Call:
    """linear(x, w, b) -> x @ t(w) + b"""
    return x @ t(w) if match.b.type is None else (x @ t(w)) + b


def with_a_row(match: Match) -> Refused | None:
    """Whether what is added to a product is a row of its dtype, as the bias of a linear is."""
    if match.b.type is None or match.b.shape != match.a.shape[-1:]:
        return Refused("what is added is no row")
    if match.b.type.dtype != match.root.type.dtype:
        return Refused(f"what is added is {match.b.type.text}")
    return matrix("a")(match)


def of_vectors(side: str) -> When:
    """Whether each matrix of a batch meets one vector, on this side, and few terms are added up."""

    def when(match: Match) -> Refused | None:
        count = match.a.shape[2] if side == "right" else match.x.shape[1]
        terms = match.a.shape[1]
        if count != 1:
            return Refused(f"it makes {count} rows or columns, not one")
        if not match.root.type.dtype.is_floating_point:
            return Refused(f"sums of {match.root.type.text} are of another type")
        return Refused.unless(
            0 < terms <= MOST_TERMS, f"it adds up {terms} terms, not 1 to {MOST_TERMS}"
        )

    return when


def summed(match: Match) -> Call:
    """The products one by one, in fp32 at least, and their sum."""
    right, type = match.a.shape[2] == 1, match.root.type
    left, other = (
        widened(side, type)
        for side in ((x, transpose(a, 1, 2)) if right else (transpose(x, 1, 2), a))
    )
    whole = call("aten.sum.dim_IntList", left * other, (2 if right else 1,), True)
    narrow = type.dtype in HALF_TYPES
    return call("aten._to_copy.default", whole, type.dtype) if narrow else whole


BMM = "aten.bmm.default"

RULES: tuple[Rule, ...] = (
    Rule(
        "conv1x1(x, w, b) -> linear(x, w, b), channels last",
        find=convolution(x, w, b, rest="window"),
        replace=as_linear,
        when=pointwise,
        draw=shapes(CONVOLUTION, "w: N C ones maybe", window=ONE_TAP),
    ),
    Rule(
        "conv1x1(x, w, b) -> w @ x + b, space in one axis",
        find=convolution(x, w, b, rest="window"),
        replace=as_product,
        when=pointwise,
        draw=shapes(CONVOLUTION, "w: N C ones maybe", window=ONE_TAP),
    ),
    Rule(
        "linear(x, w, b), channels last -> conv1x1(x, w, b)",
        find=permute(linear(permute(x, p), w, b), q),
        replace=as_convolution,
        when=between_permutations,
        draw=either(
            *(
                shapes(
                    "w: N K maybe; b: N const?",
                    x=f"B K {space} image",
                    p=OneOf(channels_last(rank), (*channels_last(rank)[:-1], 1 - rank)),
                    q=channels_first(rank),
                )
                for rank, space in ((3, "W"), (4, "H W"), (5, "D H W"))
            )
        ),
    ),
    Rule(
        "w @ x, space in one axis -> conv1x1(x, w)",
        find=reshape(w @ reshape(x, p), q),
        replace=as_convolution,
        when=along_space,
        draw=shapes(
            "x: B K S.. image; w: N K maybe; q: B N S.. sizes",
            S=(1, 2, 3),
            p=OneOf("B K prod(S..) sizes", "B K -1 sizes"),
        ),
    ),
    Rule(
        "linear(x, w, b) -> x @ t(w) + b",
        find=linear(x, w, b),
        replace=transposed_layer,
        when=matrix("w"),
        draw=shapes("x: ... K; w: N K maybe; b: N const?"),
    ),
    *equations("x @ a -> linear(x, t(a))", when=matrix("a"), draw=shapes("x: ... K; a: K N maybe")),
    *equations(
        "x @ a + b -> linear(x, t(a), b)",
        when=with_a_row,
        draw=shapes("x: ... K; a: K N maybe; b: N maybe"),
    ),
    *equations("mm(x, a) -> x @ a", draw=shapes("x: M K; a: K N maybe")),
    *equations("bmm(x, a) -> x @ a", draw=shapes("x: B M K; a: B K N maybe")),
    *(
        Rule(
            name,
            find=call(BMM, x, a),
            replace=summed,
            when=of_vectors(side),
            draw=shapes("x: B M K; a: B K N", {"N" if side == "right" else "M": (1,)}),
            scope="first",
        )
        for side, name in (
            ("right", "bmm(x, column) -> sum(x * t(column), 2)"),
            ("left", "bmm(row, a) -> sum(t(row) * a, 1)"),
        )
    ),
    *equations("addmm(b, x, a) -> x @ a + b", draw=shapes("x: M K; a: K N maybe; b: N maybe")),
)
