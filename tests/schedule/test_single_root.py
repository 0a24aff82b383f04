"""Streams that are started by one launch: legal, in the same order, faster where starts cost."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.costs.gpu_simulator import Simulator
from anabranch.costs.resource_demand import Demand
from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Launch, Schedule, happens_before
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule import SCHEDULERS
from anabranch.schedule.single_root import rooted

THREE = Dag.of(("a", "b", "c"), [])
APART = Schedule("wide", (Launch("a", 0), Launch("b", 1), Launch("c", 2)))


def test_the_example_of_the_docstring() -> None:
    found = rooted(APART, THREE, (6.0, 1.4, 3.0))
    assert found is not None and found.scheduler == "wide-rooted"
    assert found.launches == (Launch("b", 1), Launch("a", 0, ("b",)), Launch("c", 2, ("b",)))


def test_one_start_is_left_alone() -> None:
    chain = Dag.of(("a", "b", "c"), [(0, 1), (0, 2)])
    forked = Schedule("fork", (Launch("a", 0), Launch("b", 0), Launch("c", 1, ("a",))))
    assert rooted(forked, chain, (1.0, 1.0, 1.0)) is None


@given(data=st.data())
@settings(max_examples=30)
def test_the_same_streams_and_one_start(
    dags: SearchStrategy[Dag],
    tasks_of: Callable[[Dag], TaskGraph],
    fake_costs: Callable[[], Costs],
    data: st.DataObject,
) -> None:
    tasks, costs = tasks_of(data.draw(dags)), fake_costs()
    dag = dag_of(tasks)
    name = data.draw(st.sampled_from(("wavefront", "nimble", "opara-paper", "critical")))
    schedule = SCHEDULERS[name](tasks, costs, Limits())
    found = rooted(schedule, dag, [costs.task(task).us for task in tasks.tasks])
    before = happens_before(schedule)
    starts = [launch.task for launch in schedule.launches if not before[launch.task]]
    assert (found is None) == (len(starts) < 2)
    if found is None:
        return
    verify_schedule(found, dag)
    first = found.launches[0].task
    assert first in starts
    assert [t for t, mask in happens_before(found).items() if not mask] == [first]
    assert {(x.task, x.stream) for x in found.launches} == {
        (x.task, x.stream) for x in schedule.launches
    }
    order = [launch.task for launch in schedule.launches if launch.task != first]
    assert [launch.task for launch in found.launches[1:]] == order


def test_the_model_knows_what_it_saves() -> None:
    """The second start is 5 us late, the third 1 us more; launches behind the root 0 and 0.3."""
    spec = TargetSpec("cuda", "a GPU", sms=100)
    numbers = Calibration(split_us=5.0, root_us=1.0, fork_us=0.3)
    demands = [Demand(us, 1, 10, 4) for us in (6.0, 1.4, 3.0)]
    simulator = Simulator.of(THREE, demands, spec, numbers)
    found = rooted(APART, THREE, (6.0, 1.4, 3.0))
    assert found is not None
    apart, together = (
        simulator.run(simulator.captured(schedule, THREE.names)).latency
        for schedule in (APART, found)
    )
    assert (apart, round(together, 6)) == (9.0, 7.4)
