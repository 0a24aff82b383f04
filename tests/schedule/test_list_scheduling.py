from __future__ import annotations

import pytest

from anabranch.ir.dag import Dag
from anabranch.ir.schedule import text_schedule
from anabranch.schedule.list_scheduling import plan, ranks


def test_the_docstring(diamond: Dag) -> None:
    """
         +--> b 8 --+
    a -->|          +--> d
         +--> c 3 --+
    """
    assert ranks(diamond, [2, 8, 3, 1]) == [11, 9, 4, 1]
    assert text_schedule(plan(diamond, [2, 8, 3, 1], 8, 0.5)) == (
        "schedule critical {\n  a @0\n  b @0\n  c @1 after a\n  d @0 after c\n}\n"
    )


@pytest.mark.parametrize(("fork_us", "streams"), [(0.5, 2), (5.0, 1)])
def test_a_branch_shorter_than_a_fork_stays_in_line(
    diamond: Dag, fork_us: float, streams: int
) -> None:
    """
         +--> b 2 --+
    a -->|          +--> d
         +--> c 2 --+
    """
    assert plan(diamond, [1, 2, 2, 1], 8, fork_us).streams == streams


def test_streams_are_limited(randwire: Dag) -> None:
    for limit in (1, 3, 16):
        assert plan(randwire, [1.0] * 33, limit, 0.1).streams <= limit


def test_no_time_at_all(randwire: Dag) -> None:
    """Tasks of zero microseconds still come in a legal order."""
    launched = [launch.task for launch in plan(randwire, [0.0] * 33, 4, 0.0).launches]
    place = {task: i for i, task in enumerate(launched)}
    names = randwire.names
    assert all(place[names[u]] < place[names[v]] for u, v in randwire.edges())
