"""Operators that are timed: once each, in one batch, and not after the time is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.rewrite.graphs import read

from anabranch.deadline import Deadline
from anabranch.ir.graph import Graph
from anabranch.options import Options
from anabranch.search.cost.task_cuts import TaskCutter, TaskPiece
from anabranch.search.operator_timing import OperatorTimes
from anabranch.targets.table import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job


def pieces(channels: int) -> tuple[TaskPiece, ...]:
    graph: Graph = read(
        "graph g {\n"
        f"  input %x: f32[1,{channels},8,8]\n"
        f"  const %w: f32[{channels},{channels},3,3] = w\n"
        f"  %a: f32[1,{channels},8,8] = aten.convolution.default(%x, %w, None, [1, 1], [1, 1], "
        "[1, 1], False, [0, 0], 1)\n"
        f"  %b: f32[1,{channels},8,8] = aten.tanh.default(%a)\n"
        "  return %b\n}"
    )
    return TaskCutter(resolve("cpu").spec, False).of(graph, False).pieces


def test_each_is_timed_once() -> None:
    job = Job(None, (), {}, resolve("cpu"), Options(kernels="library"), None, Trace())
    timed = OperatorTimes(job)
    first = timed(pieces(8))
    assert len(first) == len(pieces(8)) == 2 and all(us > 0 for us in first.values())
    assert timed(pieces(8)) == first
    assert set(timed((*pieces(8), *pieces(4)))) > set(first)
    said = [event.why for event in job.trace.events if event.what == "new operators"]
    assert said == ["2 timed, each once", "4 timed, each once"]


@pytest.mark.parametrize("name", ["cpu", "sim:h200"])
def test_what_is_to_be_computed_ahead_has_numbers_meanwhile(name: str) -> None:
    """A weight that a rewrite made of another one: its values are computed when the plan is. On a
    simulated GPU none are drawn, and its profile may know nothing of the operator."""
    graph: Graph = read(
        "graph g {\n"
        "  input %x: f32[4,8]\n"
        "  const %w: f32[8,8] = w\n"
        "  %t: f32[8,8] = aten.mul.Tensor(%w, 2.0)\n"
        "  %y: f32[4,8] = aten.linear.default(%x, %t, None)\n"
        "  return %y\n}"
    )
    target = resolve(name)
    cut = TaskCutter(target.spec, False).of(graph, False).pieces
    (made,) = cut[0].task.body.constants
    assert len(cut) == 1 and made.value is None
    job = Job(None, (), {}, target, Options(kernels="library"), None, Trace())
    found = list(OperatorTimes(job)(cut).values())
    assert len(found) == (not target.spec.simulated) and all(us > 0 for us in found)


def test_nothing_is_timed_when_the_time_is_over() -> None:
    job = Job(None, (), {}, resolve("cpu"), Options(kernels="library"), None, Trace())
    assert OperatorTimes(replace(job, deadline=Deadline.after(0.0)))(pieces(8)) == {}
