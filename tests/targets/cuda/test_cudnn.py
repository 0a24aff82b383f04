"""Handles of cuDNN are lent, not made anew for each target."""

from __future__ import annotations

import itertools

import pytest

from anabranch.targets.cuda.cudnn import HandlePool


def test_no_two_hold_one_handle_at_once_and_no_more_are_made_than_that() -> None:
    pool = HandlePool(itertools.count().__next__)
    with pool.lend() as first, pool.lend() as second:
        assert {first, second} == {0, 1}
    for _ in range(5):
        with pool.lend() as again:
            assert again in (0, 1)
    assert sorted(pool.free) == [0, 1]


def test_a_handle_comes_back_from_a_call_that_fails() -> None:
    pool = HandlePool(itertools.count().__next__)
    with pytest.raises(RuntimeError), pool.lend():
        raise RuntimeError("no engine")
    assert pool.free == [0]
