"""Independent tasks in one launch on a GPU: right in every plan, inside a graph, and never slower
than without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.patience import patiently
from tests.gpu.shared import shared_cache
from tests.tuning.horizontal.test_decide import cells, wide
from torch import Tensor

import anabranch
from anabranch.fusion import partition
from anabranch.fusion.concat_elision import fitting, with_elided
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_tensor
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.tolerances import compare, relative_error
from anabranch.ir.variant import PdlMode
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.memory import pack
from anabranch.memory.guard_bytes import fence
from anabranch.models.zoo import ZOO
from anabranch.targets.cuda.target import CudaTarget
from anabranch.trace import Trace
from anabranch.tuning.joint_tasks import joint, levelled, name_of, together
from anabranch.tuning.launch.pdl import in_mode

pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="generated kernels need Triton")

MODULE = """
graph module {
  input %x: f16[1,64,14,14]{12544,1,896,64}
  const %w: f16[64,64,1,1] = w
  const %v: f16[32,64,3,3]{576,1,192,64} = v
  const %u: f16[32,64,1,1] = u
  %one: f16[1,64,14,14]{12544,1,896,64} = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %two: f16[1,32,14,14]{6272,1,448,32} = aten.convolution.default(%x, %v, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %max: f16[1,64,14,14]{12544,1,896,64} = aten.max_pool2d.default(%x, [3, 3], [1, 1], [1, 1])
  %three: f16[1,32,14,14]{6272,1,448,32} = aten.convolution.default(%max, %u, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %cat: f16[1,128,14,14]{25088,1,1792,128} = aten.cat.default([%one, %two, %three], 1)
  %next: f16[1,128,14,14]{25088,1,1792,128} = aten.sigmoid.default(%cat)
  return %next
}"""  # noqa: E501


def here() -> CudaTarget:
    return CudaTarget(torch.device("cuda", torch.cuda.current_device()))


def module(target: CudaTarget) -> Graph:
    graph = parse_graph(MODULE)
    constants = tuple(
        replace(c, value=random_tensor(c.type, i, target.device) / 8)
        for i, c in enumerate(graph.constants)
    )
    return replace(graph, constants=constants)


def with_kernels(tasks: TaskGraph, target: CudaTarget, number: int) -> TaskGraph:
    """Every task with one of its generated kernels."""

    def chosen(task: Task) -> Task:
        offers = TritonProvider().kernels(task, target.spec)
        return replace(task, kernel=offers[number % len(offers)])

    return replace(tasks, tasks=tuple(map(chosen, tasks.tasks)))


@pytest.mark.parametrize("mode", ["", "n", "l", "e"])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", range(3))
def test_plans_with_common_launches_are_right(number: int, late: bool, mode: str) -> None:
    target = here()
    if mode and target.spec.capability < (9, 0):
        pytest.skip("kernels overlap those before them from compute capability 9.0 on")
    graph = module(target)
    tasks = partition(graph, Trace(), target.spec)
    tasks = with_elided(tasks, fitting(tasks, Trace()))
    assert [node.name for node in tasks.elided_concats] == ["cat"]
    us = {task.name: 1.0 for task in tasks.tasks}
    groups = levelled(tasks, us, lambda group: True, late)
    assert groups
    tasks = together(tasks, {name_of(group): joint(group) for group in groups}, groups)
    tasks = with_kernels(tasks, target, number)
    tasks = in_mode(tasks, PdlMode(mode)) if mode else tasks
    assert any(task.kernel and task.kernel.name == "horizontal" for task in tasks.tasks)
    row = Schedule("row", sequential_launches(dag_of(tasks)))
    run = target.load(fence(pack(tasks, row, target.spec)))
    assert not run.failure
    inputs = [random_tensor(value.type, 7, target.device) for value in graph.inputs]
    own = eval_graph(graph, inputs, target.device)
    truth = eval_graph(graph, inputs, target.device, torch.float32)
    first: tuple[Tensor, ...] = ()
    for _ in range(20):
        outs = run(inputs, clone=True)
        first = first or outs
        assert all(map(torch.equal, outs, first))
    for error, allowed in compare(first, own, truth, target.spec.tf32):
        assert error <= allowed
    assert run.strays() == ""


def compiled(model: Any, args: tuple[Tensor, ...], cache: Path, **options: Any) -> Any:
    given = {
        "search": "none",
        "scheduler": "critical",
        "strict": True,
        "horizontal_fusion": "all",
        **options,
    }
    return anabranch.compile(model, args, target="cuda", cache_dir=cache, **given)


@pytest.mark.alone
def test_branches_that_share_a_launch(tmp_path: Path) -> None:
    """Whether they do is for the clock to say; what comes out is right, no slower, and found again
    by the next process."""
    model, x = cells(4, 32).cuda(), torch.randn(1, 32, 14, 14, device="cuda").half()
    plain = compiled(model, (x,), tmp_path, horizontal_fusion="none")
    fast = compiled(model, (x,), tmp_path)
    again = compiled(model, (x,), tmp_path)
    with torch.no_grad():
        want = model(x)
    for each in (plain, fast, again):
        assert relative_error(each(x), want) < 1e-2
    made = fast.entries[0].compilation
    assert wide(plain.entries[0].compilation) == []
    assert again.entries[0].plan == fast.entries[0].plan
    told = [event for event in fast.trace.events if event.where == "horizontal_fusion"]
    assert any(event.kind in ("applied", "refused") for event in told)
    runs = [each.executable() for each in (plain, fast)]

    def no_slower() -> None:
        was, now = fast.target.time(runs, 1.0)
        assert now.us <= was.us + was.spread + now.spread

    patiently(no_slower)
    for event in told:
        if event.kind == "applied":
            assert wide(made) and "measured" in event.why


@pytest.mark.parametrize("name", ["googlenet", "inception_v3", "randwire"])
def test_networks_stay_right(name: str, tmp_path: Path) -> None:
    model = ZOO[name].build("tiny").half().cuda().eval()
    args = tuple(x.half().cuda() for x in ZOO[name].inputs("tiny", 1))
    fast = compiled(model, args, shared_cache(tmp_path) or tmp_path, budget=25.0)
    fast.save(tmp_path / "saved.anabranch")
    loaded = anabranch.load(tmp_path / "saved.anabranch", target="cuda")
    with torch.no_grad():
        want = model(*args)
    for each in (fast, loaded):
        assert relative_error(each(*args), want) < 1e-2
