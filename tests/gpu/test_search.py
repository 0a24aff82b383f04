"""Searches on the GPU: equal in value, no slower than without, and found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import anabranch
from anabranch.ir.tolerances import relative_error
from anabranch.models.zoo import ZOO


def half(value: Any) -> Any:
    return value.half().cuda() if value.is_floating_point() else value.cuda()


SEARCHED = [
    *((name, "library") for name in ("inception_v3", "nasnet_mobile", "resnext50")),
    *((name, kind) for name in ("bert_base", "sru") for kind in ("library", "all")),
]
"""Generated kernels for three searches of the larger ones take minutes."""


@pytest.mark.parametrize(("name", "kernels"), SEARCHED)
def test_what_a_search_finds(name: str, kernels: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ZOO[name].build("tiny").half().cuda().eval()
    args = tuple(map(half, ZOO[name].inputs("tiny", 1)))
    options: dict[str, Any] = {"kernels": kernels, "cache_dir": tmp_path, "search_prices": 1000}
    options |= {"search_seconds": 5.0, "scheduler": "critical"}
    plain, first, second = (
        anabranch.compile(model, args, target="cuda", search=search, strict=True, **options)
        for search in ("none", "autograph", "autograph")
    )
    with torch.no_grad():
        wants = tree_leaves(model(*args))
    for fast in (plain, first, second):
        for got, want in zip(tree_leaves(fast(*args)), wants, strict=True):
            assert got.stride() == want.stride()
            assert relative_error(got, want) < 1e-2
    made, again = (fast.entries[-1].compilation for fast in (first, second))
    assert made is not None and again is not None
    assert made.path is not None and again.path is not None
    assert again.path == made.path, "it has no more time"
    assert again.plan.schedule == made.plan.schedule
    for done in made.path.rounds:
        assert done.after.source == "measured" and done.after.us < done.before.us
