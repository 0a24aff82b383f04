"""Errors against a reference, and what counts as none."""

from __future__ import annotations

import itertools
from math import inf, nan

import pytest
import torch
from torch import Tensor

from anabranch.ir.tolerances import (
    Screen,
    compare,
    distance,
    expected,
    mistaken,
    relative_error,
    screen,
    tolerance,
    unit,
)


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


F64 = torch.float64
TINY = 2.0**-126
"""The smallest normal number of fp32."""


def test_the_error_is_a_ratio_of_norms() -> None:
    ones = torch.ones(2)
    assert relative_error(torch.tensor([1.0, 4.0]), ones) == pytest.approx(3 / 2**0.5)
    assert relative_error(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])) == 1.0
    assert relative_error(torch.tensor([3.0, 4.0]), torch.zeros(2)) == 5.0
    assert relative_error(torch.tensor([30.0, 40.0]), torch.tensor([0.0, 0.5])) > 90
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0
    assert relative_error(ones, torch.ones(1)) == inf
    assert relative_error(ones[:1], ones) == inf
    assert relative_error(torch.tensor([3 + 4j]), torch.tensor([0j])) == 5.0
    assert relative_error(torch.tensor([3j]), torch.tensor([1j])) == 2.0
    assert relative_error(torch.tensor([inf, 3.0]), torch.tensor([inf, 2.0])) == 0.5


def test_conjugates_that_are_not_written_out_are_compared() -> None:
    out = torch.tensor([1 + 2j, -3j], dtype=torch.complex128)
    assert relative_error(out.conj(), out.conj().clone()) == 0
    assert relative_error(out.conj(), out) > 0.5


def test_integers_are_equal_or_wrong() -> None:
    some = torch.tensor([1, 2], dtype=torch.int32)
    assert relative_error(some, some.long()) == 0.0 == relative_error(some, some.double())
    assert relative_error(some, some + 1) == inf
    assert relative_error(some > 1, some > 1) == 0.0
    assert relative_error(some > 1, some > 0) == inf


def test_errors_up_to_the_smallest_normal_number_are_none() -> None:
    zero = torch.zeros(1)
    assert relative_error(zero, torch.tensor([TINY], dtype=F64)) == 0.0
    assert relative_error(zero, torch.tensor([TINY * 1.001], dtype=F64)) == 1.0
    assert relative_error(zero, torch.tensor([-TINY * 1.001], dtype=F64)) == 1.0


@pytest.mark.parametrize(
    ("dtype", "floor", "floor_tf32"),
    [
        (torch.float64, 1e-12, 1e-12),
        (torch.float32, 1e-5, 1e-3),
        (torch.float16, 1e-3, 1e-3),
        (torch.bfloat16, 8e-3, 8e-3),
        (torch.complex64, 1e-5, 1e-5),
        (torch.complex128, 1e-12, 1e-12),
        (torch.int64, 0.0, 0.0),
    ],
)
def test_twice_the_error_of_the_plain_model_and_a_floor(
    dtype: torch.dtype, floor: float, floor_tf32: float
) -> None:
    assert tolerance(dtype, 0.0) == floor
    assert tolerance(dtype, 0.25) == 0.5 + floor
    assert tolerance(dtype, 0.25, tf32=True) == 0.5 + floor_tf32


def test_what_is_expected_has_the_error_of_the_plain_model() -> None:
    plain, truth = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5], dtype=F64)
    error = relative_error(plain, truth)
    for tf32, floor in ((False, 1e-5), (True, 1e-3)):
        ((wanted, allowed),) = expected([plain], [truth], tf32)
        assert wanted is truth and allowed == pytest.approx(2 * error + floor)
        assert compare([plain], [plain], [truth], tf32) == [(error, allowed)]


def test_where_the_slack_is_known_each_element_has_its_own() -> None:
    plain, slack = torch.tensor([0.0, 0.5], dtype=F64), torch.tensor([0.25, 0.125])
    found = distance(plain, torch.ones(2), slack, torch.float32, False)
    assert found.tolist() == [0.25, 1.125]


@pytest.mark.parametrize(("tf32", "floor"), [(False, 1e-5), (True, 1e-3)])
def test_where_nobody_knows_the_slack_the_worst_of_the_plain_model_counts(
    tf32: bool, floor: float
) -> None:
    plain, size = torch.tensor([0.0, 0.5, 2.0], dtype=F64), torch.tensor([9.0, 1.0, 3.0], dtype=F64)
    found = distance(plain, size, None, torch.float32, tf32)
    rest = 16 * 2.0 + 64 * floor * 9
    assert found.tolist() == pytest.approx([rest, 1 + rest, 4 + rest], rel=1e-12)
    assert distance(plain[:0], size[:0], None, torch.float32, tf32).tolist() == []
    zero = torch.zeros(1, dtype=F64)
    assert distance(zero, zero, None, torch.float32, tf32).tolist() == [0.0]


def told(out: list[float], own: list[float], truth: list[float], **how: object) -> str:
    a, b = torch.tensor(out), torch.tensor(own)
    return mistaken(a, b, torch.tensor(truth, dtype=F64), **how)  # type: ignore[arg-type]


def test_an_element_may_be_off_by_its_slack_and_twice_the_plain_error() -> None:
    slack = torch.tensor([0.0, 0.25])
    assert told([1.0, 2.25], [1.0, 2.0], [1.0, 2.0], slack=slack) == ""
    assert told([1.0, 1.75], [1.0, 2.0], [1.0, 2.0], slack=slack) == ""
    assert told([1.0, 3.25], [1.0, 2.5], [1.0, 2.0], slack=slack) == ""
    assert told([1.0, 3.375], [1.0, 2.5], [1.0, 2.0], slack=slack) == (
        "element [1] is 3.375 and not 2.5, off by 1.38e+00 where 1.25e+00 is allowed, 1 of 2 such"
    )
    assert told([1.125, 2.5], [1.0, 2.0], [1.0, 2.0], slack=slack) == (
        "element [0] is 1.125 and not 1.0, off by 1.25e-01 where 0.00e+00 is allowed, 2 of 2 such"
    )


def test_without_a_slack_all_may_be_off_by_a_share_of_the_largest() -> None:
    near, far = 1024 * 64 * 1e-5 - 0.001, 1024 * 64 * 1e-5 + 0.001
    assert told([near, 1024.0], [0.0, 1024.0], [0.0, 1024.0]) == ""
    assert "off by" in told([far, 1024.0], [0.0, 1024.0], [0.0, 1024.0])
    assert told([far, 1024.0], [0.0, 1024.0], [0.0, 1024.0], tf32=True) == ""
    assert told([far, 1024.0], [0.0, 1024.0], [1.0, 1024.0]) == ""


def test_shapes_and_types_are_those_of_the_plain_model() -> None:
    own = torch.ones(3)
    assert mistaken(own[:2], own, own) == "torch.float32[2] where torch.float32[3] is expected"
    assert mistaken(own.half(), own, own) == "torch.float16[3] where torch.float32[3] is expected"


def test_integers_are_those_of_the_plain_model_or_of_the_truth() -> None:
    own, truth = torch.tensor([1, 2, 3]), torch.tensor([1.0, 5.0, 3.0], dtype=F64)
    assert mistaken(torch.tensor([1, 5, 3]), own, truth) == "" == mistaken(own, own, truth)
    assert mistaken(own.clone(), own, truth) == ""
    assert "element [0] is 0" in mistaken(torch.tensor([0, 5, 3]), own, truth)
    assert mistaken(torch.tensor([1, 4, 3]), own, truth) == (
        "element [1] is 4 and not 2, 1 of 3 such"
    )
    assert mistaken(torch.tensor([1, 4, 3]), own, truth, torch.tensor([0.0, 0.5, 0.0])) == ""
    assert mistaken(torch.tensor([1, 2, 4]), own, truth, torch.tensor([0.0, 0.5, 0.0]))
    assert mistaken(torch.tensor([1, 2, 4]), own, truth, torch.zeros(3))


def test_what_is_not_finite_is_no_error_of_the_plain_model() -> None:
    """What others may be off by comes of the finite elements alone."""
    plain, infinite = torch.tensor([1.0, 2.0]), torch.tensor([1.0, inf])
    allowed = []
    for own in (plain, infinite):
        seen = screen([own], [own.double()], [None], False, False)
        assert seen is not None
        allowed.append(float(seen.allowed[0][0]))
    assert allowed == pytest.approx([64 * 1e-5 * 2, 64 * 1e-5 * 1], rel=1e-6)


KINDS = (inf, -inf, nan, 2.0)


@pytest.mark.parametrize("out", KINDS)
@pytest.mark.parametrize("own", KINDS)
@pytest.mark.parametrize("truth", KINDS)
def test_a_class_is_that_of_the_plain_model_or_of_the_truth(
    out: float, own: float, truth: float
) -> None:
    known = repr(out) in (repr(own), repr(truth))
    zero, all_ = torch.zeros(2), torch.tensor([inf, 0.0])
    given = [out, 1.0], [own, 1.0], [truth, 1.0]
    assert (told(*given) == "") == known
    assert (told(*given, slack=zero) == "") == known
    assert told(*given, slack=all_) == ""
    assert (told(*given, spread=True) == "") == (
        known or inf in (abs(own), abs(truth)) or nan in (own, truth)
    )
    quick = screen(
        [torch.tensor(given[1])], [torch.tensor(given[2], dtype=F64)], [zero], False, False
    )
    assert quick is not None
    assert quick.passes([torch.tensor(given[0])]) == (repr(out) == repr(own))
    assert quick.allowed[0].tolist() == [0.0 if own == truth == 2.0 else -1.0, 0.0]


def test_what_a_number_of_the_dtype_cannot_hold_is_infinite() -> None:
    own, truth = torch.tensor([65504.0], dtype=torch.float16), torch.tensor([1e6], dtype=F64)
    assert mistaken(torch.tensor([inf], dtype=torch.float16), own, truth) == ""
    assert "is -inf" in mistaken(torch.tensor([-inf], dtype=torch.float16), own, truth)


@pytest.mark.parametrize("signs", [False, True])
def test_zeros_have_a_sign_where_it_is_asked_for(signs: bool) -> None:
    for out, own in ((0.0, -0.0), (-0.0, 0.0)):
        said = told([1.0, out], [1.0, own], [1.0, 0.0], signs=signs, slack=torch.zeros(2))
        assert (f"element [1] is {out} and not {own}" in said) == signs
        seen = screened([1.0, own], [1.0, 0.0], signs=signs)
        assert seen.passes([torch.tensor([1.0, out])]) != signs
    assert told([-0.0, 1.0], [-0.0, 1.0], [0.0, 1.0], signs=signs) == ""
    assert screened([-0.0, 1.0], [0.0, 1.0], signs=signs).passes([torch.tensor([-0.0, 1.0])])
    assert told([0.0, 1.0], [-0.5, 1.0], [0.0, 1.0], signs=signs, slack=torch.zeros(2)) == ""


def test_complex_numbers_are_looked_at_by_their_parts() -> None:
    own = torch.tensor([1 + 2j, 3 + 4j])
    for truth in (own.to(torch.complex128), own):
        assert mistaken(own.clone(), own, truth) == ""
        assert "element [1, 1]" in mistaken(own + torch.tensor([0, 1j]), own, truth)
        assert "element [0, 0]" in mistaken(own + torch.tensor([1, 0]), own, truth)
    real = torch.tensor([1 + 0j, 3 + 0j])
    assert mistaken(real.conj(), real, real.real.double()) == ""
    assert "[0, 0]" in mistaken(real + torch.tensor([1, 0]), real, real.real.double())
    flipped = torch.tensor([complex(1.0, -0.0)])
    assert mistaken(flipped, torch.tensor([complex(1.0, 0.0)]), flipped * 1, signs=False) == ""


def screened(
    own: list[float],
    truth: list[float],
    slack: Tensor | None = None,
    tf32: bool = False,
    signs: bool = False,
) -> Screen:
    made = screen(
        [torch.tensor(own)],
        [torch.tensor(truth, dtype=F64)],
        [torch.zeros(2) if slack is None else slack],
        tf32,
        signs,
    )
    assert made is not None
    return made


def test_a_screen_has_the_limit_of_each_element_and_of_the_whole() -> None:
    seen = screened([3.0, 4.5], [3.0, 4.0], torch.tensor([0.25, 0.0]))
    assert seen.allowed[0].tolist() == [0.25, 1.0]
    assert seen.whole[0] == pytest.approx((2 * 0.5 / 5 + 1e-5) * 5, rel=1e-12)
    assert screened([3.0, 4.0], [3.0, 4.0], tf32=True).whole[0] == pytest.approx(5e-3)
    assert screened([inf, 4.0], [inf, 4.0]).whole[0] == pytest.approx(4e-5)
    assert screened([inf, 4.0], [3.0, 4.0]).whole[0] == pytest.approx(5e-5)
    assert seen.passes([torch.tensor([3.25, 4.0])]) and seen.passes([torch.tensor([3.0, 5.0])])
    assert not seen.passes([torch.tensor([3.25, 5.0])])  # each may be, together it is too far
    assert not seen.passes([torch.tensor([3.26, 4.0])])
    assert not seen.passes([torch.tensor([3.0, 5.01])])


def test_a_screen_of_no_results_and_of_several() -> None:
    none = screen([], [], [], False, False)
    assert none is not None and none.passes([])
    own = [torch.ones(2), torch.tensor([1, 2]), torch.tensor([True, False])]
    truth = [one.double() for one in own]
    seen = screen(own, truth, [None, None, None], False, True)
    assert seen is not None and seen.passes([one.clone() for one in own])
    assert seen.allowed[1].tolist() == [-1.0, -1.0] and seen.allowed[2].tolist() == [-1.0, -1.0]
    for i, other in ((0, own[0] * 2), (1, own[1] + 1), (2, ~own[2])):
        assert not seen.passes([other if i == j else one for j, one in enumerate(own)])
    assert screen([*own, torch.ones(2) * 1j], [*truth, truth[0]], [None] * 4, False, True) is None
    odd = screen([torch.ones(2)], [truth[0]], [torch.tensor([inf, nan])], False, False)
    assert odd is not None and odd.allowed[0].tolist() == [-1.0, -1.0]


def test_the_unit_is_the_norm_of_what_is_finite_or_one() -> None:
    assert unit(torch.tensor([3.0, -4.0, torch.inf, torch.nan])) == 5.0
    assert unit(torch.tensor([3 + 4j, complex(inf, 0.0)])) == 5.0
    assert unit(torch.zeros(3)) == unit(torch.zeros(0)) == 1.0
