from __future__ import annotations

from collections.abc import Callable

from anabranch.ir.dag import Dag
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import text_schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule.baselines.opara import allocate, launch_order, schedule


def test_googlenet_takes_28_streams(
    googlenet: Dag, tasks_of: Callable[[Dag], TaskGraph], fake_costs: Callable[[], Costs]
) -> None:
    """1 + 9 modules x 3 more branches; four at once when finished streams are taken over."""
    kinds = ["conv" in name for name in googlenet.names]
    order = launch_order(googlenet, [0.0] * len(kinds), kinds)
    assert len(set(allocate(googlenet, order))) == 28
    tasks = tasks_of(googlenet)
    assert schedule(tasks, fake_costs(), Limits()).streams == 4
    assert schedule(tasks, fake_costs(), Limits(max_streams=2)).streams == 2


def test_the_docstring(diamond: Dag) -> None:
    """
         +--> b --+
    a -->|        +--> d      demand a 1, b 9, c 2, d 1
         +--> c --+
    """
    order = launch_order(diamond, [1, 9, 2, 1], [True] * 4)
    assert order == [0, 2, 1, 3]
    assert allocate(diamond, order) == [0, 1, 0, 1]


def test_kinds_alternate_beginning_with_compute() -> None:
    """Six independent nodes: m0 m1 m2 move memory, c3 c4 c5 compute."""
    dag = Dag.of(("m0", "m1", "m2", "c3", "c4", "c5"), [])
    compute = [False, False, False, True, True, True]
    assert launch_order(dag, [3, 1, 2, 0, 0, 0], compute) == [3, 1, 4, 2, 5, 0]


def test_equal_demands_are_first_come_first_served(diamond: Dag) -> None:
    """
         +--> b --+
    a -->|        +--> d
         +--> c --+
    """
    assert launch_order(diamond, [0, 0, 0, 0], [True] * 4) == [0, 1, 2, 3]


def test_a_node_claims_the_first_input_it_names(diamond: Dag) -> None:
    """The last node reads c before b, so that it claims c's stream."""
    assert allocate(diamond, range(4), [[], [0], [0], [2, 1]]) == [0, 0, 1, 1]


def test_text(
    diamond: Dag, tasks_of: Callable[[Dag], TaskGraph], fake_costs: Callable[[], Costs]
) -> None:
    """
         +--> b --+
    a -->|        +--> d
         +--> c --+
    """
    assert text_schedule(schedule(tasks_of(diamond), fake_costs(), Limits())) == (
        "schedule opara {\n  a @0\n  b @0\n  c @1 after a\n  d @0 after c\n}\n"
    )
