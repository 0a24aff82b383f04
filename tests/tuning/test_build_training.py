"""What of a training step shares a launch, on a GPU that is not there."""

from __future__ import annotations

import torch
from tests.frontend.steps import graph_of
from torch import Tensor, nn

from anabranch.ir import ops
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.build import fuse, simplified
from anabranch.tuning.job import Job

F = nn.functional


class Residual(nn.Module):
    """Two convolutions with norms, behind a pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(x, 2)
        inner = F.relu(self.norms[0](self.convs[0](x)))
        return F.relu(self.norms[1](self.convs[1](inner)) + x)


class Block(nn.Module):
    """The second half of a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(128), nn.Dropout(0.1)
        self.first, self.up, self.down = nn.Linear(8, 128), nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        inner: Tensor = self.drop(self.down(F.gelu(self.up(self.norm(x)))))
        return x + inner


def loss(model: nn.Module, x: Tensor) -> Tensor:
    value: Tensor = model(x).float().square().mean()
    return value


def launches(model: nn.Module, *batch: Tensor) -> list[set[str]]:
    """The operators of each task that is no view, of the cut with the largest tasks."""
    graph, _, _ = graph_of(model, loss, batch)
    target, options = resolve("sim:h200"), Options(cache_dir=None, search="none")
    job = Job(None, (), {}, target, options, None, Trace(quiet=True))
    largest = fuse(job, simplified(job, graph))[-1]
    return [
        {ops.packet_name(node.op).partition(".")[2] for node in task.body.nodes}
        for task in largest.tasks
    ]


def alone(tasks: list[set[str]], name: str) -> bool:
    return {name} in tasks


def test_norms_and_activations_share_launches_with_what_is_around_them() -> None:
    x = torch.randn(4, 32, 28, 28).half().contiguous(memory_format=torch.channels_last)
    tasks = launches(Residual().half().to(memory_format=torch.channels_last), x)  # type: ignore[call-overload]
    sums = [task for task in tasks if "sum" in task]
    assert len(sums) == 2 and all({"sum", "mul", "sub"} <= task for task in sums)
    assert all("relu" in task or "rsqrt" in task for task in tasks if "var_mean" in task)
    masked = [task for task in tasks if "threshold_backward" in task]
    assert len(masked) == 2 and any("convolution" in task for task in masked)
    assert tasks.count({"conv_weight_grad"}) == 2
    assert len(tasks) < 24


def test_a_layer_norm_has_a_launch_for_rows_and_one_for_columns() -> None:
    tasks = launches(Block().half(), torch.randn(4, 64, 8).half())
    norms = [task for task in tasks if "sum" in task and "sub" in task]
    assert len(norms) == 2
    (drawn,) = [task for task in tasks if "uniform" in task]
    assert len(drawn) > 1 and not alone(tasks, "mul")
