"""The model of kernels that share a machine: examples worked out by hand, laws, a slow twin."""

from __future__ import annotations

import heapq
import math
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.costs.gpu_simulator import ROOTS, Simulator
from anabranch.costs.launches import Launches, launches_of
from anabranch.costs.resource_demand import ROW, Demand, evicted
from anabranch.costs.work import per_processor
from anabranch.errors import VerifyError
from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import Dag, bits
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Resources
from anabranch.schedule.event_waits import launches as least_waits

SPEC = TargetSpec("cuda", "four processors", sms=4, bandwidth=1e12, l2_bytes=1)
"""With a cache that holds next to nothing."""
FREE = Calibration()
ALL = Calibration(
    start_us=3.0,
    launch_us=0.8,
    lane_us=0.6,
    short_us=1.0,
    release_us=0.1,
    fork_us=0.3,
    split_us=2.0,
    root_us=0.5,
    dispatch_us=0.15,
    sharing=0.4,
    bandwidth=0.8,
    arithmetic=0.5,
    cold=0.5,
)


def small(us: float, ctas: int = 1, per_sm: int = 1, **more: Any) -> Demand:
    return Demand(us, 1, ctas, per_sm, **more)


def free_dag(n: int) -> Dag:
    return Dag.of(tuple(f"t{i}" for i in range(n)), [])


def latency(demands: list[Demand], streams: list[int], calibration: Calibration = FREE) -> float:
    """Of tasks without dependencies, launched in their order."""
    simulator = Simulator.of(free_dag(len(demands)), demands, SPEC, calibration)
    return simulator.latency(range(len(demands)), streams)


@pytest.mark.parametrize("ctas", [1, 3, 4, 5, 9, 100, 12345])
@pytest.mark.parametrize("per_sm", [1, 3, 8])
@pytest.mark.parametrize("us", [0.0, 0.5, 7.0])
def test_alone_a_task_takes_its_cost(ctas: int, per_sm: int, us: float) -> None:
    demand = small(us, ctas, per_sm, busy_us=us, moved_us=us / 2)
    assert latency([demand], [0], replace(ALL, start_us=0)) == pytest.approx(us)
    assert latency([demand], [0], ALL) == pytest.approx(us - min(us / 2, 3 / ROW) + 3)


def test_a_chain_is_a_sum() -> None:
    demands = [small(us, ctas=4) for us in (1.0, 2.0, 5.0)]
    assert latency(demands, [0, 0, 0], replace(ALL, start_us=0, dispatch_us=0)) == pytest.approx(8)


def test_what_fits_runs_beside() -> None:
    """Two processors each: the longer decides. Three each: the second gets one of its three, then,
    when the first has ended, the others:  0..4  first, 0..3 a third, 4..7 two thirds."""
    assert latency([small(4, 2), small(3, 2)], [0, 1]) == 4
    assert latency([small(4, 3), small(3, 3)], [0, 1]) == 7


def test_a_later_kernel_fills_the_tail() -> None:
    """Six CTAs of 3 us on four processors: two turns, half of the second is free.

    0..3 |aaaa|   3..6 |aa|bb|   6..9 |..|  instead of 6 + 3
    """
    assert latency([small(6, 6), small(3, 2)], [0, 1]) == 6
    assert latency([small(6, 6), small(3, 2)], [0, 0]) == 9


def test_launches_overlap_and_bodies_queue() -> None:
    """Of 3 us each 1 holds no processor: 1 + 2 + 2."""
    assert latency([small(3, 4), small(3, 4)], [0, 1], Calibration(launch_us=1)) == 5


@pytest.mark.parametrize("width", [2, 3, 4])
def test_forks(width: int) -> None:
    """The last branch starts (width - 1) forks late."""
    edges = [(0, i) for i in range(1, width + 1)] + [(i, width + 1) for i in range(1, width + 1)]
    dag = Dag.of(tuple(f"t{i}" for i in range(width + 2)), edges)
    calibration = Calibration(fork_us=0.3)
    simulator = Simulator.of(dag, [small(2.0)] * (width + 2), SPEC, calibration)
    streams = [0, *range(width), 0]
    assert simulator.latency(range(width + 2), streams) == pytest.approx(6 + (width - 1) * 0.3)


@pytest.mark.parametrize(("us", "late"), [(1.0, 0.0), (1.5, 0.0), (2.1, 0.6), (9.0, 1.0)])
def test_behind_another_lane_nothing_was_made_ready(us: float, late: float) -> None:
    """First 1 us, then b and c beside each other, d last. b is in a's lane and so is d: c is late
    to start, but a is too short for that to show, and d is late behind c, which takes longer."""
    dag = Dag.of(tuple("abcd"), [(0, 1), (0, 2), (1, 3), (2, 3)])
    demands = [small(1.0), small(0.5), small(us), small(1.0)]
    calibration = Calibration(lane_us=1.0, short_us=1.5)
    simulator = Simulator.of(dag, demands, SPEC, calibration)
    assert simulator.latency(range(4), [0, 0, 1, 0]) == pytest.approx(2 + us + late)
    """Launched first, the long one is in the lane of both."""
    assert simulator.latency((0, 2, 1, 3), [0, 1, 0, 1]) == pytest.approx(2 + us)


def test_a_kernel_tells_other_lanes_before_its_own_goes_on() -> None:
    """C goes on from b, which d of another lane waits for, too: 0.2 us later. A chain tells nobody,
    and neither does a task that takes no time."""
    dag = Dag.of(tuple("abcd"), [(0, 1), (1, 2), (1, 3)])
    told = Calibration(release_us=0.2)
    demands = [small(1.0), small(2.0), small(4.0), small(1.0)]
    simulator = Simulator.of(dag, demands, SPEC, told)
    assert simulator.latency(range(4), [0, 0, 0, 1]) == pytest.approx(7.2)
    assert simulator.latency(range(4), [0, 0, 0, 0]) == pytest.approx(8)
    nothing = [small(1.0), small(0.0), small(4.0), small(1.0)]
    assert Simulator.of(dag, nothing, SPEC, told).latency(range(4), [0, 0, 0, 1]) == 5


def test_the_run_waits_for_every_end() -> None:
    """Of three that end beside each other two cost 0.5 us each; a part of a graph goes on."""
    ends = Calibration(end_us=0.5)
    assert latency([small(2.0)] * 3, [0, 1, 2], ends) == 3
    assert latency([small(2.0)] * 3, [0, 0, 0], ends) == 6
    simulator = Simulator.of(free_dag(3), [small(2.0)] * 3, SPEC, ends)
    assert simulator.part((0, 1)).latency(range(2), [0, 1]) == 2


def test_launches_are_apart() -> None:
    assert latency([small(2.0)] * 4, [0, 1, 2, 3], Calibration(dispatch_us=0.5)) == 2


def test_bandwidth_and_arithmetic_are_shared_alike() -> None:
    """Both ask for 3/4: together at 2/3 speed. Of 3 us and 4 us: 4.5, and the last 1 alone."""
    moving = [small(us, moved_us=0.75 * us) for us in (3.0, 4.0)]
    computing = [small(us, busy_us=0.75 * us) for us in (3.0, 4.0)]
    assert latency(moving, [0, 1]) == latency(computing, [0, 1]) == pytest.approx(5.5)
    """Where half of the peak can be reached, half of it is all there is."""
    demands = [small(4.0, 1, moved_us=2.0)] * 2
    assert latency(demands, [0, 1], Calibration(bandwidth=0.5)) == pytest.approx(8)


def test_sharing_processors_slows_down() -> None:
    """Half a processor a CTA, one on each: both fit; with sharing 0.5 both are half slower."""
    demands = [small(4.0, 4, 2)] * 2
    assert latency(demands, [0, 1]) == 4
    assert latency(demands, [0, 1], Calibration(sharing=0.5)) == pytest.approx(6)
    """Beside one on every other processor it is half of that, and alone nothing."""
    assert latency([small(4.0, 2, 2)] * 2, [0, 1], Calibration(sharing=0.5)) == pytest.approx(5)
    assert latency([small(4.0, 4, 2)], [0], Calibration(sharing=0.5)) == 4


def test_of_unlike_kernels_what_the_mean_finds_slows_all() -> None:
    """One finds 1 CTA of the other on each processor, the other half a CTA: 3/4 in the mean."""
    demands = [small(4.0, 2, 2), small(4.0, 4, 2)]
    slowed = latency(demands, [0, 1], Calibration(sharing=0.4))
    assert slowed == pytest.approx(4 * (1 + 0.4 * 0.75))


def test_in_a_network_what_is_read_is_further_away() -> None:
    """Of 4 us each, 1 us is traffic; the second waits for half of it again."""
    dag = Dag.of(("a", "b"), [(0, 1)])
    demands = [small(4.0, 4, moved_us=1.0)] * 2
    assert Simulator.of(dag, demands, SPEC, Calibration(cold=0.5)).latency((0, 1), (0, 0)) == 8.5
    """Of 9 us of traffic in 4 us most cannot have been moved."""
    demands = [small(4.0, 4, moved_us=9.0)] * 2
    assert Simulator.of(dag, demands, SPEC, Calibration(cold=0.5)).latency((0, 1), (0, 0)) == 10


def test_what_the_cache_holds_is_near() -> None:
    """Both move a megabyte: all of it stays, half, nothing of it, or nobody knows."""
    dag, demands = Dag.of(("a", "b"), [(0, 1)]), [small(4, 1, moved_us=1.0)] * 2
    for size, share in ((2_000_000, 0.0), (1_333_334, 0.5), (1_000_000, 1.0), (10, 1.0), (0, 1.0)):
        spec = replace(SPEC, l2_bytes=size)
        assert evicted(demands, spec) == pytest.approx(share, abs=1e-5)
        found = Simulator.of(dag, demands, spec, Calibration(cold=0.5)).latency((0, 1), (0, 0))
        assert found == pytest.approx(8 + 0.5 * share, abs=1e-5)


def test_independent_parts_wait_for_the_longest_alone() -> None:
    """4 us of traffic, of which no part has more than 1: half of that is waited for."""
    dag = Dag.of(("a", "b"), [(0, 1)])
    for awaited, us in ((None, 18.0), (1.0, 16.5), (9.0, 18.0)):
        parts = Demand(8.0, 1, 4, 1, 0.0, 4.0, awaited)
        simulator = Simulator.of(dag, [parts] * 2, SPEC, Calibration(cold=0.5))
        assert simulator.latency((0, 1), (0, 0)) == us


def test_starts_of_a_run_come_one_after_another() -> None:
    """Four tasks of 2 us: at 0, 5, 6 and 7."""
    calibration = Calibration(split_us=5.0, root_us=1.0)
    assert latency([small(2.0)] * 4, [0, 1, 2, 3], calibration) == 9
    assert latency([small(2.0)] * 4, [0, 0, 0, 0], calibration) == 8


def test_of_many_starts_the_last_are_together() -> None:
    calibration = Calibration(root_us=1.0)
    alone = replace(SPEC, sms=100)
    for n in (ROOTS, ROOTS + 1, 50):
        simulator = Simulator.of(free_dag(n), [small(2.0)] * n, alone, calibration)
        assert simulator.latency(range(n), range(n)) == ROOTS - 2 + 2


def test_each_in_a_row_has_its_part_of_the_start() -> None:
    """Eight of 3 us were timed in a row: 24 us, of which 4 are the run's own."""
    demands = [small(3.0)] * ROW
    assert latency(demands, [0] * ROW, Calibration(start_us=4.0)) == 24


def test_a_part_is_as_if_it_were_all() -> None:
    """Of a --> b, c --> d the middle two: they start together, and are cold as before."""
    dag = Dag.of(("a", "b", "c", "d"), [(0, 1), (0, 2), (1, 3), (2, 3)])
    demands = [small(us, 1, moved_us=1.0) for us in (2.0, 3.0, 4.0, 5.0)]
    simulator = Simulator.of(dag, demands, SPEC, Calibration(cold=0.5))
    assert simulator.part((1, 2)).latency((0, 1), (0, 1)) == 4.5
    assert simulator.part((1, 2, 3)).latency((0, 1, 2), (0, 1, 0)) == 10
    assert simulator.part(range(4)).signature() == simulator.signature()
    assert simulator.part((1, 2)).signature() != simulator.part((1, 3)).signature()


def test_how_many_a_processor_holds() -> None:
    spec = replace(SPEC, threads_per_sm=2048, registers_per_sm=65536, shared_per_sm=200_000)
    assert per_processor(Resources(1, 256, 32, 0), spec) == 8
    assert per_processor(Resources(1, 256, 128, 0), spec) == 2
    assert per_processor(Resources(1, 32, 16, 60_000), spec) == 3
    assert per_processor(Resources(1, 32, 16, 0), spec) == 32
    assert per_processor(Resources(1, 4096, 16, 0), spec) == 1


def chance(seed: int, n: int, streams: int) -> tuple[Dag, list[Demand], list[int]]:
    rng = random.Random(seed)
    edges = {(rng.randrange(i), i) for i in range(1, n) for _ in range(rng.randint(0, 2))}
    demands = []
    for _ in range(n):
        us = rng.uniform(0.3, 9.0)
        busy, moved = rng.uniform(0, us / 2), rng.uniform(0, us / 2)
        demands.append(Demand(us, 1, rng.choice((1, 3, 4, 9)), rng.choice((1, 2, 4)), busy, moved))
    dag = Dag.of(tuple(f"t{i}" for i in range(n)), edges)
    return dag, demands, [rng.randrange(streams) for _ in range(n)]


def in_network(demand: Demand, preds: int) -> float:
    """What it takes there by itself: without its part of the start, and waiting for what it
    reads."""
    own = demand.us - min(demand.us / 2, ALL.start_us / ROW)
    return own + (ALL.cold * min(demand.moved_us, demand.us) if preds else 0.0)


GRAPHS = {"seed": st.integers(0, 10**6), "n": st.integers(1, 30), "streams": st.integers(1, 6)}


@given(**GRAPHS)
def test_not_before_the_longest_path_and_the_same_again(seed: int, n: int, streams: int) -> None:
    dag, demands, stream_of = chance(seed, n, streams)
    simulator = Simulator.of(dag, demands, SPEC, ALL)
    outcome = simulator.run(simulator.launches(range(n), stream_of))
    longest: list[float] = []
    for v, preds in enumerate(dag.preds):
        before = max((longest[u] for u in bits(preds)), default=0.0)
        longest.append(before + in_network(demands[v], preds))
    assert outcome.latency >= max(longest) + ALL.start_us - 1e-6
    for v in range(n):
        took = outcome.ends[v] - outcome.starts[v]
        assert took >= in_network(demands[v], dag.preds[v]) - 1e-6
    again = Simulator.of(dag, demands, SPEC, ALL)
    assert again.latency(range(n), stream_of) == outcome.latency


@given(**GRAPHS)
def test_one_stream_is_the_sum_and_its_gaps(seed: int, n: int, streams: int) -> None:
    dag, demands, _ = chance(seed, n, streams)
    total = sum(map(in_network, demands, dag.preds))
    found = Simulator.of(dag, demands, SPEC, ALL).latency(range(n), [0] * n)
    assert total + 3 - 1e-6 <= found <= total + 3 + n * ALL.dispatch_us + 1e-6


@given(**GRAPHS)
def test_without_overheads_nothing_idles_longer_than_in_one_stream(
    seed: int, n: int, streams: int
) -> None:
    """Nothing costs anything but the work, of which somebody always does some at full speed; only
    turns that are cut in two by others can take longer."""
    dag, demands, stream_of = chance(seed, n, streams)
    whole = [
        replace(demand, ctas=4 // demand.per_sm or 1, busy_us=0, moved_us=0) for demand in demands
    ]
    total = sum(demand.us for demand in whole)
    assert Simulator.of(dag, whole, SPEC, FREE).latency(range(n), stream_of) <= total + 1e-6


@given(**GRAPHS)
def test_waits_are_those_of_the_schedulers(seed: int, n: int, streams: int) -> None:
    """By numbers and by names it is the same schedule."""
    dag, demands, stream_of = chance(seed, n, streams)
    schedule = Schedule("chance", least_waits(dag, range(n), stream_of))
    for bound in (0, 1, 2):
        some = [replace(demand, bound=i % 3 < bound) for i, demand in enumerate(demands)]
        simulator = Simulator.of(dag, some, SPEC, ALL)
        assert simulator.launches(range(n), stream_of) == simulator.captured(schedule, dag.names)


@given(**GRAPHS)
def test_agrees_with_a_machine_that_knows_every_cta(seed: int, n: int, streams: int) -> None:
    dag, demands, stream_of = chance(seed, n, streams)
    demands = [replace(demand, busy_us=0.0, moved_us=0.0) for demand in demands]
    simulator = Simulator.of(dag, demands, SPEC, FREE)
    launches = simulator.launches(range(n), stream_of)
    assert simulator.run(launches).latency == pytest.approx(by_cta(launches, demands))


def by_cta(launches: Launches, demands: list[Demand]) -> float:
    """The latency when each CTA is an event of its own, without overheads and pressure."""
    free, now, order = float(SPEC.sms), 0.0, 0
    left, undone = list(launches.preds), [demands[v].ctas for v in launches.task]
    queue = [i for i, preds in enumerate(left) if not preds]
    waiting = {i: undone[i] for i in range(len(left))}
    running: list[tuple[float, int, int]] = []
    while queue or running:
        while queue:
            demand = demands[launches.task[queue[0]]]
            if free + 1e-9 < 1 / demand.per_sm:
                break
            turns = math.ceil(demand.ctas / (SPEC.sms * demand.per_sm))
            heapq.heappush(running, (now + demand.us / turns, order, queue[0]))
            order += 1
            free -= 1 / demand.per_sm
            waiting[queue[0]] -= 1
            if not waiting[queue[0]]:
                queue.pop(0)
        now, _, i = heapq.heappop(running)
        free += 1 / demands[launches.task[i]].per_sm
        undone[i] -= 1
        if not undone[i]:
            for j in launches.dependents[i]:
                left[j] -= 1
                if not left[j]:
                    queue.append(j)
    return now


def test_a_schedule_that_waits_for_itself_is_refused() -> None:
    schedule = Schedule("knot", (Launch("t0", 0, ("t1",)), Launch("t1", 1, ("t0",))))
    simulator = Simulator.of(free_dag(2), [small(1.0)] * 2, SPEC, FREE)
    with pytest.raises(VerifyError, match="never starts 2"):
        simulator.run(launches_of(schedule, ("t0", "t1")))


def test_nothing_to_do() -> None:
    assert Simulator.of(free_dag(0), [], SPEC, ALL).latency((), ()) == 0


def test_eight_hundred_tasks_are_quick() -> None:
    dag, demands, stream_of = chance(1, 800, 8)
    simulator = Simulator.of(dag, demands, replace(SPEC, sms=132), ALL)
    launches = simulator.launches(range(800), stream_of)
    best = math.inf
    for _ in range(5):
        start = time.process_time()
        simulator.run(launches)
        best = min(best, time.process_time() - start)
    assert best < 0.05
