"""The laws of rings for products of matrices. Rules that might help.

    x @ a + x @ b    =  x @ (a + b)                      one product for two
    x @ a + y @ b    =  cat(x, y, 1) @ cat(a, b, 0)      a longer inner axis, the sum in registers
    (x @ y) @ z      =  x @ (y @ z)                      the cheaper one by the sizes
    (x * s) @ w      =  (x @ w) * s                      where there are fewer elements

Operands that are joined or added may be weights, and are then joined once when constants are
folded; where it is computed on the way, it is for the search to see whether that pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.ir.rule import Rule
from anabranch.rewrite.rules.drawing import OneOf
from anabranch.rewrite.rules.notation import equation, equations
from anabranch.rewrite.rules.shapes import shapes

RANKS: Mapping[str, Sequence[int]] = {"mm": (0,), "bmm": (1,), "matmul": (0, 1)}
"""Products, and how many axes their operands have besides two."""


def products(kind: str) -> list[Rule]:
    """Distributivity on both sides, both ways, and factors, for one kind of product."""

    def law(*texts: str, entries: str) -> list[Rule]:
        named = (text.replace("dot", kind) for text in texts)
        held = shapes(entries, s=OneOf(2, -3, 0.5), MORE=RANKS[kind])
        return equations(*named, shapes=held)

    return [
        *law(
            "dot(x, a) + dot(x, b) = dot(x, a + b)",
            "dot(x, a) - dot(x, b) = dot(x, a - b)",
            entries="x: ... N K any; a: ... K M; b: ... K M",
        ),
        *law(
            "dot(x, w) + dot(y, w) = dot(x + y, w)",
            entries="x: ... N K; y: ... N K; w: ... K M any",
        ),
        *law(
            "dot(x * s, w) = dot(x, w) * s",
            "dot(x, w) * s = dot(x, w * s)",
            entries="x: ... N K any; w: ... K M any",
        ),
    ]


def chains(kind: str) -> list[Rule]:
    """Associativity, and sums of products as products of what is joined, of matrices."""
    return [
        *equations(
            f"{kind}({kind}(x, y), z) = {kind}(x, {kind}(y, z))",
            shapes=shapes("x: A.. N K; y: B.. K M; z: C.. M P", **dict.fromkeys("ABC", (0,))),
        ),
        equation(
            f"{kind}(x, a) + {kind}(y, b) -> {kind}(cat(x, y), cat(a, b))",
            "x: N K; y: N P; a: K M; b: P M",
            put=f"{kind}(cat([x, y], 1), cat([a, b], 0))",
        ),
        equation(
            f"{kind}(cat(x, y), w) -> {kind}(x, w[:x]) + {kind}(y, w[x:])",
            "x: N K; y: N P; w: K+P M; axis: K of x",
            find=f"{kind}(cat([x, y], axis), w)",
            put=f"{kind}(x, slice(w, 0, 0, K)) + {kind}(y, slice(w, 0, K, K + P))",
        ),
    ]


RULES: tuple[Rule, ...] = (
    *(rule for kind in RANKS for rule in products(kind)),
    *(rule for kind in ("matmul", "mm") for rule in chains(kind)),
)
