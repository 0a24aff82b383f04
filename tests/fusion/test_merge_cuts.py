"""Groups against their parts: what is faster stays, and guesses do not replace measurements."""

from __future__ import annotations

import math

import pytest

from anabranch.fusion.merge_cuts import choose
from anabranch.fusion.partition import partition
from anabranch.ir.protocols import A_LARGE_GPU, Cost
from anabranch.ir.schedule import CostSource
from anabranch.ir.task import Task
from anabranch.ir.text import parse_graph
from anabranch.trace import Trace

CHAIN = parse_graph("""
graph chain {
  input %x: f32[64,64]
  %a: f32[64,64] = aten.tanh.default(%x)
  %b: f32[64,64] = aten.sigmoid.default(%a)
  %c: f32[64,64] = aten.exp.default(%b)
  return %c
}""")


@pytest.mark.parametrize(
    ("whole", "part", "source", "tasks"),
    [
        (2.0, 1.0, "measured", 1),
        (4.0, 1.0, "measured", 3),
        (2.0, 1.0, "estimated", 3),
        (1.4, 1.0, "estimated", 1),
    ],
)
def test_a_group_stays_where_it_is_measured_faster(
    whole: float, part: float, source: CostSource, tasks: int
) -> None:
    fine = partition(CHAIN, Trace(), A_LARGE_GPU)
    coarse = partition(CHAIN, Trace(), A_LARGE_GPU, pointwise=True)
    assert (len(fine.tasks), len(coarse.tasks)) == (3, 1)

    def cost(task: Task) -> Cost:
        together = len(task.body.nodes) > 1
        return Cost(whole, source) if together else Cost(part, "measured")

    trace = Trace()
    found = choose(coarse, fine, cost, trace)
    assert [len(task.body.nodes) for task in found.tasks] == ([3] if tasks == 1 else [1, 1, 1])
    assert {event.kind for event in trace.events} == {"applied" if tasks == 1 else "refused"}


def test_what_is_ruled_out_has_no_number() -> None:
    fine = partition(CHAIN, Trace(), A_LARGE_GPU)
    coarse = partition(CHAIN, Trace(), A_LARGE_GPU, pointwise=True)

    def cost(task: Task) -> Cost:
        return Cost(math.inf if len(task.body.nodes) > 1 else 1.0, "measured")

    trace = Trace()
    assert choose(coarse, fine, cost, trace).tasks == fine.tasks
    assert [event.why for event in trace.events] == ["it is wanted in parts"]
