"""One product of matrices, several spellings: 1x1 convolution, linear, matmul, mm, bmm, addmm.

    convolution(x, w, b)   =   linear(x as [N, H, W, C], w, b) as [N, C, H, W]
                           =   w @ (x as [N, C, H*W]) + b
    linear(x, w, b)        =   x @ w.T + b

A library has other kernels for each, and what can be merged depends on the spelling: rules of
products see linears, rules of windows see convolutions. Products with one column or row are sums as
well, which join what is computed element by element on either side of them: a step of a state space
model is one, another of linear attention. None needs constants; of a weight that is one, reshaping
and turning are done once. A captured graph has no matmul, and permutations around a linear only
where people wrote them: the ways back are for what the ways there have made.
"""

from __future__ import annotations

from math import prod

from anabranch.ir.axis_order import axis_order
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Rule, wild
from anabranch.rewrite.pattern_ops import call, linear, permute, reshape, transpose
from anabranch.rewrite.rules.conv_windows import ConvWindow, convolve
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.linear_after_norm import HALF_TYPES, widened
from anabranch.rewrite.rules.notation import equation, equations
from anabranch.rewrite.rules.shapes import CONVOLUTION, ONE_TAP, either, shapes

x, w, a, b = wild("x w a b")

MOST_TERMS = 128
"""Terms of a sum that a product with a vector becomes, at most."""


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
    orders = [axis_order({"dims": match.bound[name]}, rank) for name in "pq"]
    back = orders == [channels_last(rank), channels_first(rank)]
    return Refused.unless(back, "channels do not go behind space and come back")


def as_convolution(match: Match) -> Call:
    """A linear between permutations of channels -> convolution1x1(x, w, b)"""
    axes = len(match.x.shape) - 2
    weight = reshape(w, (*match.w.shape, *(1 for _ in range(axes))))
    return convolve(x, weight, b if "b" in match.bound else None, _plain(axes))


def along_space(match: Match) -> Refused | None:
    """Whether a matrix meets each image with its space in one axis, and space comes back."""
    rank = len(match.x.shape)
    if not 3 <= rank <= 5:
        return Refused("it is no matrix that meets images")
    n, k, *size = match.x.shape
    inner = next(node for node in match.nodes[1:] if node.op == "aten.reshape.default")
    if inner.type.shape != (n, k, prod(size)):
        return Refused(f"{match.x.shape} becomes {inner.type.shape}, not {(n, k, prod(size))}")
    wanted = (n, match.w.shape[0], *size)
    return Refused.unless(
        match.root.type.shape == wanted, f"{match.root.type.shape} is not {wanted}"
    )


def few_terms(match: Match) -> Refused | None:
    """Whether few terms are added up."""
    terms = match.a.shape[1]
    return Refused.unless(
        0 < terms <= MOST_TERMS, f"it adds up {terms} terms, not 1 to {MOST_TERMS}"
    )


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


POINTWISE = shapes(CONVOLUTION, "w: N C ones maybe; b: N maybe?", window=ONE_TAP)

RULES: tuple[Rule, ...] = (
    equation(
        "conv1x1(x, w, b) -> linear(x, w, b), channels last",
        POINTWISE,
        find="conv(x, w, b, *window)",
        put=as_linear,
    ),
    equation(
        "conv1x1(x, w, b) -> w @ x + b, space in one axis",
        POINTWISE,
        find="conv(x, w, b, *window)",
        put=as_product,
    ),
    equation(
        "linear(x, w, b), channels last -> conv1x1(x, w, b)",
        when=between_permutations,
        find="permute(linear(permute(x, p), w, b), q)",
        put=as_convolution,
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
    equation(
        "w @ x, space in one axis -> conv1x1(x, w)",
        shapes(
            "x: B K S.. image; w: N K maybe; q: B N S.. sizes",
            S=(1, 2, 3),
            p=OneOf("B K prod(S..) sizes", "B K -1 sizes"),
        ),
        along_space,
        find="reshape(w @ reshape(x, p), q)",
        put=as_convolution,
    ),
    equation("linear(x, w, b) -> x @ t(w) + b", "x: ... K; w: N K maybe; b: N maybe?"),
    equation("x @ a -> linear(x, t(a))", "x: ... K; a: K N maybe"),
    equation("x @ a + b -> linear(x, t(a), b)", "x: ... K; a: K N maybe; b: N maybe"),
    *equations("mm(x, a) -> x @ a", draw=shapes("x: M K; a: K N maybe")),
    *equations("bmm(x, a) -> x @ a", draw=shapes("x: B M K; a: B K N maybe")),
    *(
        equation(
            name,
            f"x: B {rows} K; a: B K {columns}",
            few_terms,
            find="bmm(x, a)",
            put=summed,
            scope="first",
        )
        for rows, columns, name in (
            ("M", "1", "bmm(x, column) -> sum(x * t(column), 2)"),
            ("1", "N", "bmm(row, a) -> sum(t(row) * a, 1)"),
        )
    ),
    *equations("addmm(b, x, a) -> x @ a + b", draw=shapes("x: M K; a: K N maybe; b: N maybe")),
)
