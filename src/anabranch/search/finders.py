"""Finders: how equal graphs are looked for, for whoever searches by evaluations.

    search      of a whole graph the forms under a price, the cheapest first
    gathered    forms of its parts     assembled    the whole with those that paid
    kinds       rules of global scope  applied_globally   the whole with them at all of their places

Algorithms are those of `search/engine`; a search is given them as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from anabranch.search.engine import alternatives, global_scope
from anabranch.search.engine.alternatives import Alternatives, Assembled
from anabranch.search.engine.backtracking import EqualGraph
from anabranch.search.engine.dynamic_programme import search
from anabranch.search.engine.global_scope import RuleOnTypes


@dataclass(frozen=True, slots=True)
class Finders:
    """Functions as those of the same names in `search/engine`."""

    search: Callable[..., Sequence[EqualGraph]] = search
    gathered: Callable[..., Sequence[Alternatives]] = alternatives.gathered
    assembled: Callable[..., Assembled] = alternatives.assembled
    kinds: Callable[..., Iterable[RuleOnTypes]] = global_scope.kinds
    applied_globally: Callable[..., EqualGraph] = global_scope.applied_globally


USUAL = Finders()
