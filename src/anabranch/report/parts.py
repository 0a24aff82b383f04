"""ReportParts: all that a report is made of. Whoever compiles hands them over by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Schedule, Timeline
from anabranch.search.result import Path
from anabranch.trace import Event
from anabranch.tuning.decisions import Candidate


class ReportParts(TypedDict):
    """The arguments of `page.render`, `page.write` and `text.explain`, by keyword.

    `searched`: what the search for an equal graph found, None without a search. `candidates`: by
    task name, the kernels tried for it. `schedules`: all that were compared, best first.
    `timelines`: ("predicted", ...), ("measured", ...). `facts`: what `--json` writes, ready for
    JSON; of its keys none is required. Every sequence and mapping may be empty.
    """

    name: str
    captured: Graph
    rewritten: Graph
    searched: Path | None
    plan: Plan
    candidates: Mapping[str, Sequence[Candidate]]
    schedules: Sequence[tuple[Schedule, Cost]]
    timelines: Sequence[tuple[str, Timeline]]
    events: Sequence[Event]
    facts: Mapping[str, Any]
