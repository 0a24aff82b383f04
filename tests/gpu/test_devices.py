"""Where plans run on a GPU: a second GPU, streams, captures and processes of the caller."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpu.generated import generated
from tests.gpu.shared import shared_cache
from torch import Tensor, nn

import anabranch
from anabranch.cache import Cache
from anabranch.compiled.retarget import resettled
from anabranch.errors import AnabranchError, InputError, TargetError
from anabranch.ir.tolerances import relative_error
from anabranch.targets.cuda.device_sleep import device_sleep
from anabranch.trace import Trace

pytestmark = pytest.mark.gpu
second = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a second GPU")

QUICK: dict[str, Any] = {"search": "none", "cache_dir": shared_cache(), "strict": True}
QUICK["budget"] = 12.0


class Branches(nn.Module):
    """Convolutions side by side, a concatenation, a linear: cuDNN's, cuBLAS's and our kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        sizes = [(1, 0), (3, 1), (1, 0), (3, 1)]
        self.branches = nn.ModuleList(nn.Conv2d(16, 16, k, padding=p) for k, p in sizes)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = torch.cat([branch(x).sigmoid() for branch in self.branches], 1)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def made(device: str = "cuda", seed: int = 0) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    return Branches().eval().half().to(device), torch.randn(2, 3, 32, 32).half().to(device)


def right(found: Tensor, model: nn.Module, x: Tensor) -> bool:
    with torch.no_grad():
        return relative_error(found, model(x)) < 1e-2


@second
@pytest.mark.parametrize("kernels", ["library", "all"])
def test_a_second_gpu(kernels: str, tmp_path: Path) -> None:
    """The caller's current GPU is the first all along; inputs that lie on another are refused."""
    model, x = made("cuda:1")
    fast = anabranch.compile(model, (x,), target="cuda:1", kernels=kernels, **QUICK)
    assert torch.cuda.current_device() == 0
    for given in (x, -x):
        found = fast(given)
        assert found.device == torch.device("cuda:1") and right(found, model, given)
    with pytest.raises(InputError, match="cuda:1"):
        fast(x.cuda(0))
    assert torch.cuda.current_device() == 0
    assert fast.explain() and fast.facts["latency_source"] == "measured"
    fast.save(tmp_path / "second.anabranch")
    again = anabranch.load(tmp_path / "second.anabranch", target="cuda:1")
    assert torch.equal(again(x), fast(x))
    first = anabranch.load(tmp_path / "second.anabranch", target="cuda:0")
    assert right(first(x.cuda(0)).to("cuda:1"), model, x)
    with torch.cuda.device(1):
        assert right(fast(x), model, x) and torch.cuda.current_device() == 1
    with torch.cuda.stream(torch.cuda.Stream(1)):  # type: ignore[no-untyped-call]
        assert right(fast(x), model, x)


@second
def test_two_gpus_side_by_side() -> None:
    plans = []
    for device in ("cuda:0", "cuda:1"):
        model, x = made(device)
        plans.append((anabranch.compile(model, (x,), target=device, **QUICK), model, x))
    for _ in range(20):
        found = [fast(x) for fast, _, x in plans]
        assert all(right(y, model, x) for y, (_, model, x) in zip(found, plans, strict=True))


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(TargetError, match="there is no GPU cuda:99"):
        anabranch.compile(*made(), target="cuda:99")


def test_a_call_is_in_the_order_of_the_callers_stream() -> None:
    """Without a synchronisation: its input is written on that stream after a long sleep, and its
    result read there."""
    model, x = made()
    fast = anabranch.compile(model, (x,), **QUICK)
    wants = [fast(x), fast(-x)]
    torch.cuda.synchronize()
    for number in range(8):
        stream, given = torch.cuda.Stream(), torch.zeros_like(x)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            device_sleep(1000.0)
            given.copy_(x if number % 2 else -x)
            found = fast(given)
            read = found.clone()
            found.zero_()
        stream.synchronize()
        assert torch.equal(read, wants[1 - number % 2])


@pytest.mark.parametrize("kernels", ["library", "all"])
@pytest.mark.parametrize("outputs", ["clone", "view"])
def test_a_call_in_a_graph_of_the_callers(kernels: str, outputs: str) -> None:
    """It is a part of that graph, beside what else is captured; the plan goes on as before."""
    model, x = made()
    fast = anabranch.compile(model, (x,), kernels=kernels, outputs=outputs, **QUICK)
    fast(x)
    static, graph = x.clone(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        first = fast(static * 2)
        first = first.clone() if outputs == "view" else first  # the next call writes there
        found = first + fast(static)
    for seed in range(4):
        y = made(seed=seed)[1]
        static.copy_(y)
        graph.replay()
        with torch.no_grad():
            want = model(2 * y) + model(y)
        assert relative_error(found, want) < 1e-2
        assert right(fast(y), model, y)
    del fast
    graph.replay()
    torch.cuda.synchronize()


def test_what_a_graph_cannot_hold_is_refused_and_the_next_capture_works() -> None:
    model, x = made()
    fast = anabranch.compile(model, (x,), **QUICK)
    fast(x)
    elsewhere = x.cpu()
    torch.cuda.synchronize()
    with pytest.raises(AnabranchError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        y = x + 1
        fast(elsewhere)
    refused = pytest.raises(TargetError, match="nothing can be compiled")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        y = x + 1
        anabranch.compile(model, (x,), **QUICK)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(x)
    graph.replay()
    assert right(y, model, x)


def test_a_fork_is_refused() -> None:
    model, x = made()
    fast = anabranch.compile(model, (x,), **QUICK)
    fast(x)
    child = os.fork()
    if not child:
        status = 1
        try:
            fast(x)
        except TargetError as refused:
            status = 0 if "forked process" in str(refused) else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert right(fast(x), model, x)


def test_calls_of_many_threads_on_streams_of_their_own() -> None:
    model, x = made()
    fast = anabranch.compile(model, (x,), **QUICK)
    inputs = [made(seed=seed)[1] for seed in range(4)]
    wants = [fast(given) for given in inputs]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def call(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for _ in range(50):
                if not torch.equal(fast(inputs[number]), wants[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_plan_of_another_machine() -> None:
    """Its kernels are compiled for this GPU and compared; one that is none of ours gives way to the
    fastest that there is here."""
    model, x = made()
    fast = anabranch.compile(model, (x,), kernels="all", **QUICK)
    plan, target, trace = generated(fast).plan, fast.target, Trace()
    spec = replace(plan.spec, name="another GPU", capability=(8, 0), versions=(("torch", "1.0"),))
    kernels = [task.kernel for task in plan.tasks.tasks if task.kernel]
    first = next(kernel for kernel in kernels if kernel.provider == "triton")
    broken = replace(first, source="# altered\n" + first.source + "\nx = 1\n")
    tasks = tuple(
        replace(task, kernel=broken) if task.kernel is first else task for task in plan.tasks.tasks
    )
    foreign = replace(plan, spec=spec, tasks=replace(plan.tasks, tasks=tasks))
    with Cache.open(None) as cache:
        found = resettled(foreign, target, cache, trace, "a file")
    chosen, event = trace.events
    assert "tuned on another GPU" in event.why and "1 gave way to others" in event.why
    assert "of which 1 chosen anew by time" in event.why and "us, measured) in" in chosen.why
    assert right(target.load(found)([x])[0], model, x)


OTHER = """
import sys, torch, anabranch
from tests.gpu.test_devices import QUICK, made, right
model, x = made()
fast = anabranch.compile(model, (x,), **QUICK)
print("ready", flush=True)
for _ in range(300):
    assert right(fast(x), model, x)
"""


def test_two_processes_compile_and_call_on_one_gpu() -> None:
    root = str(Path(__file__).parents[2])
    paths = [f"{root}/src", root, os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as other:
        model, x = made()
        fast = anabranch.compile(model, (x,), **QUICK)
        for _ in range(300):
            assert right(fast(x), model, x)
        assert other.wait(200) == 0
