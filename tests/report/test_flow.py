"""Flow: everything points down, no two tasks in one place, and the chain that sets the latency.

x -> stem -> a -------> join -> pool
         `-> b -> c ---^
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from anabranch.ir.schedule import Launch, Schedule, Span, Timeline
from anabranch.report.flow import busy, critical_chain, flow
from anabranch.report.parts import ReportParts

Build = Mapping[str, Callable[..., ReportParts]]

LAUNCHES = (
    Launch("stem", 0),
    Launch("a", 0),
    Launch("b", 5, ("stem",)),
    Launch("c", 5),
    Launch("join", 0, ("c",)),
    Launch("pool", 0),
)


def test_a_column_a_stream_and_a_row_a_step(parts: Build) -> None:
    plan = replace(parts["small"]()["plan"], schedule=Schedule("hand", LAUNCHES))
    found = flow(plan)
    assert found.row == (0, 1, 1, 2, 3, 4)
    assert found.column == (0, 0, 1, 1, 0, 0)
    assert found.reads == ((), (0,), (0,), (2,), (1, 3), (4,))
    assert found.waits == ((), (), (0,), (), (3,), ())
    assert found.previous == (-1, 0, -1, 2, 1, 4)


def test_no_two_tasks_in_one_place_and_all_edges_down(parts: Build) -> None:
    found = flow(parts["cells"](6)["plan"])
    assert len(set(zip(found.row, found.column, strict=True))) == len(found.row)
    for i, row in enumerate(found.row):
        assert all(found.row[p] < row for p in (*found.reads[i], *found.waits[i]))


def test_the_chain_goes_back_to_what_was_waited_for(parts: Build) -> None:
    plan = replace(parts["small"]()["plan"], schedule=Schedule("hand", LAUNCHES))
    times = {
        "stem": (0, 2),
        "a": (2, 4),
        "b": (2, 3),
        "c": (3, 9),
        "join": (9, 10),
        "pool": (10, 11),
    }
    spans = tuple(Span(x.task, x.stream, *map(float, times[x.task])) for x in LAUNCHES)
    timeline = Timeline(spans, 11.0, "measured")
    position = {launch.task: i for i, launch in enumerate(LAUNCHES)}
    assert critical_chain(timeline, flow(plan), position) == [0, 2, 3, 4, 5]
    assert busy(timeline) == {0: 6 / 11, 5: 7 / 11}
    assert critical_chain(Timeline((), 0.0, "measured"), flow(plan), position) == []
