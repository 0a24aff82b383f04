"""Tasks of one level as one: nothing is lost, no cycle comes of it, and there are kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.triton.bodies import gpu

from anabranch.fuse.abreast import MOST, abreast
from anabranch.fuse.partition import partition
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import A_LARGE_GPU
from anabranch.ir.step import random_tensor
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_tasks
from anabranch.kernels.triton.abreast import components
from anabranch.kernels.triton.write import variants
from anabranch.trace import Trace


def cell(branches: int) -> Graph:
    """Branches that leave a softmax and meet in a sum, the first a task longer than the others."""
    names = [f"b{k}" for k in range(branches)]
    lines = [f"%{name}: f16[32,64] = aten.mm.default(%x, %w{k})" for k, name in enumerate(names)]
    total = "l"
    for k, name in enumerate(names[1:]):
        lines.append(f"%s{k}: f16[32,64] = aten.add.Tensor(%{total}, %{name})")
        total = f"s{k}"
    weights = [f"const %w{k}: f16[64,64] = w{k}" for k in range(branches)]
    return parse_graph("\n".join([
        "graph cell {", "input %i: f16[32,64]", *weights, "const %v: f16[64,64] = v",
        "%x: f16[32,64] = aten._softmax.default(%i, 1, False)", lines[0],
        "%l: f16[32,64] = aten.mm.default(%b0, %v)", *lines[1:], f"return %{total}", "}",
    ]))  # fmt: skip


@pytest.mark.parametrize("branches", [2, 3, 6])
def test_all_is_computed_once_and_in_an_order_that_runs(branches: int) -> None:
    graph = cell(branches)
    constants = tuple(
        replace(c, value=random_tensor(c.type, k) / 8) for k, c in enumerate(graph.constants)
    )
    graph = replace(graph, constants=constants)
    before = partition(graph, Trace(), A_LARGE_GPU)
    trace = Trace()
    after = abreast(before, lambda task: True, trace)
    verify_tasks(after)
    assert sum(len(components(task.body)) for task in after.tasks) == len(before.tasks)
    assert len(after.tasks) == len(before.tasks) - (branches - -(-branches // MOST))
    assert max(len(components(task.body)) for task in after.tasks) == min(branches, MOST)
    assert [event.kind for event in trace.events] == ["applied"] * len(trace.events)
    x = [random_tensor(graph.inputs[0].type, 9)]
    wanted = eval_graph(graph, x)
    found = eval_tasks(after, x)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_only_what_suits_is_put_together() -> None:
    before = partition(cell(3), Trace(), A_LARGE_GPU)
    assert abreast(before, lambda task: False, Trace()) is before
    first = next(task.name for task in before.tasks if "b0" in task.name)
    after = abreast(before, lambda task: task.name != first, Trace())
    assert first in {task.name for task in after.tasks}
    assert len(after.tasks) == len(before.tasks) - 1


def test_what_is_put_together_has_kernels_abreast() -> None:
    after = abreast(partition(cell(3), Trace(), A_LARGE_GPU), lambda task: True, Trace())
    (wide,) = (task for task in after.tasks if len(components(task.body)) > 1)
    offers = variants(wide.body, gpu())
    assert offers and all(offer.startswith("abreast:") for offer in offers)
