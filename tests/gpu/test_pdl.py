"""Kernels that overlap compute the same bits as kernels that wait, however often they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.gpu.shared import shared_cache
from tests.gpu.test_plans import network
from tests.tuning.launch.modes import letter_of

import anabranch
from anabranch.ir.variant import PdlMode
from anabranch.targets.cuda.capture import CudaExecutable
from anabranch.tuning.launch.pdl import in_mode, supports_pdl

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["squeezenet", "bert_base"])
def test_the_same_bits(name: str, tmp_path: Path) -> None:
    """Kernels come out of one cache, so they differ in nothing but how they are launched."""
    model, args = network(name, "tiny", torch.float16)
    fresh = [tuple(torch.randn_like(x) if x.is_floating_point() else x for x in args)
             for _ in range(5)]  # fmt: skip
    wants: list[tuple[torch.Tensor, ...]] = []
    for pdl in ("off", "uniform", "per_kernel"):
        fast = anabranch.compile(
            model,
            args,
            target="cuda",
            search="none",
            horizontal_fusion="none",
            scheduler="critical",
            pdl=pdl,
            budget=30.0,
            cache_dir=shared_cache(tmp_path),
            strict=True,
        )
        run = fast.executable()
        assert run is not None and not run.failure
        got = [out for inputs in fresh for _ in range(20) for out in run(inputs, clone=True)]
        wants = wants or [tuple(got)]
        assert all(torch.equal(x, y) for x, y in zip(got, wants[0], strict=True))
        tasks = fast.entries[0].plan.tasks
        generated = [task.kernel for task in tasks.tasks if task.kernel and task.kernel.source]
        modes = {letter_of(kernel) for kernel in generated}
        if pdl == "off":
            assert modes == {""}
            if not supports_pdl(tasks, fast.target):
                pytest.skip("kernels overlap from compute capability 9.0 on")


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
