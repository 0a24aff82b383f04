"""Attention written out, two products and a softmax, as one operator. Rules that might help.

    bmm(softmax(bmm(q, k) * s, -1), v)  =  scaled_dot_product_attention(q, t(k), v, scale=s)
    attention(q / 8, k, v, scale=1)     =  attention(q, k, v, scale=1/8)

As the operator, all scores of a head need not be in memory at once. People write the factor before
the softmax, as a division, or in the queries; of four axes, the products are captured as batches
between reshapes; half types are often raised for the softmax. A mask stays where it is: where it
hides a whole row, a softmax gives no numbers, and the operator zeros.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product
from math import prod

import torch

from anabranch.ir.graph import Ref
from anabranch.ir.ops import ATTENTION
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.rules import draws
from anabranch.rewrite.rules.terms import every, floating, is_number, positive, sizes
from anabranch.rewrite.words import call, reshape, transpose

Drawn = Mapping[str, object]

RESHAPE, TRANSPOSE = "aten.reshape.default", "aten.transpose.int"
BMM, SOFTMAX, CAST = "aten.bmm.default", "aten._softmax.default", "aten._to_copy.default"
FACTORS = {"": "", "mul": " * s", "div": " / s"}

q, k, v, x, s, axis, apart, together = wild("q k v x s axis apart together")


def _rule(factor: str, reshaped: bool, raised: bool) -> Rule:
    """`factor`: how the scores are scaled; `reshaped`: they have the heads on an axis of their own
    for the softmax; `raised`: the softmax is of another dtype."""
    scores: Call = call(BMM, q, k)
    if reshaped:
        scores = reshape(scores, apart)
    if factor:
        scores = call(f"aten.{factor}.Tensor", scores, s)
    if raised:
        scores = call(CAST, scores, rest="wide")
    weights = call(SOFTMAX, scores, axis, False)
    if raised:
        weights = call(CAST, weights, rest="narrow")
    if reshaped:
        weights = reshape(weights, together)
    shown = f"bmm(q, k){FACTORS[factor]}"
    notes = ", heads apart" * reshaped + ", raised" * raised

    def when(match: Match) -> bool | str:
        return _may(match, factor, reshaped, raised)

    def put(match: Match) -> Pattern:
        return _operator(match, factor, reshaped)

    def draw(dice: random.Random) -> Drawn:
        return _drawn(dice, factor, reshaped, raised)

    return Rule(
        f"bmm(softmax({shown}), v){notes} -> attention(q, k, v)",
        find=call(BMM, weights, v),
        replace=put,
        when=when,
        draw=draw,
    )


def _may(match: Match, factor: str, reshaped: bool, raised: bool) -> bool | str:
    scores = (*match.q.shape[:2], match.k.shape[2])
    shape = match.apart.arg if reshaped else scores
    assert isinstance(shape, tuple)
    if match.axis.arg not in (-1, len(shape) - 1):
        return "the softmax is along another axis than that of the keys"
    if reshaped and (shape[-2:] != scores[-2:] or match.together.arg != scores):
        return "more is reshaped than the axis of the heads"
    if raised and not _wider(match):
        return "the softmax is of a narrower type"
    scale = match.s.arg if factor else 1.0
    if not is_number(scale) or not isinstance(scale, int | float) or scale <= 0:
        return f"the factor is {scale}"
    if match.q.shape[2] != match.v.shape[2]:
        return "keys and values have different sizes"
    return floating("q", "k", "v")(match)


def _wider(match: Match) -> bool:
    """Whether nothing is lost where the scores are cast."""
    given, queries = match.wide.arg, match.q.type
    assert isinstance(given, tuple) and queries is not None
    dtype = queries.dtype
    to = next((arg for arg in given if isinstance(arg, torch.dtype)), dtype)
    return to.is_floating_point and to.itemsize >= dtype.itemsize


def _operator(match: Match, factor: str, reshaped: bool) -> Pattern:
    """The operator on four axes: one of batches, one of heads."""
    given = match.s.arg if factor else 1.0
    assert isinstance(given, int | float)
    scale = 1.0 / given if factor == "div" else float(given)
    heads = _heads(match, reshaped)
    (_, rows, depth), (*_, columns) = match.q.shape, match.k.shape
    query, value = (
        _apart(match, "q", (*heads, rows, depth)),
        _apart(match, "v", (*heads, columns, depth)),
    )
    key = _turned(match, _apart(match, "k", (*heads, depth, columns)))
    found = call(ATTENTION, query, key, value, None, 0.0, False, scale)
    return reshape(found, match.root.type.shape)


def _apart(match: Match, name: str, shape: tuple[int, ...]) -> Operand:
    """The value with its heads on an axis of their own: as it was before it was reshaped, if it was
    like that there, so that other rules see it."""
    ref = match.bound[name]
    assert isinstance(ref, Ref)
    maker = match.known.producers.get(ref.name)
    if maker is not None and maker.op == RESHAPE:
        source = maker.args[0]
        assert isinstance(source, Ref)
        if match.known.types[source.name].shape == shape:
            return source
    return reshape(ref, shape)


def _turned(match: Match, value: Operand) -> Operand:
    """The value with its last two axes swapped: as it was before, if it was swapped just now."""
    maker = match.known.producers.get(value.name) if isinstance(value, Ref) else None
    if maker is not None and maker.op == TRANSPOSE:
        rank, source = len(maker.type.shape), maker.args[0]
        if {axis % rank for axis in maker.args[1:] if isinstance(axis, int)} == {
            rank - 2,
            rank - 1,
        }:
            assert isinstance(source, Ref)
            return source
    return transpose(value, -1, -2)


def _heads(match: Match, reshaped: bool) -> tuple[int, ...]:
    """Two axes in place of that of batches, as they stood for the softmax."""
    shape = match.apart.arg if reshaped else (1, match.q.shape[0], 0, 0)
    assert isinstance(shape, tuple)
    lead = [size for size in shape[:-2] if isinstance(size, int)]
    return (prod(lead[:-1]), lead[-1])


def _drawn(dice: random.Random, factor: str, reshaped: bool, raised: bool) -> Drawn:
    rows, columns, depth = sizes(dice, 3)
    lead = sizes(dice, dice.randint(1, 3)) if reshaped else sizes(dice, 1)
    scores = (*lead, rows, columns)
    drawn: dict[str, object] = {
        "q": draws.tensor(prod(lead), rows, depth),
        "k": draws.tensor(prod(lead), depth, columns),
        "v": draws.tensor(prod(lead), columns, depth),
        "axis": dice.choice((-1, len(scores) - 1)),
    }
    if reshaped:
        drawn |= {"apart": scores, "together": (prod(lead), rows, columns)}
    if factor:
        drawn["s"] = dice.choice((0.5, 2.0, 3, depth**-0.5))
    if raised:
        drawn |= {"wide": (), "narrow": ()}
    return drawn


def _scaled(factor: str, of: str) -> Rule:
    """Queries or keys that are scaled are read as they are, by the operator with another scale."""
    given: Call = call(f"aten.{factor}.Tensor", x, s)
    sides = (given, k) if of == "q" else (q, given)

    def may(match: Match) -> bool | str:
        # The bound names of both sides: `x` stands for the one that is scaled.
        return every(floating("x", "k" if of == "q" else "q", "v"), positive("s"))(match)

    def put(match: Match) -> Pattern:
        rest, factor_ = match.rest.arg, match.s.arg
        assert isinstance(rest, tuple) and isinstance(factor_, int | float)
        mask, dropout, causal, *more = rest
        scale = more[0] if more else None
        if scale is None:
            scale = 1.0 / match.x.shape[-1] ** 0.5
        assert isinstance(scale, int | float) and isinstance(mask, Ref | None)
        assert isinstance(dropout, int | float) and isinstance(causal, bool)
        scale = scale / factor_ if factor == "div" else scale * factor_
        pair = (x, k) if of == "q" else (q, x)
        return call(ATTENTION, *pair, v, mask, dropout, causal, scale, *more[1:])

    def draw(dice: random.Random) -> Drawn:
        n, h, rows, columns, depth = sizes(dice, 5)
        queries, keys = draws.tensor(n, h, rows, depth), draws.tensor(n, h, columns, depth)
        side = {"x": queries, "k": keys} if of == "q" else {"q": queries, "x": keys}
        scale = dice.choice((None, 0.5, 1.0))
        rest = (None, 0.0, dice.choice((False, True)), scale)
        given = {"v": keys, "s": dice.choice((0.5, 2.0, 3, depth**-0.5)), "rest": rest}
        return {**side, **given}

    shown = f"x{FACTORS[factor]}"
    found = f"attention({shown}, k, v)" if of == "q" else f"attention(q, {shown}, v)"
    made = "attention(x, k, v)" if of == "q" else "attention(q, x, v)"
    return Rule(
        f"{found} -> {made} of another scale",
        find=call(ATTENTION, *sides, v, rest="rest"),
        replace=put,
        when=may,
        draw=draw,
    )


RULES: tuple[Rule, ...] = (
    *(
        _rule(factor, reshaped, raised)
        for factor, reshaped, raised in product(FACTORS, (True, False), (False, True))
    ),
    *(_scaled(factor, of) for of in ("q", "k") for factor in ("mul", "div")),
)
