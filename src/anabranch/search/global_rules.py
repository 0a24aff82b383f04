"""Everywhere: what pays only at all places of a kind at once, tried on the best graph so far.

all kinds of a rule together --> faster: the best so far
                             --> about the same: each kind by itself
                             --> clearly slower: none

Before parts are searched, one rule after the other, each on what came of those before it: what one
loses must not hide what another gains. After them, all at once: those are ways to take
norms apart, and a norm that is made in one way is read in another.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.rule import Throughout
from anabranch.search.budget import building, counted
from anabranch.search.engine.throughout import Kind, kinds, throughout
from anabranch.search.protocols import T
from anabranch.search.state import Candidate, Standing

SLOWER = 0.01
"""By so much of the best what was tried throughout may be slower, for parts of it to be tried."""


def everywhere(stand: Standing[T], when: Throughout) -> None:
    """The best so far with what pays at all places of a kind, if it does: with all kinds together,
    and if that is neither faster nor slower, with each of them."""
    rules = [rule for rule in stand.rules if rule.throughout == when]
    groups = [tuple(rules)] if when == "last" else [(rule,) for rule in rules]
    for group in groups:
        every = list(kinds(stand.best.path.graph, group, when))
        if not every or not _tried(stand, every) or len(every) == 1:
            continue
        for kind in every:
            if kind[0] in stand.rules:
                _tried(stand, [kind])


def _tried(stand: Standing[T], chosen: Sequence[Kind]) -> bool:
    """Whether each of these kinds alone is worth a trial, once they were tried together: not if
    that was clearly slower, or faster, and is the best so far."""
    graph, price = stand.best.path.graph, counted(stand.judges.appraise(stand.built))
    if not stand.meter.affords("build", building(graph)):
        return False
    until = stand.ends(building(graph))
    with stand.meter.spending("price", price.work):
        found = throughout(graph, chosen, price, until)
    if until.over():
        stand.meter.cut_short()
        return False
    if not found.steps or stand.wrong(found.steps):
        return True
    simple = stand.judges.simplify(found.graph)
    if not stand.enters(simple):
        return True
    count = len(stand.built)
    if stand.judged(Candidate(found, simple, found.cost), stand.best) is not None:
        return False
    ran = stand.built[count:]
    return bool(ran) and ran[0].cost.us < stand.best.built.cost.us * (1 + SLOWER)
