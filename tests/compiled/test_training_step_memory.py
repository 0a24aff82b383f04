"""A training step under a limit of memory: what is read late is computed again."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.errors import MemoryLimitError
from anabranch.trace import Trace

QUICK: dict[str, Any] = {
    **{"target": "cpu", "cache_dir": None, "search": "none", "scheduler": "sequential"},
    **{"kernels": "library", "verify": False},
}


def deep(layers: int = 2, width: int = 32) -> nn.Module:
    torch.manual_seed(0)
    blocks = [(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(layers)]
    return nn.Sequential(*(layer for block in blocks for layer in block), nn.Linear(width, 5))


def loss_of(model: nn.Module, x: Tensor, t: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), t)


def batch(seed: int) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(seed)
    return torch.randn(256, 32, generator=make), torch.randint(5, (256,), generator=make)


def step_of(model: nn.Module, limit: int | None = None, **more: Any) -> anabranch.TrainingStep:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"memory_limit": limit, "seed": 1, "trace": Trace(quiet=True), **QUICK, **more}
    return anabranch.compile_step(model, loss_of, optimizer, batch(0), **options)


def needs(step: anabranch.TrainingStep) -> int:
    """What the step holds beside states."""
    plan = step.plan
    inputs = sum(value.type.nbytes for value in plan.tasks.call_inputs)
    constants = sum(constant.type.nbytes for constant in plan.tasks.constants)
    return plan.peak_bytes + inputs + constants


def test_a_limit_is_kept_and_the_losses_are_the_same(tmp_path: Path) -> None:
    model = deep()
    others = [copy.deepcopy(model) for _ in range(3)]
    whole = step_of(model)
    assert "Recomputed" not in whole.explain()
    limit = int(0.85 * needs(whole))
    less = step_of(others[0], limit, cache_dir=tmp_path, verify=True)
    assert needs(less) <= limit
    losses = [[one(*batch(seed)).item() for seed in range(4)] for one in (whole, less)]
    assert losses[0] == losses[1], "also what is dropped is the same again"
    pairs = zip(model.parameters(), others[0].parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)
    told = less.explain()
    assert re.search(r"Recomputed: \d+ values, [\d.]+ .s in tasks of their own", told)
    assert less.phases()["recompute"] > 0 and "recompute" not in whole.phases()
    # A later start knows at once what fits.
    trace = Trace(quiet=True)
    again = step_of(others[1], limit, cache_dir=tmp_path, trace=trace)
    assert needs(again) <= limit and not [e for e in trace.events if e.kind == "fallback"]
    assert [again(*batch(seed)).item() for seed in range(4)] == losses[0]
    with pytest.raises(
        MemoryLimitError, match=r"raise memory_limit to at least ([\d,]+) B"
    ) as short:
        step_of(others[2], limit // 10)
    named = re.search(r"at least ([\d,]+) B", str(short.value))
    assert named is not None
    least = int(named[1].replace(",", ""))
    assert limit // 10 < least < limit
    assert needs(step_of(others[2], least)) <= least, "what is said to be enough is"


def test_fused_kernels_do_not_make_early_what_is_to_be_made_late() -> None:
    options: dict[str, Any] = {"target": "sim:h200", "kernels": "all"}
    whole = step_of(deep(), **options)
    limit = int(0.8 * needs(whole))
    less = step_of(deep(), limit, **options)
    assert needs(less) <= limit
    copies = [t for t in less.plan.tasks.tasks if any("_again" in n.name for n in t.body.nodes)]
    assert copies and any("(recompute)" in task.origin for task in copies)
