"""Models with scans of rows: how many launches they become."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.fusion.test_partition import cut
from tests.kernels.triton.bodies import gpu
from tests.kernels.triton.interpreter import check
from tests.rewrite.graphs import captured
from torch import Tensor, nn

from anabranch.compiler.pipeline import compile_model
from anabranch.kernels.triton.codegen import variants
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job


def positions(ids: Tensor) -> Tensor:
    """The numbers that language models give their tokens."""
    mask = ids.ne(1).int()
    return (torch.cumsum(mask, 1).type_as(mask) * mask).long() + 1


def nucleus(x: Tensor) -> Tensor:
    p = x.softmax(-1)
    return p.masked_fill(p.cumsum(-1) - p > 0.9, 0.0)


def left(x: Tensor) -> Tensor:
    """What is still to come of each row, as a part of all."""
    return x.flip(-1).cumsum(-1).flip(-1) / x.sum(-1, keepdim=True)


def before(x: Tensor) -> Tensor:
    return F.pad(x.cumsum(0)[:-1], (0, 0, 1, 0)).sigmoid()


def growing(x: Tensor) -> Tensor:
    return (torch.logcumsumexp(x, 1) + 1).cummax(1).values * torch.cumprod(x.sigmoid(), 1)


X, IDS = torch.randn(3, 20), torch.randint(0, 3, (3, 20))
MODELS = ((positions, IDS), (nucleus, X), (left, X), (before, X), (growing, X))


class Model(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(("function", "x"), MODELS)
def test_they_are_one_launch(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    (task,) = cut(captured(Model(function), x), True, True).tasks
    check(task.body, variants(task.body, gpu())[:2], [x])


@pytest.mark.parametrize(("function", "x"), MODELS)
def test_a_plan_has_one_launch_of_ours(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    options = Options.read({"cache_dir": None, "scheduler": "critical"}, environment=False)
    job = Job(Model(function).eval(), (x,), {}, resolve("sim:h200"), options, None, Trace())
    (task,) = compile_model(job, "memory").tasks.tasks
    assert task.kernel is not None and task.kernel.name == "rows"
