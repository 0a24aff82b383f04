"""Whole models with merged convolutions, on the CPU and on the simulated GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import anabranch
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.pipeline import compile_model
from anabranch.costs import Roofline
from anabranch.fusion import partition
from anabranch.ir.ops import CONVOLUTIONS
from anabranch.ir.protocols import Cost, Executable, Limits
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.kernels import PROVIDERS
from anabranch.models.zoo import ZOO
from anabranch.options import Options
from anabranch.rewrite.conv_siblings import siblings
from anabranch.targets import resolve
from anabranch.targets.cpu.target import CpuTarget
from anabranch.trace import Event, Trace
from anabranch.tuning.conv_merge import merged
from anabranch.tuning.job import Job
from anabranch.tuning.select import Selection, SelectionConfig, select


def compiled(
    model: nn.Module, inputs: tuple[Any, ...], scheduler: str, target: str = "cpu", **more: object
) -> tuple[Compilation, Sequence[Event]]:
    given = {
        "cache_dir": None,
        "scheduler": scheduler,
        "check": 1,
        "budget": 60,
        "search": "none",
        **more,
    }
    options = Options.read(given, environment=False)
    trace = Trace()
    job = Job(model, inputs, {}, resolve(target), options, None, trace)
    return compile_model(job), trace.events


def convolutions(tasks: Sequence[Task]) -> int:
    return sum(n.op == "aten.convolution.default" for t in tasks for n in t.body.nodes)


@pytest.fixture
def launches_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch takes 10 us, whatever it does: merging pays, on a busy machine too."""

    def time(self: CpuTarget, runs: Sequence[Executable], budget: float) -> list[Cost]:
        return [Cost(10.0 * len(run.plan.tasks.tasks), "measured") for run in runs]

    monkeypatch.setattr(CpuTarget, "time", time)


@pytest.mark.usefixtures("launches_cost")
@pytest.mark.parametrize(
    ("network", "scheduler", "batch"),
    [
        ("squeezenet_bypass", "ios-merge", 2),
        ("squeezenet_bypass", "ios-both", 1),
    ],
)
def test_networks_on_the_cpu(network: str, scheduler: str, batch: int) -> None:
    """Verified against double precision inside; here against the model itself."""
    model, inputs = ZOO[network].build("tiny"), ZOO[network].inputs("tiny", batch)
    made, events = compiled(model, inputs, scheduler)
    assert made.errors and all(error <= allowed for error, allowed in made.errors)
    assert made.run is not None
    with torch.no_grad():
        want = model(*inputs)
    (got,) = made.run(inputs)
    assert torch.allclose(got, want, rtol=1e-3, atol=1e-4 * want.abs().max().item())
    names = [task.name for task in made.plan.tasks.tasks]
    assert names == [task.name for task in made.compiled.selection.tasks.tasks]
    said = [e for e in events if e.kind == "applied" and e.what.startswith("merge ")]
    assert len([name for name in names if "_and_" in name]) == len(said)
    members = sum(event.what.count(" + ") for event in said)
    found = convolutions(made.plan.tasks.tasks)
    assert found + members == sum(node.op in CONVOLUTIONS for node in made.captured.graph.nodes)
    assert said, "a convolution less saves a launch"


def test_half_precision_on_the_simulated_gpu() -> None:
    """In channels_last slices are strided; the plan is proved free of races all the same.

    With the library's kernels, as IOS has them: generated ones take so small a convolution in less
    than a merge costs its readers.
    """
    model = ZOO["squeezenet_bypass"].build("tiny").half()
    inputs = tuple(x.half() for x in ZOO["squeezenet_bypass"].inputs("tiny", 2))
    made, events = compiled(model, inputs, "ios-both", "sim:h200", kernels="library")
    slices = [node for node in made.plan.tasks.aliases if node.op == "aten.slice.Tensor"]
    assert any(not node.type.contiguous for node in slices)
    assert any(event.what.startswith("merge ") for event in events)


class Shared(nn.Module):
    """What siblings make is added up, and the sum is read by what reads each of them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        a, b = self.a(x), self.b(x)
        both = a + b
        return [(both * a).sigmoid(), (both - b).tanh()]


def test_offers_are_priced_as_they_are() -> None:
    """They are out of several graphs: nobody looks there for what could be computed again."""
    inputs = (torch.randn(1, 16, 7, 7).half(),)
    _, events = compiled(Shared().eval().half(), inputs, "ios-both", "sim:h200")
    assert any("1 sets offered" in event.why for event in events)


class Reduction(nn.Module):
    """Four branches of one input, as where Inception V3 halves its images, and in front of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = nn.Conv2d(24, 8, 1), nn.Conv2d(24, 8, 3, 2)
        self.reduce, self.other = nn.Conv2d(24, 8, 1), nn.Conv2d(24, 12, 1)
        self.ends = nn.ModuleList(nn.Conv2d(channels, 8, 3, 2) for channels in (8, 8, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        three, sources = self.three(x).relu(), (self.one(x), self.reduce(x), self.other(x))
        ends = [end(one.relu()) for end, one in zip(self.ends, sources, strict=True)]
        return torch.cat([three, *ends], 1)


def test_explain_says_what_was_merged_and_what_not() -> None:
    """Stride 2 beside stride 1 is refused; the others are merged or dearer.

    With estimated costs, where it is no accident which are which.
    """
    model, inputs = Reduction().eval(), (torch.randn(1, 24, 17, 17),)
    options: dict[str, Any] = {"scheduler": "ios-merge", "search": "none", "kernels": "library"}
    fast = anabranch.compile(model, inputs, target="sim:h200", cache_dir=None, **options)
    text = str(fast.explain())
    assert "merge convolution_" in text and "us as one" in text
    assert "their strides are 2x2 and 1x1" in text
    assert "another set is merged" in text


def test_other_schedulers_merge_nothing() -> None:
    model, inputs = (
        ZOO["squeezenet_bypass"].build("tiny"),
        ZOO["squeezenet_bypass"].inputs("tiny", 1),
    )
    made, events = compiled(model, inputs, "critical")
    assert not any("_and_" in task.name for task in made.plan.tasks.tasks)
    assert not any("merge" in event.where for event in events)


class Priced(Roofline):
    """Each convolution takes 10 and 1 for each channel of its result, all else the square root of
    the elements it reads."""

    def task(self, task: Task) -> Cost:
        conv = next((n for n in task.body.nodes if "convolution" in n.op), None)
        if conv is not None:
            return Cost(10.0 + conv.type.shape[1], "estimated")
        return Cost(sum(value.type.numel for value in task.body.inputs) ** 0.5, "estimated")


class Fire(nn.Module):
    def __init__(self, others: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 8, 3, padding=1)
        self.others = others

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = torch.relu(self.a(x)), torch.relu(self.b(x))
        return torch.cat([x, b] if self.others else [b, a], 1).sigmoid() + a.mean()


@pytest.mark.parametrize("others", [False, True])
def test_an_offer_is_what_it_changes(others: bool) -> None:
    """The merged convolution takes 10 + 12, the single ones 14 and 18. Where they alone were
    concatenated the copy is spared: its time is part of the offer."""
    options = Options.read({"cache_dir": None}, environment=False)
    inputs = (torch.randn(1, 3, 8, 8),)
    job = Job(Fire(others).eval(), inputs, {}, resolve("cpu"), options, None, Trace())
    graph = compile_model(job, "rewrite")
    spec = TargetSpec("cpu", "paper")
    costs, trace = Priced(spec), Trace()

    def choose(tasks: TaskGraph) -> Selection:
        config = SelectionConfig(spec, PROVIDERS, costs.trial, lambda task: None)
        return select(tasks, config, Trace())

    tasks = choose(partition(graph, Trace(), spec)).tasks
    after = merged("ios-merge", graph, tasks, costs, Limits(trace=trace), choose)
    (said,) = [event for event in trace.events if event.what.startswith("merge ")]
    want = 22.0 - (0.0 if others else (12 * 64) ** 0.5)
    assert said.why == f"{want:.2f} us as one, readers included; 32.00 one by one"
    cats = [node for node in after.nodes if node.op == "aten.cat.default"]
    assert len(cats) == int(others)
    assert len(siblings(after, Trace())) == 0


@pytest.mark.parametrize(("kind", "refusals"), [("cpu", 0), ("cuda", 1)])
def test_on_a_gpu_slices_begin_where_vectors_do(kind: str, refusals: int) -> None:
    """Six channels of half precision are 12 bytes of each pixel in channels_last."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.a(x)).sum(1) + torch.relu(self.b(x)).mean(1)

    options = Options.read({"cache_dir": None}, environment=False)
    inputs = (torch.randn(2, 8, 8, 8).half(),)
    target = resolve("cpu" if kind == "cpu" else "sim:h200")
    job = Job(Narrow().half().eval(), inputs, {}, target, options, None, Trace())
    graph = compile_model(job, "rewrite")
    spec = target.spec
    costs, trace = Roofline(spec), Trace()

    def choose(tasks: TaskGraph) -> Selection:
        config = SelectionConfig(spec, PROVIDERS, costs.trial, lambda task: None)
        return select(tasks, config, Trace())

    tasks = choose(partition(graph, Trace(), spec)).tasks
    after = merged("ios-merge", graph, tasks, costs, Limits(trace=trace, spec=spec), choose)
    said = [event for event in trace.events if "no multiple of 16" in event.why]
    assert len(said) == refusals and (after is graph) == bool(refusals)
