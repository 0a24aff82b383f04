from __future__ import annotations

from collections.abc import Callable

from anabranch.ir.dag import Dag
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import text_schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule.sequential import schedule


def test_text(
    diamond: Dag, tasks_of: Callable[[Dag], TaskGraph], fake_costs: Callable[[], Costs]
) -> None:
    """
         +--> b --+
    a -->|        +--> d
         +--> c --+
    """
    assert text_schedule(schedule(tasks_of(diamond), fake_costs(), Limits())) == (
        "schedule sequential {\n  a @0\n  b @0\n  c @0\n  d @0\n}\n"
    )
