"""A training step runs cheap tasks of its forward pass again where it would keep their results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.artifact import file as artifact_file
from anabranch.fusion.partition import singly
from anabranch.ir import ops
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_tasks
from anabranch.ir.plan import Plan
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.ir.verify import verify_tasks
from anabranch.kernels.library import AtenProvider
from anabranch.kernels.triton.codegen import program
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.less_kept import with_less_kept

LAYERS, WIDTH, BATCH = 4, 128, 4096
QUICK: dict[str, Any] = {
    **{"target": "sim:h200", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    **{"kernels": "library", "pdl": "off", "horizontal_fusion": "none"},
}


def step_of(
    batch: int, **more: Any
) -> tuple[anabranch.TrainingStep, list[Tensor], tuple[Tensor, ...]]:
    """A step of linears with a gelu behind each, what its plan reads, and eager's loss and new
    parameters."""
    torch.manual_seed(0)
    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 3))
    x, t = torch.randn(batch, WIDTH), torch.randint(3, (batch,))

    def loss(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), t)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = anabranch.compile_step(model, loss, optimizer, (x, t), **(QUICK | more))
    values = {state.name: state.value for state in step.plan.tasks.states}
    given = iter((x, t, torch.tensor(0.1, dtype=torch.float64)))
    read = [values.get(value.name) for value in step.plan.tasks.inputs]
    inputs = [next(given) if one is None else one.detach().clone() for one in read]
    wanted = loss(model, x, t)
    wanted.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return step, inputs, (wanted.detach(), *(one.detach() for one in model.parameters()))


def again(tasks: TaskGraph) -> list[Task]:
    return [task for task in tasks.tasks if "_again" in task.name]


@pytest.fixture(scope="module")
def made() -> tuple[anabranch.TrainingStep, list[Tensor], tuple[Tensor, ...]]:
    return step_of(BATCH)


def test_gelus_run_again_and_the_step_is_the_same(made: Any, tmp_path: Path) -> None:
    step, inputs, wanted = made
    tasks = step.plan.tasks
    verify_tasks(tasks)
    assert {node.op for task in again(tasks) for node in task.body.nodes} == {"aten.gelu.default"}
    found = eval_tasks(tasks, inputs, kernels=True)
    for one in wanted:
        assert any(x.shape == one.shape and torch.allclose(x, one, atol=1e-5) for x in found)
    step.save(tmp_path / "step.anabranch")
    plan, _ = artifact_file.load_all(tmp_path / "step.anabranch")[0]
    assert [t.name for t in again(plan.tasks)] == [t.name for t in again(tasks)]


def test_what_runs_again_waits_for_the_backward_pass(made: Any) -> None:
    """On as many streams as there are, too: with nothing to wait for it would run at once."""
    plan: Plan = made[0].plan
    dag = dag_of(plan.tasks)
    number = {name: i for i, name in enumerate(dag.names)}
    loss = number[next(t.name for t in plan.tasks.tasks if "log_softmax" in t.name)]
    before = dag.ancestors()
    assert all(before[number[task.name]] >> loss & 1 for task in again(plan.tasks))


def test_no_more_than_a_hundredth_of_the_time_is_spent(made: Any) -> None:
    spec: TargetSpec = made[0].plan.spec
    tasks = made[0].plan.tasks
    trace = Trace(quiet=True)
    more, repeated = with_less_kept(tasks, spec, lambda _: 1.0, trace)
    assert more is tasks and not repeated, "each task takes more than that"
    assert not trace.events


def test_small_steps_keep_all() -> None:
    step, _, _ = step_of(64)
    assert not again(step.plan.tasks)


CHAIN = """
graph g {
  input %x: f32[2048,1024]
  input %w: f32[1024,1024]
  %a: f32[2048,1024] = aten.mm.default(%x, %w)  # (forward)
  %y: f32[2048,1024] = aten.gelu.default(%a)  # (forward)
  %z: f32[2048,1024] = aten.mm.default(%y, %w)  # (forward)
  %g: f32[2048,1024] = aten.mm.default(%z, %w)  # (backward)
  %h: f32[1024,2048]{1,1024} = aten.permute.default(%y, [1, 0])  # (backward)
  %u: f32[1024,1024] = aten.mm.default(%h, %g)  # (backward)
  %v: f32[2048,1024] = aten.gelu_backward.default(%g, %a)  # (backward)
  return %u, %v
}
"""


def test_texts_of_generated_kernels_are_written_anew() -> None:
    """They name what they compute; no plan is recalled whose texts do not read back."""
    spec = resolve("sim:h200").spec
    cut = singly(parse_graph(CHAIN))
    makers = {"gelu": TritonProvider(), "gelu_backward": TritonProvider()}

    def chosen(task: Task) -> Task:
        maker = makers.get(ops.packet_name(task.body.nodes[-1].op)[5:], AtenProvider())
        return replace(task, kernel=maker.kernels(task, spec)[0])

    def us(task: Task) -> float:
        return 0.1 if "gelu" in task.body.nodes[-1].op else 100.0

    tasks = replace(cut, tasks=tuple(map(chosen, cut.tasks)))
    made, repeated = with_less_kept(tasks, spec, us, Trace(quiet=True))
    verify_tasks(made)
    assert [*repeated.values()] == ["y"]
    texts = 0
    for task in made.tasks:
        kernel = task.kernel
        if kernel is not None and isinstance(kernel.variant, Variant):
            assert kernel.source == program(kernel.body, kernel.variant).text
            texts += 1
    assert texts == 3
