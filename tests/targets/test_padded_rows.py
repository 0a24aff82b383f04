"""Calls copied straight into a plan's buffers lie there as tensors that were padded before."""

from __future__ import annotations

import itertools

import pytest
import torch

from anabranch.frontend.padded_tensors import padded, repeated, without_padding
from anabranch.ir.call_padding import CallPadding, Filling, RowsOfResult
from anabranch.targets.padded_rows import PaddedRows

ORDERS = list(itertools.permutations(range(3)))


def laid_out(shape: list[int], order: tuple[int, ...]) -> torch.Tensor:
    dense = torch.randn([shape[d] for d in order])
    return dense.permute([order.index(d) for d in range(len(order))])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("zeros", [(False, False), (True, True), (True, False)])
@pytest.mark.parametrize("group", [1, 2])
def test_the_rest_of_a_buffer_is_filled_axis_by_axis(
    order: tuple[int, ...], zeros: tuple[bool, bool], group: int
) -> None:
    x = laid_out([3, 2, 2 * group], order)
    numbers = [0 if zero else None for zero in zeros]
    want = padded(padded(x, (0, 1, 1), 3, 5, numbers[0]), (2, 1, group), 2, 4, numbers[1])
    buffer = torch.full_like(want, torch.nan)
    fillings = (
        Filling(0, 3, 5, 1, numbers[0]),
        Filling(2, 2 * group, 4 * group, group, numbers[1]),
    )
    rows = PaddedRows([buffer], CallPadding((fillings,), ()))
    for _ in range(2):  # and over what an earlier call has left
        rows.fill([x])
        torch.testing.assert_close(buffer, want, rtol=0, atol=0)
        assert buffer.stride() == want.stride()
        buffer.add_(1)


@pytest.mark.parametrize("clone", [True, False])
def test_results_have_the_rows_of_the_call_without_gaps(clone: bool) -> None:
    outputs = [torch.randn(5, 4), torch.randn(4, 5).t(), torch.randn(2 * 5 * 3, 2), torch.ones(3)]
    axes = [(0, 1, 1), (0, 1, 1), (0, 0, 3)]
    call = CallPadding((), (*((RowsOfResult(*at, 2, 5),) for at in axes), ()))
    results = PaddedRows([], call).cut(outputs, clone, {3})
    for got, output, at in zip(results, outputs, axes, strict=False):
        want = without_padding(output, at, 2, 5)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.stride() == want.clone().stride()
        if clone:
            assert got.untyped_storage().data_ptr() != output.untyped_storage().data_ptr()
    assert results[3] is outputs[3]  # a state, which nobody copies


@pytest.mark.parametrize("order", ORDERS)
def test_more_or_fewer_rows_keep_the_order_in_memory(order: tuple[int, ...]) -> None:
    x = laid_out([3, 2, 4], order)
    for size in (2, 3, 7):
        more = repeated(x, 0, size)
        torch.testing.assert_close(more, x[torch.arange(size) % 3], rtol=0, atol=0)
        assert more.stride() == laid_out([size, 2, 4], order).stride()
    wide = torch.randn(1, 4).expand(3, 4)
    assert repeated(wide, 0, 5).stride() == (0, 1)
    assert repeated(wide, 1, 6).stride() == (0, 1)
