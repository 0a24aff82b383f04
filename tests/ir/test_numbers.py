"""Errors against a reference, and what counts as none."""

from __future__ import annotations

import itertools
from math import inf, nan

import torch

from anabranch.ir.numbers import compare, relative_error


def test_infinities_and_what_is_no_number_are_told_apart() -> None:
    for a, b in itertools.product((inf, -inf, nan, 1.0), repeat=2):
        same = relative_error(torch.tensor([a, 2.0]), torch.tensor([b, 2.0])) == 0.0
        assert same == (repr(a) == repr(b)), (a, b)
    odd = torch.tensor([complex(inf, nan), 1 + 2j])
    assert relative_error(odd, odd.clone()) == 0.0
    assert relative_error(odd, torch.tensor([complex(nan, inf), 1 + 2j])) == inf


def test_where_the_reference_overflows_the_plain_result_stands_for_it() -> None:
    own = torch.tensor([torch.finfo(torch.float32).max, 1.0])
    truth = torch.tensor([torch.finfo(torch.float64).max, 1.0], dtype=torch.float64)
    ((error, allowed),) = compare([own.clone()], [own], [truth])
    assert error <= allowed
    ((error, allowed),) = compare([own / 2], [own], [truth])
    assert not error <= allowed
