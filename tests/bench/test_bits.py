from __future__ import annotations

import torch

from anabranch.bench.bits import same_bits


def test_bits_are_compared_and_not_numbers() -> None:
    zero, nan = torch.zeros(3), torch.full((2, 2), torch.nan)
    assert not same_bits([zero], [-zero])
    assert same_bits([nan, zero], [nan.clone(), zero])
    assert same_bits([nan.T], [nan])
    assert same_bits([torch.tensor(1.5)], [torch.tensor(1.5)])
    assert not same_bits([zero], [zero[:2]])
