"""What results are compared with is computed once for who asks for the same inputs again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anabranch.ir.text import parse_graph
from anabranch.targets.cpu.target import CpuTarget
from anabranch.tuning.verify.reference_runs import ReferenceRuns

GRAPH = parse_graph(
    "graph e {\n  input %x: f32[3]\n  %y: f32[3] = aten.exp.default(%x)\n return %y\n}"
)


class Counted(CpuTarget):
    """Counts how often something is run in full precision: a graph as it is, and a higher one."""

    count = 0

    @contextmanager
    def full_precision(self, lean: bool = False) -> Iterator[None]:
        self.count += 1
        yield


def test_a_graph_runs_once_for_all_who_ask() -> None:
    target, x = Counted(), torch.tensor([0.0, 1.0, 2.0])
    runs = ReferenceRuns(GRAPH, [x], target)
    assert target.count == 0, "nobody has asked"
    (own,), (truth,) = runs.own, runs.truth
    assert own.dtype == torch.float32 and truth.dtype == torch.float64
    torch.testing.assert_close(truth, torch.tensor([1.0, 2.718281828, 7.389056099]).double())
    assert runs.spread.allowed(0) > 0 and runs.spread is runs.spread
    assert target.count == 2
    runs.forget()
    assert torch.equal(runs.own[0], own) and target.count == 4
