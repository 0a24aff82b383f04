"""Everywhere: what pays only at all places of a kind at once, tried on the best graph so far.

all kinds of a rule together --> faster: the best so far
                             --> about the same: each kind by itself
                             --> clearly slower: none

Whoever has seconds alone tries all of that at once, and what merges siblings beside it: one
candidate, of the rules that are each predicted to gain what a candidate must (`apply_at_once`): one
that is predicted to gain 0.4% may lose 30%, and all that the others gain with it.

Before parts are searched, one rule after the other, each on what came of those before it: what one
loses must not hide what another gains. After them, all at once: those are ways to take
norms apart, and a norm that is made in one way is read in another.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.rule import GlobalScope, Rule
from anabranch.search.budget import building, looking
from anabranch.search.engine.backtracking import EqualGraph, RewriteStep
from anabranch.search.engine.global_scope import RuleOnTypes
from anabranch.search.engine.pricing import Counted
from anabranch.search.protocols import T
from anabranch.search.result import rules_of
from anabranch.search.state import CandidateGraph, SearchState

SCOPES: tuple[GlobalScope, ...] = ("first", "last")
NO_SCOPE: GlobalScope = ""
SLOWER = 0.01
"""By so much of the best what global rules made may be slower, for parts of it to be tried; and by
so much of what is predicted, for it to be built. Of fourteen on seven networks (`sim:h200`) one was
predicted to be slower by more, a decoder's by 4%, and was so; of the others seven were faster."""


def apply_globally(state: SearchState[T], when: GlobalScope) -> None:
    """The best so far with what pays at all places of a kind, if it does: with all kinds together,
    and if that is neither faster nor slower, with each of them."""
    rules = [rule for rule in state.rules if rule.scope == when]
    groups = [tuple(rules)] if when == "last" else [(rule,) for rule in rules]
    for group in groups:
        every = list(state.finders.kinds(state.best.path.graph, group, when))
        if not every or not _tried(state, every) or len(every) == 1:
            continue
        for kind in every:
            if kind[0] in state.rules:
                _tried(state, [kind])


def apply_at_once(state: SearchState[T], merging: Sequence[Rule]) -> None:
    """The best so far with all that is predicted to pay at all places of a kind, of rules of global
    scope and of `merging`; where it is not faster, without what takes norms apart. Nothing is built
    where less is predicted to be saved than what a candidate must promise."""
    begun = state.best
    scoped = {scope: [(r, scope) for r in state.rules if r.scope == scope] for scope in SCOPES}
    wholes = [*scoped["first"], *((rule, NO_SCOPE) for rule in merging)]
    for rules in ([*wholes, *scoped["last"]], wholes):
        form = _all_that_pays(state, rules)
        if form is None or state.wrong(form.steps):
            continue
        simple = state.evaluators.simplify(form.graph)
        if not state.enters(simple) or not state.meter.affords("build", building(simple)):
            continue
        state.evaluate(CandidateGraph(form.graph, form.steps, simple), begun)
        if state.best is not begun:
            return


def _all_that_pays(
    state: SearchState[T], rules: Sequence[tuple[Rule, GlobalScope]]
) -> EqualGraph | None:
    """The best graph so far with those of these rules that promise enough, each at all places of
    the kinds that are predicted to gain anything by it; None where there are none."""
    graph, steps = state.best.path.graph, list[RewriteStep]()
    price = Counted(state.evaluators.appraise(state.built))
    until = state.ends(building(graph))
    promise, least = state.limits.promise, list[RewriteStep]()

    def work() -> float:
        return looking(graph, len(rules) + price.asked + len(steps) + len(least))

    with state.meter.spending("whole", work):
        now = price(graph)
        for rule, scope in rules:
            whole, then, own = graph, now, list[RewriteStep]()
            for kind in state.finders.kinds(graph, [rule], scope):
                form = state.finders.applied_globally(whole, [kind], price, until)
                if form.price.us < then.us:
                    whole, then = form.graph, form.price
                    own += form.steps
            if then.us > (1 - promise) * now.us:
                least += own
            else:
                steps += own
                graph, now = whole, then
    if until.over():
        state.meter.cut_short()
        return None
    if least:
        told = f"predicted to save less than {promise:.0%}"
        state.trace.add("refused", "search", rules_of(least), told)
    return EqualGraph(graph, now, tuple(steps)) if steps else None


def _tried(state: SearchState[T], chosen: Sequence[RuleOnTypes]) -> bool:
    """Whether each of these kinds alone is worth a trial, once they were tried together: not if
    that was clearly slower, or faster, and is the best so far."""
    graph, price = state.best.path.graph, Counted(state.evaluators.appraise(state.built))
    if not state.meter.affords("build", building(graph)):
        return False
    until, steps = state.ends(building(graph)), list[RewriteStep]()

    def work() -> float:
        return looking(graph, len(chosen) + price.asked + len(steps))

    with state.meter.spending("whole", work):
        form = state.finders.applied_globally(graph, chosen, price, until)
        steps += form.steps
        slower = form.price.us > (1 + SLOWER) * price(graph).us
    if until.over():
        state.meter.cut_short()
        return False
    if slower:
        why = f"predicted to be slower by more than {SLOWER:.0%}"
        state.trace.add("refused", "search", rules_of(form.steps), why)
        return False
    if not form.steps or state.wrong(form.steps):
        return True
    simple = state.evaluators.simplify(form.graph)
    if not state.enters(simple):
        return True
    count = len(state.built)
    if state.evaluate(CandidateGraph(form.graph, form.steps, simple), state.best) is not None:
        return False
    ran = state.built[count:]
    return bool(ran) and ran[0].cost.us < state.best.built.cost.us * (1 + SLOWER)
