from __future__ import annotations

import pytest

from anabranch.ir.dag import Dag, bits
from anabranch.ir.protocols import Limits
from anabranch.schedule.ios.dynamic_programme import Solution
from anabranch.schedule.ios.lower_bound import Loads
from anabranch.schedule.ios.polish import polish
from anabranch.schedule.ios.solve_block import Subproblem, solve_block
from anabranch.schedule.ios.stage_cost import stage_estimate
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
                "groups of at most 3, at most 8 of them, 4 chains",
            ],
        ),
    ],
)
def test_steps_are_events(most: int, refusals: list[str]) -> None:
    """Four chains of five nodes, 193,185 transitions, 103,680 pruned, 65 with chains as one."""
    dag = _combs(4, 5)
    trace = Trace()
    cost = stage_estimate([1.0] * 20, [0.1] * 20, 0.5)
    found = solve_block(Subproblem(dag, cost), Limits(trace=trace), most)
    said = [event.why.partition(":")[0] for event in trace.events]
    assert said[: len(refusals)] == refusals
    assert (len(said) == len(refusals) + bool(refusals)) or most == 60
    assert _covered(dag, found)


@pytest.mark.parametrize("compared", [False, True])
def test_too_wide_is_told_once(compared: bool) -> None:
    """As above: the width, the paper's bound, and what was done instead, halves included. A user
    who asked for one scheduler sees it if something was pruned, who compares many does not."""
    cost = stage_estimate([1.0] * 20, [0.1] * 20, 0.5)
    for most, instead in (
        (150_000, "no pruning, 4 chains"),
        (60, "two halves, each begun anew: no pruning"),
    ):
        limits = Limits(compared=compared, trace=Trace())
        solve_block(Subproblem(_combs(4, 5), cost), limits, most)
        (said,) = [event for event in limits.trace.events if "too wide" in event.why]
        begin = f"width 4, bound 1.94e+5, more than {most} transitions: too wide for the exact"
        assert said.why.startswith(f"{begin} programme; instead: ")
        assert instead in said.why and said.what == "block n0..n19 (20 tasks)"
        assert said.kind == ("refused" if compared or most == 150_000 else "fallback")


def test_best_first_or_not_the_stages_cost_the_same() -> None:
    """Each step of the ladder, with loads and without."""
    us, shares = [1.0 + i % 4 for i in range(20)], [0.1 + i % 3 / 3 for i in range(20)]
    cost, loads = stage_estimate(us, shares, 0.5), Loads.of(us, shares, 0.5)
    for most in (10_000_000, 150_000, 110_000, 60):
        found = solve_block(Subproblem(_combs(4, 5), cost, loads=loads), Limits(), most)
        every = solve_block(Subproblem(_combs(4, 5), cost), Limits(), most)
        assert found.us == pytest.approx(every.us)
        assert found.transitions <= every.transitions
        assert _covered(_combs(4, 5), found)


@pytest.mark.parametrize(("r", "s"), [(2, 2), (None, 2), (2, None), (1, 1), (3, 1)])
@pytest.mark.parametrize("most", [10_000_000, 60])
def test_what_the_caller_gives_holds_in_every_step(r: int | None, s: int | None, most: int) -> None:
    """Where all could be looked at without, and where halves of halves are taken."""
    us, shares = [1.0] * 20, [0.1] * 20
    cost, loads = stage_estimate(us, shares, 0.5), Loads.of(us, shares, 0.5)
    limits = Limits(max_group_size=r, max_groups=s)
    for block in (Subproblem(_combs(4, 5), cost), Subproblem(_combs(4, 5), cost, loads=loads)):
        found = solve_block(block, limits, most)
        assert _covered(block.dag, found)
        polished = polish(block.dag, found.stages, cost, limits)
        for groups in (*found.stages, *polished):
            assert len(groups) <= (s or 16)
            assert all(group.bit_count() <= (r or 20) for group in groups)


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
