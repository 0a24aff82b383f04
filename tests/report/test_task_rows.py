"""Rows: kind, operators, the time that counts, and who came second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch

from anabranch.ir.graph import Graph, Node
from anabranch.ir.types import TensorType
from anabranch.ir.variant import parse_variant
from anabranch.report.parts import ReportParts
from anabranch.report.task_rows import kind_of, ops_text, rows

Build = Mapping[str, Callable[..., ReportParts]]


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["aten.relu.default", "aten.convolution.default"], "contract"),
        (["aten.relu.default", "mylib.secret.default"], "opaque"),
        (["aten.mean.dim", "aten.relu.default"], "reduce"),
        (["aten.cat.default", "aten.relu.default"], "pointwise"),
        (["aten.view.default"], "move"),
    ],
)
def test_kind_is_what_costs_most(names: list[str], kind: str) -> None:
    type = TensorType((2,), torch.float32)
    nodes = tuple(Node(f"n{i}", op, (), (), (type,)) for i, op in enumerate(names))
    assert kind_of(Graph("body", (), (), nodes, ())) == kind


def test_operators_are_counted() -> None:
    names = ["aten.convolution.default", "mylib.f.default", "aten.convolution.default"]
    assert ops_text(names) == "convolution x2, mylib.f"


def test_in_launch_order_with_time_and_runner_up(parts: Build) -> None:
    given = parts["small"]()
    found = rows(given)
    assert [row.task.name for row in found] == [x.task for x in given["plan"].schedule.launches]
    stem = next(row for row in found if row.task.name == "stem")
    times = {v.chosen: v.usable.us for v in (c.verdict for c in stem.candidates) if v.usable}
    assert stem.us == times[True]
    assert stem.source == "recorded"
    assert stem.runner_up is not None
    usable = stem.runner_up.verdict.usable
    assert usable is not None and usable.us >= stem.us


@pytest.mark.parametrize(
    ("origin", "place"),
    [
        ("net.py:7 in forward (a.conv) + net.py:7 in forward (a.bn)", "a.conv"),
        ("net.py:7 in forward", "net.py:7"),
        ("", ""),
    ],
)
def test_the_place_is_the_module(parts: Build, origin: str, place: str) -> None:
    row = rows(parts["small"]())[0]
    nodes = tuple(replace(node, origin=origin) for node in row.task.body.nodes)
    body = replace(row.task.body, nodes=nodes)
    assert replace(row, task=replace(row.task, body=body)).place == place


def test_without_candidates_the_timeline_tells_the_time(parts: Build) -> None:
    given = parts["small"]()
    measured = given["timelines"][-1][1]
    found = rows({**given, "candidates": {}})
    assert [row.us for row in found] == [span.end - span.start for span in measured.spans]
    assert {row.source for row in found} == {"measured"}


def test_the_plan_says_which_kernel_it_has(parts: Build) -> None:
    """A task that was given another kernel after selection is timed by that one."""
    given = parts["small"]()
    plan = given["plan"]
    tasks = list(plan.tasks.tasks)
    other = next(c for c in given["candidates"]["stem"] if not c.verdict.chosen and c.verdict.cost)
    tasks[0] = replace(tasks[0], kernel=other.kernel)
    changed = replace(plan, tasks=replace(plan.tasks, tasks=tuple(tasks)))
    found = rows({**given, "plan": changed})
    assert other.verdict.cost is not None
    assert next(row.us for row in found if row.task.name == "stem") == other.verdict.cost.us


@pytest.mark.parametrize("launched", [".pe", ".c50", ".pa.c25"])
def test_a_kernel_is_the_same_however_it_is_launched(parts: Build, launched: str) -> None:
    given = parts["small"]()
    before = {row.task.name: row for row in rows(given)}
    tasks = tuple(
        replace(
            task,
            kernel=replace(task.kernel, variant=parse_variant(f"{task.kernel.variant}{launched}")),
        )
        if task.kernel and task.kernel.provider == "triton"
        else task
        for task in given["plan"].tasks.tasks
    )
    assert tasks != given["plan"].tasks.tasks
    changed = replace(given["plan"], tasks=replace(given["plan"].tasks, tasks=tasks))
    for row in rows({**given, "plan": changed, "timelines": []}):
        was = before[row.task.name]
        assert (row.us, row.source, row.runner_up) == (was.us, was.source, was.runner_up)
