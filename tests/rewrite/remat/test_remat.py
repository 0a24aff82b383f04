"""Graphs in which values are computed again are equal, legal and take fewer bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.rewrite.remat.test_propose import GRAPH

from anabranch.ir.eval import eval_graph
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.remat import remat
from anabranch.rewrite.remat.live_bytes import LiveBytes
from anabranch.rewrite.remat.remat import _whole

US = {node.name: 10.0 if node.op.startswith("aten.mm") else 1.0 for node in GRAPH.nodes}
VALUE = 64 * 64 * 4


@pytest.mark.parametrize("values", [7, 6, 5, 4])
def test_the_limit_is_kept_by_the_cheapest(values: int) -> None:
    found = remat(GRAPH, values * VALUE, US)
    assert found.before == 7 * VALUE and found.nbytes <= values * VALUE
    assert _whole(LiveBytes.of(found.graph)).nbytes == found.nbytes, "as it is counted anew"
    assert (found.graph is GRAPH) == (values == 7)
    verify_graph(found.graph)
    assert found.us == sum(US[name.removesuffix("_again")] for name in found.nodes)
    again = [node for node in found.graph.nodes if node.name not in US]
    assert len(again) == len(found.nodes)
    behind = [node.name for node in found.graph.nodes if found.late.get(node.name)]
    assert {node.name for node in again} <= set(behind)


def test_a_tighter_limit_takes_more_time_and_the_result_is_the_same() -> None:
    found = [remat(GRAPH, values * VALUE, US) for values in (6, 5, 1)]
    assert found[0].us < found[1].us < found[2].us
    assert found[2].nbytes > VALUE, "nothing is nearer to what cannot be kept"
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(64, 64, generator=generator) / 8 for _ in "xw")
    held = tuple(replace(constant, value=w) for constant in GRAPH.constants)
    graphs = [replace(graph, constants=held) for graph in (GRAPH, *(one.graph for one in found))]
    want, *results = [eval_graph(graph, [x])[0] for graph in graphs]
    assert all(torch.equal(result, want) for result in results)
