from __future__ import annotations

import random
import time

from tests.schedule.dags import random_dag

from anabranch.ir.dag import Dag, maximum_matching, minimum_equivalent, width
from anabranch.schedule.baselines.nimble import chains, plan, repacked
from anabranch.schedule.event_waits import launches

# Fig. 6 of the paper, its nodes 1 to 7 here 0 to 6; the last two edges are redundant.
MINIMAL = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (2, 5), (3, 5), (3, 6), (4, 6)]
FIG_6 = Dag.of(tuple("1234567"), [*MINIMAL, (0, 5), (2, 6)])


def test_figure_6() -> None:
    """
    1 -+-> 2 ----> 5 -> 7
       +-> 3 -+--> 5
       |      +--> 6
       +-> 4 -+--> 6
              +--> 7
    """
    assert list(minimum_equivalent(FIG_6).edges()) == MINIMAL
    assert len(maximum_matching(minimum_equivalent(FIG_6).succs)) == 4
    found = [[int(FIG_6.names[v]) for v in chain] for chain in chains(FIG_6)]
    assert found == [[1, 2, 5], [3, 6], [4, 7]]
    schedule = plan(FIG_6, 16)
    waits = {(wait, launch.task) for launch in schedule.launches for wait in launch.waits}
    assert waits == {("1", "3"), ("1", "4"), ("3", "5"), ("4", "6"), ("5", "7")}


def test_waits_are_edges_minus_matched() -> None:
    """Random graphs: before chains share a stream, #waits = |E'| - |M|."""
    for seed in range(40):
        dag = _random(12, 0.25, seed)
        found = chains(dag)
        stream_of = [0] * 12
        for stream, chain in enumerate(found):
            for v in chain:
                stream_of[v] = stream
        minimal = minimum_equivalent(dag)
        matched = len(maximum_matching(minimal.succs))
        waits = sum(len(launch.waits) for launch in launches(dag, range(12), stream_of))
        assert waits == len(list(minimal.edges())) - matched
        ancestors = dag.ancestors()
        for u in range(12):
            for v in range(u):
                unordered = not (ancestors[u] >> v | ancestors[v] >> u) & 1
                assert not unordered or stream_of[u] != stream_of[v]


def test_chains_that_do_not_overlap_share_a_stream(googlenet: Dag) -> None:
    """GoogLeNet: 1 + 9 x 3 chains, on as many streams as a module has branches."""
    found = chains(googlenet)
    assert len(found) == 28
    assert len(repacked(googlenet, found)) == plan(googlenet, 16).streams == 4
    assert plan(googlenet, 3).streams == 3


def test_repacking_needs_no_more_streams_than_chains_and_no_fewer_than_the_width() -> None:
    for seed in range(20):
        dag = _random(14, 0.2, seed)
        assert width(dag) <= len(repacked(dag, chains(dag))) <= len(chains(dag))


def test_fifteen_hundred_nodes() -> None:
    dag = _random(1500, 0.004, 1)
    start = time.process_time()
    plan(dag, 16)
    assert time.process_time() - start < 2


def _random(n: int, p: float, seed: int) -> Dag:
    dice = random.Random(seed)
    return random_dag(dice, n, p)
