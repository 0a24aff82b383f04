"""Small tasks that nobody waits for share launches by dozens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tests.kernels.triton import interpreter
from torch import Tensor, nn

import anabranch
from anabranch.ir.components import components
from anabranch.ir.dag import dag_of
from anabranch.ir.verify import verify_tasks
from anabranch.memory.race_check import check_plan
from anabranch.trace import Trace


def loss(model: nn.Module, x: Tensor) -> Tensor:
    value: Tensor = model(x).square().mean()
    return value


def step_of(layers: int) -> anabranch.TrainingStep:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    given: dict[str, Any] = {
        "cache_dir": None,
        "search": "none",
        "scheduler": "sequential",
        "pdl": "off",
    }
    return anabranch.compile_step(
        model, loss, optimizer, (torch.randn(4, 8),), target="sim:h200", trace=Trace(), **given
    )


def test_counters_of_steps_are_written_by_one_launch() -> None:
    step = step_of(3)
    tasks = step.plan.tasks
    verify_tasks(tasks)
    check_plan(step.plan)
    dag = dag_of(tasks)
    wide = [t for t in tasks.tasks if t.kernel and t.kernel.name == "horizontal"]
    (joint,) = [task for task in wide if len(components(task.body)) > 4]
    counters = [old for old in joint.overwrites.values() if old.endswith("step")]
    assert len(counters) == 5, "one of six is computed, and copied to the others"
    assert joint.kernel is not None and joint.kernel.variant is not None
    interpreter.check(replace(joint.body, states=()), [joint.kernel.variant])
    assert joint.name in dag.names and not dag.succs[dag.names.index(joint.name)]
    read = {name for task in tasks.tasks for name in task.reads}
    assert read.isdisjoint(joint.writes), "nobody waits for it"
