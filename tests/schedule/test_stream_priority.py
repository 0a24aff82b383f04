from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import parse_schedule, text_schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule import BEST, SCHEDULERS
from anabranch.schedule.best import best
from anabranch.schedule.list_scheduling import plan
from anabranch.schedule.stream_priority import urgent
from anabranch.trace import Trace


def test_the_example_of_the_docstring(diamond: Dag) -> None:
    us = (1, 6, 2, 1)
    rushed = urgent(plan(diamond, us, 16, 0.5), diamond, us)
    assert rushed is not None and rushed.scheduler == "critical-urgent"
    assert {launch.task for launch in rushed.launches if launch.urgent} == {"a", "b", "d"}
    assert "b @0 urgent" in text_schedule(rushed)


def test_where_nothing_or_everything_is_critical(diamond: Dag) -> None:
    us = (1, 6, 6, 1)
    assert urgent(plan(diamond, us, 16, 0.5), diamond, us) is None
    assert urgent(plan(diamond, us, 1, 0.5), diamond, us) is None


@given(data=st.data())
@settings(max_examples=30)
def test_only_priorities_change(
    dags: SearchStrategy[Dag],
    tasks_of: Callable[[Dag], TaskGraph],
    fake_costs: Callable[[], Costs],
    data: st.DataObject,
) -> None:
    dag = data.draw(dags)
    tasks, costs = tasks_of(dag), fake_costs()
    name = data.draw(st.sampled_from(["nimble", "opara", "critical", "local"]))
    schedule = SCHEDULERS[name](tasks, costs, Limits())
    rushed = urgent(schedule, dag_of(tasks), [costs.task(task).us for task in tasks.tasks])
    if rushed is not None:
        verify_schedule(rushed, dag)
        assert parse_schedule(text_schedule(rushed)) == rushed
        bare = [(launch.task, launch.stream, launch.waits) for launch in rushed.launches]
        assert bare == [(x.task, x.stream, x.waits) for x in schedule.launches]
        by_stream = {(launch.stream, launch.urgent) for launch in rushed.launches}
        assert len(by_stream) == rushed.streams > 1


def test_a_candidate_of_best_that_a_tie_does_not_choose(
    inception_e: Dag, tasks_of: Callable[[Dag], TaskGraph], fake_costs: Callable[[], Costs]
) -> None:
    """Under costs that know no priorities it is as fast as the plan it comes from."""
    us = [3, 3, 2, 2, 9, 9, 4, 4, 1, 1, 1]
    costs = fake_costs(dict(zip(inception_e.names, us, strict=True)))  # type: ignore[call-arg]
    choice = best(tasks_of(inception_e), costs, BEST, Trace())
    names = [schedule.scheduler for schedule, _ in choice.candidates]
    assert names.index("local") < names.index("local-urgent")
