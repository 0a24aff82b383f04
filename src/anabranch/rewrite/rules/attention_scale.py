"""Attention whose queries or keys are scaled before it. Rules that might help.

    attention(q / 8, k, v, scale=1)     =  attention(q, k, v, scale=1/8)

Scores have a factor anyway. What is written out by its formula is the operator already
(`rewrite/passes/attention`).
"""

from __future__ import annotations

from anabranch.ir.graph import Ref
from anabranch.ir.ops import ATTENTION
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.rules.algebra_conditions import every, floating, positive
from anabranch.rewrite.rules.shapes import OneOf, shapes

FACTORS = {"mul": " * s", "div": " / s"}

q, k, v, x, s = wild("q k v x s")


def _scaled(factor: str, of: str) -> Rule:
    """Queries or keys that are scaled are read as they are, by the operator with another scale."""
    given: Call = call(f"aten.{factor}.Tensor", x, s)
    sides = (given, k) if of == "q" else (q, given)

    def may(match: Match) -> Refused | None:
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

    drawn = f"{'x' if of == 'q' else 'q'}: N H M D; {'k' if of == 'q' else 'x'}: N H L D"
    shown = f"x{FACTORS[factor]}"
    found = f"attention({shown}, k, v)" if of == "q" else f"attention(q, {shown}, v)"
    made = "attention(x, k, v)" if of == "q" else "attention(q, x, v)"
    return Rule(
        f"{found} -> {made} of another scale",
        find=call(ATTENTION, *sides, v, rest="rest"),
        replace=put,
        when=may,
        draw=shapes(
            f"{drawn}; v: N H L D",
            s=OneOf(0.5, 2.0, 3, lambda given: given.size("D") ** -0.5),
            rest=(None, 0.0, OneOf(False, True), OneOf(None, 0.5, 1.0)),
        ),
    )


RULES: tuple[Rule, ...] = (*(_scaled(factor, of) for of in ("q", "k") for factor in FACTORS),)
