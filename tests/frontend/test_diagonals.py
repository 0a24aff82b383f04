"""Filled diagonals, against torch's."""

from __future__ import annotations

import pytest
import torch

from anabranch.frontend.diagonals import fill_diagonal_


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize(
    "shape", [(3, 3), (3, 5), (7, 3), (8, 3), (9, 2), (4, 1), (0, 3), (3, 3, 3), (2, 2, 2, 2)]
)
def test_the_diagonal_is_torchs(shape: tuple[int, ...], wrap: bool) -> None:
    x, wanted = torch.ones(shape), torch.ones(shape)
    assert fill_diagonal_(x, 7, wrap) is x
    assert torch.equal(x, wanted.fill_diagonal_(7, wrap))


@pytest.mark.parametrize("shape", [(3,), (2, 3, 3)])
def test_what_has_no_diagonal_is_refused(shape: tuple[int, ...]) -> None:
    for fill in (torch.Tensor.fill_diagonal_, fill_diagonal_):
        with pytest.raises(RuntimeError, match="dimensions"):
            fill(torch.ones(shape), 7.0)
