from __future__ import annotations

import pytest

from anabranch.ir.dag import Dag, bits
from anabranch.ir.protocols import Limits
from anabranch.schedule.estimate import stage_estimate
from anabranch.schedule.ladder import solve_block
from anabranch.schedule.programme import Solution
from anabranch.trace import Trace


@pytest.mark.parametrize(
    ("most", "refusals"),
    [
        (10_000_000, []),
        (150_000, ["no pruning"]),
        (
            60,
            [
                "no pruning",
                "no pruning, 4 chains",
                "groups of at most 3, at most 8 of them",
                "the same, 4 chains",
            ],
        ),
    ],
)
def test_steps_are_events(most: int, refusals: list[str]) -> None:
    """Four chains of five nodes, 193,185 transitions, 103,680 pruned, 65 with chains as one."""
    dag = _combs(4, 5)
    trace = Trace()
    cost = stage_estimate([1.0] * 20, [0.1] * 20, 0.5)
    found = solve_block(dag, cost, Limits(trace=trace), most, None)
    said = [event.why.partition(":")[0] for event in trace.events]
    assert said[: len(refusals)] == refusals
    assert (len(said) == len(refusals)) or most == 60
    assert _covered(dag, found)


def _combs(chains: int, length: int) -> Dag:
    n = chains * length
    names = tuple(f"n{i}" for i in range(n))
    return Dag.of(names, [(i, i + 1) for i in range(n - 1) if (i + 1) % length])


def _covered(dag: Dag, found: Solution) -> bool:
    """Stages hold every node once, after all that comes before it."""
    done = 0
    for groups in found.stages:
        for group in groups:
            assert not done & group
            for v in bits(group):
                assert not dag.preds[v] & ~(done | group)
        done |= sum(groups)
    return done == (1 << len(dag.names)) - 1
