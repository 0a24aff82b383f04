"""Merged convolutions on the GPU: in channels_last a slice is strided, and its readers take it.

Compiling verifies every kernel and the whole plan; here: something was merged, and replays agree.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anabranch
from anabranch.zoo import ZOO


@pytest.mark.parametrize("kernels", ["library", "all"])
@pytest.mark.parametrize(("scheduler", "batch"), [("ios-merge", 1), ("ios-both", 4)])
@pytest.mark.parametrize("name", ["squeezenet_bypass", "inception_v3"])
def test_merged_networks(
    name: str, scheduler: str, batch: int, kernels: str, tmp_path: Path
) -> None:
    model = ZOO[name].build("paper").half().cuda()
    args = tuple(x.half().cuda() for x in ZOO[name].inputs("paper", batch))
    fast = anabranch.compile(
        model,
        args,
        target="cuda",
        kernels=kernels,
        search="none",
        cache_dir=tmp_path,
        scheduler=scheduler,
        strict=True,
    )
    plan = fast.entries[0].plan
    merged = any("_and_" in task.name for task in plan.tasks.tasks)
    assert merged or scheduler != "ios-merge" or kernels == "all"
    with torch.no_grad():
        want = model(*args)
    first, second = (fast(*args) for _ in range(2))
    assert torch.equal(first, second)
    scale = want.float().abs().max().item()
    assert (first.float() - want.float()).abs().max().item() <= 5e-2 * scale
