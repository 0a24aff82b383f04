"""The wiring of the random networks. The small stage below is drawn by hand:

    0 --> 2 --> 3
    1 ----------^

Nodes 0 and 1 read the stage's input and halve it; 3 is what the stage returns.
"""

import pytest
import torch

from anabranch.models.zoo.randwire import Edges, RandomStage, watts_strogatz
from anabranch.models.zoo.randwire_ios import STAGES

# Sources and sinks of the graphs that networkx draws with seeds 1, 2, 3: a release of networkx that
# draws others would silently be another network.
DRAWN = {
    1: ([0, 1, 2, 3, 7, 10, 13], [15, 24, 30, 31]),
    2: ([0, 3, 4, 16, 25], [19, 24, 26, 27, 29, 31]),
    3: ([0, 1, 2, 3, 6, 13, 18, 22], [23, 27, 30, 31]),
}


def ends(wiring: Edges, nodes: int) -> tuple[list[int], list[int]]:
    starts, stops = {a for a, _ in wiring}, {b for _, b in wiring}
    return sorted(set(range(nodes)) - stops), sorted(set(range(nodes)) - starts)


@pytest.mark.parametrize("seed", sorted(DRAWN))
def test_drawn_graphs(seed: int) -> None:
    wiring = watts_strogatz(32, seed)
    assert len(wiring) == 64
    assert all(a < b for a, b in wiring)
    assert ends(wiring, 32) == DRAWN[seed]


@pytest.mark.parametrize(("nodes", "wiring"), STAGES)
def test_ios_graphs_are_watts_strogatz(nodes: int, wiring: Edges) -> None:
    assert len(set(wiring)) == len(wiring) == 2 * nodes  # k = 4: two edges per node, rewired
    assert list(wiring) == sorted(wiring)
    assert all(0 <= a < b < nodes for a, b in wiring)


def test_ios_stage_three_is_the_one_of_table_1() -> None:
    nodes, wiring = STAGES[2]
    assert ends(wiring, nodes) == ([0, 1, 5, 8, 18], [21, 31])
    sinks = ends(wiring, nodes)[1]
    assert nodes + 1 == 33  # with the exit that adds up the sinks
    assert len(wiring) + len(sinks) == 66


def test_ios_stage_three_has_the_published_transitions() -> None:
    """IOS's Table 1 prints 1.2e6 transitions and 9.2e22 schedules for this stage; they are
    1 170 663 and 91 973 106 270 886 052 032 664, and hardly another graph has these figures."""
    nodes, wiring = STAGES[2]
    below = {v: {b for a, b in wiring if a == v} for v in range(nodes)}
    for sink in ends(wiring, nodes)[1]:
        below[sink] = {nodes}
    assert count_schedules(below, nodes + 1) == (1_170_663, 91_973_106_270_886_052_032_664)


def count_schedules(below: dict[int, set[int]], nodes: int) -> tuple[int, int]:
    """(transitions, stage partitions): an ending is a set of disjoint cones, one per source."""
    reach = [0] * nodes
    for v in reversed(range(nodes)):
        reach[v] = 1 << v
        for w in below.get(v, ()):
            reach[v] |= reach[w]
    ways = {0: 1}
    transitions = 0

    def endings(cones: list[int], start: int, taken: int) -> list[int]:
        found = []
        for i in range(start, len(cones)):
            if not cones[i] & taken:
                found.append(taken | cones[i])
                found += endings(cones, i + 1, taken | cones[i])
        return found

    def go(state: int) -> int:
        nonlocal transitions
        if state not in ways:
            cones = [reach[v] & state for v in range(nodes) if state >> v & 1]
            found = endings(cones, 0, 0)
            transitions += len(found)
            ways[state] = sum(go(state & ~ending) for ending in found)
        return ways[state]

    total = go((1 << nodes) - 1)
    return transitions, total


def test_a_stage_adds_halves_and_averages() -> None:
    stage = RandomStage(((0, 2), (1, 3), (2, 3)), 4, before=2, channels=2, mean=True).eval()
    x = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    zero, one, two, three = stage.nodes
    with torch.no_grad():
        expected = three(one(x) + two(zero(x)))
        assert expected.shape == (1, 2, 4, 4)
        torch.testing.assert_close(stage(x), expected)


def test_two_sinks_are_averaged_or_added() -> None:
    x = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    wiring = ((0, 1), (0, 2))
    mean = RandomStage(wiring, 3, before=2, channels=2, mean=True).eval()
    total = RandomStage(wiring, 3, before=2, channels=2, mean=False).eval()
    total.load_state_dict(mean.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(2 * mean(x), total(x))
