"""Garbage waits until the block has ended, however it ends."""

from __future__ import annotations

import gc

import pytest

from anabranch.ir.gc_pause import uncollected


def test_nothing_is_collected_within() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_ends_with_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), uncollected():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_who_never_collects_is_left_alone() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
