"""Kernels of libraries behind generated ones that let them start early: they read what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.gpu.shared import shared_cache
from torch import Tensor, nn
from torch.nn import functional as F

import anabranch
from anabranch.errors import TargetError
from anabranch.fusion import partition
from anabranch.ir import ops
from anabranch.ir.dag import dag_of
from anabranch.ir.plan import Plan
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import Kernel, Task
from anabranch.ir.variant import PdlMode
from anabranch.kernels.library import CUDNN_ENGINES, CudnnProvider
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.memory import pack
from anabranch.targets.cuda import nodes
from anabranch.targets.cuda.capture import CudaExecutable
from anabranch.trace import Trace
from anabranch.tuning.launch.pdl import in_mode, supports_pdl

pytestmark = pytest.mark.gpu


class Separable(nn.Module):
    """Depthwise and pointwise convolutions by turns, as cells of NASNet have them."""

    def __init__(self, channels: int, pairs: int) -> None:
        super().__init__()
        self.wide = nn.ModuleList(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels) for _ in range(pairs)
        )
        self.narrow = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(pairs))

    def forward(self, x: Tensor) -> Tensor:
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            x = torch.relu(narrow(wide(x)))
        return x


def plans(fast: anabranch.Compiled) -> list[Plan]:
    """With generated kernels that trigger right after their wait, and each of cuDNN's engines."""
    compilation, spec = fast.entries[0].compilation, fast.target.spec
    assert compilation is not None
    cut = partition(compilation.compiled.graph, Trace(), spec)
    ours, theirs = TritonProvider(), CudnnProvider()

    def chosen(task: Task, engine: int) -> Kernel:
        narrow = ops.arguments(task.body.nodes[0])["groups"] == 1
        return (
            theirs.kernels(task, spec)[engine] if narrow else next(iter(ours.kernels(task, spec)))
        )

    every = []
    for engine in range(CUDNN_ENGINES):
        tasks = replace(cut, tasks=tuple(replace(t, kernel=chosen(t, engine)) for t in cut.tasks))
        row = Schedule("row", sequential_launches(dag_of(tasks)))
        plan = pack(tasks, row, spec, fast.entries[0].plan.signature)
        every.append(replace(plan, tasks=in_mode(plan.tasks, PdlMode.PREFETCH_L2_EARLY)))
    return every


def ended(name: str, launch: Callable[[], None]) -> None:
    """The launch, waited for."""
    launch()
    torch.cuda.synchronize()


def test_what_a_library_reads_has_been_written() -> None:
    """Whatever the memory held before: each call is for other inputs than the last one."""
    pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")
    torch.manual_seed(0)
    model = Separable(336, 6).cuda().half().eval()
    x = torch.randn(1, 336, 42, 42, device="cuda", dtype=torch.float16)
    x = x.to(memory_format=torch.channels_last)
    fast = anabranch.compile(
        model,
        (x,),
        target="cuda",
        kernels="library",
        search="none",
        cache_dir=shared_cache(),
        strict=True,
    )
    target, ran = fast.target, 0
    for plan in plans(fast):
        providers = {task.kernel.provider for task in plan.tasks.tasks if task.kernel}
        assert providers == {"cudnn", "triton"}
        if not supports_pdl(plan.tasks, target):
            pytest.skip("kernels overlap from compute capability 9.0 on")
        try:
            run = target.load(plan)
        except TargetError:
            continue  # cuDNN has fewer engines for these
        assert isinstance(run, CudaExecutable) and run._graph is not None
        ran += 1
        library = nodes.opened()
        _, later, data = nodes._edges(run._graph.raw_cuda_graph(), library)
        kernels = [nodes._name(b, library) for b, e in zip(later, data, strict=True) if e.type]
        assert kernels and set(kernels) <= set(run._waiting)
        calls = [(torch.randn_like(x),) for _ in range(4)]
        want = []
        for call in calls:
            run._filling(call)
            run.launch_all(ended)
            want.append([run._placed.values[ref.name].clone() for ref in plan.tasks.outputs])
        for _ in range(10):
            for call, first in zip(calls, want, strict=True):
                assert all(map(torch.equal, run(call, clone=True), first))
    assert ran


MASKS: dict[str, Callable[[int, int], Tensor | None]] = {
    "none": lambda rows, keys: None,
    "truths": lambda rows, keys: torch.rand(3, 1, 1, keys, device="cuda") > 0.3,
    "truths for each query": lambda rows, keys: torch.rand(1, 1, rows, keys, device="cuda") > 0.3,
    "numbers": lambda rows, keys: torch.randn(3, 4, rows, keys, device="cuda").half(),
    "numbers, heads last": lambda rows, keys: (
        torch.randn(1, rows, keys, 4, device="cuda").half().permute(0, 3, 1, 2)
    ),
}


@pytest.mark.parametrize("rows, keys", [(64, 64), (477, 476), (1, 200)])
@pytest.mark.parametrize("kind", MASKS)
def test_attention_by_cudnn_gives_what_fp64_gives(kind: str, rows: int, keys: int) -> None:
    """Zeros for a query that sees no key, too."""
    torch.manual_seed(0)
    q = torch.randn(3, rows, 4, 64, device="cuda", dtype=torch.float16).transpose(1, 2)
    k, v = (torch.randn(3, 4, keys, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    mask = MASKS[kind](rows, keys)
    if mask is not None and mask.dtype == torch.bool:
        mask[0, 0, 0] = False
    try:
        found = torch.ops.anabranch.scaled_dot_product_cudnn(q, k, v, mask, False, 0.125)
    except RuntimeError as refused:
        if kind in ("none", "truths") and rows == keys:
            raise
        pytest.skip(f"cuDNN takes no such tensors: {str(refused)[:200]}")
    wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
    truth = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), wide, scale=0.125)
    torch.testing.assert_close(found.double(), truth, rtol=2e-3, atol=2e-3)
    assert found.stride() == q.stride()
