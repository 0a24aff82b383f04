from __future__ import annotations

from collections.abc import Callable

from anabranch.ir.dag import Dag, parse_dag
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import text_schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule.baselines.greedy import schedule, stages


def test_stages_are_what_is_ready() -> None:
    """
         +--> b --> c
    a -->|            +--> e
         +--> d ------+
    """
    dag = Dag.of(tuple("abcde"), [(0, 1), (1, 2), (0, 3), (3, 4)])
    names = ["|".join(dag.names[v] for (v,) in stage) for stage in stages(dag)]
    assert names == ["a", "b|d", "c|e"]


def test_at_most_ten_groups() -> None:
    """Twelve independent nodes."""
    dag = parse_dag("\n".join("abcdefghijkl"))
    assert [len(stage) for stage in stages(dag)] == [10, 2]


def test_text(
    diamond: Dag, tasks_of: Callable[[Dag], TaskGraph], fake_costs: Callable[[], Costs]
) -> None:
    """
         +--> b --+
    a -->|        +--> d
         +--> c --+
    """
    assert text_schedule(schedule(tasks_of(diamond), fake_costs(), Limits())) == (
        "schedule greedy {\n  a @0\n  b @0\n  c @1 after a\n  d @0 after c\n"
        "  stage a\n  stage b | c\n  stage d\n}\n"
    )
