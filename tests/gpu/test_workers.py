"""Workers on a GPU: each sees its own alone, and kernels that one has tried make a right plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import anabranch
from anabranch.compiled.calls import Compiled
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.targets.cuda import gpus
from anabranch.trace import Trace
from anabranch.tuning.sandbox.spread import SpreadTrials
from anabranch.tuning.workers.identity import identity_of
from anabranch.tuning.workers.job import WorkerJob, WorkerPlace, in_order, value_of
from anabranch.tuning.workers.local import LocalCrew
from anabranch.tuning.workers.pool import WorkerPool

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("workers")]


def seen(here: WorkerPlace) -> tuple[str, tuple[str, ...]]:
    return here.gpu, gpus()


def test_each_worker_sees_its_gpu_alone() -> None:
    found = gpus()
    asked = [WorkerJob(str(n), seen) for n in range(len(found))]
    with WorkerPool(LocalCrew("cuda", found), identity_of(resolve("cuda").spec)) as pool:
        told = [value_of(one) for one in in_order(asked, pool.outcomes(asked, Trace(quiet=True)))]
    assert all(visible == (own,) for own, visible in told)
    assert {own for own, _ in told} <= set(found)


def test_workers_that_share_a_gpu_compile_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda().eval()
    options: dict[str, Any] = {"effort": "fast", "cache_dir": tmp_path, "workers": 2}
    heard = Trace(quiet=True)
    sizes = [2, 9, 32]
    fast = anabranch.compile(
        model,
        torch.randn(32, 64, device="cuda"),
        dynamic_shapes=({0: Dim("batch", min=1, max=32)},),
        sizes=sizes,
        trace=heard,
        **options,
    )
    told = [dict(e.data) | {"what": e.what} for e in heard.events if e.where == "workers"]
    workers = {each["what"]: each["worker"] for each in told if "worker" in each}
    assert {f"size ({n},)" for n in sizes} <= workers.keys()
    assert len(set(workers.values())) > 1
    with torch.no_grad():
        for rows in (1, *sizes):
            x = torch.randn(rows, 64, device="cuda")
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_kernels_that_a_worker_has_tried_make_a_right_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpreadTrials, "least", 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)).cuda().eval()
    x, trace = torch.randn(64, 256, device="cuda"), Trace(quiet=True)
    options = Options.read({"cache_dir": tmp_path, "search": "none"})
    target = resolve("cuda")
    with WorkerPool(LocalCrew("cuda", gpus()[:1]), identity_of(target.spec), tmp_path) as pool:
        fast = Compiled(model, target, options, trace).add((x,), workers=pool)
    done = [e for e in trace.events if e.kind == "progress" and e.where == "workers"]
    assert any(e.what.endswith("kernels") and dict(e.data)["done"] == 1 for e in done)
    assert not [e for e in trace.events if e.kind == "warning" and e.where in ("workers", "tuning")]
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
