"""Published: the rules that TASO's authors gave its search, of all that there are here.

    conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(pad(w), pad(v)), cat(b, c))      written
    conv(x, w, b) of g groups -> conv(x, w in pairs, b) of g/2 groups                      written
    matmul(x, a) + matmul(x, b) -> matmul(x, a + b)              and 133 such, that were generated

Those of nine constructors: convolutions with a shared input merged, with windows of unlike sizes
too, groups merged by two, and convolutions with the relu, batch norm or factor behind them (which
simplification here does). And generated ones over products, sums, products of elements,
convolutions, relu, concatenations and splits: our rules over the same operators, written and found,
and those that we would not have otherwise (`published_alone`). All of TASO's are reached by them in
one to three steps (a test has the list). AutoGraph's paper names no others (AAAI 2023).

This table serves comparisons with those systems alone: the search that users get has all rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.ir import ops
from anabranch.ir.rule import Rule
from anabranch.rewrite.match_index import RuleSignature
from anabranch.rewrite.rules.grouped_convs import CONCATENATED, PAIRED

OPERATORS = frozenset(
    f"aten.{name}"
    for name in (
        *("convolution", "linear", "mm", "bmm", "addmm", "matmul", "t", "transpose"),
        *("add", "mul", "relu", "cat", "slice", "split", "split_with_sizes"),
    )
)
"""In ATen's names, with those that products need to be written in them."""

FAMILIES = (
    *(
        "conv_merging",
        "conv_activation_merging",
        "linear_merging",
        "matmul_merging",
        "matmul_algebra",
        "linearity",
        "channel_scales",
    ),
    *("conv_input_channels", "concat_slice", "transposed_operands", "elementwise_algebra", "found"),
)
OURS = ("baddbmm", "balanced", "conv1x1", "maximum", "transpose(bmm")
"""In the names of rules over these operators that are ours alone: layers of unlike inputs and
weights stay apart, batches of matrices are not transposed, sums take other orders one step at a
time, and two convolutions in a row are two."""


GROUPED = frozenset({PAIRED.name, CONCATENATED.name})
"""Of the rules of convolutions with groups, those that TASO has."""
RELU_MOVES = frozenset({"aten.relu", "aten.cat", "aten.slice"})
"""Relu goes through concatenations and splits, and nothing else is moved."""


def published(families: Mapping[str, Sequence[Rule]]) -> tuple[Rule, ...]:
    """The rules of these families, by name, that a published search has, but for its own."""
    some = (rule for name in FAMILIES for rule in families[name])
    grouped = (rule for rule in families["grouped_convs"] if rule.name in GROUPED)
    moved = (rule for rule in families["movement"] if _operators(rule) <= RELU_MOVES)
    return (*grouped, *filter(_is_published, some), *moved)


def _is_published(rule: Rule) -> bool:
    return _operators(rule) <= OPERATORS and not any(own in rule.name for own in OURS)


def _operators(rule: Rule) -> set[str]:
    """What it finds, without overloads."""
    return {ops.packet_name(op) for op in RuleSignature.of(rule).ops}
