"""What a drawn model's results are compared with."""

from __future__ import annotations

import pytest
import torch

from anabranch.fuzz.script_prelude import UnroundedBetweenCasts, compared


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
