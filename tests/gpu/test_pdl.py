"""Kernels that overlap compute the same bits as kernels that wait, however often they run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.gpu.shared import shared_cache
from tests.gpu.test_plans import network
from tests.tuning.launch.modes import letter_of, without_modes

import anabranch
from anabranch.ir.variant import PdlMode
from anabranch.targets.cuda.capture import CudaExecutable
from anabranch.tuning.launch.pdl import in_mode, supports_pdl

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("pdl", ["off", "uniform", "per_kernel"])
@pytest.mark.parametrize("name", ["squeezenet", "bert_base"])
def test_the_same_bits(name: str, pdl: str) -> None:
    """As the same plan has whose kernels all wait. Which kernels a plan has depends on how long
    others keep the GPU busy, so plans of several compilations may differ in their bits."""
    model, args = network(name, "tiny", torch.float16)
    fast = anabranch.compile(
        model,
        args,
        target="cuda",
        search="none",
        horizontal_fusion="none",
        scheduler="critical",
        pdl=pdl,
        budget=20.0,
        cache_dir=shared_cache(),
        strict=True,
    )
    plan, run = fast.entries[0].plan, fast.executable()
    assert run is not None and not run.failure
    generated = [task.kernel for task in plan.tasks.tasks if task.kernel and task.kernel.source]
    if pdl == "off":
        assert {letter_of(kernel) for kernel in generated} <= {""}
    waiting = fast.target.load(replace(plan, tasks=without_modes(plan.tasks)))
    for _ in range(5):
        inputs = [torch.randn_like(x) if x.is_floating_point() else x for x in args]
        want = waiting(inputs, clone=True)
        for _ in range(20):
            assert all(map(torch.equal, run(inputs, clone=True), want))


def test_a_plan_is_captured_anew_on_the_same_memory() -> None:
    """In every mode, and after one another in any order, the bits are those of a plan that was
    loaded for itself; nothing is placed anew."""
    model, args = network("squeezenet", "tiny", torch.float16)
    fast = anabranch.compile(
        model,
        args,
        target="cuda",
        search="none",
        pdl="off",
        cache_dir=shared_cache(),
        strict=True,
    )
    plan, target = fast.entries[0].plan, fast.target
    if not supports_pdl(plan.tasks, target):
        pytest.skip("kernels overlap from compute capability 9.0 on")
    first = target.load(plan)
    assert isinstance(first, CudaExecutable)
    inputs = [torch.randn_like(x) for x in args]
    want = first(inputs, clone=True)
    runs = []
    for mode in PdlMode:
        changed = replace(plan, tasks=in_mode(plan.tasks, mode))
        alone = target.load(changed)(inputs, clone=True)
        run = target.again(first, changed)
        assert isinstance(run, CudaExecutable) and not run.failure
        runs.append(run)
        assert all(map(torch.equal, alone, want))
    for run in (*runs, first, *reversed(runs)):
        for _ in range(20):
            assert all(map(torch.equal, run(inputs, clone=True), want))
    assert all(run._placed.arena is first._placed.arena for run in runs)
