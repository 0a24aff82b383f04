"""Tables of rules. Those that always help run to a fixed point (`always`); those that might help
feed the search, and stand in files of their own, a line for each family."""

from anabranch.ir.rule import Rule
from anabranch.rewrite.rules import (
    activated,
    algebra,
    attention,
    averages,
    blocks,
    channels,
    composing,
    fewrows,
    forms,
    found,
    groups,
    interleaved,
    latest,
    linearity,
    linears,
    lookups,
    matrices,
    merging,
    movement,
    normed,
    pieces,
    pooling,
    products,
    published,
    recurrences,
    special,
    sums,
    tables,
    turned,
    turns,
    vectors,
)

_WRITTEN: dict[str, tuple[Rule, ...]] = {
    # First, for others then have one place where there was one for each step.
    "recurrences": recurrences.RULES,
    "merging": merging.RULES,
    "interleaved": interleaved.RULES,
    "activated": activated.RULES,
    "channels": channels.RULES,
    "latest": latest.RULES,
    "groups": groups.RULES,
    "blocks": blocks.RULES,
    "linears": linears.RULES,
    "normed": normed.RULES,
    "fewrows": fewrows.RULES,
    "products": products.RULES,
    "attention": attention.RULES,
    "forms": forms.RULES,
    "composing": composing.RULES,
    "matrices": matrices.RULES,
    "averages": averages.RULES,
    "pooling": pooling.RULES,
    "algebra": algebra.RULES,
    "linearity": linearity.RULES,
    "lookups": lookups.RULES,
    "tables": tables.RULES,
    "stacked": lookups.STACKED,
    "pieces": pieces.RULES,
    "movement": movement.RULES,
    "vectors": vectors.RULES,
    "turns": turns.RULES,
    "turned": turned.RULES,
    "sums": sums.RULES,
    "found": found.RULES,
}
CANDIDATES = {name: special.flagged(rules) for name, rules in _WRITTEN.items()}
"""Those that change what is not finite, or the sign of a zero, say so."""

ALL: tuple[Rule, ...] = tuple(rule for family in CANDIDATES.values() for rule in family)
"""What a search may apply."""
PUBLISHED = published.published(CANDIDATES)
"""What published searches may."""
