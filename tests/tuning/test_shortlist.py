"""Which of a task's kernels are tried: as many tiles as an effort says, libraries by prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.rough_gpu import rough_gpu
from torch import nn

import anabranch
from anabranch.costs.kernel_model import FittedKernels, LaunchTerms
from anabranch.deadline import EFFORTS, Effort, EffortSettings
from anabranch.ir.graph import Graph
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import KernelOffer
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import GENERATED, Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels import ALL
from anabranch.kernels.triton import provider as provider_module
from anabranch.targets import resolve
from anabranch.tuning import shortlist
from anabranch.tuning.shortlist import (
    UnwrittenKernels,
    kernel_model_of,
    predicted_costs,
    shortlist_of,
    unwritten,
)

CONVOLUTION = parse_graph("""
graph conv {
  input %x: f16[1,64,28,28]{50176,1,1792,64}
  const %w: f16[64,64,1,1]{64,1,64,64} = w
  %y: f16[1,64,28,28]{50176,1,1792,64} = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  return %y
}""")  # noqa: E501


def offers(body: Graph, spec: TargetSpec) -> list[tuple[int, KernelOffer]]:
    task = Task("t", body)
    return [(i, o) for i, provider in enumerate(ALL) for o in provider.kernel_offers(task, spec)]


def tried(settings: EffortSettings) -> Counter[str]:
    target = resolve("sim:h200")
    every = offers(CONVOLUTION, target.spec)
    few = shortlist_of(target, settings)({"t": Task("t", CONVOLUTION)}, {"t": every})["t"]
    assert [pair for pair in every if pair in few] == few, "in the order of the offers"
    return Counter(offer.provider for _, offer in few)


def test_an_effort_says_how_many_tiles_are_tried() -> None:
    every = tried(EFFORTS[Effort.MAX])
    assert every["triton"] > 8 and every["cudnn"] == 3
    default, fast = tried(EFFORTS[Effort.DEFAULT]), tried(EFFORTS[Effort.FAST])
    assert (default["triton"], default["cudnn"]) == (8, 0)
    assert (fast["triton"], fast["cudnn"]) == (8, 0)
    assert every["aten"] == default["aten"] == fast["aten"] > 0


def test_many_structures_try_fewer_tiles_each() -> None:
    target = resolve("sim:h200")
    settings = EffortSettings(generated=8, together=64)
    few = shortlist_of(target, settings)
    every = offers(CONVOLUTION, target.spec)

    def each(structures: int) -> set[int]:
        keys = [str(k) for k in range(structures)]
        kept = few(dict.fromkeys(keys, Task("t", CONVOLUTION)), dict.fromkeys(keys, every))
        assert all(pair in every for pairs in kept.values() for pair in pairs)
        return {sum(offer.generated for _, offer in pairs) for pairs in kept.values()}

    assert [each(structures) for structures in (8, 9, 16, 32, 200)] == [{8}, {7}, {4}, {2}, {2}]


def chosen(
    us: dict[str, float | None], monkeypatch: pytest.MonkeyPatch, **changed: Any
) -> set[str]:
    """The providers of what is tried, where kernels of these take so long."""

    def terms(task: Task, spec: TargetSpec) -> tuple[LaunchTerms, ...]:
        assert task.kernel is not None
        provider = task.kernel.provider
        took = us[provider]
        return () if took is None else (LaunchTerms("any", "any", (("us", took),)),)

    model = FittedKernels(factors={"any": {"us": 1.0}})
    monkeypatch.setattr(shortlist, "terms_of", terms)
    monkeypatch.setattr(shortlist, "kernel_model_of", lambda target: model)
    return set(tried(EffortSettings(generated=1, **changed)))


def test_engines_that_are_predicted_to_lose_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    us: dict[str, float | None] = {"aten": 5.0, "cudnn": 3.0, "triton": 2.0}
    assert chosen(us, monkeypatch, engines=1.6) == {"aten", "cudnn", "triton"}
    assert chosen(us, monkeypatch, engines=1.4) == {"aten", "triton"}
    us = {"aten": 5.0, "cudnn": 9.0, "triton": 20.0}
    assert chosen(us, monkeypatch, engines=1.0) == {"aten", "cudnn", "triton"}


@pytest.mark.parametrize("unknown", ["aten", "cudnn", "triton"])
def test_what_nothing_is_known_of_is_tried(unknown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    us: dict[str, float | None] = {"aten": 5.0, "cudnn": 3.0, "triton": 5.0} | {unknown: None}
    assert unknown in chosen(us, monkeypatch, engines=1.0)
    if unknown != "cudnn":  # nothing to compare the generated ones with
        assert "triton" in chosen(us, monkeypatch, engines=1.0)


def test_a_gpu_without_a_model_of_its_own_has_the_shipped_one() -> None:
    target, rough = resolve("sim:h200"), rough_gpu()
    assert kernel_model_of(rough) == kernel_model_of(target)
    offer = next(o for _, o in offers(CONVOLUTION, target.spec) if o.generated)
    task = Task("t", CONVOLUTION, unwritten(CONVOLUTION, offer))
    whole = replace(task, kernel=offer.write())
    assert predicted_costs(rough)(task) == predicted_costs(target)(whole)


def test_who_predicts_gets_the_same_kernels_without_their_texts() -> None:
    task, spec = Task("t", CONVOLUTION), resolve("sim:h200").spec
    for provider in ALL:
        whole = provider.kernels(task, spec)
        bare = UnwrittenKernels(provider).kernels(task, spec)
        assert [replace(k, source="", workspace=0) for k in whole] == bare
        assert whole or provider.name != GENERATED
        assert all(bool(k.source) == (provider.name == GENERATED) for k in whole)
        assert not any(k.source for k in bare)
        again = [UnwrittenKernels(provider).kernel(task, spec, k.name, k.variant) for k in bare]
        assert again == bare


def test_no_text_is_written_to_foresee_the_fastest_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = branches()
    written: set[str] = set()

    def kernel(task: Task, variant: Variant) -> Kernel:
        written.add(structure_text(task.body))
        return own(task, variant)

    own = provider_module._kernel
    monkeypatch.setattr(provider_module, "_kernel", kernel)
    fast = anabranch.compile(
        model.half(), (args[0].half(),), target="sim:h200", effort="fast", cache_dir=None
    )
    assert written and written <= {
        structure_text(task.body) for task in fast.entries[-1].plan.tasks.tasks
    }


def branches() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.Sigmoid()).eval()
    return model, (torch.randn(1, 8, 12, 12),)


def test_fast_takes_one_cut_and_tries_no_more_kernels() -> None:
    model, args = branches()
    kernels, stages = {}, {}
    for effort in Effort:
        fast = anabranch.compile(model.half(), (args[0].half(),), target="sim:h200", effort=effort)
        compilation = fast.entries[-1].compilation
        assert compilation is not None
        selection = compilation.compiled.selection
        kernels[effort] = sum(
            c.kernel.provider == "triton" for t in selection.candidates.values() for c in t
        )
        stages[effort] = {e.why for e in fast.trace.events if "foreseen to be the fastest" in e.why}
    assert kernels[Effort.FAST] <= kernels[Effort.DEFAULT] <= kernels[Effort.MAX]
    assert len(stages[Effort.FAST]) == 1 and not stages[Effort.DEFAULT] | stages[Effort.MAX]


@pytest.mark.parametrize("effort", list(Effort))
def test_each_effort_computes_what_eager_does(effort: Effort) -> None:
    model, args = branches()
    fast = anabranch.compile(model, args, target="cpu", effort=effort)
    torch.testing.assert_close(fast(*args), model(*args))
