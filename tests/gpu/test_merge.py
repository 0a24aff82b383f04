"""Merged convolutions on the GPU: in channels_last a slice is strided, and its readers take it.

Compiling verifies every kernel and the whole plan; here: something was merged, and replays agree.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.gpu.shared import shared_cache

import anabranch
from anabranch.models.zoo import ZOO


@pytest.mark.parametrize(
    ("name", "size", "scheduler", "batch", "kernels"),
    [
        ("squeezenet_bypass", "paper", "ios-merge", 1, "library"),
        ("squeezenet_bypass", "tiny", "ios-both", 4, "all"),
        ("squeezenet_bypass", "tiny", "ios-paper", 4, "library"),
        ("inception_v3", "tiny", "ios-merge", 1, "library"),
        ("inception_v3", "tiny", "ios-merge", 1, "all"),
        ("inception_v3", "tiny", "ios-both", 4, "library"),
    ],
)
def test_merged_networks(
    name: str, size: str, scheduler: str, batch: int, kernels: str, tmp_path: Path
) -> None:
    """Whether a merge of a tiny network pays is for the clock to say; that some are offered, and
    that what comes out is right, is not."""
    model = ZOO[name].build(size).half().cuda()
    args = tuple(x.half().cuda() for x in ZOO[name].inputs(size, batch))
    fast = anabranch.compile(
        model,
        args,
        target="cuda",
        kernels=kernels,
        search="none",
        cache_dir=shared_cache(tmp_path),
        scheduler=scheduler,
        budget=25.0 if kernels == "all" else None,
        strict=True,
    )
    merges = [event for event in fast.trace.events if event.where == "schedule.merge"]
    offered = [event.why for event in merges if event.kind == "applied"]
    assert offered and not any(why.startswith("0 sets offered") for why in offered)
    if size == "paper":
        assert any("_and_" in task.name for task in fast.entries[0].plan.tasks.tasks)
    with torch.no_grad():
        want = model(*args)
    first, second = (fast(*args) for _ in range(2))
    assert torch.equal(first, second)
    scale = want.float().abs().max().item()
    assert (first.float() - want.float()).abs().max().item() <= 5e-2 * scale
