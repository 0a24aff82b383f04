"""Kinds of search: what each does otherwise, as a value that the driver is told.

search=            prices a graph by                         rules    runs
autograph          the sum and its critical path             all      parts first, few wholes
taso               the sum of its kernels                    all      few wholes
at-once            the sum and its critical path             some     one whole, two at most
autograph-paper    the sum and its path, without overheads   TASO's   every whole it ends with,
                                                                      and each new operator
taso-paper         the sum, one kernel after another         TASO's   the same

Those named `paper` are what AutoGraph (AAAI 2023) and TASO (SOSP 2019) do as they were published.
Nothing but this table knows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.deadline import TIME
from anabranch.ir.graph import Graph
from anabranch.ir.rule import Rule
from anabranch.rewrite import rules as tables

AT_ONCE = "at-once"
TIMES = frozenset({"budget", "search_seconds"})
"""How long a search may take, which what is kept says."""
STREAMS = frozenset(
    {
        *("scheduler", "max_streams", "max_group_size", "max_groups", "arena_ratio"),
        *("horizontal_fusion", "pdl"),
        *("search_alpha", "search_overheads", "search_cell_boundaries"),
    }
)
"""The options on which a search that goes by the sum, and tries its graphs one kernel after
another, does not depend."""


@dataclass(frozen=True, slots=True)
class SearchKind:
    """How one kind of search differs from ours. `rules`: what it may apply; `summed`: a graph's
    critical path weighs nothing; `one_by_one`: graphs are tried out one kernel after another, and
    the best is kept whatever streams make of it; `parts`: forms of parts are run before wholes, and
    what is built is foreseen under its schedule; `every`: all graphs that it ends with are run, not
    the best of them; `timed`: each new operator is run once, where ours are estimated, and of
    graphs of one price one is kept; `cells`, `overheads`: the graph is cut between cells, and
    running side by side has costs, as options say; `rival`: the search with whose graph its own is
    compared at the end; `at_once`: these and rules of global scope alone are tried, at all their
    places at once; `foresees`: it begins with what that finds by predicted times, where the effort
    has no time to measure both; `ignores`: options that its outcome does not depend on."""

    rules: tuple[Rule, ...] = tables.ALL
    summed: bool = False
    one_by_one: bool = False
    parts: bool = False
    every: bool = False
    timed: bool = False
    cells: bool = True
    overheads: bool = True
    rival: str = ""
    at_once: tuple[Rule, ...] = ()
    foresees: bool = False

    def usual_s(self, graph: Graph) -> float:
        """Seconds that it may take for the graph unless others are asked for."""
        if not self.at_once:
            return TIME.search_s
        return max(TIME.search_at_once_s, TIME.search_at_once_node_s * len(graph.nodes))

    ignores: frozenset[str] = TIMES


SEARCH_KINDS: Mapping[str, SearchKind] = {
    "autograph": SearchKind(parts=True, foresees=True),
    "taso": SearchKind(summed=True),
    AT_ONCE: SearchKind(at_once=tables.SIBLINGS, foresees=True),
    "autograph-paper": SearchKind(
        *(tables.PUBLISHED,),
        every=True,
        timed=True,
        cells=False,
        overheads=False,
        # The paper gives no number for the weight of the path: with none it is TASO's search.
        rival="taso-paper",
        ignores=frozenset(),
    ),
    "taso-paper": SearchKind(
        *(tables.PUBLISHED,),
        summed=True,
        one_by_one=True,
        every=True,
        timed=True,
        cells=False,
        overheads=False,
        ignores=STREAMS,
    ),
}
"""By the option `search`."""
