"""Rules that change what NaN, an infinity or the sign of a zero gives, by name.

    (x + y) * s  ->  x*s + y*s         for s = 0, x = inf, y = 1 both are not a number; for
                                       s = inf, x = 2, y = -1 it is inf before, and then not one
    (a * b) * c  ->  a * (b * c)       in fp32, for a = b = 1e30, c = 1e-30, is inf only before

`rewrite.prove.unlike` found them, over some 75 draws of each; the test of all rules holds all
others to it, and finds a draw for each of these. Found rules say it themselves, in `found.json`.
With `Options.exact` none of them is used; nor are the passes in `PASSES` here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from anabranch.ir.rule import Rule

FILE = Path(__file__).with_name("special.txt")
SPECIAL = frozenset(FILE.read_text(encoding="utf-8").splitlines())
MERGE_CONVOLUTIONS = "merge_convolutions"
"""What schedulers do that merge convolutions; theirs is no pass of the table."""
PASSES = frozenset(
    {
        *("attention", "fold_batch_norm", "largest_of_bags", "sums_of_products", "zeros"),
        MERGE_CONVOLUTIONS,
    }
)
"""Passes that do: rows of attention that are masked as a whole are zeros or not a number, as the
operator has it; what overflows before a batch norm does not where its factor is in the weights; the
largest row of a bag with NaN is NaN; products with zeros are left out of sums; channels of zeros
are multiplied that nobody multiplied before, and rims of zeros of windows that were merged. A test
holds all others to it."""


def flagged(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, with `special` set where it is so."""
    return tuple(replace(r, special=True) if r.name in SPECIAL else r for r in rules)
