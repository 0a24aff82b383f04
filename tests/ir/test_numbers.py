"""Errors against a reference, and what counts as none."""

from __future__ import annotations

import torch

from anabranch.ir.numbers import compare


def test_where_the_reference_overflows_the_plain_result_stands_for_it() -> None:
    own = torch.tensor([torch.finfo(torch.float32).max, 1.0])
    truth = torch.tensor([torch.finfo(torch.float64).max, 1.0], dtype=torch.float64)
    ((error, allowed),) = compare([own.clone()], [own], [truth])
    assert error <= allowed
    ((error, allowed),) = compare([own / 2], [own], [truth])
    assert not error <= allowed
