"""What a drawn model's results are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anabranch.fuzz.script_prelude import UnroundedBetweenCasts, compared, judges


def test_only_casts_round_in_what_is_as_true_as_fp64() -> None:
    x = torch.tensor([1.0 + 2**-13, 3.0], dtype=torch.float64)
    with UnroundedBetweenCasts():  # type: ignore[no-untyped-call]
        kept = (x.half() + 2**-13).to(x.dtype)
    assert kept.tolist() == [1.0 + 2**-13, 3.0 + 2**-13]
    assert (x.half() + 2**-13).to(x.dtype).tolist() == [1.0, 3.0]


@pytest.mark.parametrize(("ours", "wrong"), [(1.0, 0), (1.0 + 2**-13, 0), (1.0 + 2**-12, 1)])
def test_a_sum_between_casts_may_round_or_not(ours: float, wrong: int) -> None:
    outs, own = [torch.tensor([ours])], [torch.tensor([1.0])]
    kept = [torch.tensor([1.0 + 2**-13], dtype=torch.float64)]
    assert len(compared(outs, own, [own[0].double()], False, unrounded=kept)) == wrong


def test_the_model_s_own_results_are_not_computed_with_more_precision() -> None:
    """Else a library's rounding, cuDNN's gates for one, would be the plan's fault."""
    ways: list[str] = []

    @contextmanager
    def within(way: str) -> Iterator[None]:
        ways.append(way)
        yield
        ways.pop()

    target: Any = SimpleNamespace(
        own_precision=lambda: within("own"), full_precision=lambda: within("full")
    )

    class Told(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, list[str]]:
            return x.half().to(x.dtype) + 1, list(ways)

    x = torch.ones(2)
    found = judges(Told(), Told(), [x], [x.double()], target)
    assert [said for _, said in found] == [["own"], ["full"], ["full"]]
    assert [out.dtype for out, _ in found] == [torch.float32, torch.float64, torch.float64]
