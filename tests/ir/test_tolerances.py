"""Errors against a reference, and what counts as none."""

from __future__ import annotations

import itertools
from math import inf, nan

import pytest
import torch

from anabranch.ir.tolerances import compare, mistaken, relative_error, screen


def test_infinities_and_what_is_no_number_are_told_apart() -> None:
    for a, b in itertools.product((inf, -inf, nan, 1.0), repeat=2):
        same = relative_error(torch.tensor([a, 2.0]), torch.tensor([b, 2.0])) == 0.0
        assert same == (repr(a) == repr(b)), (a, b)
    odd = torch.tensor([complex(inf, nan), 1 + 2j])
    assert relative_error(odd, odd.clone()) == 0.0
    assert relative_error(odd, torch.tensor([complex(nan, inf), 1 + 2j])) == inf


def test_numbers_below_the_smallest_normal_one_may_be_zero() -> None:
    """CUDA's library flushes them in kernels: sin(1e-40) is 0 there, and 1e-40 in eager."""
    zero, small = torch.zeros(2), torch.tensor([1e-40, -1e-39])
    assert relative_error(zero, small) == 0.0 == relative_error(small, zero)
    assert relative_error(zero, torch.tensor([1e-37, 0.0])) == 1.0
    half = torch.tensor([6e-8], dtype=torch.float16)
    assert relative_error(torch.zeros_like(half), half) == 1.0
    assert relative_error(zero.double(), small.double()) == 1.0


def test_where_the_reference_overflows_the_plain_result_stands_for_it() -> None:
    own = torch.tensor([torch.finfo(torch.float32).max, 1.0])
    truth = torch.tensor([torch.finfo(torch.float64).max, 1.0], dtype=torch.float64)
    ((error, allowed),) = compare([own.clone()], [own], [truth])
    assert error <= allowed
    ((error, allowed),) = compare([own / 2], [own], [truth])
    assert not error <= allowed


def test_a_screen_passes_nothing_that_is_wrong_and_most_that_is_right() -> None:
    """It is a shorter way to the same verdict: whatever passes is right by the long one too."""
    dice = torch.Generator().manual_seed(0)
    passed = refused = 0
    for trial in range(300):
        dtype = (torch.float32, torch.float16, torch.int64)[trial % 3]
        truth = (torch.randn(5, 7, generator=dice) * 10).to(torch.float64)
        if dtype.is_floating_point:
            truth[0, :4] = torch.tensor([inf, -inf, nan, 0.0], dtype=torch.float64)
        own = truth.to(dtype)
        slack = [None, truth.abs().nan_to_num(0.0, 0.0, 0.0) * 1e-3][trial // 3 % 2]
        signs = trial % 5 == 0
        out = own.clone()
        place = int(torch.randint(0, own.numel(), (), generator=dice))
        wild = [inf, -inf, nan, -0.0, 3.0, 1.0001][trial % 6]
        if dtype.is_floating_point and trial % 4:
            out.view(-1)[place] = wild if trial % 4 == 1 else out.view(-1)[place] * (1 + 1e-4)
        elif trial % 4:
            out.view(-1)[place] += trial % 2
        seen = screen([own], [truth], [slack], False, signs)
        assert seen is not None
        quick = seen.passes([out])
        told = mistaken(out, own, truth, slack, signs=signs)
        ((error, allowed),) = compare([out], [own], [truth])
        slow = not told and error <= allowed
        assert not quick or slow, (trial, told, error)
        passed, refused = passed + quick, refused + (not slow)
    assert passed > 100 and refused > 50


def test_a_screen_looks_at_shapes_and_types() -> None:
    own = torch.ones(3)
    seen = screen([own], [own.double()], [None], False, False)
    assert seen is not None and seen.passes([own.clone()])
    assert not seen.passes([own.half()])
    assert not seen.passes([own[:2]])
    assert screen([own.to(torch.complex64)], [own], [None], False, False) is None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_is_compared_though_torch_does_not(dtype: torch.dtype) -> None:
    truth = torch.tensor([0.0, 1.0, -3.0, 0.3], dtype=torch.float64)
    own, wrong = truth.to(dtype), (truth + torch.tensor([0, 0, 1.0, 0])).to(dtype)
    quick = screen([own], [truth], [torch.zeros(4)], False, True)
    assert quick is not None and quick.passes([own.clone()]) and not quick.passes([wrong])
    assert mistaken(own.clone(), own, truth, torch.zeros(4)) == ""
    assert "element [2]" in mistaken(wrong, own, truth, torch.zeros(4))
    odd = torch.tensor([nan, 1.0, -3.0, 0.3]).to(dtype)
    assert "element [0]" in mistaken(odd, own, truth, torch.zeros(4))
