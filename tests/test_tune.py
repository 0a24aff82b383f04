"""How graphs are cut for which kernels are tried, and what estimates may not decide."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from anabranch.bench.pairs import bottleneck, separable
from anabranch.costs import costs_of
from anabranch.fuse.pairs import is_pair
from anabranch.ir.graph import Graph
from anabranch.ir.step import random_tensor
from anabranch.line import KERNEL_SECONDS
from anabranch.options import Options
from anabranch.pack import pack
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tune import Tuner

GRAPHS = {"products": bottleneck(64, 52, 256), "taps": separable(96, 108, 24, stride=2)}
"""Of sizes that no recorded network has."""


def tuner() -> Tuner:
    return Tuner(resolve("sim:h200", False), Options.read({"kernels": "all"}), None)


def with_values(graph: Graph) -> Graph:
    held = (replace(c, value=random_tensor(c.type, k)) for k, c in enumerate(graph.constants))
    return replace(graph, constants=tuple(held))


@pytest.mark.parametrize("name", GRAPHS)
def test_the_last_cut_alone_has_pairs(name: str) -> None:
    cuts = tuner().cuts(GRAPHS[name], Trace())
    pairs = [[is_pair(task) for task in cut.tasks] for cut in cuts]
    assert pairs[-1] == [True] and not any(map(any, pairs[:-1]))


@pytest.mark.parametrize("name", GRAPHS)
def test_no_pair_without_a_measured_time(name: str) -> None:
    """An estimate knows no more than that a launch is saved."""
    made, trace, graph = tuner(), Trace(), with_values(GRAPHS[name])
    prepare = partial(pack, spec=made.target.spec)
    costs = costs_of(made.target, prepare, None, Trace(), each=KERNEL_SECONDS)
    found = made.kernels(made.cuts(graph, Trace()), costs, trace)
    assert len(found.tasks.tasks) > 1 and not any(map(is_pair, found.tasks.tasks))
    assert any(event.why == "only estimated" for event in trace.events)
